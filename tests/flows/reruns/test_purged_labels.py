"""A purge keeps names that a document happens to contain, and removes unreadable records of it."""

import gzip
import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hallmark.flows.commands.purge import purge_document, render_purge
from hallmark.flows.quotation_removal import (
    QuotationFinder,
    decode_possible_texts,
    remove_document_content,
)
from hallmark.model.special_tokens import PAD_ID
from hallmark.tasks.contract import (
    ID_TYPE,
    LEXICONS,
    Column,
    Session,
    Store,
    describe_columns,
    hash_to_ids,
    open_session,
)
from hallmark.tasks.contract.corpus_tables import LEDGER
from hallmark.tasks.corpus.ingest import QUARANTINE, ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.training.pack import SPANS, PackConfig, pack
from hallmark.tasks.training.train_tokenizer import TokenizerConfig, train_tokenizer
from tests.reports.artifacts import curated

#: Documents that spell a split, a reason, an action, a source and a group.
NAMES = ("Validation", "Exact duplicate.", "added, added", "Wiki pedia", "Christian!")

RUSSIAN = "Фиолетовая подводная лодка тёти Оттилии затонула в четверг и совсем без сожаления."


def config(folder, **files):
    """Configure one source for each of these files."""
    sources = []
    for name, (kind, data) in files.items():
        (folder / name).write_bytes(data)
        sources.append({"kind": kind, "name": name, "path": str(folder / name)})
    return IngestConfig.model_validate({"sources": sources, "partition_bytes": 1000})


def lines(texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def labels(artifacts):
    """Return the label columns of all tables."""
    return {
        (a.name, table.name): table.read([c.name for c in table.columns.values() if is_label(c)])
        for a in artifacts
        for table in a.tables.values()
    }


def is_label(column: Column):
    return column.kind == "label"


def test_a_purged_word_is_not_removed_from_labels(tmp_path):
    texts = [f"Document {n} speaks of the Christian harbour and lamp {n * 7}." for n in range(40)]
    store = Store(tmp_path / "store")
    with open_session(Session(store)):
        read = ingest(config(tmp_path, wikipedia=("jsonl", lines([*texts, *NAMES, texts[0]]))))
        made = curated(read)
        made["tokenizer"] = train_tokenizer(
            made["plant_canaries"], None, TokenizerConfig(vocab_size=300)
        )
        made["pack"] = pack(made["plant_canaries"], made["tokenizer"], PackConfig(context=32))
    rows = read["documents"].read(["doc_id", "text"]).to_pylist()
    doc_ids = {row["text"]: row["doc_id"] for row in rows}
    before = labels(made.values())
    spans = made["pack"]["spans"].read()
    assert {"train", "validation"} <= set(spans["split"].to_pylist())
    for name in NAMES:
        purge_document(store, doc_ids[name].hex())

    def now():
        return [store.find_artifact(a.stage, a.fingerprint) for a in made.values()]

    assert any(a.purge_time_by_doc_id for a in now())
    assert labels(now()) == before

    # So the tokens of the next document are found.
    mine = next(
        span
        for span in spans.to_pylist()
        if span["split"] == "validation" and span["doc_id"] in {doc_ids[t] for t in texts}
    )
    purge_document(store, mine["doc_id"].hex())
    packed = store.find_artifact("pack", made["pack"].fingerprint)
    tokens = packed["validation"].read()["token_ids"].to_pylist()[mine["sequence"]]
    assert tokens[mine["row_start"] : mine["row_end"]] == [PAD_ID] * (
        mine["row_end"] - mine["row_start"]
    )
    assert labels(now()) == before


@pytest.mark.parametrize("schema", [LEDGER, LEXICONS, SPANS])
def test_rows_that_name_it_keep_their_labels_too(schema):
    """This includes long labels: many documents contain the text of a licence."""
    text = "exact duplicate of a near duplicate"
    rows = {f.name: pa.array([text] * 2) for f in schema if f.type == pa.string()}
    rows |= {f.name: hash_to_ids(["gone", "stays"]) for f in schema if f.type == ID_TYPE}
    rows |= {f.name: pa.nulls(2, f.type) for f in schema if f.name not in rows}
    made = (
        pa.table(rows).select(schema.names).cast(pa.schema([f.remove_metadata() for f in schema]))
    )
    columns = {column.name: column for column in describe_columns(schema)}
    gone = hash_to_ids(["gone"])
    assert (
        remove_document_content(
            made, columns, gone, gone.slice(0, 0), QuotationFinder([text, text * 2])
        )
        is None
    )


def torn(text):
    return json.dumps({"text": text})[:-3]


RECORDS = {
    "escapes of JSON": torn(RUSSIAN).encode(),
    "escapes beyond the BMP": torn("".join(chr(0x1D400 + n) for n in range(25))).encode(),
    "escaped line ends": torn("\n".join(RUSSIAN.split())).encode(),
    "entities": "".join(f"&#{ord(c)};" for c in RUSSIAN).encode(),
    "entities in JSON": torn("".join(f"&#x{ord(c):x};" for c in RUSSIAN)).encode(),
    "elements": "<p>" + "</b><b>".join(RUSSIAN) + "</p>",
    "windows-1251": RUSSIAN.encode("cp1251"),
    "UTF-16": RUSSIAN.encode("utf-16"),
    "UTF-16, the other way round": RUSSIAN.encode("utf-16-be"),
    "a bad byte": RUSSIAN.encode() + b"\xff",
    "cut in a character": RUSSIAN.encode()[:-2],
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_quotes_in_any_encoding_or_escape(name):
    record = RECORDS[name]
    raw = record.encode() if isinstance(record, str) else record
    text = "".join(chr(0x1D400 + n) for n in range(25)) if "BMP" in name else RUSSIAN
    values = pa.chunked_array(
        [pa.array([raw, b"Nothing of it stands here.", None], pa.large_binary())]
    )
    assert QuotationFinder([text]).find_quoting_values(values).to_pylist() == [True, False, False]


def test_hostile_records_are_read_in_time():
    for piece in (b"<", b"&", b"\\u", b"\\", b"&#", b"<a ", b"\xff", b"\xd8\x00"):
        assert decode_possible_texts(piece * ((64 << 10) // len(piece)))


def test_unreadable_records_are_removed_for_their_source_and_counted_for_others(tmp_path):
    hidden = gzip.compress(RUSSIAN.encode(), mtime=0).replace(b"\n", b"") + b"\xff\xff"
    data = lines([RUSSIAN, "Another document that stays."])
    plain = b'{"text": "Not closed, and read by anybody.\n'
    files = {
        "mine": ("jsonl", data + torn(RUSSIAN).encode() + b"\n" + hidden + b"\n" + plain),
        "other": ("jsonl", data.splitlines()[1] + b"\n" + hidden + b"\n" + plain),
    }
    store = Store(tmp_path / "store")
    with open_session(Session(store)):
        made = ingest(config(tmp_path, **files))
    rows, before = made["documents"].read(), made["quarantine"].read()
    (doc_id,) = rows.filter(pc.equal(rows["text"], RUSSIAN))["doc_id"].to_pylist()
    report = purge_document(store, doc_id.hex())
    left = store.find_artifact("ingest", made.fingerprint)["quarantine"].read()
    raws = {name: [] for name in files}
    for row in left.to_pylist():
        raws[row["source"]].append(row["raw"])
    assert sorted(raws["mine"]) == [b"", b"", plain.strip()]
    assert sorted(raws["other"]) == sorted([hidden, plain.strip()])
    assert report["unreadable_records"] == {made.name: 1}
    assert f"1 of {made.name}" in render_purge(report)
    assert left.drop_columns("raw") == before.drop_columns("raw")
    assert [f.name for f in QUARANTINE] == left.column_names
