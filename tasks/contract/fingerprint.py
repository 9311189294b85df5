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
CONTRACT_VERSION = 6

PROJECT_ROOT = Path(__file__).resolve().parents[2]


def to_canonical_json(value: Any) -> bytes:
    """One spelling for one JSON value; bytes count as their hexadecimal digits."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=bytes.hex
    )
    return text.encode()


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def hash_syntax_tree(tree: ast.Module) -> str:
    """Digest of a Python source's meaning: comments, docstrings and layout do not count."""
    tokens: list[str] = []
    _append_node_tokens(tree, tokens)
    return sha256_hex("".join(tokens).encode())


def _append_node_tokens(node: Any, tokens: list[str]) -> None:
    if isinstance(node, list):
        tokens.append("[")
        for item in node:
            _append_node_tokens(item, tokens)
        tokens.append("]")
        return
    if not isinstance(node, ast.AST):
        tokens.append(f"{type(node).__name__}:{node!r}")
        return
    node_type: Any = type(node)
    tokens.append(f"({node_type.__name__}")
    for name in _list_node_fields(node_type):
        value: Any = getattr(node, name, None)
        if name == "body" and node_type in _NODES_WITH_DOCSTRING and _has_docstring(value):
            value = value[1:]
        if node_type is ast.JoinedStr:
            value = _merge_fstring_literals(value)
        if value is None or value == []:  # newer versions add fields that are empty for older code
            continue
        tokens.append(f" {name}=")
        _append_node_tokens(value, tokens)
    tokens.append(")")


@cache
def _list_node_fields(node_type: Any) -> list[str]:
    ignored = ("kind", "type_comment", "type_ignores")
    return sorted(name for name in node_type._fields if name not in ignored)


def _merge_fstring_literals(fstring_nodes: list[Any]) -> list[Any]:
    """Literal pieces of an f-string, joined: Python 3.12.1 leaves empty ones between others."""
    merged_nodes: list[Any] = []
    for node in fstring_nodes:
        if (
            isinstance(node, ast.Constant)
            and merged_nodes
            and isinstance(merged_nodes[-1], ast.Constant)
        ):
            merged_nodes[-1] = ast.Constant(str(merged_nodes[-1].value) + str(node.value))
        else:
            merged_nodes.append(node)
    return [
        node for node in merged_nodes if not (isinstance(node, ast.Constant) and node.value == "")
    ]


_NODES_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _has_docstring(body: Any) -> bool:
    return (
        isinstance(body, list)
        and bool(body)
        and isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant)
        and isinstance(body[0].value.value, str)
    )


def read_library_versions(distributions: Iterable[str]) -> dict[str, str]:
    """Installed versions of the libraries that decide an output; absent ones say so."""
    return {name: read_installed_version(name) for name in distributions}


@cache  # what this process has loaded does not change, and a distribution's metadata are long
def read_installed_version(distribution: str) -> str:
    """The version of a distribution, or "absent"."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "absent"


def compute_fingerprint(components: Mapping[str, Any]) -> str:
    return sha256_hex(to_canonical_json({"contract": CONTRACT_VERSION, **components}))
