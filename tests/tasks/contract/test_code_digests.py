"""Which code a stage reaches: on small projects, and against what Python runs at an import."""

import ast
import subprocess
import sys

import pytest

from hallmark.tasks.audits.registry import PROBES
from hallmark.tasks.contract import PROJECT_ROOT
from hallmark.tasks.contract import code_digests as module
from hallmark.tasks.contract.code_digests import (
    PROJECT_PACKAGES,
    ModuleFile,
    compute_reached_code_digests,
    find_imported_modules,
    find_module_file,
    find_reached_statements,
)
from hallmark.tasks.contract.python_sources import read_statements
from tests.tasks.contract.code_caches import clear_code_caches

STAGE = "hallmark.tasks.stage:run"

#: A small project: a stage, what it reaches, and what it does not reach.
FILES = {
    "tasks/__init__.py": "",
    "tasks/stage.py": """
import math
import typing
from hallmark.tasks import constants, whole
from hallmark.tasks.used import f as renamed
from hallmark.tasks.shapes import Circle
from hallmark.tasks.tables import HANDLERS
from hallmark.tasks.package import exported
from hallmark.tasks.unused import never
from hallmark import tasks
if typing.TYPE_CHECKING:
    from hallmark.tasks.typed import T

LIMIT = 1
UNUSED_LIMIT = 2

def run(x: T = LIMIT):
    list(map(vars, [whole]))
    return renamed(), Circle(), HANDLERS, exported(), constants.A, tasks.deep.A

def not_run():
    return math.pi, never()
""",
    "tasks/used.py": """
from math import floor, ceil

def f():
    from hallmark.tasks.lazy import g
    return g, floor(1)

def other():
    return ceil(1)
""",
    "tasks/lazy.py": "g = 1\nh = 2\n",
    "tasks/typed.py": "T = int\n",
    "tasks/constants.py": "A = 1\nB = 2\n",
    "tasks/deep.py": "A = 1\nB = 2\n",
    "tasks/whole.py": "A = 1\nB = 2\n",
    "tasks/shapes.py": """
from hallmark.tasks.decorators import decorated

class Base:
    def area(self):
        return helper()

@decorated
class Circle(Base):
    def other(self):
        return 1

def helper():
    return 1

def unused():
    return 2
""",
    "tasks/decorators.py": "def decorated(c): return c\ndef unused(c): return c\n",
    "tasks/tables.py": """
HANDLERS = {}
OTHER = []
def handle(): return 1
HANDLERS["x"] = handle
@HANDLERS.setdefault
def handle_too(): return 2
OTHER += [1]
""",
    "tasks/package/__init__.py": "from hallmark.tasks.package.inner import exported, hidden\n",
    "tasks/package/inner.py": "def exported(): return 1\ndef hidden(): return 2\n",
    "tasks/unused.py": """
from hallmark.tasks.patches import nothing
import os

os.environ["X"] = setting()

def never(): return 1
def setting(): return "1"
""",
    "tasks/patches.py": """
from hallmark.tasks import shapes
from hallmark.tasks.starred import *
nothing = 1
shapes.helper = lambda: 2
""",
    "tasks/starred.py": "S = 1\n",
    "tasks/process.py": """
def main(): return 1
if __name__ == '__main__':
    main()
""",
    "tasks/words.txt": "word\n",
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(module, "PROJECT_ROOT", tmp_path)
    clear_code_caches()
    yield tmp_path
    clear_code_caches()


def compute_digests(*code):
    clear_code_caches()
    return compute_reached_code_digests(code or (STAGE,))


def test_digests_name_the_modules_that_are_reached(project):
    reached = {
        "stage",
        "used",
        "lazy",
        "constants",
        "deep",
        "whole",
        "shapes",
        "decorators",
        "tables",
    }
    # These are only imported; a statement of each runs then.
    reached |= {"unused", "patches", "starred"}
    assert compute_digests().keys() == {
        *(f"hallmark.tasks.{name}" for name in reached),
        "hallmark.tasks.package",  # the name that it imports from its module
        "hallmark.tasks.package.inner",
    }


REACHED_EDITS = [
    ("stage.py", "LIMIT = 1\n", "LIMIT = 3\n"),
    ("stage.py", "import f as", "import other as"),
    ("used.py", "floor, ceil", "trunc as floor, ceil"),
    ("lazy.py", "g = 1", "g = 3"),
    ("constants.py", "A = 1", "A = 3"),
    ("deep.py", "A = 1", "A = 3"),
    ("whole.py", "B = 2", "B = 3"),
    ("shapes.py", "class Base:", "class Base(dict):"),
    ("shapes.py", "def other(self):\n        return 1", "def other(self):\n        return 3"),
    ("shapes.py", "def helper():\n    return 1", "def helper():\n    return 3"),
    ("decorators.py", "def decorated(c): return c", "def decorated(c): return 3"),
    ("tables.py", "def handle(): return 1", "def handle(): return 3"),
    ("tables.py", "def handle_too(): return 2", "def handle_too(): return 3"),
    ("package/inner.py", "exported(): return 1", "exported(): return 3"),
    ("unused.py", 'os.environ["X"]', 'os.environ["Y"]'),
    ("unused.py", 'return "1"', 'return "3"'),
    ("patches.py", "lambda: 2", "lambda: 3"),
    ("starred.py", "S = 1", "S = 3"),
    ("__init__.py", "", "f()\n"),
    ("package/__init__.py", "", "import os\nos.f()\n"),
]
UNREACHED_EDITS = [
    ("stage.py", "UNUSED_LIMIT = 2", "UNUSED_LIMIT = 3"),
    ("stage.py", "import math", "import cmath as math"),
    ("stage.py", "return math.pi", "return 3"),
    ("stage.py", "LIMIT = 1\n", "# A comment.\nLIMIT = (\n    1\n)\n"),
    ("used.py", "return ceil(1)", "return 3"),
    ("used.py", "floor, ceil", "floor, trunc as ceil"),
    ("lazy.py", "h = 2", "h = 3"),
    ("typed.py", "int", "str"),
    ("constants.py", "B = 2", "B = 3"),
    ("deep.py", "B = 2", "B = 3"),
    ("shapes.py", "return 2", "return 3"),
    ("decorators.py", "def unused(c): return c", "def unused(c): return 3"),
    ("tables.py", "OTHER += [1]", "OTHER += [3]"),
    ("package/inner.py", "hidden(): return 2", "hidden(): return 3"),
    ("unused.py", "return 1", "return 3"),
    ("patches.py", "nothing = 1", "nothing = 3"),
    ("process.py", "return 1", "return 3"),
    ("__init__.py", "", '"""Only words."""\n'),
    ("__init__.py", "", "import os\nNAME = 1\n"),
]


@pytest.mark.parametrize(
    ("file", "old", "new", "is_reached"),
    [(*edit, True) for edit in REACHED_EDITS] + [(*edit, False) for edit in UNREACHED_EDITS],
)
def test_an_edit_changes_the_digest_of_reached_code_only(project, file, old, new, is_reached):
    before = compute_digests()
    path = project / "tasks" / file
    text = path.read_text()
    assert text.count(old) == 1 or not old
    path.write_text(text.replace(old, new, 1))
    after = compute_digests()
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    changed_module = f"hallmark.tasks.{file.removesuffix('.py')}".replace("/", ".")
    if file.endswith("__init__.py"):
        changed_module = changed_module.removesuffix(".__init__")
    assert (changed_module in changed) == is_reached
    assert is_reached or not changed


def test_named_code_counts(project):
    """A data file, a whole module, and one name of a module."""
    words, process, name = "tasks/words.txt", "hallmark.tasks.process", "hallmark.tasks.lazy:h"
    before = compute_digests(words, process, name)
    assert before.keys() == {words, process, "hallmark.tasks.lazy"}
    for file, old, new, changed in (
        ("words.txt", "word", "words", {words}),
        ("process.py", "return 1", "return 3", {process}),
        ("process.py", "main()\n", "main() + 1\n", {process}),
        ("lazy.py", "h = 2", "h = 3", {"hallmark.tasks.lazy"}),
        ("lazy.py", "g = 1", "g = 3", set()),
    ):
        path = project / "tasks" / file
        text = path.read_text()
        path.write_text(text.replace(old, new))
        after = compute_digests(words, process, name)
        assert {key for key in before if before[key] != after[key]} == changed
        path.write_text(text)


@pytest.mark.parametrize("file", ["stage.py", "tables.py", "starred.py"])
def test_each_statement_of_a_whole_module_counts_once(project, file):
    """The import of a module is no statement of it, whichever index represents the import."""
    name = f"hallmark.tasks.{file.removesuffix('.py')}"
    counted = {
        counted_module.name: statements
        for counted_module, statements in find_reached_statements([name]).items()
    }
    assert counted[name] == list(read_statements(project / "tasks" / file))


def test_a_name_that_the_module_does_not_bind_counts_as_the_whole_module(project):
    """It may come from a module's __getattr__, or the stage from a notebook."""
    stage = project / "tasks" / "stage.py"
    stage.write_text("from hallmark.tasks.constants import anything\ndef run(): anything()")
    before = compute_digests()
    assert before.keys() == {"hallmark.tasks.stage", "hallmark.tasks.constants"}
    constants = project / "tasks" / "constants.py"
    constants.write_text("A = 1\nB = 3\n")
    assert compute_digests() != before
    assert compute_digests("hallmark.tasks.used:gone") == compute_digests("hallmark.tasks.used")


def test_a_stage_outside_the_project_counts_with_what_it_uses_of_the_project(project, tmp_path):
    path = tmp_path / "notebook.py"
    path.write_text("from hallmark.tasks.lazy import g\ndef run(): g\ndef other(): 1\n")

    def compute():
        clear_code_caches()
        return compute_reached_code_digests(["notebook:run"], ModuleFile("notebook", path))

    before = compute()
    assert before.keys() == {"notebook", "hallmark.tasks.lazy"}
    path.write_text(path.read_text().replace("other(): 1", "other(): 3"))
    assert compute() == before
    path.write_text(path.read_text().replace("run(): g", "run(): g, 1"))
    assert compute()["notebook"] != before["notebook"]


@pytest.mark.parametrize("name", ["hallmark.tasks.gone", "hallmark.tasks.gone:name", "numpy"])
def test_a_name_that_is_no_module_is_refused(project, name):
    with pytest.raises(ValueError, match=name):
        compute_reached_code_digests([name])


def list_loaded_modules(name: str) -> set[str]:
    """Return the project's modules, without the contract, that a fresh process loads."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, {name}; print(*sys.modules)"],
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        loaded
        for loaded in done.stdout.split()
        if find_module_file(loaded) and not f"{loaded}.".startswith("hallmark.tasks.contract.")
    }


@pytest.mark.parametrize(
    "name",
    [
        "hallmark.model.training.run",
        "hallmark.tasks.audits.probes.toxicity",
        "hallmark.reports.model_card",
    ],
)
def test_effects_of_all_modules_that_python_loads_count(name):
    clear_code_caches()
    imported = list_imports([name])
    if "hallmark.tasks.audits.registry" in imported:  # it imports every probe, see DYNAMIC_LOOKUPS
        imported |= list_imports(probe.module for probe in PROBES)
    assert list_loaded_modules(name) <= imported


def list_imports(names):
    """List the modules whose import counts for code that imports the named modules."""
    reachable = module.find_reachable_code(
        module.CodeUnit(module.find_module(name), module.IMPORT) for name in names
    )
    return {unit.module.name for unit in reachable if unit.statement_index == module.IMPORT}


#: Ways to find code other than by its name, and the modules that use them.
DYNAMIC_LOOKUPS = {
    # Stages that score have the digest of the scorer that they use.
    "__init_subclass__": {"tasks/measures/scorers/base.py"},
    "__subclasses__": set(),
    "__getattr__": set(),
    "globals": set(),
    "exec": set(),
    "eval": set(),
    "__import__": set(),
    # The registry imports all probes, which their stages name in extra_code. The inputs of a corpus
    # import all readers, which ingest names there. Scorers: as above. The others import libraries.
    "import_module": {
        "tasks/audits/registry.py",
        "tasks/corpus/reading/inputs.py",
        "tasks/measures/scorers/__init__.py",
        "tasks/measures/personal/national_ids.py",
        "tasks/measures/synthetic_identifiers.py",
    },
}


def test_stages_find_code_by_name():
    users = {name: set() for name in DYNAMIC_LOOKUPS}
    for package in PROJECT_PACKAGES[:-1]:
        for path in (PROJECT_ROOT / package).rglob("*.py"):
            if path.is_relative_to(PROJECT_ROOT / "tasks" / "contract"):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                name = (
                    node.id
                    if isinstance(node, ast.Name)
                    else node.name
                    if isinstance(node, ast.FunctionDef)
                    else node.attr
                    if isinstance(node, ast.Attribute) and node.attr.startswith("__")
                    else ""
                )
                if name in users:
                    users[name].add(str(path.relative_to(PROJECT_ROOT)))
    assert users == DYNAMIC_LOOKUPS


def test_packages_define_no_name_of_a_module_in_them():
    """The name of an imported member would mean both."""
    for package in PROJECT_PACKAGES:
        for path in (PROJECT_ROOT / package).rglob("__init__.py"):
            if path.parent.name == "contract":
                continue
            module_names = {other.stem for other in path.parent.iterdir()}
            names = {name for statement in read_statements(path) for name in statement.names}
            assert not names & module_names, path


def test_imports_inside_functions_are_found():
    path = find_module_file("hallmark.reports.page.redaction")
    assert "hallmark.tasks.measures.personal_data" in find_imported_modules(path)
