"""Fingerprints: a hash of all that decides an artifact.

The digest of code ignores comments, docstrings and layout and is the same under every
Python version: it walks the syntax tree itself instead of relying on ``ast.dump``
or ``ast.unparse``, whose text changes between versions.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

#: The contract's own code stays out of fingerprints; raise this by hand when a change to it
#: changes what stages leave.
CONTRACT = 5

ROOT = Path(__file__).resolve().parents[2]


def canonical(value: Any) -> bytes:
    """One spelling for one JSON value; bytes count as their hexadecimal digits."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=bytes.hex
    )
    return text.encode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def tree_digest(tree: ast.Module) -> str:
    """Digest of a Python source's meaning: comments, docstrings and layout do not count."""
    pieces: list[str] = []
    _spell(tree, pieces)
    return sha256("".join(pieces).encode())


def _spell(node: Any, pieces: list[str]) -> None:
    if isinstance(node, list):
        pieces.append("[")
        for item in node:
            _spell(item, pieces)
        pieces.append("]")
        return
    if not isinstance(node, ast.AST):
        pieces.append(f"{type(node).__name__}:{node!r}")
        return
    kind: Any = type(node)
    pieces.append(f"({kind.__name__}")
    for name in _fields(kind):
        value: Any = getattr(node, name, None)
        if name == "body" and kind in _DOCUMENTED and _is_docstring(value):
            value = value[1:]
        if kind is ast.JoinedStr:
            value = _merged(value)
        if value is None or value == []:  # newer versions add fields that are empty for older code
            continue
        pieces.append(f" {name}=")
        _spell(value, pieces)
    pieces.append(")")


@cache
def _fields(kind: Any) -> list[str]:
    ignored = ("kind", "type_comment", "type_ignores")
    return sorted(name for name in kind._fields if name not in ignored)


def _merged(values: list[Any]) -> list[Any]:
    """Literal pieces of an f-string, joined: Python 3.12.1 leaves empty ones between others."""
    pieces: list[Any] = []
    for value in values:
        if isinstance(value, ast.Constant) and pieces and isinstance(pieces[-1], ast.Constant):
            pieces[-1] = ast.Constant(str(pieces[-1].value) + str(value.value))
        else:
            pieces.append(value)
    return [p for p in pieces if not (isinstance(p, ast.Constant) and p.value == "")]


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _is_docstring(body: Any) -> bool:
    return (
        isinstance(body, list)
        and bool(body)
        and isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant)
        and isinstance(body[0].value.value, str)
    )


def library_versions(names: Iterable[str]) -> dict[str, str]:
    """Installed versions of the libraries that decide an output; absent ones say so."""
    return {name: installed(name) for name in names}


@cache  # what this process has loaded does not change, and a distribution's metadata are long
def installed(name: str) -> str:
    """The version of a distribution, or "absent"."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def fingerprint(parts: Mapping[str, Any]) -> str:
    return sha256(canonical({"contract": CONTRACT, **parts}))
