"""Find all modules of the project that a module depends on, and hash the code of a stage.

Imports are read from syntax trees. Imports inside functions are followed, imports for type checking
are not. The contract's own modules are excluded: ``fingerprint.CONTRACT_VERSION``, a number raised
by hand, represents them.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from hallmark.tasks.contract.external_files import hash_file
from hallmark.tasks.contract.fingerprint import PROJECT_ROOT, hash_syntax_tree
from hallmark.tasks.contract.python_sources import read_python_source

#: The packages below ``hallmark``; each may import those before it.
PROJECT_PACKAGES = ("model", "tasks", "reports", "flows")
CONTRACT_PACKAGE = "hallmark.tasks.contract"


@cache
def find_module_file(module: str) -> Path | None:
    """Return the file of a module or package of the project; None for any other name."""
    root_package, _, inner_name = module.partition(".")
    inner_parts = inner_name.split(".")
    if root_package != "hallmark" or inner_parts[0] not in PROJECT_PACKAGES:
        return None
    base_path = PROJECT_ROOT.joinpath(*inner_parts)
    for path in (base_path.with_suffix(".py"), base_path / "__init__.py"):
        if path.is_file():
            return path
    return None


def find_imported_modules(path: Path) -> set[str]:
    """Return the names of all modules that a file imports, inside functions too."""
    source = read_python_source(path)
    return {*source.modules, *(name for name in source.members if find_module_file(name))}


def find_import_closure(path: Path, module: str = "") -> dict[str, Path]:
    """Return the files of the project's modules that a file imports, directly or indirectly.

    The packages of these modules are included, since importing a module also runs its packages.

    Args:
        path: The file.
        module: Name of the file's own module, whose packages are included too.

    Returns:
        Files by module name.
    """
    module_files: dict[str, Path] = {}
    pending_files = [path]
    names = {module.rpartition(".")[0]}
    while pending_files:
        names |= find_imported_modules(pending_files.pop())
        for name in names:
            name_parts = name.split(".")
            for package in (".".join(name_parts[: index + 1]) for index in range(len(name_parts))):
                module_file = find_module_file(package)
                if (
                    module_file is None
                    or package in module_files
                    or f"{package}.".startswith(f"{CONTRACT_PACKAGE}.")
                ):
                    continue
                module_files[package] = module_file
                pending_files.append(module_file)
        names = set()
    return module_files


@cache
def compute_code_digests(module: str, path: Path, extra_code: tuple[str, ...]) -> dict[str, str]:
    """Compute the digests of a stage's code, by module name or path of a data file.

    Modules that contain nothing but a docstring are excluded.

    Args:
        module: Name of the stage's module.
        path: File of the stage's module.
        extra_code: Code that imports do not show: data files
            ("tasks/measures/data/identities.json"), and modules that run in another process
            ("hallmark.model.training.run"), which count with all their imports.

    Raises:
        ValueError: ``extra_code`` names no module of the project.
    """
    module_files = {module: path, **find_import_closure(path, module)}
    file_digests = {}
    for name in extra_code:
        if "/" in name:
            file_digests[name] = hash_file(PROJECT_ROOT / name)
            continue
        module_file = find_module_file(name)
        if module_file is None:
            raise ValueError(f"extra_code names {name!r}, which is not a module of the project")
        module_files |= {name: module_file, **find_import_closure(module_file, name)}
    empty_digest = hash_syntax_tree(ast.parse(""))
    module_digests = {
        name: read_python_source(path).digest for name, path in sorted(module_files.items())
    }
    return file_digests | {
        name: digest for name, digest in module_digests.items() if digest != empty_digest
    }
