"""Compute fingerprints: hashes of everything that decides the content of an artifact.

The digest of code ignores comments, docstrings and layout, and is the same under every Python
version: it walks the syntax tree instead of using ``ast.dump`` or ``ast.unparse``, whose text
differs between versions.
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

#: Version of the contract. Its code does not enter fingerprints, so raise this number by hand when
#: a change of the contract changes the output of stages.
CONTRACT_VERSION = 7

PROJECT_ROOT = Path(__file__).resolve().parents[2]


def to_canonical_json(value: Any) -> bytes:
    """Encode a JSON value in a unique way; bytes are encoded as hexadecimal digits."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=bytes.hex
    )
    return text.encode()


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def hash_syntax_tree(tree: ast.Module) -> str:
    """Compute the SHA-256 of a syntax tree, without comments, docstrings and layout."""
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
        if value is None or value == []:  # newer Python versions add fields, empty in older code
            continue
        tokens.append(f" {name}=")
        _append_node_tokens(value, tokens)
    tokens.append(")")


@cache
def _list_node_fields(node_type: Any) -> list[str]:
    ignored = ("kind", "type_comment", "type_ignores")
    return sorted(name for name in node_type._fields if name not in ignored)


def _merge_fstring_literals(fstring_nodes: list[Any]) -> list[Any]:
    """Join adjacent literals of an f-string and drop empty ones, which Python 3.12.1 inserts."""
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
    """Return the installed version of each distribution, or "absent"."""
    return {name: read_installed_version(name) for name in distributions}


@cache  # a loaded library does not change, and reading a distribution's metadata is slow
def read_installed_version(distribution: str) -> str:
    """Return the installed version of a distribution, or "absent"."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "absent"


def compute_fingerprint(components: Mapping[str, Any]) -> str:
    """Hash the components of a fingerprint and the contract's version."""
    return sha256_hex(to_canonical_json({"contract": CONTRACT_VERSION, **components}))
