"""The index of the training text finds what a search of every document finds."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from hallmark.tasks.audits import text_index
from hallmark.tasks.audits.text_index import TextIndex, open_or_build_shards, open_text_index
from hallmark.tasks.audits.training_spans import (
    MAX_WORD_CHARACTERS,
    WordBounds,
    find_training_spans,
    iter_words,
)
from hallmark.tasks.contract import (
    DOCUMENTS,
    PROJECT_ROOT,
    HallmarkError,
    Session,
    Store,
    Table,
    fill_document_columns,
    hash_texts,
    hash_to_ids,
    open_session,
)
from tests.forged_tables import forge_table
from tests.tasks.corpora import given, table_in

NO_LIMIT = 10**9


def build(folder, texts, max_shard_bytes=NO_LIMIT, splits=None):
    """Build the index of texts in two folders below ``folder``."""
    ids = hash_to_ids(f"document {number}" for number in range(len(texts)))
    columns = {
        "doc_id": ids,
        "source": [f"source {number}" for number in range(len(texts))],
        "cluster": ids,
        "text": pa.array(texts, pa.large_string()),
        "text_hash": hash_texts(pa.array(texts, pa.large_string())),
        "split": splits or ["train"] * len(texts),
    }
    documents = table_in(
        Path(folder, "documents"), pa.table(fill_document_columns(columns), schema=DOCUMENTS)
    )
    index_folder = Path(folder, "index")
    index_folder.mkdir()
    return TextIndex(open_or_build_shards(index_folder, documents, print, max_shard_bytes))


def split(documents, splits=None):
    """Build an artifact with these documents in the training split."""
    return given(documents, splits=splits, kind="split")


# An independent implementation: try every pair of words in every document ----------------------


def list_occurrences(texts, piece):
    return [
        (number, start)
        for number, text in enumerate(texts)
        for start in range(len(text))
        if text.startswith(piece, start)
    ]


def find_by_trying_all(texts, query, min_characters):
    words = [*iter_words(query)]
    occurring = [
        (first.start, last.end)
        for number, first in enumerate(words)
        for last in words[number:]
        if list_occurrences(texts, query[first.start : last.end])
    ]
    maximal = [
        (start, end)
        for start, end in occurring
        if end - start >= min_characters
        and not any(
            other != (start, end) and other[0] <= start and end <= other[1] for other in occurring
        )
    ]
    total = sum(len(text.encode()) for text in texts)
    ranked = []
    for start, end in maximal:
        log_probability = sum(
            math.log(len(list_occurrences(texts, query[word.start : word.end])) / total)
            for word in words
            if start <= word.start and word.end <= end
        )
        occurrences = len(list_occurrences(texts, query[start:end]))
        ranked.append((log_probability, occurrences, start, end))
    return sorted(ranked)


#: Few characters, so that much repeats: words, spaces, a script without spaces, characters of
#: several bytes, a mark, NUL and a right-to-left override.
ALPHABET = "aab b.  \né語ก\u0301\0\u202e😀"
TEXTS = st.text(ALPHABET, max_size=30)


@settings(max_examples=150)
@drawn(
    texts=st.lists(TEXTS, min_size=0, max_size=8),
    query=TEXTS,
    copied=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 20), st.integers(1, 20))),
    max_shard_bytes=st.sampled_from([1, 40, 100, NO_LIMIT]),
    sample_step=st.sampled_from([1, 2, 7, text_index.SAMPLE_STEP]),
    min_characters=st.integers(1, 4),
)
def test_spans_equal_those_of_a_search_of_every_pair_of_words(
    texts, query, copied, max_shard_bytes, sample_step, min_characters
):
    for number, start, length in copied if texts else ():
        query += texts[number % len(texts)][start : start + length]
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(text_index, "SAMPLE_STEP", sample_step),
    ):
        index = build(folder, texts, max_shard_bytes)
        spans = find_training_spans(index, query, min_characters)
        expected = find_by_trying_all(texts, query, min_characters)
        assert [(span.occurrences, span.start, span.end) for span in spans] == [
            row[1:] for row in expected
        ]
        assert [span.log_probability for span in spans] == pytest.approx(
            [row[0] for row in expected]
        )
        for span in spans:
            piece = query[span.start : span.end]
            firsts = {}
            for number, start in list_occurrences(texts, piece):
                firsts.setdefault(number, start)
            found = [*index.iter_first_occurrences(piece.encode(), 5)]
            assert [(o.document["source"], o.char_start) for o in found] == [
                (f"source {number}", start) for number, start in firsts.items()
            ]
            for occurrence, (number, start) in zip(found, firsts.items(), strict=True):
                assert occurrence.text_before == texts[number][max(0, start - 5) : start]
                end = start + len(piece)
                assert occurrence.text_after == texts[number][end : end + 5]


def test_passages_of_a_larger_corpus_are_found(tmp_path):
    rng = np.random.default_rng(0)
    texts = [" ".join(map(str, rng.integers(0, 300, 200))) for _ in range(200)]
    index = build(tmp_path, texts, 60_000)
    assert len(index.shards) == 3 and len(index.shards[0].samples) > 50 * text_index.SAMPLE_BYTES
    for text in texts[::20]:
        query = f"{text[7:57]} ! {text[300:]}"
        for span in find_training_spans(index, query, 1):
            piece = query[span.start : span.end]
            places = re.compile(f"(?={re.escape(piece)})")
            assert span.occurrences == sum(len(places.findall(text)) for text in texts)
        longest = max(find_training_spans(index, query), key=lambda span: span.end - span.start)
        assert longest.end == len(query) and longest.end - longest.start >= len(text) - 305


def test_a_span_does_not_cross_the_boundary_of_documents(tmp_path):
    index = build(tmp_path, ["The lamp of the harbour ", "burns all night long."])
    text = "The lamp of the harbour burns all night long."
    spans = find_training_spans(index, text)
    assert {text[span.start : span.end] for span in spans} == {
        "The lamp of the harbour",
        "burns all night long.",
    }
    (occurrence,) = index.iter_first_occurrences(b"burns", 50)
    assert (occurrence.text_before, occurrence.text_after) == ("", " all night long.")


def test_shards_have_at_most_the_given_size_and_give_the_same_result(tmp_path):
    texts = [f"Document {number} is about the lamp {number % 7}." for number in range(50)]
    one, many = build(tmp_path / "one", texts), build(tmp_path / "many", texts, 100)
    assert (len(one.shards), len(many.shards)) == (1, 17)
    assert all(len(shard.text) <= 100 for shard in many.shards)
    query = "We say: document 3 is about the lamp 3. Document 4 is about the lamp 5."
    assert find_training_spans(one, query) == find_training_spans(many, query) != []
    for index in (one, many):
        assert (index.document_count, index.text_bytes) == (50, sum(map(len, texts)))
        sources = [o.document["source"] for o in index.iter_first_occurrences(b"the lamp 3.", 0)]
        assert sources == [f"source {number}" for number in range(3, 50, 7)]


def test_a_document_is_never_divided(tmp_path):
    texts = ["short", "a document that is longer than the limit of a shard", "brief"]
    index = build(tmp_path, texts, 10)
    assert [len(shard.text_starts) for shard in index.shards] == [1, 1, 1]
    assert index.count_occurrences(texts[1].encode()) == 1


def test_only_documents_of_the_training_split_are_indexed(tmp_path):
    texts = ["The first text of training.", "A text of validation.", "A holdout text.", ""]
    index = build(tmp_path, texts, splits=["train", "validation", "holdout", "train"])
    assert (index.document_count, index.text_bytes) == (1, len(texts[0]))
    assert [index.count_occurrences(text.encode()) for text in texts[:3]] == [1, 0, 0]


def test_a_corpus_without_training_text_has_an_empty_index(tmp_path):
    index = build(tmp_path, ["held out"], splits=["holdout"])
    assert (index.shards, index.document_count, index.text_bytes) == ([], 0, 0)
    assert find_training_spans(index, "held out, and much more of it") == []
    assert open_or_build_shards(tmp_path / "index", None, print, NO_LIMIT) == []  # not built again


@pytest.mark.parametrize("text", ["", "  \n", "a", "no such words occur here at all"])
def test_a_text_that_does_not_occur_has_no_spans(tmp_path, text):
    assert find_training_spans(build(tmp_path, ["Something else entirely."]), text) == []


def test_a_part_of_a_very_long_word_is_found(tmp_path):
    key = "".join(chr(ord("a") + (number * number) % 26) for number in range(10_000))
    index = build(tmp_path, [f"The key is {key}."])
    (span,) = find_training_spans(index, f"Use {key}")
    assert (span.start, span.end) == (4, 10_004)
    query = f"xyz{key[5000:9000]}0123"
    spans = find_training_spans(index, query)
    assert (3, 4003) in {(span.start, span.end) for span in spans}
    assert find_training_spans(index, "0" * 10_000) == []


def test_words_follow_scripts():
    def words(text):
        return [text[start:end] for start, end in iter_words(text)]

    assert words("Don't say  snake_case, 3.5%!") == [
        *("Don", "'", "t", "say", "snake_case", ",", "3", ".", "5", "%", "!")
    ]
    assert words("cafe\u0301 हिन्दी اللغة") == ["cafe\u0301", "हिन्दी", "اللغة"]
    assert words("東京タワー and ไทย") == [*"東京タワー", "and", *"ไทย"]
    assert words("a\0b\u202ec") == ["a", "\0", "b", "\u202e", "c"]
    assert words("x" * MAX_WORD_CHARACTERS) == ["x" * MAX_WORD_CHARACTERS]
    assert words("x" * (MAX_WORD_CHARACTERS + 1)) == ["x"] * (MAX_WORD_CHARACTERS + 1)
    assert [*iter_words(" a ")] == [WordBounds(1, 2)]


def test_the_rarest_span_is_first(tmp_path):
    common = "the end of the day"
    index = build(tmp_path, [common] * 5 + ["Ottilie's violet submarine sank", "a b c d e f g h i"])
    text = f"{common}; Ottilie's violet submarine; a b c d e f g h i"
    spans = find_training_spans(index, text)
    assert [text[span.start : span.end] for span in spans][-1] == common
    assert spans[-1].occurrences == 5
    assert [s.log_probability for s in spans] == sorted(s.log_probability for s in spans)


# The cache ------------------------------------------------------------------------------------


def open_counting(documents, **options):
    """Open an index; return it, and whether it was built."""
    built = []
    index = open_text_index(documents["documents"], built.append, **options)
    return index, bool(built)


def index_folders(session):
    return sorted(session.store.work_folder.glob("text_index-*"))


def test_an_index_is_built_once_and_again_for_other_documents(session):
    first, second = split(["The lamp of the harbour."]), split(["The harbour of the lamp."])
    assert open_counting(first)[1] and not open_counting(first)[1]
    index, was_built = open_counting(second)
    assert was_built and index.count_occurrences(b"harbour of") == 1
    assert len(index_folders(session)) == 2


def test_no_index_is_built_from_a_forged_table(session):
    documents = split(["The lamp of the harbour.", "The harbour of the lamp."])["documents"]
    forge_table(documents, "text", "The keeper.")
    announced: list[int] = []
    for _ in range(2):
        with pytest.raises(HallmarkError, match=r"is damaged: .* does not match the SHA-256"):
            open_text_index(documents, announced.append)
    assert announced == []
    assert not [path for folder in index_folders(session) for path in folder.glob("*.text")]


def test_the_index_of_an_earlier_corpus_is_reused(session):
    first, second = split(["The lamp of the harbour."]), split(["The harbour of the lamp."])
    open_counting(first)
    built = []
    index = open_text_index(Table((first, second), "documents"), built.append)
    assert built == [1] and index.document_count == 2
    assert index.count_occurrences(b"The ") == 2


DAMAGES = {
    "truncated": lambda data: data[:-1],
    "empty": lambda data: b"",
    "changed": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "extended": lambda data: data + b"\0",
    "missing": lambda data: None,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "name",
    [
        "00000.text",
        "00000.suffixes",
        "00000.samples",
        "00000.documents",
        "00001.text",
        "files.json",
    ],
)
def test_a_damaged_index_is_built_again(session, name, damage):
    documents = split(["The lamp of the harbour.", "The harbour of the lamp."])
    open_counting(documents, max_shard_bytes=30)
    (folder,) = index_folders(session)
    content = DAMAGES[damage]((folder / name).read_bytes())
    # Damage to a disk replaces no file, so readers with an open map would see it; write another.
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    index, was_built = open_counting(documents, max_shard_bytes=30)
    assert was_built or (name, damage) == ("files.json", "extended")
    assert index.count_occurrences(b"lamp") == 2 and len(index.shards) == 2
    assert not open_counting(documents, max_shard_bytes=30)[1]


def test_a_damaged_list_of_files_is_no_error(session):
    documents = split(["The lamp of the harbour."])
    open_counting(documents)
    (folder,) = index_folders(session)
    for content in ("[]", "{}", "null", '{"00000.text": 3}', '{"../../secret": ["", []]}', "\xff"):
        (folder / "files.json").write_text(content, encoding="latin-1")
        assert open_counting(documents)[1], content


def test_files_with_new_times_are_compared_with_their_digests(session):
    documents = split(["The lamp of the harbour."])
    open_counting(documents)
    (folder,) = index_folders(session)
    os.utime(folder / "00000.text", ns=(1, 1))
    recorded = (folder / "files.json").read_bytes()
    assert not open_counting(documents)[1]
    assert (folder / "files.json").read_bytes() != recorded  # the new times are known now


@pytest.fixture
def read_only(session, tmp_path):
    """Return a function that returns the store of the session, read-only."""
    place = tmp_path / "read-only"
    place.mkdir()

    def mount():
        for options in (["--bind"], ["-o", "remount,ro,bind"]):
            command = ["mount", *options, session.store.uri, str(place)]
            if shutil.which("mount") is None or subprocess.run(command).returncode:
                pytest.skip("cannot mount a folder read-only")
        with pytest.raises(OSError):
            (place / "file").touch()
        return Store(place)

    yield mount
    subprocess.run(["umount", "--lazy", str(place)], capture_output=True)


@pytest.mark.parametrize("has_new_times", [False, True])
def test_a_complete_index_is_opened_in_a_store_that_cannot_be_written(
    session, read_only, has_new_times
):
    documents = split(["The lamp of the harbour."])
    open_counting(documents)
    if has_new_times:
        (folder,) = index_folders(session)
        os.utime(folder / "00000.text", ns=(1, 1))
    found = read_only().find_artifact(documents.stage, documents.fingerprint)
    index, was_built = open_counting(found)
    assert not was_built and index.count_occurrences(b"lamp") == 1


@pytest.mark.parametrize("damage", ["none", "changed", "no work folder"])
def test_an_index_that_cannot_be_built_is_explained(session, read_only, damage):
    documents = split(["The lamp of the harbour."])
    if damage == "changed":
        open_counting(documents)
        (folder,) = index_folders(session)
        (folder / "00000.text").write_bytes(b"The lamp of the harbors.\xff")
    if damage == "no work folder":
        shutil.rmtree(session.store.work_folder)
    found = read_only().find_artifact(documents.stage, documents.fingerprint)
    with pytest.raises(HallmarkError, match=r"no complete index, and the store .* is not writable"):
        open_counting(found)


def test_a_complete_index_is_opened_while_another_process_has_its_lease(session):
    documents = split(["The lamp of the harbour."])
    open_counting(documents)
    (folder,) = index_folders(session)
    key = folder.name.removeprefix("text_index-")
    with session.store.lease_work_area("text_index", key) as leased_folder:
        assert leased_folder == folder
        assert not open_counting(documents)[1]


def test_other_errors_of_the_index_are_not_explained_away(session):
    documents = split(["The lamp of the harbour."])
    open_counting(documents)
    (folder,) = index_folders(session)
    shutil.rmtree(folder)
    folder.write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        open_counting(documents)


OPEN_IN_ANOTHER_PROCESS = """
import sys
from hallmark.tasks.audits import text_index
from hallmark.tasks.contract import Store
store, fingerprint, kill_at = sys.argv[1:]
documents = Store(store).find_artifact("given_split", fingerprint)["documents"]
if kill_at:
    import os, signal
    def die(*arguments):
        os.kill(os.getpid(), signal.SIGKILL)
    if kill_at == "sorting":
        import pydivsufsort
        pydivsufsort.divsufsort = die
    else:
        text_index._write_file_list = die
built = []
index = text_index.open_text_index(documents, built.append)
print(len(built), index.count_occurrences(b"lamp"))
"""


def start_process(session, documents, kill_at=""):
    command = [sys.executable, "-c", OPEN_IN_ANOTHER_PROCESS]
    return subprocess.Popen(
        [*command, session.store.uri, documents.fingerprint, kill_at],
        stdout=subprocess.PIPE,
        text=True,
        cwd=PROJECT_ROOT,
    )


@pytest.mark.slow
def test_two_processes_build_an_index_together(session):
    documents = split([f"The lamp {number} of the harbour." for number in range(20_000)])
    processes = [start_process(session, documents) for _ in range(2)]
    outputs = [process.communicate()[0].split() for process in processes]
    assert sorted(outputs) == [["0", "20000"], ["1", "20000"]]


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", ["sorting", "recording"])
def test_a_killed_build_leaves_nothing_that_is_used(session, kill_at):
    documents = split(["The lamp of the harbour."])
    process = start_process(session, documents, kill_at)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    (folder,) = index_folders(session)
    assert (folder / "00000.text").exists() and not (folder / "files.json").exists()
    index, was_built = open_counting(documents)
    assert was_built and index.count_occurrences(b"lamp") == 1


def test_a_failed_build_removes_its_files(session, monkeypatch):
    documents = split(["The lamp of the harbour."])

    def fail(*arguments):
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr("pydivsufsort.divsufsort", fail)
        with pytest.raises(MemoryError):
            open_counting(documents)
    (folder,) = index_folders(session)
    assert [path.name for path in folder.iterdir()] == ["lease"]
    assert open_counting(documents)[1]


def is_waiting_for_a_lock(process):
    """Tell whether the kernel lists a process among those that wait for a file lock."""
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(fields[1] == "->" and fields[5] == str(process.pid) for fields in locks)


@pytest.mark.slow
def test_a_build_waits_for_a_purge(tmp_path):
    with open_session(Session(Store(tmp_path / "store"))) as session:
        documents = split(["The lamp of the harbour."])
    with session.store.try_exclusive_lock() as is_exclusive:
        assert is_exclusive
        process = start_process(session, documents)
        while process.poll() is None and not is_waiting_for_a_lock(process):
            time.sleep(0.02)
        assert process.poll() is None and not index_folders(session)
    assert process.communicate()[0].split() == ["1", "1"]


def test_the_list_of_files_names_every_file(session):
    open_counting(split(["The lamp.", "The harbour."]), max_shard_bytes=12)
    (folder,) = index_folders(session)
    kinds = ("text", "suffixes", "samples", "documents")
    names = {f"{shard:05}.{kind}" for shard in (0, 1) for kind in kinds}
    assert json.loads((folder / "files.json").read_bytes()).keys() == names
    assert {path.name for path in folder.iterdir()} == names | {"files.json", "lease"}
