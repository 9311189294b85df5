"""Test finding files: it is fast, closes all files, and reports folders that cannot be listed."""

import os
import resource
from pathlib import Path
from typing import Literal

import pytest

from hallmark.tasks.contract import HallmarkError, UsageError
from hallmark.tasks.contract.allowed_roots import _iter_symlinks
from hallmark.tasks.corpus.reading.byte_streams import ReadCounts
from hallmark.tasks.corpus.reading.inputs import list_reader_modules_and_data
from hallmark.tasks.corpus.reading.readers import TextSource, read_text_file
from hallmark.tasks.corpus.reading.sources import (
    SOURCE_CLASSES,
    FileSource,
    add_compressed_suffixes,
    compute_file_digest,
    find_paths_by_file_name,
    list_corpus_suffixes,
)


def test_no_file_stays_open(tmp_path):
    """With ten free descriptors, hundreds of files are found, hashed and read."""
    for index in range(300):
        (tmp_path / f"{index}.txt").write_bytes(b"x" * 100)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 10, hard))
    try:
        files = find_paths_by_file_name("s", str(tmp_path), (".txt",))
        digests = {compute_file_digest("s", path) for path in files.values()}
        source = TextSource(kind="text", name="s", path="a", document_boundary="blank_lines")
        first_records = [
            next(read_text_file(path, source, 1000, ReadCounts())) for path in files.values()
        ]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (len(files), len(digests), len(first_records)) == (300, 1, 300)


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path, monkeypatch):
    """Otherwise its documents would be missing without an error."""
    (tmp_path / "closed").mkdir()
    (tmp_path / "a.txt").write_bytes(b"x")
    original_scandir = os.scandir

    def refuse(folder):
        if os.fspath(folder).endswith("closed"):
            raise PermissionError(13, "Permission denied", folder)
        return original_scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UsageError, match=r"source 's': .* cannot be read .*closed"):
        find_paths_by_file_name("s", str(tmp_path), (".txt",))


NAMES = [
    "a.txt",
    ".a.txt",
    "b.md.gz",
    "c.jsonl",
    "d",
    ".e",
    "f.parquet.zst",
    "g.TXT",
    "h.csv.bz2",
    "i.csv",
    "j.tab.gz",
    "k.wet",
]


FILE_KINDS = sorted(k for k, c in SOURCE_CLASSES.items() if issubclass(c, FileSource))


def test_every_reader_is_found():
    assert {"jsonl", "parquet", "csv", "tsv", "text", "warc"} == {*FILE_KINDS}
    assert {*SOURCE_CLASSES} - {*FILE_KINDS} == {"datasets", "documentation", "town"}
    assert {"tasks/corpus/data/town/words.txt", TextSource.__module__} < {
        *list_reader_modules_and_data()
    }


def test_two_sources_of_the_same_kind_are_refused():
    with pytest.raises(HallmarkError, match="two source classes declare the kind 'text'"):

        class OtherText(FileSource):
            kind: Literal["text"]

    assert SOURCE_CLASSES["text"] is TextSource


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_every_link_that_a_source_reads_is_among_the_checked_links(tmp_path, kind):
    """A served deployment checks links with the rule by which sources find files."""
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "file").write_text("x")
    folder = tmp_path / "corpus"
    for subfolder in (".", "in", ".hidden", ".hidden/in", "in/.hidden"):
        (folder / subfolder).mkdir(parents=True, exist_ok=True)
        for name in NAMES:
            (folder / subfolder / name).symlink_to(tmp_path / "target" / "file")
            (folder / subfolder / f"folder-{name}").symlink_to(tmp_path / "target")
    paths = {*find_paths_by_file_name("s", str(folder), SOURCE_CLASSES[kind].suffixes).values()}
    suffixes = add_compressed_suffixes(SOURCE_CLASSES[kind].suffixes)
    assert paths == {*map(Path, _iter_symlinks(str(folder), suffixes))}
    assert paths <= {*map(Path, _iter_symlinks(str(folder), list_corpus_suffixes()))} and paths
