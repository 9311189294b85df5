"""OpenLineage events have the fields of the specification and link stages by their tables.

The classes of the official client are generated from the specification, so they say which fields an
event and its facets must have, and which they may have.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import threading
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import UUID

import attrs
import pytest

from hallmark.flows.config import load_config
from hallmark.flows.reporters import openlineage_reporter
from hallmark.flows.run_recording import record_run
from hallmark.tasks.contract import Store
from tests.flows.reporters.stages import WORD, interrupt, raise_text
from tests.tasks.contract.stages import CountConfig, DropConfig, MakeConfig, drop, make

generated = pytest.importorskip(
    "openlineage.client.generated", reason="openlineage-python is not installed"
)


def list_specified_classes():
    """Return the classes of the specification by name; that of events is in the module base."""
    classes = {}
    for module in pkgutil.iter_modules(generated.__path__):
        members = vars(importlib.import_module(f"{generated.__name__}.{module.name}"))
        classes |= {
            name: member
            for name, member in members.items()
            if isinstance(member, type)
            and attrs.has(member)
            and member.__module__.endswith(module.name)
        }
    return classes


CLASSES = list_specified_classes()


def check_fields(value, name):
    """Check that a value has all fields that the specification requires, and no unknown field."""
    fields = attrs.fields_dict(CLASSES[name])
    required = {field for field, attribute in fields.items() if attribute.default is attrs.NOTHING}
    assert required <= value.keys() <= fields.keys(), name


def validate(event):
    """Validate an event, and each facet as the kind that its schema names."""
    check_fields(event, "RunEvent")
    assert event["schemaURL"].endswith("#/$defs/RunEvent")
    assert datetime.fromisoformat(event["eventTime"]).tzinfo is not None
    UUID(event["run"]["runId"])
    assert event["job"]["namespace"] and event["job"]["name"]
    facets = [*event["run"]["facets"].values(), *event["job"]["facets"].values()]
    for kind, datasets in (("InputDataset", event["inputs"]), ("OutputDataset", event["outputs"])):
        for dataset in datasets:
            check_fields(dataset, kind)
            for group in ("facets", "inputFacets", "outputFacets"):
                facets += dataset.get(group, {}).values()
    assert facets
    for facet in facets:
        assert facet["_producer"]
        check_fields(facet, facet["_schemaURL"].rpartition("/")[2])


def load(uri):
    return load_config("smoke", ['report_to=["openlineage"]', f"reporters.openlineage.uri={uri}"])


def read_events(path):
    events = [json.loads(line) for line in path.read_text().splitlines()]
    for event in events:
        validate(event)
    return events


def describe(events):
    return [(event["eventType"], event["job"]["name"]) for event in events]


def run_two_stages(store, config):
    with record_run("corpus", config, store) as run:
        made = make(MakeConfig(documents=200, word=WORD))
        return run, made, drop(made, DropConfig())


def test_the_events_of_a_run_are_valid_and_link_its_stages(tmp_path):
    path, store = tmp_path / "new" / "events.jsonl", Store(tmp_path / "store")
    run, made, dropped = run_two_stages(store, load(path))
    events = read_events(path)
    assert describe(events) == [
        ("START", "smoke.corpus"),
        ("START", "smoke.corpus.make"),
        ("COMPLETE", "smoke.corpus.make"),
        ("START", "smoke.corpus.drop"),
        ("COMPLETE", "smoke.corpus.drop"),
        ("COMPLETE", "smoke.corpus"),
    ]
    run_ids = [event["run"]["runId"] for event in events]
    assert run_ids[0] == run_ids[-1] and run_ids[1] == run_ids[2] and run_ids[3] == run_ids[4]
    assert len({*run_ids}) == 3
    for event in events[1:-1]:
        assert event["run"]["facets"]["parent"]["run"]["runId"] == run_ids[0]
        assert event["run"]["facets"]["parent"]["job"]["name"] == "smoke.corpus"
    for event in events:
        tags = {tag["key"]: tag["value"] for tag in event["run"]["facets"]["tags"]["tags"]}
        assert tags["hallmark_run"] == run.id
        assert event["job"]["namespace"] == "hallmark"

    [written] = events[2]["outputs"]
    assert written["name"] == f"{made.name}#documents"
    assert written["namespace"] == (tmp_path / "store").as_uri()
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 200
    sha256 = made.manifest["tables"]["documents"]["sha256"]
    assert written["facets"]["version"]["datasetVersion"] == sha256
    for event in events[3:5]:
        [read] = event["inputs"]
        assert (read["namespace"], read["name"]) == (written["namespace"], written["name"])
        assert read["facets"]["version"]["datasetVersion"] == sha256
        assert read["inputFacets"]["inputStatistics"]["rowCount"] == 200
    rows = {
        dataset["name"]: dataset["outputFacets"]["outputStatistics"]["rowCount"]
        for dataset in events[4]["outputs"]
    }
    assert rows == {
        f"{dropped.name}#{name}": table.row_count for name, table in dropped.tables.items()
    }
    assert WORD not in path.read_text()


def test_a_cached_stage_has_its_datasets_too(tmp_path):
    first, second, store = tmp_path / "1", tmp_path / "2", Store(tmp_path / "store")
    run_two_stages(store, load(first))
    run_two_stages(store, load(second))
    before, after = read_events(first), read_events(second)
    assert describe(before) == describe(after)
    for one, other in zip(before, after, strict=True):
        assert (one["inputs"], one["outputs"]) == (other["inputs"], other["outputs"])
        assert one["run"]["runId"] != other["run"]["runId"]
        is_cached = {"key": "cached", "value": "true", "source": "HALLMARK"}
        tags = other["run"]["facets"]["tags"]["tags"]
        assert (is_cached in tags) == ("parent" in other["run"]["facets"])


@pytest.mark.parametrize(
    ("failing", "error", "states"),
    [(raise_text, ValueError, ("FAIL", "FAIL")), (interrupt, KeyboardInterrupt, ("ABORT",) * 2)],
)
def test_a_failed_stage_names_its_error_without_its_words(tmp_path, failing, error, states):
    path, store = tmp_path / "events.jsonl", Store(tmp_path / "store")
    for _ in range(2):
        with pytest.raises(error), record_run("corpus", load(path), store) as run:
            failing(CountConfig())
    events = read_events(path)
    assert [event["eventType"] for event in events] == ["START", "START", *states] * 2
    assert events[6]["run"]["facets"]["errorMessage"]["message"] == (
        f"{error.__name__}; for the reason, see run.json of run {run.id}"
    )
    assert WORD not in path.read_text()


def test_a_stage_that_starts_again_is_another_run_of_its_job(tmp_path):
    path, store = tmp_path / "events.jsonl", Store(tmp_path / "store")
    with record_run("corpus", load(path), store):
        for _ in range(2):
            with pytest.raises(ValueError, match=WORD):
                raise_text(CountConfig())
    run_ids = [event["run"]["runId"] for event in read_events(path)[1:-1]]
    assert run_ids[0] == run_ids[1] != run_ids[2] == run_ids[3]


@contextmanager
def serve(status=201, wait=None):
    """Run a server that collects (path, key of the API, event)."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            if wait:
                wait.wait(30)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.path, self.headers["Authorization"], json.loads(body)))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(("path", "used"), [("", "/api/v1/lineage"), ("/x/events", "/x/events")])
def test_events_are_posted_to_a_server_with_the_key_of_the_environment(
    tmp_path, monkeypatch, path, used
):
    monkeypatch.setenv(openlineage_reporter.API_KEY_VARIABLE, "a-key")
    with serve() as (address, requests):
        run, *_ = run_two_stages(Store(tmp_path / "store"), load(address + path))
    assert len(requests) == 6
    for requested_path, authorization, event in requests:
        validate(event)
        assert (requested_path, authorization) == (used, "Bearer a-key")
    assert "a-key" not in json.dumps(run.record)


def test_a_server_that_refuses_events_causes_one_warning(tmp_path, caplog):
    with serve(status=403) as (address, requests):
        run, *_ = run_two_stages(Store(tmp_path / "store"), load(address))
    assert run.record["status"] == "completed" and len(requests) == 6
    [message] = [r.getMessage() for r in caplog.records if "OpenLineage" in r.getMessage()]
    assert message.startswith("OpenLineage failed: HTTPError: 403")
    assert message.endswith("the run continues without it")
