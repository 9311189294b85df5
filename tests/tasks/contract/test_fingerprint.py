"""Test that the code digest ignores only what does not change behaviour."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hallmark.tasks.contract import PROJECT_ROOT
from hallmark.tasks.contract.fingerprint import compute_fingerprint, hash_syntax_tree

SOURCE = '''
"""A module."""
import os

def double(values: list[int], *, factor: float = 2.0) -> list[float]:
    """Doubles."""
    match values:
        case [first, *rest] if first > 1_000:
            return [f"{first!r:>{10}}", *rest]
    return [v * factor async for v in values] or [lambda x, /: (y := x), b"\\x00", ..., 1j]

class Thing(object):
    'doc'
    x: int = -1
'''


def source_digest(source: str) -> str:
    return hash_syntax_tree(ast.parse(source))


GOLDEN = source_digest(SOURCE)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: "# a comment\n" + s + "\n\n# another\n",
        lambda s: s.replace('"""Doubles."""', '"""Doubles every value."""'),
        lambda s: s.replace('"""A module."""', ""),
        lambda s: s.replace("factor: float = 2.0)", "factor: float = 2.0,\n)"),
        lambda s: s.replace("'doc'", '"""doc"""'),
        lambda s: s.replace("1_000", "1000"),
    ],
)
def test_digest_ignores_comments_docstrings_and_layout(change):
    assert source_digest(change(SOURCE)) == GOLDEN


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.replace("2.0", "2"),  # another type
        lambda s: s.replace("v * factor", "factor * v"),
        lambda s: s.replace("import os", "import sys"),
        lambda s: s.replace("x: int = -1", "x: int = 1"),
        lambda s: s.replace("!r:>{10}", "!s:>{10}"),
        lambda s: s.replace("rest]", "more]"),
        lambda s: s.replace('b"\\x00"', '"\\x00"'),
    ],
)
def test_digest_changes_with_behaviour(change):
    assert change(SOURCE) != SOURCE
    assert source_digest(change(SOURCE)) != GOLDEN


def test_digest_includes_strings_that_are_not_docstrings():
    assert source_digest("x = 'a'\n'b'") != source_digest("x = 'a'\n'c'")


def test_digest_joins_pieces_of_f_strings():
    """Python 3.12.1 parses them as adjacent pieces, some of which are empty."""
    tree = ast.parse("f'ab{x}cde'")
    [string] = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    _, value, _ = string.values
    for pieces in (["a", "b", value, "cde"], ["", "ab", "", value, "c", "", "d", "e", ""]):
        string.values = [ast.Constant(p) if isinstance(p, str) else p for p in pieces]
        assert hash_syntax_tree(tree) == source_digest("f'ab{x}cde'")
    string.values = [value, ast.Constant("abcde")]
    assert hash_syntax_tree(tree) != source_digest("f'ab{x}cde'")


def interpreters() -> list[str]:
    """List each interpreter once, whatever its names; a shim of pyenv runs one of ``versions``."""
    found = {shutil.which(f"python3.{minor}") for minor in (11, 12, 13)}
    versions = Path.home() / ".pyenv" / "versions"
    found |= {str(p / "bin" / "python") for p in versions.glob("3.1[123].*")}
    there = {Path(p).resolve() for p in [*found, sys.executable] if p and "shims" not in p}
    return sorted(str(path) for path in there if path.exists())


@pytest.fixture(scope="module")
def project_source() -> tuple[str, str]:
    """Join all sources of the project, which use more of the language than a sample could."""
    files = sorted((PROJECT_ROOT / "tasks").rglob("*.py")) + sorted(
        (PROJECT_ROOT / "model").rglob("*.py")
    )
    text = "\n".join([SOURCE, *(path.read_text() for path in files)]).replace(
        "from __future__ import annotations", ""
    )
    return text, source_digest(text)


@pytest.mark.parametrize("python", interpreters())
def test_digest_is_equal_in_every_python(project_source, python, tmp_path):
    text, digest = project_source
    (tmp_path / "source.py").write_text(text)
    program = (
        "import ast, sys, pathlib; sys.path.insert(0, sys.argv[1]);"  # nothing else is installed
        "from fingerprint import hash_syntax_tree;"
        "print(hash_syntax_tree(ast.parse(pathlib.Path(sys.argv[2]).read_text())))"
    )
    folder = str(PROJECT_ROOT / "tasks" / "contract")
    command = [python, "-c", program, folder, str(tmp_path / "source.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.strip() == digest, done.stderr


def test_fingerprint_ignores_order_of_keys():
    assert compute_fingerprint({"a": 1, "b": {"c": 2, "d": 3}}) == compute_fingerprint(
        {"b": {"d": 3, "c": 2}, "a": 1}
    )
