"""Test the cache of parsed sources: equal to a new parse, and never used for other bytes."""

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
    return python_sources.read_statements.__wrapped__(path)


def list_imports(path):
    return [name for statement in read(path) for name in statement.imports]


def find_cache_files(path):
    return list((path.parent / "__pycache__").glob("a.*.source.json"))


def test_cached_source_is_used_the_second_time(file, monkeypatch):
    first = read(file)
    assert list_imports(file) == ["typing", "tasks.used:f"]
    assert len(find_cache_files(file)) == 1
    monkeypatch.setattr(python_sources.ast, "parse", None)  # it would fail if it were called
    assert read(file) == first


def test_cache_is_in_the_folder_of_compiled_python(file, monkeypatch):
    monkeypatch.setattr(sys, "pycache_prefix", str(file.parent / "far" / "away"))
    first = read(file)
    [path] = (file.parent / "far" / "away").rglob("a.*.source.json")
    assert not find_cache_files(file)
    monkeypatch.setattr(python_sources.ast, "parse", None)
    assert read(file) == first and path.exists()


def test_changed_source_is_parsed_again(file):
    first = read(file)
    file.write_text(TEXT.replace("used", "uses"))  # of one length, within one tick of the clock
    assert list_imports(file) == ["typing", "tasks.uses:f"]
    file.write_text(TEXT)
    assert read(file) == first


def test_cache_of_another_parser_is_not_used(file, monkeypatch):
    first = read(file)
    content = json.loads(find_cache_files(file)[0].read_text()) | {"statements": []}
    find_cache_files(file)[0].write_text(json.dumps(content))
    assert read(file) == ()  # what is kept is believed, as Python believes its own files
    monkeypatch.setattr(python_sources, "_read_parser_code", lambda: b"another")
    assert read(file) == first


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"state": 1', b"null"])
def test_damaged_cache_file_is_ignored_and_replaced(file, content):
    first = read(file)
    whole = find_cache_files(file)[0].read_bytes()
    find_cache_files(file)[0].write_bytes(content)
    assert read(file) == first
    assert find_cache_files(file)[0].read_bytes() == whole


def test_no_cache_if_python_writes_no_bytecode(file, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    read(file)
    assert not (file.parent / "__pycache__").exists()


def test_read_only_folder_is_no_error(file):
    (file.parent / "__pycache__").write_text("in the way")
    assert list_imports(file) == ["typing", "tasks.used:f"]


def test_error_of_the_interpreter_is_retried(file, monkeypatch):
    """CPython's parser may fail in a thread because another thread parses, too."""
    expected, parse, calls = read(file), python_sources.ast.parse, []
    for path in find_cache_files(file):
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

    for path in find_cache_files(file):
        path.unlink()
    monkeypatch.setattr(python_sources.ast, "parse", always)
    with pytest.raises(SystemError, match="really"):
        read(file)


@pytest.mark.parametrize(
    ("source", "kind", "names"),
    [
        ("def f(): pass", "definition", {"f"}),
        ("class C(Base): x: int = f()", "definition", {"C"}),
        ("A, (B, *C) = f()", "definition", {"A", "B", "C"}),
        ("A: int = 1", "definition", {"A"}),
        ("A += 1", "definition", {"A"}),
        ("@cache\ndef f(): pass", "definition", {"f"}),
        ("@dataclass(frozen=True)\nclass C: pass", "definition", {"C"}),
        ("TABLE['f'] = f", "definition", {"TABLE"}),
        ("TABLE.append(f)", "definition", {"TABLE"}),
        ("TABLE.f.g(h)(i)", "definition", {"TABLE"}),
        ("@TABLE.register\ndef f(): pass", "definition", {"TABLE", "f"}),
        ("@TABLE.register('f')\ndef f(): pass", "definition", {"TABLE", "f"}),
        ("import a.b as c", "import", {"c"}),
        ("import a.b", "import", {"a"}),
        ("from a import b as c", "import", {"c"}),
        ("from a import *", "effect", {"*"}),
        ("register(f)", "effect", set()),
        ("own(f)", "effect", {"own"}),
        ("@register\ndef f(): pass", "effect", {"f"}),
        ("@own\ndef f(): pass", "effect", {"f", "own"}),
        ("@other.register(1)\ndef f(): pass", "effect", {"f"}),
        ("other.f = f", "effect", set()),
        ("other.table['f'] = f", "effect", set()),
        ("A = other.f = f", "effect", {"A"}),
        ("other.append(f)", "effect", set()),
        ("del other.f", "effect", set()),
        ("if x:\n    A = 1\nelse:\n    from a import B", "effect", {"A", "B"}),
        ("for A in x: f(A)", "effect", {"A"}),
        ("with x as A: pass", "effect", {"A"}),
        ("try:\n    import a.b\nexcept ImportError:\n    def f(): pass", "effect", {"a", "f"}),
        (
            "if TYPE_CHECKING:\n    import a\nelse:\n    import b",
            "effect",
            {"a", "b"},
        ),
    ],
)
def test_kinds_and_names_of_statements(file, source, kind, names):
    file.write_text(f"import other\nTABLE = []\ndef own(f): pass\n{source}\n")
    *_, statement = read(file)
    assert (statement.kind, {*statement.names}) == (kind, names)


@pytest.mark.parametrize(
    ("source", "references"),
    [
        ("def f(x: A = B) -> C: return d.e.g(h)", {"A", "B", "C", "d.e.g", "h"}),
        ("@a.b(c)\nclass D(E, metaclass=F): x: g.H", {"a.b", "c", "E", "F", "x", "g.H"}),
        ("x = [a for b in c if d]", {"x", "a", "b", "c", "d"}),
        ("x = f(a).b.c[d].e", {"x", "f", "a", "d"}),
        ("x = f'{a.b!r:{c}}'", {"x", "a.b", "c"}),
        ("def f():\n    global A\n    A = 1", {"A"}),
        ("x = 'a'", {"x"}),
    ],
)
def test_references_of_statements(file, source, references):
    file.write_text(source)
    [statement] = read(file)
    assert {*statement.references} == references


def test_imports_in_functions_belong_to_their_statement(file):
    file.write_text("def f():\n    import a\n    if x:\n        from b import c, d\n")
    [statement] = read(file)
    assert {*statement.imports} == {"a", "b:c", "b:d"}


@pytest.mark.parametrize("source", ["'words'", "if TYPE_CHECKING:\n    import a", "# words"])
def test_statements_without_effect_are_ignored(file, source):
    file.write_text(source)
    assert read(file) == ()
