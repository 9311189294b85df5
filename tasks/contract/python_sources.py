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

from hallmark.tasks.contract.fingerprint import __file__ as fingerprint_file
from hallmark.tasks.contract.fingerprint import hash_syntax_tree, sha256_hex

#: How often a file is parsed before an error of the interpreter counts.
MAX_PARSE_ATTEMPTS = 5


class PythonSource(NamedTuple):
    """A Python file: the digest of its meaning, the modules it imports, anywhere in it, and the
    names it takes from them, which are modules too where those are packages."""

    digest: str
    modules: tuple[str, ...]
    members: tuple[str, ...]


@cache
def read_python_source(path: Path) -> PythonSource:
    """Read a file, or what was found in the same bytes before."""
    source_bytes = path.read_bytes()
    cache_key = sha256_hex(source_bytes + _read_parser_code())
    cache_file = Path(cache_from_source(str(path))).with_suffix(".source.json")
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        cached = json.loads(cache_file.read_bytes())
        if cached.pop("state") == cache_key:
            return PythonSource(
                cached["digest"], tuple(cached["modules"]), tuple(cached["members"])
            )
    tree = _parse_with_retries(source_bytes)
    source = PythonSource(
        hash_syntax_tree(tree), *(tuple(sorted(names)) for names in _collect_imports(tree))
    )
    if not sys.dont_write_bytecode:
        with suppress(OSError):
            _write_atomically(cache_file, json.dumps({"state": cache_key, **source._asdict()}))
    return source


def _parse_with_retries(source_bytes: bytes) -> ast.Module:
    """Of two threads that parse at once CPython may let one fail (its issue 106905), whoever the
    other is; it is not the source's fault, and tried again."""
    for _ in range(MAX_PARSE_ATTEMPTS - 1):
        with suppress(SystemError):
            return ast.parse(source_bytes)
    return ast.parse(source_bytes)


def _write_atomically(path: Path, text: str) -> None:
    """Write at once, so that who reads meanwhile finds all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial_path = path.with_name(f"{path.name}.{os.getpid()}")
    partial_path.write_text(text)
    partial_path.replace(path)


@cache
def _read_parser_code() -> bytes:
    """The code that reads: what another version of it found is not taken."""
    return b"".join(Path(file).read_bytes() for file in (__file__, fingerprint_file))


def _collect_imports(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Modules and members imported, those for type checking left out."""
    modules: set[str] = set()
    members: set[str] = set()
    pending_nodes: list[ast.AST] = [tree]
    while pending_nodes:
        node = pending_nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending_nodes += node.orelse
            continue
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module)
            members.update(f"{node.module}.{alias.name}" for alias in node.names)
        for (
            field_name
        ) in _STATEMENT_FIELDS:  # an import is a statement: expressions, most of a tree, hold none
            pending_nodes += getattr(node, field_name, ())
    return modules, members


#: The fields of a node that hold statements, or what holds statements.
_STATEMENT_FIELDS = ("body", "orelse", "finalbody", "handlers", "cases")
