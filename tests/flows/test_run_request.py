"""A request is one value: parsed from Prefect's parameters, from run.json and from commands."""

import json

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools import validate
from pydantic import ValidationError

from hallmark.flows.audit_selection import ALL_AUDITS
from hallmark.flows.commands.replay import replay_run
from hallmark.flows.flow_registry import get_flow
from hallmark.flows.run_request import FIELDS_BY_FLOW, REQUIRED_FIELDS_BY_FLOW, RunRequest
from hallmark.flows.runs import Run, open_run, read_all_runs
from hallmark.tasks.contract import HallmarkError, Store, UsageError

AUDIT_PARAMETERS = "its parameters are checkpoint, audits, config, overrides, store"


@pytest.mark.parametrize(
    ("flow_name", "parameters", "expected"),
    [
        (
            "audit",
            {"checkpont": "x"},
            f"has no parameter 'checkpont' (did you mean checkpoint?); {AUDIT_PARAMETERS}",
        ),
        ("audit", {"checkpoint": "x", "zzz": 1}, f"has no parameter 'zzz'; {AUDIT_PARAMETERS}"),
        ("audit", {"checkpoint": "x", "until": "pack"}, "has no parameter 'until'"),
        ("audit", {"checkpoint": "x", "flow": "pipeline"}, "has no parameter 'flow'; remove it"),
        ("audit", {}, "the audit flow needs the parameter checkpoint; add it"),
        ("finetune", {"checkpoint": "x", "config": None}, "needs the parameter config; add it"),
        (
            "audit",
            {"checkpoint": 3},
            "audit flow are not valid: checkpoint: must be text, in quotes (given: 3)",
        ),
        ("audit", {"checkpoint": ""}, "checkpoint: must not be empty (given: '')"),
        ("audit", {"checkpoint": "x", "audits": "bias"}, "audits: must be a list, in brackets"),
        ("audit", {"checkpoint": "x", "audits": [1]}, "audits.0: must be text, in quotes"),
        ("audit", {"checkpoint": "x", "audits": ["bais"]}, "'bais' (did you mean bias?); choose"),
        ("audit", {"checkpoint": "x", "audits": []}, "audits '': none is named; choose from"),
        (
            "audit",
            {"checkpoint": "x", "config": [1]},
            "config: must be a .toml file, a config name",
        ),
        ("audit", {"checkpoint": "x", "config": ""}, "or an object (given: '')"),
        ("pipeline", {"overrides": "a=1"}, "overrides: must be a list, in brackets"),
        ("pipeline", {"overrides": [None]}, "overrides.0: must be text, in quotes"),
        ("pipeline", {"hash_sources": "yes"}, "hash_sources: must be true or false"),
        ("pipeline", {"hash_sources": 1}, "hash_sources: must be true or false"),
        ("pipelin", {}, "there is no flow 'pipelin' (did you mean pipeline?); choose one of: "),
        (["audit"], {}, "there is no flow ['audit'] (did you mean audit?); choose one of: "),
    ],
)
def test_wrong_parameters_are_reported_in_one_sentence(flow_name, parameters, expected):
    with pytest.raises(UsageError) as error:
        RunRequest.parse(flow_name, parameters)
    assert expected in str(error.value) and "\n" not in str(error.value)


def test_a_request_cannot_be_changed():
    request = RunRequest(flow="pipeline", config="smoke")
    with pytest.raises(ValidationError, match="frozen"):
        request.config = "demo"
    changed = request.with_changes(until="pack")
    assert (request.until, changed.until, changed.config) == (None, "pack", "smoke")


def test_the_audits_are_those_of_the_card_in_its_order():
    request = RunRequest(flow="pipeline", audits=("bias", "toxicity", "bias"))
    assert request.audits == request.selected_audits == ("toxicity", "bias")
    request = RunRequest(flow="pipeline", audits=ALL_AUDITS[::-1])
    assert request.audits is None and request.selected_audits == ALL_AUDITS


@pytest.mark.parametrize("flow_name", FIELDS_BY_FLOW)
def test_the_form_of_a_flow_has_a_title_and_help_for_each_field(flow_name):
    schema = parameter_schema(get_flow(flow_name)).model_dump_for_openapi()
    assert tuple(schema["properties"]) == FIELDS_BY_FLOW[flow_name]
    required_names = [*REQUIRED_FIELDS_BY_FLOW.get(flow_name, ())]
    assert schema.get("required", []) == required_names
    for name, field in schema["properties"].items():
        assert field["title"] == RunRequest.model_fields[name].title
        assert field["description"].endswith(".")
        assert ("default" in field) == (name not in required_names)


@pytest.mark.parametrize(
    ("flow_name", "parameters", "place"),
    [
        ("pipeline", {"until": "pak"}, "until"),
        ("pipeline", {"until": "finetune"}, "until"),
        ("pipeline", {"audits": ["taste"]}, "audits"),
        ("pipeline", {"audits": ["bias", "bias"]}, "audits"),
        ("pipeline", {"audits": []}, "audits"),
        ("pipeline", {"overrides": ["steps"]}, "overrides"),
        ("pipeline", {"overrides": [" =3"]}, "overrides"),
        ("pipeline", {"config": ""}, "config"),
        ("pipeline", {"store": 3}, "store"),
        ("pipeline", {"hash_sources": "yes"}, "hash_sources"),
        ("audit", {"checkpoint": None}, "checkpoint"),
        ("audit", {"checkpoint": ""}, "checkpoint"),
        ("finetune", {"checkpoint": "x", "config": None}, "config"),
    ],
)
def test_the_server_refuses_wrong_values_of_the_form(flow_name, parameters, place):
    """It validates them with this function, and refuses the request with its message."""
    schema = parameter_schema(get_flow(flow_name)).model_dump_for_openapi()
    errors = validate(parameters, schema)
    assert {error.absolute_path[0] for error in errors} == {place}


@pytest.mark.parametrize(
    ("flow_name", "parameters"),
    [
        ("pipeline", {}),
        ("pipeline", {"config": "my.toml", "overrides": ["a.b=x=y"], "until": "pack"}),
        ("pipeline", {"config": {"name": "x"}, "audits": ["bias"], "hash_sources": True}),
        ("audit", {"checkpoint": "latest", "audits": None, "store": None}),
    ],
)
def test_the_server_accepts_what_a_request_accepts(flow_name, parameters):
    schema = parameter_schema(get_flow(flow_name)).model_dump_for_openapi()
    request = RunRequest.parse(flow_name, parameters)
    assert not validate(parameters, schema)
    assert not validate(request.given_parameters, schema)
    parameters_as_json = json.loads(json.dumps(request.parameters))
    assert not validate(parameters_as_json, schema)
    assert RunRequest.parse(flow_name, parameters_as_json) == request


def test_a_record_gives_the_same_request():
    request = RunRequest(
        flow="pipeline", config={"name": "x"}, overrides=("a=1",), until="pack", audits=("bias",)
    )
    record = json.loads(json.dumps(request.to_record()))
    assert record["format"] == 1 and RunRequest.from_record(record) == request
    assert record.keys() == {"format", "flow", *FIELDS_BY_FLOW["pipeline"]}


GIVEN = {"format": 1, "flow": "pipeline", "config": "smoke"}


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ([GIVEN], "the request must be a JSON object"),
        ("x", "the request must be a JSON object"),
        ({}, "the request has format None, but this version of Hallmark reads format 1"),
        (
            GIVEN | {"format": 2},
            "the request has format 2, but this version of Hallmark reads format 1",
        ),
        (GIVEN | {"format": True}, "the request has format True, but"),
        (GIVEN | {"format": "9" * 5000}, "the request has format '999"),
        ({"format": 1}, "there is no flow None; choose one of"),
        (GIVEN | {"flow": {}}, "there is no flow {}; choose one of"),
        (GIVEN | {"untill": "pack"}, "has no parameter 'untill' (did you mean until?)"),
        (GIVEN | {"x" * 5000: 1}, "the pipeline flow has no parameter 'xxx"),
        (GIVEN | {"overrides": {}}, "overrides: must be a list"),
        (GIVEN | {"checkpoint": "x"}, "has no parameter 'checkpoint'"),
        (GIVEN | {"experiment_arm": 5}, "experiment_arm: must be text"),
        (GIVEN | {"audits": ["taste"]}, "there is no audit 'taste'"),
        (GIVEN | {"flow": "corpus"}, "the request is for the corpus flow, not 'pipeline'"),
    ],
)
def test_a_wrong_request_in_a_record_is_refused_in_one_sentence(smoke, tmp_path, record, problem):
    run = open_run(smoke.first, str(smoke.store))
    store = Store(tmp_path / "store", create_missing=True)
    run_record = json.dumps(run.record | {"request": record})
    store.put(f"runs/{run.id}/run.json", run_record.encode())
    with pytest.raises(HallmarkError) as error:
        open_run(run.id, store)
    sentence = str(error.value)
    assert sentence.startswith(f"run {run.id}: the request in {store.uri}/runs/{run.id}/run.json ")
    assert problem in sentence and "\n" not in sentence and len(sentence) < 2000
    assert "use the version of Hallmark that wrote it, or remove that folder" in sentence
    assert not read_all_runs(store)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run", ""), "pipeline flow are not valid: config: must be a .toml file, a config name"),
        (("audit", ""), "audit flow are not valid: checkpoint: must not be empty (given: '')"),
        (
            ("finetune", "x", "--config", ""),
            "finetune flow are not valid: config: must be a .toml file",
        ),
    ],
)
def test_commands_report_a_wrong_request_in_one_sentence(smoke, arguments, expected):
    output = smoke(*arguments, code=2).stderr
    assert f"the parameters of the {expected}" in output and output.count("\n") == 1


def test_run_json_keeps_the_request(smoke):
    run = open_run(smoke.first, str(smoke.store))
    assert run.request == RunRequest(flow="pipeline", config="smoke")
    assert run.config_file == "smoke" and run.experiment_arm is None


def test_a_run_without_a_request_cannot_be_repeated(smoke, tmp_path):
    run = open_run(smoke.first, str(smoke.store))
    without_request = Run(run.store, {**run.record, "request": None})
    with pytest.raises(UsageError, match=r"contains no request, so the run cannot be repeated; "):
        replay_run(without_request, str(tmp_path / "target"))
