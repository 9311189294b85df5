"""Read what fingerprints need to know about a Python file: its statements and what they name.

Parsing all files of the project would delay each command by more than a second. The results are
cached in ``__pycache__`` (or under ``PYTHONPYCACHEPREFIX``), keyed by the content of the file. They
are not cached if Python is set not to write bytecode.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import Literal, NamedTuple, TypeGuard

from hallmark.tasks.contract.fingerprint import __file__ as fingerprint_file
from hallmark.tasks.contract.fingerprint import hash_syntax_tree, sha256_hex

#: Number of times that a file is parsed before an interpreter error is raised.
MAX_PARSE_ATTEMPTS = 5

#: Decorators that change nothing but the function or class they decorate. Any other decorator may
#: register it somewhere, so the statement counts as an effect.
DECORATORS_WITHOUT_EFFECT = frozenset(
    {
        "cache",
        "contextmanager",
        "custom_op",
        "dataclass",
        "declare_slice_tags",
        "flow",
        "lru_cache",
        "no_grad",
        "register_flop_formula",
        "run_in_evaluation_mode",
        "stage",
    }
)


class Statement(NamedTuple):
    """A statement at the top level of a module; an import of several names counts as several.

    Attributes:
        kind: "definition": binds or changes names of its module and does nothing else;
            "import": binds one imported name; "effect": may change anything when the module is
            imported.
        digest: Hash of its syntax tree, see ``hash_syntax_tree``.
        names: Names of the module that it binds or changes.
        references: Names that it uses, with attributes: "f", "module.f". Local variables are
            included.
        imports: What it imports, inside functions too: "module" or "module:member". Imports for
            type checking are omitted.
    """

    kind: Literal["definition", "import", "effect"]
    digest: str
    names: tuple[str, ...]
    references: tuple[str, ...]
    imports: tuple[str, ...]


@cache
def read_statements(path: Path) -> tuple[Statement, ...]:
    """Read a file, and parse it unless the result for its content is cached."""
    source_bytes = path.read_bytes()
    cache_key = sha256_hex(source_bytes + _read_parser_code())
    cache_file = Path(cache_from_source(str(path))).with_suffix(".source.json")
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        cached = json.loads(cache_file.read_bytes())
        if cached["state"] == cache_key:
            return tuple(
                Statement(kind, digest, tuple(names), tuple(references), tuple(imports))
                for kind, digest, names, references, imports in cached["statements"]
            )
    statements = tuple(_parse_statements(_parse_with_retries(source_bytes)))
    if not sys.dont_write_bytecode:
        with suppress(OSError):
            _write_atomically(
                cache_file, json.dumps({"state": cache_key, "statements": statements})
            )
    return statements


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


def _parse_statements(tree: ast.Module) -> Iterator[Statement]:
    """Yield the statements of a module, without docstrings and imports for type checking."""
    own_names: set[str] = set()  # bound by statements that are no imports
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield _build_import_statement(node, alias)
        elif not _is_docstring_or_typing_import(node):
            effect = _find_statement_effect(node, own_names)
            own_names |= effect.changed_names
            yield Statement(
                "effect" if effect.may_change_more else "definition",
                hash_syntax_tree(ast.Module([node], [])),
                tuple(sorted(effect.changed_names)),
                tuple(sorted(_collect_dotted_references(node))),
                tuple(sorted(_collect_runtime_imports(node))),
            )


def _build_import_statement(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> Statement:
    bound_name = alias.asname or (
        alias.name if isinstance(node, ast.ImportFrom) else alias.name.partition(".")[0]
    )
    single_import = (
        ast.Import([alias])
        if isinstance(node, ast.Import)
        else ast.ImportFrom(node.module, [alias], node.level)
    )
    return Statement(
        "effect" if alias.name == "*" else "import",
        hash_syntax_tree(ast.Module([single_import], [])),
        (bound_name,),
        (),
        tuple(_collect_runtime_imports(single_import)),
    )


def _is_docstring_or_typing_import(node: ast.stmt) -> bool:
    """Return whether a statement is a docstring or an import for type checking."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return _is_for_type_checking(node) and not node.orelse


def _is_for_type_checking(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


class _StatementEffect(NamedTuple):
    """What a statement changes when its module is imported."""

    changed_names: set[str]
    """Names of the module that it binds or changes."""
    may_change_more: bool
    """Whether it may change anything else."""


def _find_statement_effect(node: ast.stmt, module_names: set[str]) -> _StatementEffect:
    """Find what a statement changes in a module that binds ``module_names`` before it.

    A call of a method changes the object that has the method: ``TABLE.append(f)`` and
    ``@TABLE.register`` change ``TABLE``. A call of a function may change anything.
    """
    changed_objects: Sequence[ast.expr]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        bound_names = {node.name}
        changed_objects = [
            decorator
            for decorator in map(_strip_call, node.decorator_list)
            if _get_last_name(decorator) not in DECORATORS_WITHOUT_EFFECT
        ]
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = [
            *_flatten_targets(node.targets if isinstance(node, ast.Assign) else [node.target])
        ]
        bound_names = {target.id for target in targets if isinstance(target, ast.Name)}
        changed_objects = [target for target in targets if not isinstance(target, ast.Name)]
    elif isinstance(node, ast.Expr):
        bound_names = set()
        changed_objects = [_strip_call(node.value)]
    else:
        return _StatementEffect({*_find_bound_names(node)}, may_change_more=True)
    changed_names = {_get_root_name(changed_object) for changed_object in changed_objects}
    calls_function = any(isinstance(changed_object, ast.Name) for changed_object in changed_objects)
    return _StatementEffect(
        bound_names | (changed_names & module_names),
        calls_function or not changed_names <= module_names,
    )


def _find_bound_names(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a compound statement binds."""
    for inner_node in ast.walk(node):
        if isinstance(inner_node, ast.Name) and isinstance(inner_node.ctx, ast.Store):
            yield inner_node.id
        elif isinstance(inner_node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield inner_node.name
        elif isinstance(inner_node, ast.alias):
            yield inner_node.asname or inner_node.name.partition(".")[0]


def _flatten_targets(targets: Iterable[ast.expr]) -> Iterator[ast.expr]:
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from _flatten_targets(target.elts)
        elif isinstance(target, ast.Starred):
            yield from _flatten_targets([target.value])
        else:
            yield target


def _strip_call(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Call):
        node = node.func
    return node


def _get_root_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _get_last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else _get_root_name(node)


def _collect_dotted_references(tree: ast.AST) -> set[str]:
    """Collect the names in a syntax tree, with the attributes that follow them."""
    references: set[str] = set()
    pending_nodes: list[ast.AST] = [tree]
    while pending_nodes:
        node = pending_nodes.pop()
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            references.add(".".join([node.id, *reversed(attributes)]))
        else:
            pending_nodes += ast.iter_child_nodes(node)
    return references


def _collect_runtime_imports(tree: ast.AST) -> set[str]:
    """Collect what the imports in a syntax tree import, except imports for type checking."""
    imports: set[str] = set()
    pending_nodes: list[ast.AST] = [tree]
    while pending_nodes:
        node = pending_nodes.pop()
        if _is_for_type_checking(node):
            pending_nodes += node.orelse
            continue
        if isinstance(node, ast.Import):
            imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imports.update(f"{node.module}:{alias.name}" for alias in node.names)
        # Imports are statements, so expressions, most of the tree, need no visit.
        for field_name in _STATEMENT_FIELDS:
            pending_nodes += getattr(node, field_name, ())
    return imports


#: Fields of a node with statements, or with nodes that contain statements.
_STATEMENT_FIELDS = ("body", "orelse", "finalbody", "handlers", "cases")
