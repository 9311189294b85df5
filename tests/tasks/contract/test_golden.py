"""Golden bytes: what the contract writes for small fixed input, recorded in golden.json.

Whoever changes these bytes raises ``CONTRACT_VERSION`` in tasks/contract/fingerprint.py and runs
``make golden``. Artifacts written before and after the change must not share a fingerprint.
"""

import ast
import hashlib
import json
import pickle
import re
from contextlib import closing
from functools import partial
from importlib.metadata import version
from pathlib import Path

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
from hallmark.tasks.contract.columns import strip_metadata
from hallmark.tasks.contract.fingerprint import (
    CONTRACT_VERSION,
    compute_fingerprint,
    hash_syntax_tree,
)
from hallmark.tasks.contract.manifests import compute_content_digest, compute_table_digest
from hallmark.tasks.contract.table_writers import TableWriter
from hallmark.tasks.corpus.deduplicate_near import SIGNATURES
from hallmark.tasks.corpus.ingest import QUARANTINE, ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.training.pack import SPANS, build_sequences_schema

GOLDEN_FILE = Path(__file__).with_name("golden.json")


def compare_with_golden(group, values, *, update=False, path=GOLDEN_FILE, version=CONTRACT_VERSION):
    """Compare the values of a group with those recorded for this version of the contract.

    An update records new values after the version was raised, and values of new cases. It never
    replaces a value of the same version.
    """
    recorded = json.loads(path.read_text())
    if update:
        if recorded["contract_version"] != version:
            recorded = {"contract_version": version}
        recorded[group] = values | {
            name: value for name, value in recorded.get(group, {}).items() if name in values
        }
        path.write_text(json.dumps(recorded, indent=2, ensure_ascii=False) + "\n")
    assert recorded["contract_version"] == version, (
        f"CONTRACT_VERSION is {version} and golden.json is of {recorded['contract_version']}: "
        f"run `make golden`"
    )
    assert values == recorded.get(group), (
        "the contract writes other bytes: raise CONTRACT_VERSION in tasks/contract/fingerprint.py "
        "and run `make golden`"
    )


@pytest.fixture
def check_golden(request):
    return partial(compare_with_golden, update=request.config.getoption("--update-golden"))


def test_an_update_replaces_no_value_of_the_same_version(tmp_path):
    path = tmp_path / "golden.json"
    path.write_text('{"contract_version": 1, "group": {"a": 1, "gone": 2}}')
    update = partial(compare_with_golden, "group", update=True, path=path)
    update({"a": 1, "new": 3}, version=1)
    assert json.loads(path.read_text())["group"] == {"a": 1, "new": 3}
    with pytest.raises(AssertionError, match="raise CONTRACT_VERSION"):
        update({"a": 2, "new": 3}, version=1)
    with pytest.raises(AssertionError, match="run `make golden`"):
        compare_with_golden("group", {"a": 2}, path=path, version=2)
    update({"a": 2}, version=2)
    assert json.loads(path.read_text()) == {"contract_version": 2, "group": {"a": 2}}


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
    """Build tables that together have every column type that stages write."""
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
        "metadata": [None, {"author": "ä", "licence": "CC0"}, {}] * 5,
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


def test_parquet(tmp_path, check_golden):
    pinned = re.search(r"(?m)^pyarrow==(\S+)", (PROJECT_ROOT / "constraints.txt").read_text())[1]
    assert version("pyarrow") == pinned, "the bytes are those of the pinned pyarrow"
    found = {}
    for name, schema, columns in contents():
        with closing(TableWriter(tmp_path / f"{name}.parquet", schema)) as writer:
            writer.write(columns)
        found[name] = short((tmp_path / f"{name}.parquet").read_bytes())
    check_golden("parquet", found)


def test_golden_tables_have_every_type_that_stages_write():
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


def test_pickled_schemas_are_unchanged():
    """Otherwise the bytes of a part would depend on the process that wrote it."""
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


def test_digests_and_hashes(tmp_path, check_golden):
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
    check_golden("hashes", found)


def test_ids_of_documents(tmp_path, session, check_golden):
    """Check ids without a key, with a key, and of copies."""
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
    check_golden("doc_ids", found)
