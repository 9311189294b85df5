"""What a source file means and imports, remembered beside the files that Python compiles it to.

Parsing every file of the project costs more than a second, which each command would wait for. What
was read is kept in ``__pycache__`` (or under ``PYTHONPYCACHEPREFIX``) for the content it was read
from, and not kept where Python writes no compiled files either.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from contextlib import suppress
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

from tasks.contract.fingerprint import __file__ as spelling
from tasks.contract.fingerprint import sha256, tree_digest

#: How often a file is parsed before an error of the interpreter counts.
TRIES = 5


class Source(NamedTuple):
    """A Python file: the digest of its meaning, the modules it imports, anywhere in it, and the
    names it takes from them, which are modules too where those are packages."""

    digest: str
    modules: tuple[str, ...]
    members: tuple[str, ...]


@cache
def read_source(path: Path) -> Source:
    """Read a file, or what was found in the same bytes before."""
    data = path.read_bytes()
    state = sha256(data + _reader())
    kept = Path(cache_from_source(str(path))).with_suffix(".source.json")
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        found = json.loads(kept.read_bytes())
        if found.pop("state") == state:
            return Source(found["digest"], tuple(found["modules"]), tuple(found["members"]))
    tree = _parsed(data)
    source = Source(tree_digest(tree), *(tuple(sorted(names)) for names in _imports(tree)))
    if not sys.dont_write_bytecode:
        with suppress(OSError):
            _keep(kept, json.dumps({"state": state, **source._asdict()}))
    return source


def _parsed(data: bytes) -> ast.Module:
    """Of two threads that parse at once CPython may let one fail (its issue 106905), whoever the
    other is; it is not the source's fault, and tried again."""
    for _ in range(TRIES - 1):
        with suppress(SystemError):
            return ast.parse(data)
    return ast.parse(data)


def _keep(path: Path, text: str) -> None:
    """Write at once, so that who reads meanwhile finds all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)


@cache
def _reader() -> bytes:
    """The code that reads: what another version of it found is not taken."""
    return b"".join(Path(file).read_bytes() for file in (__file__, spelling))


def _imports(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Modules and members imported, those for type checking left out."""
    modules: set[str] = set()
    members: set[str] = set()
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += node.orelse
            continue
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module)
            members.update(f"{node.module}.{alias.name}" for alias in node.names)
        for block in _BLOCKS:  # an import is a statement: expressions, most of a tree, hold none
            todo += getattr(node, block, ())
    return modules, members


#: The fields of a node that hold statements, or what holds statements.
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
