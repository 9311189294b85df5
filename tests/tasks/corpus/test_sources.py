"""Files that are found: many of them, quickly, and none left open or left out unsaid."""

import os
import resource
from pathlib import Path

import pytest

from hallmark.tasks.contract import UsageError
from hallmark.tasks.contract.allowed_roots import _iter_symlinks
from hallmark.tasks.corpus.reading.byte_streams import ReadCounts
from hallmark.tasks.corpus.reading.readers import TextSource, read_text_file
from hallmark.tasks.corpus.reading.sources import (
    CORPUS_FILE_SUFFIXES,
    SUFFIXES_BY_KIND,
    add_compressed_suffixes,
    compute_file_digest,
    find_files,
)


def test_no_file_stays_open(tmp_path):
    """With ten descriptors to spare hundreds of files are found, hashed and begun to be read."""
    for index in range(300):
        (tmp_path / f"{index}.txt").write_bytes(b"x" * 100)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 10, hard))
    try:
        found = find_files("s", str(tmp_path), (".txt",))
        digests = {compute_file_digest("s", path) for path in found.values()}
        source = TextSource(kind="text", name="s", path="a", document_boundary="blank_lines")
        firsts = [next(read_text_file(path, source, 1000, ReadCounts())) for path in found.values()]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (len(found), len(digests), len(firsts)) == (300, 1, 300)


def test_a_folder_that_may_not_be_listed_is_refused(tmp_path, monkeypatch):
    """Its documents would be missing without a word."""
    (tmp_path / "closed").mkdir()
    (tmp_path / "a.txt").write_bytes(b"x")
    listed = os.scandir

    def refuse(folder):
        if os.fspath(folder).endswith("closed"):
            raise PermissionError(13, "Permission denied", folder)
        return listed(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UsageError, match=r"source 's': .* cannot be read .*closed"):
        find_files("s", str(tmp_path), (".txt",))


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


@pytest.mark.parametrize("kind", SUFFIXES_BY_KIND)
def test_every_link_that_a_source_reads_counts_as_one_below_its_folder(tmp_path, kind):
    """What a served deployment refuses and what a source reads are found by one rule."""
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "file").write_text("x")
    folder = tmp_path / "corpus"
    for above in (".", "in", ".hidden", ".hidden/in", "in/.hidden"):
        (folder / above).mkdir(parents=True, exist_ok=True)
        for name in NAMES:
            (folder / above / name).symlink_to(tmp_path / "target" / "file")
            (folder / above / f"folder-{name}").symlink_to(tmp_path / "target")
    found = {*find_files("s", str(folder), SUFFIXES_BY_KIND[kind]).values()}
    assert found == {
        *map(Path, _iter_symlinks(str(folder), add_compressed_suffixes(SUFFIXES_BY_KIND[kind])))
    }
    assert found <= {*map(Path, _iter_symlinks(str(folder), CORPUS_FILE_SUFFIXES))} and found
