"""The walls between the packages and rooms, the data files of stages, lint and types."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.contract import PROJECT_ROOT
from tasks.contract.import_closure import (
    PROJECT_PACKAGES,
    find_imported_modules,
)  # one way: each imports those before it

MAY_IMPORT_PREFECT = {"tasks.contract.stages", "tasks.contract.prefect_reporter"}
#: Within tasks: what each room may import beside itself.
ROOMS = {
    "tasks.contract": set(),
    "tasks.measures": {"tasks.contract"},
    "tasks.corpus": {"tasks.contract", "tasks.measures"},
    "tasks.training": {"tasks.contract", "tasks.measures"},
    "tasks.audits": {"tasks.contract", "tasks.measures"},
    "model.interchange": {"model"},
    "model.decoding": {"model", "model.reference"},
    "model.training": {"model", "model.interchange", "model.decoding"},
    "model.probing": {"model", "model.decoding", "model.training"},
    "model.reference": {"model", "model.decoding"},  # the formulas, of decoding too
    "model": {"model.reference"},  # the core
    "reports.page": set(),
    "reports.sections": {"reports.page"},
    "reports": {"reports.page", "reports.sections"},
}


def module_name(path: Path) -> str:
    parts = path.relative_to(PROJECT_ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {
    module_name(path): path
    for package in PROJECT_PACKAGES
    for path in (PROJECT_ROOT / package).rglob("*.py")
}


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_imports_go_one_way(module):
    package = module.split(".")[0]
    forbidden = PROJECT_PACKAGES[PROJECT_PACKAGES.index(package) + 1 :]
    outside = {name.split(".")[0] for name in find_imported_modules(SOURCES[module])}
    assert not outside & set(forbidden)
    if package == "reports":
        assert not outside & {"torch", "transformers", "detoxify", "model"}
    if package == "model":
        assert outside <= sys.stdlib_module_names | {
            "model",
            "torch",
            "numpy",
            "pyarrow",
            "safetensors",
            "tokenizers",
            "__future__",
        }
    if package != "flows" and module not in MAY_IMPORT_PREFECT:
        assert "prefect" not in outside
    assert "pickle" not in outside


def test_pandas_stands_at_the_edges():
    """It copies what Arrow already holds: only what a user asks for as a data frame becomes one."""
    users = {
        m
        for m, path in SOURCES.items()
        if "pandas" in {n.split(".")[0] for n in find_imported_modules(path)}
    }
    assert users == {"tasks.contract.artifact"}
    called = {m for m, path in SOURCES.items() if ".to_pandas(" in path.read_text()}
    assert {m for m in called if m.startswith(("tasks.", "model."))} <= users


@pytest.mark.parametrize(
    "module", sorted(m for m in SOURCES if m.startswith(("tasks.", "model.", "reports.")))
)
def test_rooms_import_one_way(module):
    own = next(room for room in ROOMS if f"{module}.".startswith(f"{room}."))
    package = module.split(".")[0]
    for name in (n for n in find_imported_modules(SOURCES[module]) if n.split(".")[0] == package):
        room = next((r for r in ROOMS if f"{name}.".startswith(f"{r}.")), own)
        assert room == own or room in ROOMS[own], f"{module} imports {name}"


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_the_contract_is_imported_through_its_face(module):
    if not f"{module}.".startswith("tasks.contract."):
        deeper = {
            n for n in find_imported_modules(SOURCES[module]) if n.startswith("tasks.contract.")
        }
        assert deeper <= {"tasks.contract.accounts"}


def test_reports_reach_neither_torch_nor_prefect_and_the_pipeline_no_torch_when_imported():
    """It takes seconds to load: commands that ask a store need none of it."""
    program = "import reports.site, reports.datasheet, reports.model_card, reports.task_card, sys; "
    program += "print(*{'torch', 'prefect'} & {*sys.modules}); import flows.pipeline; "
    program += "print(*{'torch', 'transformers', 'sklearn', 'scipy'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT_ROOT, capture_output=True, text=True
    )
    assert done.stdout == "\n\n", done.stdout + done.stderr


def stages():
    import flows.pipeline
    import flows.study  # noqa: F401
    from tasks.contract import STAGES

    return [s for s in STAGES.values() if s.body.__module__ in SOURCES]


def test_every_data_file_belongs_to_a_stage():
    declared = {name for stage in stages() for name in stage.extra_code if "/" in name}
    suffixes = (".json", ".jsonl", ".txt", ".html", ".css", ".j2", ".md", ".csv")
    there = {
        str(path.relative_to(PROJECT_ROOT))
        for package in ("tasks", "reports")
        for path in (PROJECT_ROOT / package).rglob("*")
        if path.suffix in suffixes and path.parent.name != "__pycache__"
    }
    site_only = {name for name in there if name.startswith("reports/page/templates/site")}
    assert declared <= there
    assert there - declared <= site_only


def test_lint():
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "."],
            cwd=PROJECT_ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_types():
    done = subprocess.run(
        [sys.executable, "-m", "mypy"], cwd=PROJECT_ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_tests_take_from_each_other_is_there():
    """Types are not checked in tests: a name that moved would be found by the whole suite alone."""
    files = {module_name(path): path for path in (PROJECT_ROOT / "tests").rglob("*.py")}
    trees = {module: ast.parse(path.read_text()) for module, path in files.items()}
    missing = [
        f"{module}: {node.module}.{alias.name}"
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tests"
        for alias in node.names
        if f"{node.module}.{alias.name}" not in files
        and alias.name not in top_level(trees.get(node.module))
    ]
    assert not missing


def top_level(tree):
    """The names that a module defines or imports."""
    names = set()
    for node in ast.walk(tree) if tree else []:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names
