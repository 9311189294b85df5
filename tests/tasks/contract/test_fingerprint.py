"""The code digest ignores what does not change behaviour, and nothing else."""

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
def test_comments_docstrings_and_layout_do_not_count(change):
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
def test_whatever_changes_behaviour_counts(change):
    assert change(SOURCE) != SOURCE
    assert source_digest(change(SOURCE)) != GOLDEN


def test_a_string_that_is_no_docstring_counts():
    assert source_digest("x = 'a'\n'b'") != source_digest("x = 'a'\n'c'")


def test_pieces_of_an_f_string_count_together():
    """As Python 3.12.1 cuts them: next to each other, empty ones among them."""
    tree = ast.parse("f'ab{x}cde'")
    [string] = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    _, value, _ = string.values
    for pieces in (["a", "b", value, "cde"], ["", "ab", "", value, "c", "", "d", "e", ""]):
        string.values = [ast.Constant(p) if isinstance(p, str) else p for p in pieces]
        assert hash_syntax_tree(tree) == source_digest("f'ab{x}cde'")
    string.values = [value, ast.Constant("abcde")]
    assert hash_syntax_tree(tree) != source_digest("f'ab{x}cde'")


def interpreters() -> list[str]:
    """Each once, whatever its names; a shim of pyenv's is one of ``versions`` or none."""
    found = {shutil.which(f"python3.{minor}") for minor in (11, 12, 13)}
    versions = Path.home() / ".pyenv" / "versions"
    found |= {str(p / "bin" / "python") for p in versions.glob("3.1[123].*")}
    there = {Path(p).resolve() for p in [*found, sys.executable] if p and "shims" not in p}
    return sorted(str(path) for path in there if path.exists())


@pytest.fixture(scope="module")
def ours() -> tuple[str, str]:
    """All our own sources as one, which use more of the language than one sample can; its digest
    here."""
    files = sorted((PROJECT_ROOT / "tasks").rglob("*.py")) + sorted(
        (PROJECT_ROOT / "model").rglob("*.py")
    )
    text = "\n".join([SOURCE, *(path.read_text() for path in files)]).replace(
        "from __future__ import annotations", ""
    )
    return text, source_digest(text)


@pytest.mark.parametrize("python", interpreters())
def test_the_digest_is_the_same_under_every_python(ours, python, tmp_path):
    text, digest = ours
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


def test_the_order_of_keys_does_not_count():
    assert compute_fingerprint({"a": 1, "b": {"c": 2, "d": 3}}) == compute_fingerprint(
        {"b": {"d": 3, "c": 2}, "a": 1}
    )
