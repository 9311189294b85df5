"""What is read of an installed package, in which order, and what is left out."""

import pytest

from hallmark.tasks.corpus.reading.byte_streams import ReadCounts
from hallmark.tasks.corpus.reading.documentation import (
    compute_package_digest,
    find_prose_files,
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
INFO = "sample_prose-1.0.dist-info"


@pytest.fixture
def install(tmp_path, monkeypatch):
    def install(files):
        for name, data in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(data)
        lines = [f"{name},sha256={len(data)},{len(data)}" for name, data in files.items()]
        (tmp_path / INFO / "RECORD").write_text("\n".join([*lines, f"{INFO}/RECORD,,"]))
        monkeypatch.syspath_prepend(tmp_path)

    return install


def read(limit=1 << 20):
    meter = ReadCounts()
    found = [*read_package_documentation("sample-prose", limit, meter)]
    assert (meter.record_count, meter.byte_count) == (len(found), sum(r.raw_bytes for r in found))
    return found


def test_of_a_package_its_prose_is_read_and_nothing_else(install):
    head = b"Name: sample-prose\r\nVersion: 1.0\r\n\r\n"
    install(
        {
            f"{INFO}/METADATA": head + b"First.\r\n\r\nLast.\r\n",
            f"{INFO}/AUTHORS": b"Me.",
            f"{INFO}/licenses/COPYING.txt": b"Do.",
            f"{INFO}/LICENCE": b"May.",
            f"{INFO}/entry_points.txt": b"no",
            f"{INFO}/WHEEL": b"no",
            "sample/LICENSE": b"no",
            "sample/data.txt": b"no",
            "sample/_vendor/a.py": b"'''no'''",
            "test/a.py": b"'''no'''",
            "sample/b.py": CODE,
        }
    )
    found = read()
    assert [(r.file_name, r.location, r.text) for r in found] == [
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
    assert [r.raw_bytes for r in found[:5]] == [3, 4, 14, 3, 4]
    assert not any(r.error for r in read(limit=14))
    [long] = [r for r in read(limit=13) if r.error]
    assert (long.error, long.text) == ("longer than max_document_bytes", "")
    assert long.raw == b"First.\n\nLast.\n"
    version, digest = compute_package_digest("sample-prose").split()
    assert version == "1.0" and len(digest) == 64


def test_a_package_without_a_description_has_none(install):
    install({f"{INFO}/METADATA": b"Name: sample-prose\nVersion: 1.0\n\n \n"})
    assert read() == [] and [*find_prose_files("sample-prose")] == ["dist-info/METADATA"]


def test_what_is_no_text_and_no_code_costs_its_file(install):
    install(
        {
            f"{INFO}/METADATA": b"Name: x\nVersion: 1.0\n\nHi.",
            f"{INFO}/NOTICE": b"ab\xffc",
            "a.py": b"'''Hi.'''\ndef (:\n",
            "b.py": b"'''Ho.'''",
        }
    )
    assert [(r.file_name, r.location, r.error, r.raw_bytes, r.raw) for r in read()] == [
        ("a.py", "line 2", "not parsable as Python", 17, b"'''Hi.'''\ndef (:\n"),
        ("b.py", "module, line 1", "", 3, b""),
        ("dist-info/METADATA", "description", "", 3, b""),
        ("dist-info/NOTICE", "byte 3", "not valid UTF-8", 4, b"ab\xffc"),
    ]


def test_the_indentation_of_a_docstring_counts_as_read_and_is_no_part_of_the_text(install):
    code = b'class A:\n    """First.\n\n        Deeper.\n    Last."""\n'
    install({f"{INFO}/METADATA": b"Name: x\nVersion: 1.0\n\n", "a.py": code})
    [record] = read()
    assert record.text == "First.\n\n    Deeper.\nLast."
    assert record.raw_bytes == len("First.\n\n        Deeper.\n    Last.")
