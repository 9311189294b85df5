"""What a stage depends on, derived: against what Python really loads, and on small projects."""

import subprocess
import sys
from pathlib import Path

import pytest

from hallmark.tasks.contract import PROJECT_ROOT
from hallmark.tasks.contract.import_closure import (
    compute_code_digests,
    find_import_closure,
    find_module_file,
)


def loaded(module: str) -> set[str]:
    """Our modules, without the contract, that a fresh process holds after importing one."""
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    ours = {name for name in done.stdout.split() if find_module_file(name)}
    return {name for name in ours if not f"{name}.".startswith("hallmark.tasks.contract.")}


@pytest.mark.parametrize(
    "module",
    [
        "hallmark.model.training.run",
        "hallmark.tasks.audits.probes.toxicity",
        "hallmark.reports.model_card",
    ],
)
def test_whatever_python_loads_is_in_the_closure(module):
    path = find_module_file(module)
    assert loaded(module) - {module} <= find_import_closure(path, module).keys()


def test_the_contract_stands_apart_and_lazy_imports_count():
    found = find_import_closure(find_module_file("hallmark.tasks.corpus.find_personal_data"))
    assert "hallmark.tasks.measures.personal_data" in found
    assert not any(f"{name}.".startswith("hallmark.tasks.contract.") for name in found)
    # hallmark.reports.page.redaction imports the detectors inside a function.
    assert "hallmark.tasks.measures.personal_data" in find_import_closure(
        find_module_file("hallmark.reports.page.redaction")
    )


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A small project: a stage's module, what it imports, and a data file."""
    files = {
        "tasks/__init__.py": "",
        "tasks/stage.py": "from hallmark.tasks.used import f\nimport typing\n"
        "if typing.TYPE_CHECKING:\n    from hallmark.tasks.typed import T\n",
        "tasks/used.py": "def f():\n    from hallmark.tasks.lazy import g\n    return g\n",
        "tasks/lazy.py": "g = 1\n",
        "tasks/typed.py": "T = int\n",
        "tasks/other.py": "import hallmark.tasks.behind\n",
        "tasks/behind.py": "x = 1\n",
        "tasks/words.txt": "word\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("hallmark.tasks.contract.import_closure.PROJECT_ROOT", tmp_path)
    clear()
    yield tmp_path
    clear()


def clear():
    from hallmark.tasks.contract import import_closure as module

    for name in ("find_module_file", "read_python_source", "compute_code_digests"):
        getattr(module, name).cache_clear()


NAMED = ("hallmark.tasks.other", "tasks/words.txt")


def digests(project: Path) -> dict[str, str]:
    clear()
    return compute_code_digests("hallmark.tasks.stage", project / "tasks" / "stage.py", NAMED)


def test_the_digest_holds_the_closure_and_what_is_named(project):
    assert digests(project).keys() == {
        "hallmark.tasks.stage",
        "hallmark.tasks.used",
        "hallmark.tasks.lazy",
        "hallmark.tasks.other",
        "hallmark.tasks.behind",
        "tasks/words.txt",
    }


@pytest.mark.parametrize(
    ("file", "text", "changed"),
    [
        ("lazy.py", "g = 2\n", {"hallmark.tasks.lazy"}),
        ("behind.py", "x = 2\n", {"hallmark.tasks.behind"}),
        ("words.txt", "other\n", {"tasks/words.txt"}),
        (
            "__init__.py",
            "import os\n",
            {"hallmark.tasks"},
        ),  # code in a package runs with its modules
        ("lazy.py", "# a comment\ng = 1\n", set()),
        ("__init__.py", '"""Only words."""\n', set()),
        ("typed.py", "T = str\n", set()),
    ],
)
def test_what_an_edit_changes(project, file, text, changed):
    before = digests(project)
    (project / "tasks" / file).write_text(text)
    after = digests(project)
    assert {n for n in before.keys() | after.keys() if before.get(n) != after.get(n)} == changed


def test_a_name_that_is_no_module_is_refused(project):
    with pytest.raises(ValueError, match=r"tasks\.gone"):
        compute_code_digests(
            "hallmark.tasks.stage", project / "tasks" / "stage.py", ("hallmark.tasks.gone",)
        )
