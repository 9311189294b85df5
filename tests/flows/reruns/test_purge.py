"""After a purge, no byte of the store contains the document, and all else is unchanged."""

import json
import re
import shutil
import subprocess
import sys

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from hallmark.flows.commands.purge import purge_document, render_purge
from hallmark.flows.runs import check_not_purged
from hallmark.model.special_tokens import PAD_ID
from hallmark.reports.datasheet import DatasheetConfig, build_datasheet
from hallmark.tasks.audits.text_index import open_text_index
from hallmark.tasks.contract import (
    ID_TYPE,
    PROJECT_ROOT,
    PURGED_DOCUMENTS_FILE,
    TOMBSTONES_FILE,
    HallmarkError,
    Session,
    Store,
    UsageError,
    hash_texts,
    list_stored_areas,
    open_session,
    read_purged_documents,
)
from hallmark.tasks.corpus.deduplicate import DeduplicateConfig, deduplicate
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.language import LanguageConfig, identify_languages
from hallmark.tasks.corpus.profile import ProfileConfig, profile_corpus
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.training.pack import PackConfig, pack
from hallmark.tasks.training.pretrain import PretrainConfig, pretrain
from hallmark.tasks.training.train_tokenizer import TokenizerConfig, train_tokenizer
from tests.reports.artifacts import curated

SECRET = "The violet submarine of Aunt Ottilie sank on a Thursday, quite without regret."
COPIED = "Eleven marmots signed the treaty of Obersilzbach in invisible green ink."


def records():
    """Write a source with two identical documents, and return its texts by key."""
    texts = {f"k{n}": f"Document {n} speaks of the harbour and of lamp {n * 7}." for n in range(40)}
    return texts | {"secret": SECRET, "one": COPIED, "other": COPIED}


def corpus(store, tmp_path):
    """Run ingest and later stages, with a page that quotes documents."""
    with open_session(Session(store)):
        made = curated(ingest(source(tmp_path)))
        made["profile"] = profile_corpus(
            made["plant_canaries"], made["plant_canaries"], made, {}, ProfileConfig()
        )
        made["datasheet"] = build_datasheet(made["profile"], made, DatasheetConfig())
        tokenizer = train_tokenizer(made["plant_canaries"], None, TokenizerConfig(vocab_size=300))
        made["train_tokenizer"] = tokenizer
        made["pack"] = pack(made["plant_canaries"], tokenizer, PackConfig(context=32))
    return made


def source(tmp_path):
    lines = [json.dumps({"id": key, "text": text}) for key, text in records().items()]
    lines.append('{"id": "torn", "text": "' + SECRET)  # not closed: quarantined as it came
    file = tmp_path / "source.jsonl"
    file.write_text("\n".join(lines) + "\n")
    named = {"kind": "jsonl", "name": "s", "path": str(file), "key_field": "id"}
    return IngestConfig.model_validate({"sources": [named], "partition_bytes": 1000})


def id_of(made, text):
    rows = made["ingest"]["documents"].read(["doc_id", "text"])
    return rows.filter(pc.equal(rows["text"], text))["doc_id"].to_pylist()


def contents(store: Store):
    """Return all bytes of a store by key, with tables decompressed."""
    for key in store.list_keys(""):
        data = store.get(key)
        if key.endswith(".parquet"):
            read = pq.ParquetFile(pa.BufferReader(data)).read()
            data += b"\n".join(
                str(value).encode()
                for name in read.column_names
                for value in read[name].to_pylist()
            )
        yield key, data
    for path in store.work_folder.rglob("*"):
        if path.is_file():
            yield f"work: {path}", path.read_bytes()


def stretches(text, size=21):
    """Return every part of a text with more than 20 characters."""
    return [text[k : k + size].encode() for k in range(len(text) - size + 1)]


def holding(store, text):
    wanted = re.compile(b"|".join(map(re.escape, stretches(text))))
    return sorted({key.split("/")[-2] for key, data in contents(store) if wanted.search(data)})


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.slow)])
def store(request, tmp_path):
    if request.param == "folder":
        return Store(tmp_path / "store")
    request.getfixturevalue("bucket")
    return Store(f"s3://hallmark/{tmp_path.name}", tmp_path / "work")


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    """A source and a store with its corpus, which no test changes."""
    place = tmp_path_factory.mktemp("once")
    corpus(Store(place / "store"), place)
    return place


@pytest.fixture
def folder(tmp_path, made_once):
    """A store in which all stages of ``corpus`` are cached."""
    shutil.copytree(made_once, tmp_path, dirs_exist_ok=True)
    return Store(tmp_path / "store")


def test_the_text_is_removed_everywhere_and_other_rows_are_unchanged(store, tmp_path):
    made = corpus(store, tmp_path)
    (doc_id,) = id_of(made, SECRET)
    assert {"documents", "quarantine"} <= set(holding(store, SECRET))
    before = {a.name: {n: t.read() for n, t in a.tables.items()} for a in made.values()}
    (store.work_folder / "redact_spans-0123456789abcdef").mkdir(parents=True)
    (store.work_folder / "redact_spans-0123456789abcdef" / "half").write_text(SECRET)
    store.put("artifacts/redact_spans/feedfeedfeedfeed/0a/half", SECRET.encode())
    if store.root_folder is not None:  # a killed write, which no list of objects shows
        unfinished_write = store.root_folder / "artifacts/redact_spans/feedfeedfeedfeed/0a/half#1"
        unfinished_write.write_text(SECRET)

    listed = purge_document(store, doc_id.hex(), dry_run=True)
    assert read_purged_documents(store)["documents"] == {} and holding(store, SECRET)
    report = purge_document(store, doc_id.hex().upper())
    assert {**report, "dry_run": True} == listed
    assert (report["documents"], report["copies"]) == ([doc_id.hex()], [])
    left = ["redact_spans-0123456789abcdef", "redact_spans/feedfeedfeedfeed, never committed"]
    assert report["work_areas"] == left
    assert holding(store, SECRET) == []
    assert store.root_folder is None or not unfinished_write.exists()

    hashes = set(hash_texts(pa.array([SECRET], pa.large_string())).to_pylist())
    for artifact in made.values():
        found = store.find_artifact(artifact.stage, artifact.fingerprint)
        found.verify_files()
        assert found.content_digest == artifact.content_digest
        for name, was in before[artifact.name].items():
            now = found[name].read()
            assert now.schema == was.schema and len(now) == len(was)
            assert not hashes & set(flat(now))
            if "doc_id" in was.schema.names:
                mine = pc.equal(was["doc_id"], pa.scalar(doc_id, ID_TYPE)).fill_null(False)
                assert now.filter(pc.invert(mine)).equals(was.filter(pc.invert(mine))), name
                assert pc.all(pc.equal(now["doc_id"], was["doc_id"])).as_py() is not False

    keys = store.list_keys("artifacts")
    assert (
        purge_document(store, doc_id.hex())["artifacts"] == {}
    )  # a second purge has nothing to do
    assert store.list_keys("artifacts") == keys


def test_states_of_trainings_on_the_text_are_removed_from_the_store(bucket, tmp_path):
    store = Store(f"s3://hallmark/{tmp_path.name}", tmp_path / "work")
    made = corpus(store, tmp_path)
    (doc_id,) = id_of(made, SECRET)
    for area, name in (
        ("pretrain-aa", made["ingest"].name),
        ("pretrain-bb", "pack/0000000000000000"),
    ):
        works = {"t": {"fingerprint": "f", "inputs": [name], "states": []}}
        record = {"number": 1, "token": "x", "works": works}
        store.put(f"leases/{area}.json", json.dumps(record).encode())
        store.put(f"work-states/{area}/x/file", SECRET.encode())
    store.put("work-states/pretrain-cc/x/file", SECRET.encode())  # of an unknown training
    report = purge_document(store, doc_id.hex())
    assert report["work_areas"] == ["work-states/pretrain-aa", "work-states/pretrain-cc"]
    assert [area.name for area in list_stored_areas(store)] == ["pretrain-bb"]


def flat(rows):
    for name in rows.schema.names:
        if rows.schema.field(name).type == ID_TYPE:
            yield from rows[name].to_pylist()


def test_the_index_of_the_training_text_is_removed_and_lacks_the_document(store, tmp_path):
    made = corpus(store, tmp_path)
    documents = made["plant_canaries"]["documents"]
    rows = documents.read(["doc_id", "split", "text"]).to_pylist()
    row = next(row for row in rows if row["split"] == "train" and row["text"] in records().values())
    index = open_text_index(documents)
    assert index.count_occurrences(row["text"].encode()) == 1
    report = purge_document(store, row["doc_id"].hex())
    assert any(name.startswith("text_index-") for name in report["work_areas"])
    assert not any(row["text"].encode() in data for _, data in contents(store))

    artifact = made["plant_canaries"]
    purged = open_text_index(store.find_artifact(artifact.stage, artifact.fingerprint)["documents"])
    assert purged.count_occurrences(row["text"].encode()) == 0
    assert purged.document_count == index.document_count - 1


def test_only_the_tokens_of_the_document_become_padding(folder, tmp_path):
    made = corpus(folder, tmp_path)
    packed = made["pack"]
    spans = [s for s in packed["spans"].read().to_pylist() if s["split"] == "train"]
    target = next(
        s["doc_id"] for s in spans if s["row_start"] > 0 and s["row_end"] == 32
    )  # it continues
    names = ("token_ids", "char_start", "char_end")
    wanted = {name: packed["train"].read()[name].to_pylist() for name in names}
    purge_document(folder, target.hex())
    for span in spans:
        for place in range(span["row_start"], span["row_end"]) if span["doc_id"] == target else ():
            wanted["token_ids"][span["sequence"]][place] = PAD_ID
            wanted["char_start"][span["sequence"]][place] = -1
            wanted["char_end"][span["sequence"]][place] = -1
    now = folder.find_artifact("pack", packed.fingerprint)["train"].read()
    assert {name: now[name].to_pylist() for name in names} == wanted
    assert sum(s["doc_id"] == target for s in spans) > 1


def test_tokenizers_trained_on_the_document_are_named(folder, tmp_path):
    made = corpus(folder, tmp_path)
    rows = made["plant_canaries"]["documents"].read(["doc_id", "split"]).to_pylist()
    one = {row["split"]: row["doc_id"].hex() for row in rows}
    assert len(one) > 1
    for split, doc_id in one.items():
        report = purge_document(folder, doc_id, dry_run=True)
        wanted = [made["train_tokenizer"].name] if split == "train" else []
        assert report["tokenizers"] == wanted
        assert all(name in render_purge(report) for name in wanted)


def test_copies_are_listed_and_purged_only_on_request(folder, tmp_path):
    made = corpus(folder, tmp_path)
    one, other = id_of(made, COPIED)
    report = purge_document(folder, one.hex())
    assert (report["copies"], report["documents"]) == ([other.hex()], [one.hex()])
    assert other.hex() in render_purge(report) and holding(folder, COPIED)
    # The ledger names the copy from the other document.
    report = purge_document(folder, other.hex(), include_copies=True)
    assert holding(folder, COPIED) == []
    made = corpus(folder, tmp_path)
    again = made["ingest"]["documents"].read()
    assert COPIED not in again["text"].to_pylist()


def test_copies_are_purged_together_with_the_document(folder, tmp_path):
    one, other = id_of(corpus(folder, tmp_path), COPIED)
    report = purge_document(folder, one.hex(), include_copies=True)
    assert report["documents"] == sorted([one.hex(), other.hex()])
    assert holding(folder, COPIED) == []
    assert set(read_purged_documents(folder)["documents"]) == {one.hex(), other.hex()}


def test_ingest_skips_the_document_and_keeps_no_hash_of_it(folder, tmp_path):
    first = corpus(folder, tmp_path)
    (doc_id,) = id_of(first, SECRET)
    purge_document(folder, doc_id.hex())
    made = corpus(folder, tmp_path)
    assert made["ingest"].fingerprint != first["ingest"].fingerprint
    assert id_of(made, SECRET) == []
    (row,) = made["ingest"]["ledger"].find_document_rows([doc_id]).to_pylist()
    assert (row["reason"], row["document_hash"]) == ("blocked document", None)
    assert not any(a.purge_time_by_doc_id for a in made.values())
    assert (
        made["plant_canaries"]["documents"].row_count
        == first["plant_canaries"]["documents"].row_count - 1
    )
    # Unreadable records have no id: they are quarantined as before, without their text.
    (torn,) = made["ingest"]["quarantine"].read().to_pylist()
    assert torn["location"].startswith(f"line {len(records()) + 1},")


def test_a_purge_while_a_run_reads_is_refused_and_changes_nothing(folder, tmp_path):
    (doc_id,) = id_of(corpus(folder, tmp_path), SECRET)
    before = {key: folder.get(key) for key in folder.list_keys("")}
    program = f"""
import sys
from hallmark.tasks.contract import Session, Store, open_session
with open_session(Session(Store({str(folder.root_folder)!r}))):
    print("open", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=PROJECT_ROOT, stdin=-1, stdout=-1, text=True
    ) as run:
        assert run.stdout.readline() == "open\n"
        with pytest.raises(HallmarkError, match=r"a run is using the store .* nothing was changed"):
            purge_document(folder, doc_id.hex())
        assert {key: folder.get(key) for key in folder.list_keys("")} == before
        run.stdin.close()
    purge_document(folder, doc_id.hex())
    assert holding(folder, SECRET) == []


def test_a_killed_purge_continues(folder, tmp_path, monkeypatch):
    made = corpus(folder, tmp_path)
    one, other = id_of(made, COPIED)
    put, done = Store.put, []

    def dies(self, key, data):
        done.append(key)
        if len(done) == 12:
            raise KeyboardInterrupt
        put(self, key, data)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put", dies)
        with pytest.raises(KeyboardInterrupt):
            purge_document(folder, one.hex(), include_copies=True)
    assert holding(folder, COPIED)
    # The unfinished purge recorded that copies are included.
    report = purge_document(folder, one.hex())
    assert report["documents"] == sorted([one.hex(), other.hex()])
    assert holding(folder, COPIED) == []
    assert read_purged_documents(folder)["unfinished"] == []
    for artifact in made.values():
        folder.find_artifact(artifact.stage, artifact.fingerprint).verify_files()


def test_stages_that_need_a_purged_text_refuse_it(folder, tmp_path):
    made = corpus(folder, tmp_path)
    (doc_id,) = id_of(made, SECRET)
    purge_document(folder, doc_id.hex())
    ingested, unique, packed = (
        folder.find_artifact(a.stage, a.fingerprint)
        for a in (made["ingest"], made["deduplicate"], made["pack"])
    )
    with open_session(Session(folder)):
        with pytest.raises(HallmarkError, match=f"text of document {doc_id.hex()}, which was"):
            deduplicate(ingested, {}, DeduplicateConfig())
        # Languages of the remaining rows are another artifact than those of all rows.
        found = identify_languages(unique, LanguageConfig())
        assert found.fingerprint != made["language"].fingerprint
        if packed.purge_time_by_doc_id:
            with pytest.raises(
                HallmarkError, match=r"was purged from the sequences .* cannot start or continue"
            ):
                pretrain(
                    packed,
                    made["train_tokenizer"],
                    made["plant_canaries"],
                    None,
                    None,
                    PretrainConfig(),
                )
    with pytest.raises(
        HallmarkError, match=f"cannot, because it needs the document {doc_id.hex()}, purg"
    ):
        check_not_purged("cannot", [ingested])


def test_a_planted_document_is_not_purged(folder, tmp_path):
    made = corpus(folder, tmp_path)
    planted = made["plant_canaries"]["canaries"].read()["doc_ids"].to_pylist()
    with pytest.raises(UsageError, match=r"was planted by Hallmark"):
        purge_document(folder, next(ids[0] for ids in planted if ids).hex())
    assert folder.get(PURGED_DOCUMENTS_FILE) is None


def test_incomplete_tombstones_and_lists_are_named(folder, tmp_path):
    made = corpus(folder, tmp_path)
    (doc_id,) = id_of(made, SECRET)
    purge_document(folder, doc_id.hex())
    ingested = made["ingest"]
    key = f"{ingested.folder}/{TOMBSTONES_FILE}"
    good = json.loads(folder.get(key))
    outside = {"entries": {"a": {"path": "../b", "size": 1, "sha256": ""}}}
    for wrong in ([], {}, good | {"purged": {"x": "y"}}, good | outside):
        folder.put(key, json.dumps(wrong).encode())
        with pytest.raises(HallmarkError, match=r"damaged: its tombstones\.json is incomplete"):
            folder.find_artifact("ingest", ingested.fingerprint)
    folder.put(key, json.dumps(good).encode())
    folder.put(PURGED_DOCUMENTS_FILE, b"{")
    with pytest.raises(HallmarkError, match=r"list of purged documents .* is incomplete"):
        corpus(folder, tmp_path)


def test_an_unknown_document_is_refused(folder, tmp_path):
    (doc_id,) = id_of(corpus(folder, tmp_path), SECRET)
    with pytest.raises(UsageError, match="contains the document abab"):
        purge_document(folder, "ab" * 16)
    assert folder.get(PURGED_DOCUMENTS_FILE) is None
    purge_document(folder, doc_id.hex())
    with pytest.raises(UsageError, match="contains the document 0000"):
        purge_document(folder, "00" * 16)  # the id that replaces the purged one
    assert list(read_purged_documents(folder)["documents"]) == [doc_id.hex()]
