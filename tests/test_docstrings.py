"""Check that docstrings describe parameters and attributes that exist."""

import ast
import re

import pytest

from hallmark.tasks.contract import PROJECT_ROOT

PACKAGES = ("benchmarks", "flows", "hallmark", "model", "reports", "tasks")


def list_described_names(docstring, title):
    """List the names that a section of a Google-style docstring describes."""
    found = re.search(rf"^{title}:\n((?:    .*\n|\n)*)", f"{docstring}\n", re.MULTILINE)
    entries = (
        re.findall(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*):", found[1], re.MULTILINE) if found else []
    )
    names = [entry.replace("*", "").split(", ") for entry in entries]
    return {name for entry in names for name in entry}


def list_parameters(function):
    arguments = function.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return {
        parameter.arg
        for parameter in [*parameters, arguments.vararg, arguments.kwarg]
        if parameter is not None
    }


def list_attributes(class_definition):
    """List what the body of a class, or its ``__init__``, defines."""
    names = set()
    for node in class_definition.body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
            if node.name == "__init__":
                names |= {
                    n.attr
                    for n in ast.walk(node)
                    if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
                }
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def list_wrong_names(source):
    """List the described names that do not exist."""
    wrong_names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            described = list_described_names(ast.get_docstring(node), "Args")
            wrong_names += [f"{node.name}: {x}" for x in described - list_parameters(node)]
        elif isinstance(node, ast.ClassDef):
            described = list_described_names(ast.get_docstring(node), "Attributes")
            wrong_names += [f"{node.name}: {x}" for x in described - list_attributes(node)]
    return sorted(wrong_names)


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_describe_what_exists(package):
    modules = sorted((PROJECT_ROOT / package).rglob("*.py"))
    assert modules
    assert [(m.name, name) for m in modules for name in list_wrong_names(m.read_text())] == []


def test_a_renamed_parameter_or_field_is_noticed():
    source = '''
class Probe:
    """Hold a probe.

    Attributes:
        name: Its name.
        told: What it tells.
    """

    name: str

    def ask(self, items, *rest):
        """Ask.

        Args:
            items: What is asked:
                two at a time.
            rest, made: More.
        """
'''
    assert list_wrong_names(source) == ["Probe: told", "ask: made"]
