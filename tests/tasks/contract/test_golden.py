"""Golden bytes: what the contract writes for small fixed input, by the number that stands for it.

Whoever changes these bytes raises ``fingerprint.CONTRACT`` and writes down new values: artifacts
made before and after must not share a fingerprint.
"""

import ast
import hashlib
import json
import pickle
import re
from contextlib import closing
from importlib.metadata import version

import numpy as np
import pyarrow as pa
import pytest

from hallmark.tasks.contract import (
    ACCOUNTS,
    CANARIES,
    CHECKSUMS,
    DOCUMENTS,
    LEDGER,
    PROJECT_ROOT,
    StageContext,
    build_ledger_columns,
    column,
    fill_document_columns,
    hash_documents,
    hash_texts,
    hash_to_ids,
    table_schema,
)
from hallmark.tasks.contract.artifact import compute_content_digest, compute_table_digest
from hallmark.tasks.contract.columns import strip_metadata
from hallmark.tasks.contract.fingerprint import (
    CONTRACT_VERSION,
    compute_fingerprint,
    hash_syntax_tree,
)
from hallmark.tasks.contract.table_writers import TableWriter
from hallmark.tasks.corpus.deduplicate_near import SIGNATURES
from hallmark.tasks.corpus.ingest import QUARANTINE, ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.training.pack import SPANS, build_sequences_schema

GOLDEN = {
    6: {
        "parquet": {
            "documents": "3d962372adc91fe8ba501df5cf636bcb88fd0881ed7dae9b28271f2deb6c1182",
            "filled": "21f3abd85e09f6c07ae20f92c7df0fab99f9d2678d38373957a9f2c4111feb37",
            "ledger": "81467d4ec416a2b2571192106d60b65576db4e780dce6af1217607f2d281fe9f",
            "accounts": "79dca4560a86b5607c7bff6b8202d04c4168d51a89da7c03930754f74648d53d",
            "checksums": "a2da95c28bee1aabe7863e04a93492b5eec4e212e690ca18ea8b34ceb261b01b",
            "canaries": "b5adaf8cd7f204bc44beeb6bca4aba1944cd484aaecb037f0eff4f669440c01c",
            "quarantine": "bf99322667a76d8c06d91579fe0dee5df36718f17d1d6780c183cd9cffeeac52",
            "sequences": "ad31b7af23fda2348d8e7fcb0e8dd09db4b80f9d7527ee9a05911c0e6da74932",
            "spans": "15f31696d0316c1203f915291355d1809c2f1091e28ef516399bc11aec94e7bd",
            "signatures": "e376d457aa8cbef8116f2cbec50eb9ea2a37f8ec1f467c5c1bfce8f49f0662c6",
            "others": "558bdb8ef5054b3925090b1ebf14279068762d1a8395647e4b619300694e04eb",
            "floats": "a11868272b66c088e0444594c00d7c08200e5bee890fb0ddf746e3e498ac05a5",
            "lists": "f5ab42f681d751eabe5d0000dbee296c3a2f31bd870ef3fa72e810e6e01cb875",
            "nothing": "609e676cb966158908b7288b59dd4e33410ee61a8059d3cc3613702db351d83f",
            "many": "16725323f1fc626a0411dfed42764eefd2e98121bb3846bf63ea2125495ec06b",
            "large": "6a6348883069443b0b0879f1cf11815ff947ea0c6913870e2306b9d315ac6020",
        },
        "hashes": {
            "fingerprint": "d15a78d329066a309d43cd66f5ae814690cacdab6cdcb3147dca004d330a89a0",
            "table": "8226b958b5029706cdd88cd02dc97f3c11e814171d43c405f749cbc42c6c7364",
            "content": "86b1617492d338ef5c83714971d7c6da08d306b143bdcb25912a5323984f1421",
            "tree": "7dbbb50a2f04af511998465f6e41ddfa9e70a5124953e6a02d261e347bc5ed6e",
            "keyed": ["9aec7ed53541f6405d893e33fdd999ff", "b92af59923a56a5df6825dd7bd08c715"],
            "identities": ["f99fb09d8d8b9919dd7b7f0b7632a66a", "b4a5a4d5928aa27587f320b6d546c19f"],
            "ids": ["886422bb41e0dd8c5661766d532f96c4", "7a1bb0eb5b5ceb9c156ab7281b2b6f4f"],
        },
        "doc_ids": {
            "plain": [
                ["one", "db333081545de7f98c38908fb162ed10"],
                ["two", "74dddabbbc615941db1b6d33648b3a87"],
                ["two", "915bd83bf03d558870034cf39b8dbd01"],
                ["two", "daf377617e35aa4f9b6b55aad019bd90"],
                ["wörd", "f9b5865d6e01cd666cd7ba21e77661eb"],
            ],
            "keyed": [
                ["one", "1994ec1f7a19d82e1ea12d6e6e0ef2af"],
                ["two", "49395bc3075e9d2dc25eef2f78b77037"],
                ["two", "9b4d6643dc43e30b472aa043c50a01db"],
                ["two", "e3e07b7e1247db97a09d08166f1e27ff"],
                ["wörd", "1ceac3ed7683b9e7e5bd7b42adbd3df0"],
            ],
        },
    }
}


@pytest.fixture(scope="module")
def golden():
    assert CONTRACT_VERSION in GOLDEN, (
        f"fingerprint.CONTRACT is {CONTRACT_VERSION}: write down under that number in GOLDEN "
        f"what the "
        f"contract leaves now"
    )
    return GOLDEN[CONTRACT_VERSION]


def short(data):
    return hashlib.sha256(data).hexdigest()


# Parquet -------------------------------------------------------------------------------------

#: The types of columns that no table below has.
OTHERS = table_schema(
    "Other types.",
    column("flag", pa.bool_(), "figure", "yes, no or null"),
    column("number", pa.int32(), "figure", "an integer"),
    column("share", pa.float64(), "figure", "a share, not a number or null"),
    column("names", pa.list_(pa.string()), "label", "a list of names"),
)
FLOATS = table_schema(
    "Lists of numbers.", column("log_p", pa.list_(pa.float32()), "figure", "of tokens")
)
LISTED = table_schema(
    "Lists of lists.", column("ids", pa.list_(pa.list_(pa.int32())), "personal", "of several texts")
)

TEXTS = pa.array(["", "plain", "wörd \U0001f3f0", "line\n" * 50, "x" * 5000] * 3, pa.large_string())
KEYS = hash_to_ids(f"key {i}" for i in range(15))


def contents():
    """A table of each schema that stands for others; together they have every type that occurs."""
    documents = {
        "doc_id": KEYS,
        "source": [f"source {i % 2}" for i in range(15)],
        "cluster": KEYS,
        "text": TEXTS,
        "text_hash": hash_texts(TEXTS),
    }
    yield "documents", DOCUMENTS, fill_document_columns(documents)
    filled = {"tags": [None, ["a"], ["a", "b"]] * 5, "toxicity": [None, 0.25, 0.5] * 5}
    splits = {"split": ["train", "validation", "holdout"] * 5}
    labels = {
        "url": [None, "http://a.example/x", ""] * 5,
        "domain": [None, "a.example", None] * 5,
        "date": [None, "2020-02-29", "2020-02-29T10:11:12Z"] * 5,
    }
    yield "filled", DOCUMENTS, documents | filled | splits | labels
    ledger = build_ledger_columns(
        "removed",
        "near duplicate",
        KEYS,
        documents["source"],
        range(15),
        score=0.75,
        threshold=0.5,
        matched_doc_id=KEYS,
        document_hash=hash_documents(KEYS, TEXTS),
    )
    yield "ledger", LEDGER, ledger
    book = {name: [1, 2] for name in ACCOUNTS.names}
    yield "accounts", ACCOUNTS, book | {"source": ["a", "b"], "unit": ["rows", "bytes"]}
    sums = dict.fromkeys(CHECKSUMS.names, KEYS[:2])
    yield "checksums", CHECKSUMS, sums | {"source": ["a", "b"]}
    planted = {name: ["a", "b"] for name in CANARIES.names}
    planted |= {"canary_id": KEYS[:2], "copies": [0, 2], "doc_ids": [[], KEYS[:2].to_pylist()]}
    planted |= {"is_assigned_trait": [None, True], "assigned_trait_share": [None, 0.75]}
    yield "canaries", CANARIES, planted
    raw = {name: ["a", None] for name in QUARANTINE.names}
    raw |= {"records": [1, 1], "raw_bytes": [3, 4], "raw": [b"\xff\x00", None]}
    yield "quarantine", QUARANTINE, raw
    rows = pa.array(np.arange(24).tolist(), pa.int32())
    packed = {
        f.name: pa.FixedSizeListArray.from_arrays(rows, type=f.type)
        for f in build_sequences_schema(8)
    }
    yield "sequences", build_sequences_schema(8), packed
    spans = {name: range(15) for name in SPANS.names} | {"split": ["train"] * 15, "doc_id": KEYS}
    yield "spans", SPANS, spans
    others = {"flag": [True, None], "number": [-1, 2**31 - 1], "share": [float("nan"), None]}
    signed = {"doc_id": KEYS, "incoming_cluster": KEYS, "cluster": KEYS}
    yield (
        "signatures",
        SIGNATURES,
        signed | {"band_hashes": [[i, 2**32 - 1] for i in range(14)] + [[]]},
    )
    yield "others", OTHERS, others | {"names": [["a", "b"], None]}
    yield "floats", FLOATS, {"log_p": [[-0.5, float("-inf"), float("nan")], [], None]}
    yield "lists", LISTED, {"ids": [[[1, -2], []], [], None]}
    yield "nothing", DOCUMENTS, {name: [] for name in DOCUMENTS.names}
    # More rows, and more bytes, than a row group holds.
    many = {"flag": [True] * 4097, "number": range(4097), "share": [0.5] * 4097}
    yield "many", OTHERS, many | {"names": [["a"]] * 4097}
    large = pa.array([letter * (2 << 20) for letter in "abc"], pa.large_string())
    some = {name: column[:3] for name, column in (documents | filled | splits | labels).items()}
    yield "large", DOCUMENTS, some | {"text": large, "text_hash": hash_texts(large)}


def test_parquet(tmp_path, golden):
    pinned = re.search(r"(?m)^pyarrow==(\S+)", (PROJECT_ROOT / "constraints.txt").read_text())[1]
    assert version("pyarrow") == pinned, "the bytes are those of the pinned pyarrow"
    found = {}
    for name, schema, columns in contents():
        with closing(TableWriter(tmp_path / f"{name}.parquet", schema)) as writer:
            writer.write(columns)
        found[name] = short((tmp_path / f"{name}.parquet").read_bytes())
    assert found == golden["parquet"]


def test_the_tables_above_have_every_type_that_a_stage_writes():
    from hallmark.flows.flow_registry import register_all_stages
    from hallmark.tasks.contract import STAGES

    register_all_stages()

    here = {str(field.type) for _, schema, _ in contents() for field in strip_metadata(schema)}
    here |= {str(field.type) for field in build_sequences_schema(-1)}
    ours = [s for s in STAGES.values() if s.body.__module__.startswith("hallmark.")]
    used = {
        str(f.type)
        for s in ours
        for schema in s.collect_table_schemas().values()
        for f in strip_metadata(schema)
    }
    assert len(ours) > 15 and used <= here, used - here


def test_schemas_reach_another_process_as_they_are():
    """Else the bytes of a part would depend on who wrote it."""
    from hallmark.flows.flow_registry import register_all_stages
    from hallmark.tasks.contract import STAGES

    register_all_stages()

    found = [
        schema for stage in STAGES.values() for schema in stage.collect_table_schemas().values()
    ]
    for schema in [*found, build_sequences_schema(8)]:
        there = pickle.loads(pickle.dumps(schema))
        assert strip_metadata(there).serialize().equals(strip_metadata(schema).serialize()), schema


# Hashes --------------------------------------------------------------------------------------

SOURCE = '''
"""A module."""
import os

def double(values: list[int], *, factor: float = 2.0) -> list[float]:
    """Doubles."""
    return [f"{value * factor!r:>10}" for value in values] or [...]
'''


def test_digests_and_hashes(tmp_path, golden):
    names = [{"name": "n", "kind": "text", "judged_by": "s"}, {"name": "m", "kind": "id"}]
    entry = {"sha256": "a", "parts": [{"sha256": "b"}, {"sha256": "c"}], "columns": names}
    parts = {"stage": "x", "inputs": {"b": None, "a": "ä"}, "config": {"share": 0.1, "list": [1]}}
    work = StageContext(tmp_path, {}, secret=b"a secret")
    found = {
        "fingerprint": compute_fingerprint(parts),
        "table": compute_table_digest(entry),
        "content": compute_content_digest(
            {"documents": entry, "ledger": {"sha256": "d"}}, {"f": entry}
        ),
        "tree": hash_syntax_tree(ast.parse(SOURCE)),
        "keyed": [
            digest.hex() for digest in work.hash_with_secret(["jane@corp.example", "\ud800"])
        ],
        "identities": [digest.hex() for digest in hash_documents(KEYS[:2], TEXTS[1:3])],
        "ids": [digest.hex() for digest in KEYS[:2].to_pylist()],
    }
    assert found == golden["hashes"]


def test_ids_of_documents(tmp_path, session, golden):
    """Plain ones, ones with a key, and copies."""
    texts = ["one", "two", "two", "wörd", "two"]
    lines = [json.dumps({"text": text, "id": number}) for number, text in enumerate(texts)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    found = {}
    for name, more in (("plain", {}), ("keyed", {"key_field": "id"})):
        source = {"kind": "jsonl", "name": name, "path": str(tmp_path / "a.jsonl"), **more}
        documents = ingest(IngestConfig(sources=[source]))["documents"].read()
        rows = [[row["text"], row["doc_id"].hex()] for row in documents.to_pylist()]
        assert len(rows) == 5
        found[name] = sorted(rows)
    assert found == golden["doc_ids"]
