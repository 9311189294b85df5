"""Define small real stages for the tests of the contract; some run in other processes."""

import os
import signal
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.contract import (
    ACCOUNTS,
    DOCUMENTS,
    LEDGER,
    Artifact,
    Session,
    StageConfig,
    StageContext,
    Store,
    Table,
    TablePart,
    TableWriters,
    build_ledger_columns,
    build_removal_ledger_columns,
    doc_id_to_part_index,
    fill_document_columns,
    hash_documents,
    hash_texts,
    hash_to_ids,
    open_session,
    stage,
)


class MakeConfig(StageConfig):
    documents: int = 10_000
    word: str = "wörd"
    parts: int = 1


FOUR_PARTS = MakeConfig(documents=200, parts=4)


class DropConfig(StageConfig):
    drop: str = "77"
    note: float = 0.0  # goes to the ledger, not to the documents
    forget: bool = False


def made_documents(config: MakeConfig) -> pa.Table:
    """Build documents in the order of their ids."""
    keys = [str(i) for i in range(config.documents)]
    texts = pa.array([f"{config.word} {key}" for key in keys], pa.large_string())
    doc_ids = hash_to_ids(keys)
    source = ["even" if i % 2 == 0 else "odd" for i in range(config.documents)]
    known = {"doc_id": doc_ids, "source": source, "cluster": doc_ids, "text": texts}
    columns = fill_document_columns(known | {"text_hash": hash_texts(texts)})
    return pa.table(columns, schema=DOCUMENTS).sort_by("doc_id")


def make_part(number: int, config: MakeConfig, out: TableWriters) -> None:
    documents = made_documents(config)
    here = [
        doc_id_to_part_index(i, config.parts) == number for i in documents["doc_id"].to_pylist()
    ]
    out.get_table_writer("documents").write(documents.filter(pa.array(here)))


@stage(name="make", tables={"documents": DOCUMENTS})
def make(config: MakeConfig, context: StageContext) -> None:
    context.map_partitions(make_part, range(config.parts), config)


def drop_part(part: TablePart, config: DropConfig, out: TableWriters) -> int:
    count = 0
    for batch in part.iter_batches():
        gone = pc.match_substring(batch["text"], config.drop)
        out.get_table_writer("documents").write(batch.filter(pc.invert(gone)))
        removed = batch.filter(gone)
        count += removed.num_rows
        if not config.forget:
            out.get_table_writer("ledger").write(
                build_removal_ledger_columns("has the word", removed, threshold=config.note)
            )
    return count


@stage(name="drop", tables={"documents": DOCUMENTS, "ledger": LEDGER})
def drop(documents: Table, config: DropConfig, context: StageContext) -> None:
    context.map_partitions(drop_part, documents.parts, config)


COUNT = pa.schema([("rows", pa.int64())])


class CountConfig(StageConfig):
    pass


@stage(name="count", tables={"count": COUNT})
def count(documents: Table, config: CountConfig, context: StageContext) -> None:
    context.get_table_writer("count").write({"rows": [documents.row_count]})


@stage(name="keep_number")
def keep_number(config: CountConfig, context: StageContext) -> None:
    context.prepare_output_path("number.txt").write_text("7")


@stage(name="double", tables={"count": COUNT})
def double(number: Artifact, config: CountConfig, context: StageContext) -> None:
    """Double a number; anything else fails with an error of Python."""
    context.get_table_writer("count").write(
        {"rows": [2 * int(number.fetch_file("number.txt").read_text())]}
    )


@stage(name="miscount", tables={"count": COUNT, "accounts": ACCOUNTS})
def miscount(config: CountConfig, context: StageContext) -> None:
    book = {"source": "s", "unit": "rows", "input": 5, "added": 0, "kept": 4, "removed_rows": 0}
    book |= {"removed_spans": 0, "quarantined": 0, "replaced": 0}
    context.get_table_writer("accounts").write({key: [value] for key, value in book.items()})


def die_once(shard: str, flag: str, out: TableWriters) -> None:
    """Kill the own process the first time; the other items finish."""
    if shard == "victim" and not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    out.get_table_writer("count").write({"rows": [len(shard)]})


def fail(shard: str, out: TableWriters) -> None:
    raise ValueError(f"cannot read {shard}")


class LoggedConfig(StageConfig):
    log: str  # a file that gets a line whenever work on a part begins
    fault: Literal["kill", "fail", "fail once"]


@stage(name="logged", tables={"documents": DOCUMENTS, "ledger": LEDGER})
def logged(documents: Table, config: LoggedConfig, context: StageContext) -> None:
    context.map_partitions(logged_part, documents.parts, config)


def logged_part(part: TablePart, config: LoggedConfig, out: TableWriters) -> None:
    """Fail at part 3, as the config says."""
    path = Path(config.log)
    before = path.read_text().split() if path.exists() else []
    with path.open("a") as file:
        file.write(f"{part.index}\n")
    if part.index == 2 and (config.fault == "fail" or "2" not in before):
        if config.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("the moon is full")
    for batch in part.iter_batches():
        out.get_table_writer("documents").write(batch)


class FaultConfig(StageConfig):
    fault: str


@stage(name="faulty", tables={"documents": DOCUMENTS, "ledger": LEDGER})
def faulty(documents: Table, config: FaultConfig, context: StageContext) -> None:
    context.map_partitions(faulty_part, documents.parts, config)


def faulty_part(part: TablePart, config: FaultConfig, out: TableWriters) -> None:
    """Pass on documents, except for a fault in the first two of one length of "even"."""
    rows = part.read().to_pylist()
    groups: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["source"] == "even":
            groups[len(row["text"].encode())].append(row)
    one, two = next(group for group in groups.values() if len(group) > 1)[:2]
    entered = hash_documents(pa.array([one["doc_id"]]), pa.array([one["text"]]))
    size = len(one["text"].encode())
    written = build_ledger_columns("replaced", "why", [one["doc_id"]], ["even"], [size], [size])
    match config.fault:
        case "two texts are swapped":
            one["text"], two["text"] = two["text"], one["text"]
        case "one document is lost and another doubled":
            rows = [two if row is one else row for row in rows]
        case "a text is changed":
            one["text"] = one["text"][::-1]
        case "a text is changed, and the ledger says so":
            one["text"] = one["text"][::-1]
            out.get_table_writer("ledger").write(written | {"document_hash": entered})
        case "a text is changed, and the ledger names another document":
            one["text"] = one["text"][::-1]
            other = hash_documents(pa.array([two["doc_id"]]), pa.array([two["text"]]))
            out.get_table_writer("ledger").write(
                written | {"doc_id": [two["doc_id"]], "document_hash": other}
            )
        case "a text is changed, and the ledger does not say what it was":
            one["text"] = one["text"][::-1]
            out.get_table_writer("ledger").write(written)
        case "a document goes to another source":
            one["source"] = "odd"
        case "two documents change places between sources":
            other = next(r for r in rows if r["source"] == "odd" and len(r["text"]) == size - 1)
            one["source"], other["source"] = "odd", "even"
        case "two ids are swapped":
            one["doc_id"], two["doc_id"] = two["doc_id"], one["doc_id"]
        case "nothing":
            pass
    out.get_table_writer("documents").write(pa.Table.from_pylist(rows, schema=DOCUMENTS))


@stage(name="slow_commit", tables={"count": COUNT})
def slow_commit(config: CountConfig, context: StageContext) -> None:
    """Print that the stage is running, then wait for a line before the commit."""
    context.get_table_writer("count").write({"rows": [7]})
    context.prepare_output_path("big.bin").write_bytes(b"x" * 100_000)
    print("running", flush=True)
    sys.stdin.readline()


def main() -> None:
    """Run ``slow_commit`` in a process, in the given store and perhaps with its own work area.

    With a log file as the last argument, run ``logged`` instead, which is killed.
    """
    store = Store(sys.argv[1], Path(sys.argv[2]))
    with open_session(Session(store)):
        if len(sys.argv) > 3:
            logged(make(FOUR_PARTS), LoggedConfig(log=sys.argv[3], fault="kill"))
        artifact: Artifact = slow_commit(CountConfig())
    print(artifact.manifest["files"]["big.bin"]["path"], flush=True)


if __name__ == "__main__":
    main()
