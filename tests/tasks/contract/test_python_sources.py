"""What is remembered of a source: the same as what is read, and never of other bytes."""

import json
import sys

import pytest

from hallmark.tasks.contract import python_sources

TEXT = '''"""Words."""
import typing
from tasks.used import f
if typing.TYPE_CHECKING:
    import t
'''


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    path = tmp_path / "a.py"
    path.write_text(TEXT)
    return path


def read(path):
    return python_sources.read_python_source.__wrapped__(path)


def kept(path):
    return list((path.parent / "__pycache__").glob("a.*.source.json"))


def test_what_is_kept_is_taken_the_second_time(file, monkeypatch):
    first = read(file)
    assert first.modules == ("tasks.used", "typing")
    assert first.members == ("tasks.used.f",)
    assert len(kept(file)) == 1
    monkeypatch.setattr(python_sources.ast, "parse", None)  # it would fail if it were called
    assert read(file) == first


def test_it_is_kept_where_python_keeps_what_it_compiles(file, monkeypatch):
    monkeypatch.setattr(sys, "pycache_prefix", str(file.parent / "far" / "away"))
    first = read(file)
    [path] = (file.parent / "far" / "away").rglob("a.*.source.json")
    assert not kept(file)
    monkeypatch.setattr(python_sources.ast, "parse", None)
    assert read(file) == first and path.exists()


def test_other_bytes_are_read_anew(file):
    first = read(file)
    file.write_text(TEXT.replace("used", "uses"))  # of one length, within one tick of the clock
    assert read(file).members == ("tasks.uses.f",)
    file.write_text(TEXT)
    assert read(file) == first


def test_what_another_reader_found_is_not_taken(file, monkeypatch):
    first = read(file)
    content = json.loads(kept(file)[0].read_text()) | {"digest": "0"}
    kept(file)[0].write_text(json.dumps(content))
    assert read(file).digest == "0"  # what is kept is believed, as Python believes its own files
    monkeypatch.setattr(python_sources, "_read_parser_code", lambda: b"another")
    assert read(file) == first


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"state": 1', b"null"])
def test_a_damaged_file_is_read_past_and_mended(file, content):
    first = read(file)
    whole = kept(file)[0].read_bytes()
    kept(file)[0].write_bytes(content)
    assert read(file) == first
    assert kept(file)[0].read_bytes() == whole


def test_nothing_is_kept_where_python_keeps_nothing(file, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    read(file)
    assert not (file.parent / "__pycache__").exists()


def test_a_folder_that_takes_no_files_is_no_matter(file):
    (file.parent / "__pycache__").write_text("in the way")
    assert read(file).members == ("tasks.used.f",)


def test_an_error_of_the_interpreter_is_no_error_of_the_source(file, monkeypatch):
    """CPython's parser may fail in a thread because another one parses, too."""
    expected, parse, calls = read(file), python_sources.ast.parse, []
    for path in kept(file):
        path.unlink()

    def fails(data):
        calls.append(data)
        if len(calls) < python_sources.MAX_PARSE_ATTEMPTS:
            raise SystemError("AST constructor recursion depth mismatch (before=192, after=76)")
        return parse(data)

    monkeypatch.setattr(python_sources.ast, "parse", fails)
    assert read(file) == expected and len(calls) == python_sources.MAX_PARSE_ATTEMPTS

    def always(data):
        raise SystemError("really")

    for path in kept(file):
        path.unlink()
    monkeypatch.setattr(python_sources.ast, "parse", always)
    with pytest.raises(SystemError, match="really"):
        read(file)
