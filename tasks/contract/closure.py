"""What a module depends on within the project: its import closure, read from syntax trees.

Imports inside functions are followed, those for type checking are not. The contract stands apart:
its code is behind ``fingerprint.CONTRACT``, a number raised by hand.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tasks.contract.external_files import file_digest
from tasks.contract.fingerprint import ROOT, tree_digest
from tasks.contract.sources import read_source

PACKAGES = ("model", "tasks", "reports", "flows")
CONTRACT = "tasks.contract"


@cache
def source_of(module: str) -> Path | None:
    """The file of a module or package of the project; None for any other."""
    if module.split(".")[0] not in PACKAGES:
        return None
    base = ROOT.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def imports(path: Path) -> set[str]:
    """Everything that a file imports, anywhere in it: modules, and modules taken from packages."""
    source = read_source(path)
    return {*source.modules, *(name for name in source.members if source_of(name))}


def closure(path: Path, module: str = "") -> dict[str, Path]:
    """The project's modules that a file imports, directly or through others, with their files.

    The packages they lie in are among them, since importing a module runs its packages too; also
    those of ``module``, which is the file's own name.
    """
    found: dict[str, Path] = {}
    todo = [path]
    names = {module.rpartition(".")[0]}
    while todo:
        names |= imports(todo.pop())
        for name in names:
            parts = name.split(".")
            for package in (".".join(parts[: n + 1]) for n in range(len(parts))):
                source = source_of(package)
                if source is None or package in found or f"{package}.".startswith(f"{CONTRACT}."):
                    continue
                found[package] = source
                todo.append(source)
        names = set()
    return found


@cache
def code_digests(module: str, path: Path, named: tuple[str, ...]) -> dict[str, str]:
    """Digests of a stage's code: its module, what that imports, and what ``named`` adds.

    ``named`` are what imports cannot show: data files ("tasks/measures/data/identities.json") and
    modules that run in another process ("model.training.run"), with all that those import.
    Modules that hold nothing but a docstring are left out.
    """
    modules = {module: path, **closure(path, module)}
    files = {}
    for name in named:
        if "/" in name:
            files[name] = file_digest(ROOT / name)
            continue
        source = source_of(name)
        if source is None:
            raise ValueError(f"stage code names {name!r}, which is no module of the project")
        modules |= {name: source, **closure(source, name)}
    empty = tree_digest(ast.parse(""))
    digests = {name: read_source(path).digest for name, path in sorted(modules.items())}
    return files | {name: digest for name, digest in digests.items() if digest != empty}
