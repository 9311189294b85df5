"""The import rules between the packages, the data files of stages, lint and types."""

import ast
import os
import subprocess
import sys

import pytest

from hallmark.tasks.contract import PROJECT_ROOT
from hallmark.tasks.contract.code_digests import PROJECT_PACKAGES, find_imported_modules

MAY_IMPORT_PREFECT = {"hallmark.tasks.contract.stages", "hallmark.tasks.contract.prefect_reporter"}
MODEL_LIBRARIES = {"hallmark", "torch", "numpy", "pyarrow", "safetensors", "tokenizers"}


def get_module_name(path):
    parts = path.relative_to(PROJECT_ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {
    f"hallmark.{get_module_name(path)}": path
    for package in PROJECT_PACKAGES
    for path in (PROJECT_ROOT / package).rglob("*.py")
}


#: The packages as they are installed, for tools that read sources: mypy and import-linter look for
#: ``hallmark.tasks`` in ``hallmark/tasks``.
SOURCE_TREE = PROJECT_ROOT / ".ci" / "source-tree"


def run_python(*arguments, cwd=PROJECT_ROOT):
    environment = os.environ | {"PYTHONPATH": str(cwd)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_source_tree_links_every_module():
    """A module without a link would not be type-checked."""
    targets = {PROJECT_ROOT / name for name in PROJECT_PACKAGES}
    targets |= {*(PROJECT_ROOT / "hallmark").glob("*.py")}
    links = {link.name: link.resolve() for link in (SOURCE_TREE / "hallmark").iterdir()}
    assert links == {target.name: target for target in targets}


def test_imports_follow_the_contracts():
    """The contracts are in pyproject.toml; imports inside functions and for types count."""
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    settings = str(PROJECT_ROOT / "pyproject.toml")
    run_python("-c", program, settings, "--no-cache", cwd=SOURCE_TREE)


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_modules_import_only_what_their_package_may(module):
    imported_modules = find_imported_modules(SOURCES[module])
    libraries = {name.split(".")[0] for name in imported_modules}
    package = module.split(".")[1]
    if package == "model":
        assert libraries <= sys.stdlib_module_names | MODEL_LIBRARIES
    if package != "flows" and module not in MAY_IMPORT_PREFECT:
        assert "prefect" not in libraries
    assert "pickle" not in libraries
    if not f"{module}.".startswith("hallmark.tasks.contract."):
        contract_modules = {
            name for name in imported_modules if name.startswith("hallmark.tasks.contract.")
        }
        assert contract_modules <= {"hallmark.tasks.contract.accounts"}


def test_data_frames_are_made_only_for_users():
    """A data frame copies what Arrow already holds."""
    users = {
        module
        for module, path in SOURCES.items()
        if "pandas" in {name.split(".")[0] for name in find_imported_modules(path)}
    }
    assert users == {"hallmark.tasks.contract.artifact"}
    callers = {module for module, path in SOURCES.items() if ".to_pandas(" in path.read_text()}
    internal_callers = {module for module in callers if module.split(".")[1] in ("tasks", "model")}
    assert internal_callers <= users


def test_reports_import_neither_torch_nor_prefect_and_the_pipeline_no_torch():
    """Importing torch takes seconds, for which commands that only read a store need not wait."""
    program = (
        "import hallmark.reports.site, hallmark.reports.datasheet, hallmark.reports.model_card; "
        "import hallmark.reports.task_card, sys; print(*{'torch', 'prefect'} & {*sys.modules}); "
        "import hallmark.flows.pipeline; "
        "print(*{'torch', 'transformers', 'sklearn', 'scipy'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT_ROOT, capture_output=True, text=True
    )
    assert done.stdout == "\n\n", done.stdout + done.stderr


def list_project_stages():
    from hallmark.flows.flow_registry import register_all_stages
    from hallmark.tasks.contract import STAGES

    register_all_stages()
    return [s for s in STAGES.values() if s.body.__module__ in SOURCES]


def test_every_data_file_belongs_to_a_stage():
    declared = {name for stage in list_project_stages() for name in stage.extra_code if "/" in name}
    suffixes = (".json", ".jsonl", ".txt", ".html", ".css", ".j2", ".md", ".csv")
    there = {
        str(path.relative_to(PROJECT_ROOT))
        for package in ("tasks", "reports")
        for path in (PROJECT_ROOT / package).rglob("*")
        if path.suffix in suffixes and path.parent.name != "__pycache__"
    }
    # Pages are rendered from tables, outside of every stage.
    page_folders = ("reports/page/templates/", "reports/view/")
    templates = {name for name in there if name.startswith(page_folders)}
    assert declared <= there
    assert there - declared == templates


def test_lint():
    run_python("-m", "ruff", "check", ".")
    run_python("-m", "ruff", "format", "--check", ".")


def test_types():
    """``make types`` runs the same check; pyproject.toml lists the files."""
    run_python("-m", "mypy")


def test_names_that_tests_import_from_each_other_exist():
    """Tests are not type-checked: otherwise only the whole suite would find a renamed name."""
    files = {get_module_name(path): path for path in (PROJECT_ROOT / "tests").rglob("*.py")}
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
    """Return the names that a module defines or imports."""
    names = set()
    for node in ast.walk(tree) if tree else []:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names
