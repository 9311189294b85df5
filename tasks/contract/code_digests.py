"""Find the code that can change the output of a stage, and hash it.

The code of a stage consists of the top-level statements that its function reaches: the functions,
classes and constants that it names, those that they name, and so on through all modules of the
project, including imports inside functions. A class counts as a whole. Scopes are ignored, so a
local variable reaches the global of the same name: too much may count, never too little. A
statement that may change anything when its module is imported (a call, a registering decorator)
counts for every stage that imports the module, directly or indirectly.

Code that is found in another way than by name (by a string, in another process, as a value from
outside) must be declared in ``stage(extra_code=...)``. ``tests/flows/test_executed_code.py`` runs
stages and checks that everything they execute is counted. The contract's own modules are omitted:
``fingerprint.CONTRACT_VERSION``, a number raised by hand, represents them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hallmark.tasks.contract.external_files import hash_file
from hallmark.tasks.contract.fingerprint import PROJECT_ROOT, sha256_hex
from hallmark.tasks.contract.python_sources import Statement, read_statements

#: The packages below ``hallmark``; each may import those before it.
PROJECT_PACKAGES = ("model", "tasks", "reports", "flows")
CONTRACT_PACKAGE = "hallmark.tasks.contract"

#: Stands for the import of a module in place of the index of one of its statements.
IMPORT = -1


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
    names = [name for statement in read_statements(path) for name in statement.imports]
    member_names = {name.replace(":", ".") for name in names if ":" in name}
    return {
        *(name.partition(":")[0] for name in names),
        *(name for name in member_names if find_module_file(name)),
    }


class Module:
    """A module whose statements count.

    Attributes:
        name: Its name.
        statements: Its statements.
        indices_by_name: Indices of the statements that bind or change a name, by name.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.statements = read_statements(path)
        self.indices_by_name: dict[str, list[int]] = {}
        for index, statement in enumerate(self.statements):
            for bound_name in statement.names:
                self.indices_by_name.setdefault(bound_name, []).append(index)


class CodeUnit(NamedTuple):
    """A statement of a module, or the import of the module."""

    module: Module
    statement_index: int
    """Index in ``module.statements``, or ``IMPORT``."""


class ModuleFile(NamedTuple):
    """A module with its file; both may be outside the project."""

    module_name: str
    path: Path


#: Code as a stage names it: "module:name", "module", or the path of a data file in the project.
CodeName = str

#: Name of a module, or path of a data file in the project.
ModuleOrDataFile = str


@cache
def read_module(name: str, path: Path) -> Module:
    return Module(name, path)


def find_module(name: str) -> Module | None:
    """Return a module of the project; None for any other name and for the contract."""
    if f"{name}.".startswith(f"{CONTRACT_PACKAGE}."):
        return None
    path = find_module_file(name)
    return read_module(name, path) if path else None


def find_reachable_code(roots: Iterable[CodeUnit]) -> set[CodeUnit]:
    """Return all code that the given code reaches, with that code itself."""
    reachable_code = {*roots}
    pending_code = [*reachable_code]
    while pending_code:
        new_code = find_direct_references(*pending_code.pop()) - reachable_code
        reachable_code |= new_code
        pending_code += new_code
    return reachable_code


@cache
def find_direct_references(module: Module, statement_index: int) -> frozenset[CodeUnit]:
    """Return the code that a statement, or the import of a module, refers to."""
    if statement_index == IMPORT:
        return frozenset(_find_effects_and_imports(module))
    statement = module.statements[statement_index]
    references = {CodeUnit(module, IMPORT)}
    if statement.kind != "import":  # the target of an import depends on how its name is used
        for imported_name in statement.imports:
            references |= _resolve_import(imported_name, [])
        for reference in statement.references:
            references |= _resolve_dotted_name(module, reference.split("."))
    return frozenset(references)


def _find_effects_and_imports(module: Module) -> set[CodeUnit]:
    """Find the effect statements of a module, and the import units of what it imports.

    The package of the module counts as imported. The search goes one step: not through the imports
    of the imported modules.
    """
    package_name = module.name.rpartition(".")[0]
    imported_names = {package_name}
    code: set[CodeUnit] = set()
    for index, statement in enumerate(module.statements):
        if statement.kind == "effect":
            code.add(CodeUnit(module, index))
        elif statement.kind == "import":
            for name in statement.imports:
                imported_names |= {name.partition(":")[0], name.replace(":", ".")}
    imported_modules = map(find_module, imported_names)
    return code | {CodeUnit(imported, IMPORT) for imported in imported_modules if imported}


def _resolve_dotted_name(module: Module, parts: Sequence[str]) -> set[CodeUnit]:
    """Return the code that a dotted name in a module refers to."""
    code: set[CodeUnit] = set()
    for index in module.indices_by_name.get(parts[0], ()):
        code.add(CodeUnit(module, index))
        statement = module.statements[index]
        if statement.kind == "import":
            for imported_name in statement.imports:
                code |= _resolve_import(imported_name, parts[1:])
    return code


def _resolve_import(imported_name: str, attributes: Sequence[str]) -> set[CodeUnit]:
    """Return the code that an imported name followed by attributes refers to.

    Args:
        imported_name: "module" or "module:member".
        attributes: The attributes; empty means the imported object itself.
    """
    module_name, _, member = imported_name.partition(":")
    module = find_module(module_name)
    if module is not None:
        return (
            _resolve_member(module, [member, *attributes]) if member else list_module_code(module)
        )
    package = find_module(f"{module_name}.{member}")  # from hallmark import tasks
    return _resolve_member(package, attributes) if package else set()


def _resolve_member(module: Module, names: Sequence[str]) -> set[CodeUnit]:
    """Return the code that names refer to that follow a module, each an attribute of the last."""
    if not names:
        return list_module_code(module)
    submodule = find_module(f"{module.name}.{names[0]}")
    if submodule is not None:
        return _resolve_member(submodule, names[1:])
    if names[0] in module.indices_by_name:
        return {CodeUnit(module, IMPORT), *_resolve_dotted_name(module, names)}
    return list_module_code(module)  # the module binds the name in another way


def list_module_code(module: Module) -> set[CodeUnit]:
    """Return all code of a module."""
    return {CodeUnit(module, index) for index in range(IMPORT, len(module.statements))}


def compute_reached_code_digests(
    code_names: Iterable[CodeName], outside_module: ModuleFile | None = None
) -> dict[ModuleOrDataFile, str]:
    """Compute a digest for each module and data file that the named code reaches.

    The digest of a module covers only its reached statements.

    Args:
        code_names: Statements that bind a name ("module:name"), whole modules ("module") and data
            files ("tasks/measures/data/identities.json").
        outside_module: A module that ``code_names`` may name although it is outside the project.

    Raises:
        ValueError: A name is no module of the project.
    """
    return dict(_compute_reached_code_digests(tuple(code_names), outside_module))


@cache
def _compute_reached_code_digests(
    code_names: tuple[CodeName, ...], outside_module: ModuleFile | None
) -> dict[ModuleOrDataFile, str]:
    file_digests = {name: hash_file(PROJECT_ROOT / name) for name in code_names if "/" in name}
    module_digests = {
        module.name: sha256_hex("".join(statement.digest for statement in statements).encode())
        for module, statements in find_reached_statements(code_names, outside_module).items()
    }
    return file_digests | dict(sorted(module_digests.items()))


def find_reached_statements(
    code_names: Iterable[CodeName], outside_module: ModuleFile | None = None
) -> dict[Module, list[Statement]]:
    """Find the statements that ``compute_reached_code_digests`` hashes, in order, by module."""
    roots: set[CodeUnit] = set()
    for code_name in code_names:
        if "/" in code_name:
            continue
        module_name, _, name = code_name.partition(":")
        root_module = (
            read_module(module_name, outside_module.path)
            if outside_module and module_name == outside_module.module_name
            else find_module(module_name)
        )
        if root_module is None:
            raise ValueError(f"{code_name!r} is not part of the project's code")
        roots |= _resolve_member(root_module, [name] if name else [])
    indices_by_module: dict[Module, list[int]] = {}
    for module, index in find_reachable_code(roots):
        if index != IMPORT:
            indices_by_module.setdefault(module, []).append(index)
    return {
        module: [module.statements[index] for index in sorted(indices)]
        for module, indices in indices_by_module.items()
    }
