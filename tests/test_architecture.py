"""The walls between the packages, the declared code of every stage, lint and types."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tasks.contract import ROOT

PACKAGES = ("model", "tasks", "reports", "flows")  # each may import itself and those before it
MAY_IMPORT_PREFECT = {"tasks.contract.stage", "tasks.contract.prefect_ui"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {
    module_name(path): path for package in PACKAGES for path in (ROOT / package).rglob("*.py")
}


@cache
def imports(module: str) -> frozenset[str]:
    """Everything a module imports, anywhere in it, except for type checking."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(names & SOURCES.keys())
            if names - SOURCES.keys():  # not only modules of a package: something in it, too
                found.add(node.module)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(SOURCES[module].read_text()))
    return frozenset(found)


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_imports_go_one_way(module):
    package = module.split(".")[0]
    forbidden = PACKAGES[PACKAGES.index(package) + 1 :]
    outside = {name.split(".")[0] for name in imports(module)}
    assert not outside & set(forbidden)
    if package == "reports":
        assert not outside & {"torch", "transformers", "detoxify", "model"}
    if package == "model":
        assert outside <= sys.stdlib_module_names | {
            "model", "torch", "numpy", "pyarrow", "safetensors", "tokenizers", "__future__",
        }  # fmt: skip
    if package != "flows" and module not in MAY_IMPORT_PREFECT:
        assert "prefect" not in outside
    assert "pickle" not in outside


def test_reports_reach_no_torch_through_tasks_when_imported():
    program = "import reports.site, reports.datasheet, reports.model_card, sys; "
    program += "sys.exit('torch' in sys.modules or 'prefect' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0


def stages():
    import flows.pipeline  # noqa: F401
    from tasks.contract import STAGES

    return [s for s in STAGES.values() if s.body.__module__ in SOURCES]


def closure(module: str) -> set[str]:
    """Our modules that a module imports, directly or through others, the contract left out."""
    found: set[str] = set()
    todo = [module]
    while todo:
        for name in imports(todo.pop()):
            if name in SOURCES and name not in found and not _outside(name):
                found.add(name)
                todo.append(name)
    return found - {module}


def _outside(name: str) -> bool:
    """The contract has a number; an __init__ with nothing but a docstring decides nothing."""
    if name.startswith("tasks.contract"):
        return True
    body = ast.parse(SOURCES[name].read_text()).body
    return all(isinstance(node, ast.Expr) for node in body)


def test_every_stage_declares_the_code_that_decides_its_output():
    """Against what is really imported; a package may stand for its modules."""
    problems = {}
    for stage in stages():
        declared = {name for name in stage.code if "/" not in name}
        needed = closure(stage.body.__module__)
        # A trainer in another process is imported by nobody: what it imports counts as well.
        for name in declared:
            needed |= closure(name) if name in SOURCES else set()
        covered = {n for n in needed if n in declared or n.split(".")[0] in declared}
        unknown = {n for n in declared if n not in SOURCES}
        if needed - covered or unknown:
            problems[stage.name] = (sorted(needed - covered), sorted(unknown))
    assert not problems


def test_every_data_file_belongs_to_a_stage():
    declared = {name for stage in stages() for name in stage.code if "/" in name}
    suffixes = (".json", ".jsonl", ".txt", ".html", ".css", ".j2", ".md", ".csv")
    there = {
        str(path.relative_to(ROOT))
        for package in ("tasks", "reports")
        for path in (ROOT / package).rglob("*")
        if path.suffix in suffixes
    }
    site_only = {name for name in there if name.startswith("reports/page/templates/site")}
    assert declared <= there
    assert there - declared <= site_only


def test_lint():
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "."], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_types():
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_files_fit_in_the_head():
    long = {m: n for m, p in SOURCES.items() if (n := len(p.read_text().splitlines())) > 450}
    assert not long
