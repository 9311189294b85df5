"""Compute and cache the digest and the imports of Python source files.

Parsing all files of the project would delay each command by more than a second. The results are
cached in ``__pycache__`` (or under ``PYTHONPYCACHEPREFIX``), keyed by the content of the file. They
are not cached if Python is set not to write bytecode.
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

#: Number of times that a file is parsed before an interpreter error is raised.
MAX_PARSE_ATTEMPTS = 5


class PythonSource(NamedTuple):
    """The digest and the imports of a Python file.

    Attributes:
        digest: Hash of the syntax tree, see ``hash_syntax_tree``.
        modules: Names of the imported modules, including imports inside functions.
        members: Qualified names imported from modules; they may be modules of a package.
    """

    digest: str
    modules: tuple[str, ...]
    members: tuple[str, ...]


@cache
def read_python_source(path: Path) -> PythonSource:
    """Read a file, and parse it unless the result for its content is cached."""
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
    """Parse a source; retry if CPython fails because two threads parse at once (issue 106905)."""
    for _ in range(MAX_PARSE_ATTEMPTS - 1):
        with suppress(SystemError):
            return ast.parse(source_bytes)
    return ast.parse(source_bytes)


def _write_atomically(path: Path, text: str) -> None:
    """Write a file so that concurrent readers find either all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial_path = path.with_name(f"{path.name}.{os.getpid()}")
    partial_path.write_text(text)
    partial_path.replace(path)


@cache
def _read_parser_code() -> bytes:
    """Return the code of the parser, so that results of other versions are not reused."""
    return b"".join(Path(file).read_bytes() for file in (__file__, fingerprint_file))


def _collect_imports(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Collect the imported modules and members, except imports for type checking."""
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
        # Imports are statements, so expressions, most of the tree, need no visit.
        for field_name in _STATEMENT_FIELDS:
            pending_nodes += getattr(node, field_name, ())
    return modules, members


#: Fields of a node with statements, or with nodes that contain statements.
_STATEMENT_FIELDS = ("body", "orelse", "finalbody", "handlers", "cases")
