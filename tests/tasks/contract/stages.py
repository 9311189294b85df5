"""Small real stages that the tests of the contract run, some of them in other processes."""

import os
import signal
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tasks.contract import (
    ACCOUNTS,
    DOCUMENTS,
    LEDGER,
    Artifact,
    Part,
    Session,
    StageConfig,
    Store,
    Table,
    Tables,
    Work,
    ids,
    open_session,
    part_of,
    removals,
    stage,
    text_hashes,
)


class MakeConfig(StageConfig):
    documents: int = 10_000
    word: str = "wörd"
    parts: int = 1


class DropConfig(StageConfig):
    drop: str = "77"
    note: float = 0.0  # goes to the ledger, not to the documents
    forget: bool = False


def made_documents(config: MakeConfig) -> pa.Table:
    """In the order of their ids."""
    keys = [str(i) for i in range(config.documents)]
    texts = pa.array([f"{config.word} {key}" for key in keys], pa.large_string())
    doc_ids = ids(keys)
    source = ["even" if i % 2 == 0 else "odd" for i in range(config.documents)]
    columns = [doc_ids, source, doc_ids, texts, text_hashes(texts)]
    return pa.table(columns, DOCUMENTS.names).sort_by("doc_id")


def make_part(number: int, config: MakeConfig, out: Tables) -> None:
    documents = made_documents(config)
    here = [part_of(i, config.parts) == number for i in documents["doc_id"].to_pylist()]
    out.table("documents").write(documents.filter(pa.array(here)))


@stage(tables={"documents": DOCUMENTS})
def make(config: MakeConfig, work: Work) -> None:
    work.parts(make_part, range(config.parts), config)


def drop_part(part: Part, config: DropConfig, out: Tables) -> int:
    count = 0
    for batch in part.batches():
        gone = pc.match_substring(batch["text"], config.drop)
        out.table("documents").write(batch.filter(pc.invert(gone)))
        removed = batch.filter(gone)
        count += removed.num_rows
        if not config.forget:
            out.table("ledger").write(removals("has the word", removed, threshold=config.note))
    return count


@stage(tables={"documents": DOCUMENTS, "ledger": LEDGER})
def drop(documents: Table, config: DropConfig, work: Work) -> None:
    work.parts(drop_part, documents.parts, config)


COUNT = pa.schema([("rows", pa.int64())])


class CountConfig(StageConfig):
    pass


@stage(tables={"count": COUNT})
def count(documents: Table, config: CountConfig, work: Work) -> None:
    work.table("count").write({"rows": [documents.rows]})


@stage(tables={"count": COUNT, "accounts": ACCOUNTS})
def miscount(config: CountConfig, work: Work) -> None:
    book = {"source": "s", "unit": "rows", "in": 5, "added": 0, "kept": 4, "removed_rows": 0}
    book |= {"removed_spans": 0, "quarantined": 0, "replaced": 0}
    work.table("accounts").write({key: [value] for key, value in book.items()})


def die_once(shard: str, flag: str, out: Tables) -> None:
    """Kills its own process the first time; the other shards finish."""
    if shard == "victim" and not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    out.table("count").write({"rows": [len(shard)]})


def fail(shard: str, out: Tables) -> None:
    raise ValueError(f"cannot read {shard}")


@stage(tables={"count": COUNT})
def slow_commit(config: CountConfig, work: Work) -> None:
    """Says that it is running, then waits for a line before it goes on to commit."""
    work.table("count").write({"rows": [7]})
    work.file("big.bin").write_bytes(b"x" * 100_000)
    print("running", flush=True)
    sys.stdin.readline()


def main() -> None:
    """A process that runs ``slow_commit`` in the store given; its work area may be its own."""
    store = Store(sys.argv[1], Path(sys.argv[2]))
    with open_session(Session(store)):
        artifact: Artifact = slow_commit(CountConfig())
    print(artifact.manifest["files"]["big.bin"]["path"], flush=True)


if __name__ == "__main__":
    main()
