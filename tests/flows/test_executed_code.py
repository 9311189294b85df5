"""All code that a stage executes counts in its fingerprint.

``code_trace.py`` runs the smoke pipeline under a tracer. Here, what each stage executed is compared
with what its fingerprint counts.
"""

import ast
import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from hallmark.flows.flow_registry import register_all_stages
from hallmark.tasks.contract import PROJECT_ROOT, STAGES, stage
from hallmark.tasks.contract.code_digests import find_reached_statements
from hallmark.tasks.contract.external_files import hash_file
from hallmark.tasks.contract.fingerprint import hash_syntax_tree
from hallmark.tasks.measures.scorers import SCORER_CLASSES, compute_code_digest
from tests.flows.code_trace import trace_project_code

pytestmark = pytest.mark.slow

#: Modules that watch a stage and cannot change its output, with the reason. (The contract does not
#: count either; CONTRACT_VERSION represents it.)
OBSERVERS = {
    "hallmark.flows.reporters.reporting": "passes the events of a stage to other systems",
    "hallmark.flows.run_recording": "receives the events of a stage, records and shows them",
    "hallmark.flows.runs": "writes what run_recording records",
    "hallmark.flows.training_stop": "looks for a request to stop, after which the training fails",
}


def find_uncounted_code(traced_stage, trace):
    """Return the statements and data files that a stage used but its fingerprint does not count."""
    counted_digests = {}
    stage_code = (traced_stage.list_body_and_extra_code_names(), traced_stage.get_body_module())
    for code in (stage_code, *list_scorer_code(trace)):
        for module, statements in find_reached_statements(*code).items():
            digests = counted_digests.setdefault(module.name, set())
            digests.update(statement.digest for statement in statements)
    uncounted = set()
    for file, line in trace["code"]:
        module_path = Path(file).relative_to(PROJECT_ROOT).with_suffix("")
        module = ".".join(["hallmark", *module_path.parts]).removesuffix(".__init__")
        if module in OBSERVERS:
            continue
        statement = find_statement(file, line)
        digest = hash_syntax_tree(ast.Module([statement], []))
        if digest not in counted_digests.get(module, ()):
            uncounted.add(f"{module}: {getattr(statement, 'name', f'line {line}')}")
    for file in trace["files"]:
        name = str(Path(file).relative_to(PROJECT_ROOT))
        if (
            name not in traced_stage.extra_code
            and hash_file(Path(file)) not in trace["external_digests"]
        ):
            uncounted.add(name)
    return sorted(uncounted)


def list_scorer_code(trace):
    """Return the code of the scorers whose digest is an external digest of the traced stage."""
    for scorer_class in SCORER_CLASSES.values():
        if compute_code_digest(scorer_class) in trace["external_digests"]:
            yield ([f"{scorer_class.__module__}:{scorer_class.__name__}"],)


def find_statement(file, line):
    """Return the statement at the top level of a file that contains a line."""
    return next(
        node
        for node in parse_file(file).body
        if min([node, *getattr(node, "decorator_list", [])], key=lambda n: n.lineno).lineno
        <= line
        <= node.end_lineno
    )


@cache
def parse_file(file):
    return ast.parse(Path(file).read_text())


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """The traces of the smoke pipeline, as (stage name, trace)."""
    register_all_stages()
    folder = tmp_path_factory.mktemp("traces")
    command = [sys.executable, "-m", "tests.flows.code_trace", str(folder), "smoke", "workers=1"]
    done = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=560)
    assert done.returncode == 0, done.stdout + done.stderr
    traces = [
        (path.name.split(".")[0], json.loads(path.read_text())) for path in folder.glob("*.json")
    ]
    [record_path] = folder.glob("store/runs/*/run.json")
    run_stages = {entry["stage"] for entry in json.loads(record_path.read_text())["stages"]}
    assert len(run_stages) > 40
    assert {name for name, _ in traces} == run_stages
    assert [*folder.glob("pretrain.trainer.*.json")]
    return traces


def test_all_code_that_a_stage_executes_counts(traces):
    uncounted = [(name, find_uncounted_code(STAGES[name], trace)) for name, trace in traces]
    assert [(name, code) for name, code in uncounted if code] == []
    assert all(trace["code"] for _, trace in traces)


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("pretrain", "hallmark.model.training.trainer: "),
        ("build_requests_bias", "hallmark.tasks.audits.probes.bias: build_requests"),
        ("audit_bias", "hallmark.tasks.audits.methods.sentence_pairs: "),
        ("ingest", "tasks/corpus/data/town/words.txt"),
    ],
)
def test_code_is_missed_if_it_is_not_declared(traces, name, missing):
    undeclared = replace(STAGES[name], extra_code=())
    uncounted = [
        code
        for traced_name, trace in traces
        if traced_name == name
        for code in find_uncounted_code(undeclared, trace)
    ]
    assert any(code.startswith(missing) for code in uncounted), uncounted


@stage(name="planted")
def run_planted_code(config, context):
    proportions = import_module("hallmark.tasks.measures.proportions")
    proportions.clopper_pearson_interval(1, 2)
    (PROJECT_ROOT / "tasks" / "audits" / "data" / "words.json").read_text()


def test_planted_code_is_found():
    """A function that is found by the name of its module in a string, and a data file."""
    trace = {"external_digests": []}
    with trace_project_code(trace):
        run_planted_code.body(None, None)
    planted = ["hallmark.tasks.measures.proportions", "tasks/audits/data/words.json"]
    found = find_uncounted_code(run_planted_code, trace)
    assert "hallmark.tasks.measures.proportions: clopper_pearson_interval" in found
    assert "tasks/audits/data/words.json" in found
    assert find_uncounted_code(replace(run_planted_code, extra_code=tuple(planted)), trace) == []
