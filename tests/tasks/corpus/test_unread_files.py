"""Test the files of a folder that are not read: each is in a table, or its text is a document."""

import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from hallmark.tasks.contract import UsageError
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.byte_streams import (
    COMPRESSED_TWICE,
    LFS_POINTER,
    REMEDY_BY_FILE_ERROR,
    TAR_ARCHIVE,
    UTF16_WITHOUT_MARK,
    ZIP_ARCHIVE,
)
from hallmark.tasks.corpus.reading.compressed_members import CODEC_BY_SUFFIX, detect_codec
from hallmark.tasks.corpus.reading.inputs import IngestConfig, digest_sources_and_block_lists
from hallmark.tasks.corpus.reading.object_storage import find_remote_files
from hallmark.tasks.corpus.reading.readers import suggest_remedy
from hallmark.tasks.corpus.reading.sources import (
    SOURCE_CLASSES,
    UnreadFile,
    describe_unread_files,
    explain_unread_name,
    find_archive_reason,
    find_pointer_reason,
    find_source_files,
)
from tests.tasks.corpus.reader_helpers import COMPRESS_BY_ENDING, get_texts, read_checked

CASES = Path(__file__).parents[2] / "cases" / "corpus"


def make_config(path, kind="jsonl"):
    return IngestConfig(sources=[{"kind": kind, "name": "s", "path": str(path)}])


def read_unread_files(artifact):
    rows = artifact["unread_files"].read().to_pylist()
    assert all(row.pop("source") == "s" for row in rows)
    return {row["file_name"]: (row["reason"], row["files"], row["raw_bytes"]) for row in rows}


def test_all_compressions_and_capital_letters_are_read(session):
    artifact = ingest(make_config(CASES / "folder"))
    texts = sorted(text.split(":")[0] for text in artifact["documents"].read()["text"].to_pylist())
    names = ["a1", "a2", "b1", "c1", "d1", "d2", "e1", "g1", "h1"]
    assert texts == [f"Letter {name}" for name in names]
    assert read_unread_files(artifact) == {}
    assert artifact["sources"].read()["unread_files"].to_pylist() == [0]


def write_folder(folder):
    """Write a folder with one file to read and one of each kind that is not read."""
    for name in ("a.jsonl", ".git/a.JSONL.gz"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b'{"text": "A text."}\n')
    sizes = {"b.csv": 5, "c.pdf": 6, "README": 7, "d.jsonl.zip": 8, "e.tar.gz": 9, ".f.jsonl": 10}
    sizes |= {".git/g": 11, ".git/in/h.txt": 12, "in/.i/j.bin": 13}
    for name, size in sizes.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x" * size)
    (folder / "k.jsonl").symlink_to(folder / "nowhere")
    (folder / "l").symlink_to(folder / "in")
    (folder / "m.csv").symlink_to(folder / "b.csv")
    os.mkfifo(folder / "n.jsonl")


def test_each_file_that_is_not_read_has_a_reason(tmp_path, session, caplog):
    (tmp_path / "in").mkdir()
    write_folder(tmp_path / "in")
    (tmp_path / "in" / ".git" / "a.JSONL.gz").unlink()
    artifact = ingest(make_config(tmp_path / "in"))
    unread = read_unread_files(artifact)
    assert unread == {
        ".f.jsonl": ("hidden file", 1, 10),
        ".git": ("files in a hidden folder, with extensions that the source does not read", 2, 23),
        "README": ("no extension", 1, 7),
        "b.csv": ("only sources of kind 'csv' read files with this extension", 1, 5),
        "c.pdf": ("unknown extension .pdf", 1, 6),
        "d.jsonl.zip": ("archives such as .zip are not read (unpack the archive)", 1, 8),
        "e.tar.gz": ("archives such as .tar.gz are not read (unpack the archive)", 1, 9),
        "in/.i": ("files in a hidden folder, with extensions that the source does not read", 1, 13),
        "k.jsonl": ("broken link", 1, 0),
        "l": ("link to a folder", 1, 0),
        "m.csv": ("only sources of kind 'csv' read files with this extension", 1, 0),
        "n.jsonl": ("not a regular file", 1, 0),
    }
    assert list(unread) == sorted(unread)
    assert artifact["sources"].read()["unread_files"].to_pylist() == [13]
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == (
        "source 's': 13 files are not read: '.f.jsonl': hidden file; '.git': files in a hidden "
        "folder, with extensions that the source does not read; 'README': no extension; and 9 "
        "more; see the unread_files table of the ingest stage"
    )


def test_a_file_in_a_hidden_folder_is_read_and_the_others_are_one_row(tmp_path):
    write_folder(tmp_path)
    files = find_source_files("s", str(tmp_path), (".jsonl",))
    assert [*files.path_by_name] == [".git/a.JSONL.gz", "a.jsonl"]
    assert files.unread_files[1] == UnreadFile(
        ".git", "files in a hidden folder, with extensions that the source does not read", 2, 23
    )


def test_files_of_a_pattern_may_have_any_ending_but_that_of_an_archive(tmp_path):
    write_folder(tmp_path)
    files = find_source_files("s", f"{tmp_path}/*", (".jsonl",))
    assert [*files.path_by_name] == [".f.jsonl", "README", "a.jsonl", "b.csv", "c.pdf", "m.csv"]
    assert {(unread.file_name, unread.reason) for unread in files.unread_files} == {
        (".git", "folder that matches the pattern"),
        ("d.jsonl.zip", "archives such as .zip are not read (unpack the archive)"),
        ("e.tar.gz", "archives such as .tar.gz are not read (unpack the archive)"),
        ("in", "folder that matches the pattern"),
        ("k.jsonl", "broken link"),
        ("l", "link to a folder"),
        ("n.jsonl", "not a regular file"),
    }


@pytest.mark.parametrize("name", ["a.jsonl.zip", "a.7Z", "a.jsonl.lz4", "a.tar.xz", "a.tgz", "a.Z"])
def test_an_archive_that_a_path_names_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    ending = f".{name.lower().split('.', 1)[1]}".removeprefix(".jsonl")
    reason = f"archives such as {ending} are not read (unpack the archive)"
    if ending in (".lz4", ".z"):
        reason = (
            f"files compressed as {ending} are not read (decompress the file, or compress it as "
            ".gz or .zst or .zstd or .bz2 or .xz)"
        )
    with pytest.raises(UsageError) as raised:
        find_source_files("s", str(tmp_path / name), (".jsonl",))
    assert str(raised.value) == f"source 's': {str(tmp_path / name)!r}: {reason}"
    assert explain_unread_name(name) == find_archive_reason(name) != ""


def test_a_long_unknown_ending_is_cut():
    assert explain_unread_name("a." + "x" * 19) == "unknown extension ." + "x" * 19
    assert explain_unread_name("a." + "x" * 20) == "unknown extension ." + "x" * 19


@pytest.mark.parametrize("ending", ["", *CODEC_BY_SUFFIX])
def test_the_endings_that_are_read_are_not_those_of_archives(ending):
    assert find_archive_reason(f"a.tar.jsonl{ending}") == find_archive_reason(f"zip{ending}") == ""


def test_an_error_about_a_folder_without_corpus_files_names_its_files(tmp_path):
    (tmp_path / "a.docx").write_bytes(b"x")
    with pytest.raises(UsageError) as raised:
        find_source_files("s", str(tmp_path), (".jsonl",))
    assert str(raised.value) == (
        f"source 's': there is no file ending in .jsonl at {str(tmp_path)!r} (1 file is not read: "
        "'a.docx': unknown extension .docx); correct the source path"
    )


def test_files_are_described_with_their_number():
    files = [UnreadFile(str(number), "reason", 1, 0) for number in range(4)]
    assert describe_unread_files([]) == ""
    assert describe_unread_files(files[:1]) == "1 file is not read: '0': reason"
    assert describe_unread_files(files[:3]).endswith("'1': reason; '2': reason")
    assert describe_unread_files(files).endswith("'2': reason; and 1 more")


def test_a_new_file_that_is_not_read_changes_the_fingerprint_and_its_size_does_not(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "A text."}\n')
    digests = [digest_sources_and_block_lists(make_config(tmp_path), "")]
    for data in (b"x", b"xx"):
        (tmp_path / "log.txt").write_bytes(data)
        digests.append(digest_sources_and_block_lists(make_config(tmp_path), ""))
    assert digests[0] != digests[1] == digests[2]


def test_objects_that_are_not_read_have_a_reason(replace_objects):
    names = ["a.jsonl", "B.JSONL.ZSTD", "c.pdf", "in/d.zip", "e.txt"]
    uri = replace_objects("unread", dict.fromkeys(names, b"xyz"))
    files = find_remote_files("s", uri, (".jsonl",))
    assert [*files.file_by_name] == ["B.JSONL.ZSTD", "a.jsonl"]
    assert files.unread_files == [
        UnreadFile("c.pdf", "unknown extension .pdf", 1, 3),
        UnreadFile("e.txt", "only sources of kind 'text' read files with this extension", 1, 3),
        UnreadFile("in/d.zip", "archives such as .zip are not read (unpack the archive)", 1, 3),
    ]
    files = find_remote_files("s", f"{uri}/**/*", (".jsonl",))
    assert [*files.file_by_name] == ["B.JSONL.ZSTD", "a.jsonl", "c.pdf", "e.txt"]
    assert [unread.file_name for unread in files.unread_files] == ["in/d.zip"]
    with pytest.raises(UsageError, match=r"in/d\.zip': archives such as \.zip are not read"):
        find_remote_files("s", f"{uri}/in/d.zip", (".jsonl",))
    with pytest.raises(UsageError, match=r"at .*unread/in' \(1 file is not read: 'd.zip': arch"):
        find_remote_files("s", f"{uri}/in", (".jsonl",))


@pytest.mark.parametrize("ending", COMPRESS_BY_ENDING)
@pytest.mark.parametrize(("kind", "data"), [("jsonl", b'{"text": "a"}'), ("csv", b"text\na\n")])
def test_a_compressed_file_without_its_ending_is_read(write, ending, kind, data):
    path = write(f"a.{kind}", COMPRESS_BY_ENDING[ending](data))
    documents, errors, counts = read_checked(path, kind)
    assert (get_texts(documents), errors, counts.byte_count) == (["a"], [], len(data))


@pytest.mark.parametrize("start", [b"", b"\x1f", b"BZh9", b"BZh9x", b"x\x1f\x8b\x08", b"(\xb5/"])
def test_text_is_not_taken_for_a_compressed_file(write, start):
    with write("a.txt", start).open("rb") as file:
        assert detect_codec(file) is None and file.tell() == 0


def test_every_byte_of_a_folder_is_counted(tmp_path, session):
    """Documents, blank lines, quarantine, and files that are not read add up to the folder."""
    write_folder(tmp_path / "in")
    (tmp_path / "in" / ".git" / "a.JSONL.gz").unlink()
    (tmp_path / "in" / "b.JSONL").write_bytes(b'\r\n{"text": "b"}\n{"text": \n\xc2\xa0\n')
    (tmp_path / "in" / "c.json").write_bytes(b'[{"text": "c"}, 5, {"text": "d"}]')
    artifact = ingest(make_config(tmp_path / "in"))
    assert sorted(artifact["documents"].read()["text"].to_pylist()) == ["A text.", "b", "c", "d"]
    (bytes_row,) = [r for r in artifact["accounts"].read().to_pylist() if r["unit"] == "bytes"]
    unread_bytes = sum(artifact["unread_files"].read()["raw_bytes"].to_pylist())
    paths = [path for path in (tmp_path / "in").rglob("*") if not path.is_symlink()]
    folder_bytes = sum(path.stat().st_size for path in paths if path.is_file())
    assert bytes_row["input"] + unread_bytes == folder_bytes
    parts = ("kept", "removed_spans", "removed_rows", "quarantined")
    assert sum(bytes_row[part] for part in parts) == bytes_row["input"]


# Pointers of Git LFS ------------------------------------------------------------------------------

POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
POINTER_REASON = "a Git LFS pointer instead of the file (run git lfs pull)"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("jsonl", "b.jsonl"),
        ("jsonl", "b.JSON.gz"),
        ("text", "b.txt"),
        ("csv", "b.csv"),
        ("tsv", "b.tab"),
        ("parquet", "b.parquet"),
        ("warc", "b.warc.gz"),
    ],
)
def test_a_pointer_of_git_lfs_is_no_document(tmp_path, kind, name):
    (tmp_path / name).write_bytes(POINTER)
    (tmp_path / f"a{name}").write_bytes(b"Not a pointer: " + POINTER)
    pointer = UnreadFile(name, POINTER_REASON, 1, len(POINTER))
    suffixes = SOURCE_CLASSES[kind].suffixes
    for path in (tmp_path, tmp_path / "*"):
        files = find_source_files("s", str(path), suffixes)
        assert ([*files.path_by_name], files.unread_files) == ([f"a{name}"], [pointer])
    with pytest.raises(UsageError) as raised:
        find_source_files("s", str(tmp_path / name), suffixes)
    assert str(raised.value) == f"source 's': {str(tmp_path / name)!r}: {POINTER_REASON}"
    (tmp_path / f"a{name}").unlink()
    for path in (tmp_path, tmp_path / "*"):
        with pytest.raises(UsageError) as raised:
            find_source_files("s", str(path), suffixes)
        assert str(raised.value) == (
            f"source 's': no file can be read at {str(path)!r} (1 file is not read: {name!r}: "
            f"{POINTER_REASON}); correct the source path"
        )


def test_pointers_are_counted_and_digested(tmp_path, session, caplog):
    (tmp_path / "a.txt").write_bytes(b"A text.")
    (tmp_path / "b.txt").write_bytes(POINTER)
    artifact = ingest(make_config(tmp_path, "text"))
    assert artifact["documents"].read()["text"].to_pylist() == ["A text."]
    assert read_unread_files(artifact) == {"b.txt": (POINTER_REASON, 1, len(POINTER))}
    digest = digest_sources_and_block_lists(make_config(tmp_path, "text"), "")
    (tmp_path / "b.txt").write_bytes(b"Another text.")
    assert digest_sources_and_block_lists(make_config(tmp_path, "text"), "") != digest


@pytest.mark.parametrize(
    ("data", "is_pointer"),
    [
        (POINTER.replace(b"\n", b"\r\n"), True),
        (POINTER.replace(b"git-lfs", b"hawser"), True),
        (POINTER + b"x" * (1023 - len(POINTER)), True),
        (POINTER + b"x" * (1024 - len(POINTER)), False),
        (POINTER.replace(b"spec/v1", b"spec/v1 is a text"), False),
        (b" " + POINTER, False),
        (b"", False),
    ],
)
def test_what_begins_like_a_pointer_is_one(write, data, is_pointer):
    path = write("a.txt", data)
    assert (find_pointer_reason(path) != "") == is_pointer
    documents, errors, _ = read_checked(path, "text", limit=2000)
    assert errors == [("whole file", LFS_POINTER)] * is_pointer
    assert len(documents) == (not is_pointer)


def test_files_that_cannot_be_read_are_no_pointers(tmp_path):
    assert find_pointer_reason(tmp_path / "nowhere") == ""


# Files of another kind than their name says -------------------------------------------------------


def make_tar(**files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def make_zip(**files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


@pytest.mark.parametrize("ending", COMPRESS_BY_ENDING)
@pytest.mark.parametrize("inner_ending", COMPRESS_BY_ENDING)
def test_a_file_that_is_compressed_twice_is_refused(write, ending, inner_ending):
    data = COMPRESS_BY_ENDING[ending](COMPRESS_BY_ENDING[inner_ending](b'{"text": "a"}\n'))
    documents, errors, _ = read_checked(write(f"a.jsonl{ending}", data), "jsonl")
    assert (documents, errors) == ([], [("line 1", COMPRESSED_TWICE)])


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", ["jsonl", "text", "csv", "tsv"])
def test_the_content_of_a_file_that_is_no_text_is_refused(write, kind, ending):
    compress = COMPRESS_BY_ENDING.get(ending, bytes)
    text = 'id,text\n1,"a"\n'
    for data, error in (
        (make_tar(a=b"text\na\n"), TAR_ARCHIVE),
        (POINTER, LFS_POINTER),
        (make_zip(a=text), ZIP_ARCHIVE),
        (text.encode("utf-16-le"), UTF16_WITHOUT_MARK),
        (text.encode("utf-16-be"), UTF16_WITHOUT_MARK),
    ):
        documents, errors, counts = read_checked(
            write(f"a.{kind}{ending}", compress(data)), kind, limit=10**5
        )
        assert documents == [] and [found for _, found in errors] == [error]
        assert counts.byte_count == counts.lost_bytes == len(data)
        assert suggest_remedy(error) == f"{REMEDY_BY_FILE_ERROR[error]}, and run again"


def test_texts_like_files_that_are_no_text_are_read(write):
    for text in ("x" * 257 + "ustar", "a\0\0b", "a\0bc", "\0a"):
        documents, errors, _ = read_checked(write("a.txt", text.encode()), "text")
        assert (get_texts(documents), errors) == ([text], [])


@pytest.mark.parametrize(
    "magic", [b"\x28\xb5\x2f\xfd", b"\x1f\x8b\x08", b"BZh91AY&SY", b"\xfd7zXZ\x00"]
)
def test_a_damaged_first_line_that_begins_like_compressed_data_costs_only_itself(tmp_path, magic):
    path = tmp_path / "a.jsonl"
    path.write_bytes(magic + b'\xff damaged\n{"text": "good"}\n')
    documents, errors, _ = read_checked(path, "jsonl", limit=1000)
    assert get_texts(documents) == ["good"]
    assert [place.partition(",")[0] for place, _ in errors] == ["line 1"]
