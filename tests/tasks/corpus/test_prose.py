"""Test which texts of an installed package are read, and in which order."""

import pytest

from hallmark.tasks.corpus.reading.byte_streams import ReadCounts
from hallmark.tasks.corpus.reading.documentation import (
    compute_package_digest,
    find_paths_by_document_name,
    read_package_documentation,
)

CODE = b'''"""One."""
class A:
    """Two."""
    def f(): """Three."""
def g(): """Four."""
if 1:
    def h(): """Five."""
else:
    def h(): """Six."""
def none(): pass
'''
DIST_INFO = "sample_prose-1.0.dist-info"


@pytest.fixture
def install(tmp_path, monkeypatch):
    def install(files):
        for name, data in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(data)
        lines = [f"{name},sha256={len(data)},{len(data)}" for name, data in files.items()]
        (tmp_path / DIST_INFO / "RECORD").write_text("\n".join([*lines, f"{DIST_INFO}/RECORD,,"]))
        monkeypatch.syspath_prepend(tmp_path)

    return install


def read_package(limit=1 << 20):
    counts = ReadCounts()
    records = [*read_package_documentation("sample-prose", limit, counts)]
    assert (counts.record_count, counts.byte_count) == (
        len(records),
        sum(r.raw_bytes for r in records),
    )
    return records


def test_only_the_prose_of_a_package_is_read(install):
    metadata = b"Name: sample-prose\r\nVersion: 1.0\r\n\r\n"
    install(
        {
            f"{DIST_INFO}/METADATA": metadata + b"First.\r\n\r\nLast.\r\n",
            f"{DIST_INFO}/AUTHORS": b"Me.",
            f"{DIST_INFO}/licenses/COPYING.txt": b"Do.",
            f"{DIST_INFO}/LICENCE": b"May.",
            f"{DIST_INFO}/entry_points.txt": b"no",
            f"{DIST_INFO}/WHEEL": b"no",
            "sample/LICENSE": b"no",
            "sample/data.txt": b"no",
            "sample/_vendor/a.py": b"'''no'''",
            "test/a.py": b"'''no'''",
            "sample/b.py": CODE,
        }
    )
    records = read_package()
    assert [(r.file_name, r.location, r.text) for r in records] == [
        ("dist-info/AUTHORS", "whole file", "Me."),
        ("dist-info/LICENCE", "whole file", "May."),
        ("dist-info/METADATA", "description", "First.\n\nLast.\n"),
        ("dist-info/licenses/COPYING.txt", "whole file", "Do."),
        ("sample/b.py", "module, line 1", "One."),
        ("sample/b.py", "A, line 3", "Two."),
        ("sample/b.py", "A.f, line 4", "Three."),
        ("sample/b.py", "g, line 5", "Four."),
        ("sample/b.py", "h, line 7", "Five."),
        ("sample/b.py", "h, line 9", "Six."),
    ]
    assert [r.raw_bytes for r in records[:5]] == [3, 4, 14, 3, 4]
    assert not any(r.error for r in read_package(limit=14))
    [long] = [r for r in read_package(limit=13) if r.error]
    assert (long.error, long.text) == ("longer than max_document_bytes", "")
    assert long.raw == b"First.\n\nLast.\n"
    version, digest = compute_package_digest("sample-prose").split()
    assert version == "1.0" and len(digest) == 64


def test_a_package_without_a_description_has_no_documents(install):
    install({f"{DIST_INFO}/METADATA": b"Name: sample-prose\nVersion: 1.0\n\n \n"})
    assert read_package() == [] and [*find_paths_by_document_name("sample-prose")] == [
        "dist-info/METADATA"
    ]


def test_a_file_that_is_neither_text_nor_code_is_an_error(install):
    install(
        {
            f"{DIST_INFO}/METADATA": b"Name: x\nVersion: 1.0\n\nHi.",
            f"{DIST_INFO}/NOTICE": b"ab\xffc",
            "a.py": b"'''Hi.'''\ndef (:\n",
            "b.py": b"'''Ho.'''",
        }
    )
    assert [(r.file_name, r.location, r.error, r.raw_bytes, r.raw) for r in read_package()] == [
        ("a.py", "line 2", "not parsable as Python", 17, b"'''Hi.'''\ndef (:\n"),
        ("b.py", "module, line 1", "", 3, b""),
        ("dist-info/METADATA", "description", "", 3, b""),
        ("dist-info/NOTICE", "byte 3", "not valid UTF-8", 4, b"ab\xffc"),
    ]


def test_the_indentation_of_a_docstring_is_counted_but_is_not_part_of_the_text(install):
    code = b'class A:\n    """First.\n\n        Deeper.\n    Last."""\n'
    install({f"{DIST_INFO}/METADATA": b"Name: x\nVersion: 1.0\n\n", "a.py": code})
    [record] = read_package()
    assert record.text == "First.\n\n    Deeper.\nLast."
    assert record.raw_bytes == len("First.\n\n        Deeper.\n    Last.")
