"""Metrics agree with the runs of a store, as Prometheus' own parser reads them."""

from __future__ import annotations

import json
import time
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hallmark.flows import run_outcome
from hallmark.flows.config import load_config
from hallmark.flows.reporters import metrics, metrics_server
from hallmark.flows.reporters.metrics import RunFigures, StageFigures, build_metrics, to_label
from hallmark.flows.reporters.metrics_server import StoreMetrics, serve_metrics
from hallmark.flows.reporters.prometheus_reporter import MetricsCollector
from hallmark.flows.run_progress import RunProgress
from hallmark.flows.run_recording import record_run
from hallmark.tasks.contract import Store, UsageError
from tests.flows.reporters.stages import learn, raise_text
from tests.tasks.contract.stages import CountConfig, DropConfig, MakeConfig, drop, make


def parse(text):
    """Return the values by name and sorted labels, as Prometheus reads them."""
    values = {}
    for family in text_string_to_metric_families(text):
        assert family.type == "gauge" and family.documentation
        for sample in family.samples:
            key = sample.name.removeprefix("hallmark_"), tuple(sorted(sample.labels.items()))
            assert key not in values
            values[key] = sample.value
    return values


def format_metrics(built):
    registry = CollectorRegistry()
    registry.register(MetricsCollector(built))
    return generate_latest(registry).decode()


def select(values, name, **labels):
    """Return the values of a metric by the labels that are not given."""
    given = set(labels.items())
    return {
        tuple(value for pair in key if (pair not in given) for value in pair[1:]): number
        for (metric, key), number in values.items()
        if metric == name and given <= {*key}
    }


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture
def config(tmp_path):
    folder = tmp_path / "textfiles"
    return load_config(
        "smoke", ['report_to=["prometheus"]', f"reporters.prometheus.folder={folder}"]
    )


def read_textfile(tmp_path):
    [path] = (tmp_path / "textfiles").iterdir()  # no temporary file remains
    return path, parse(path.read_text())


def run_two_stages(store, config, flow="corpus"):
    with record_run(flow, config, store) as run:
        made = make(MakeConfig(documents=200))
        return run, made, drop(made, DropConfig())


def test_a_run_writes_its_figures_to_a_textfile(tmp_path, store, config):
    before = time.time()
    run, made, dropped = run_two_stages(store, config)
    path, values = read_textfile(tmp_path)
    store_id = store.compute_secret_id()[:8]
    assert path.name == f"hallmark-{store_id}-smoke-corpus.prom"
    labels = {"store": store_id, "config": "smoke", "flow": "corpus"}
    statuses = select(values, "run_status", **labels)
    assert statuses == {(name,): float(name == "completed") for name in metrics.STATUSES}
    verdicts = select(values, "run_verdict", **labels)
    assert verdicts == {(name,): float(name == "none") for name in metrics.VERDICTS}
    [ended] = select(values, "last_good_run_timestamp_seconds", **labels).values()
    [started] = select(values, "run_start_timestamp_seconds", **labels).values()
    assert before - 1 <= started <= ended <= time.time()
    assert select(values, "run_duration_seconds", **labels) == {(): ended - started}
    seconds = {entry["label"]: entry["seconds"] for entry in run.record["stages"]}
    assert select(values, "stage_duration_seconds", **labels) == {
        (label,): value for label, value in seconds.items()
    }
    rows = sum(table.row_count for table in dropped.tables.values())
    assert select(values, "stage_rows", **labels) == {("make",): 200, ("drop",): rows}
    sizes = {
        artifact.stage: sum(table.byte_size for table in artifact.tables.values())
        for artifact in (made, dropped)
    }
    assert select(values, "stage_bytes", **labels) == {(k,): v for k, v in sizes.items()}
    assert set(select(values, "stage_cached", **labels).values()) == {0.0}
    assert not select(values, "training_tokens_per_second")

    run_two_stages(store, config)
    _, values = read_textfile(tmp_path)
    assert set(select(values, "stage_cached", **labels).values()) == {1.0}
    assert not select(values, "stage_duration_seconds")


def test_the_last_good_run_survives_a_failed_one(tmp_path, store, config):
    with pytest.raises(ValueError), record_run("corpus", config, store):
        raise_text(CountConfig())
    _, values = read_textfile(tmp_path)
    assert [*select(values, "last_good_run_timestamp_seconds").values()] == [0.0]
    assert not select(values, "run_verdict")
    run_two_stages(store, config)
    _, good = read_textfile(tmp_path)
    with pytest.raises(ValueError), record_run("corpus", config, store):
        raise_text(CountConfig())
    _, values = read_textfile(tmp_path)
    name = "last_good_run_timestamp_seconds"
    assert select(values, name) == select(good, name)
    assert [*select(values, "run_status", status="failed").values()] == [1.0]


@pytest.mark.parametrize("verdict", metrics.VERDICTS)
def test_a_run_whose_policy_or_audit_failed_is_not_good(
    tmp_path, store, config, monkeypatch, verdict
):
    monkeypatch.setattr(metrics, "read_run_verdict", lambda run: verdict)
    run_two_stages(store, config)
    _, values = read_textfile(tmp_path)
    is_good = verdict in ("pass", "none")
    [good_end] = select(values, "last_good_run_timestamp_seconds").values()
    assert (good_end > 0) == is_good
    assert [*select(values, "run_verdict", verdict=verdict).values()] == [1.0]
    assert sum(select(values, "run_verdict").values()) == 1.0


def test_the_verdicts_are_those_of_the_event():
    source = run_outcome.read_run_verdict.__doc__
    assert {name for name in metrics.VERDICTS if f'"{name}"' in source} == {*metrics.VERDICTS}


@pytest.fixture
def figures():
    return RunFigures("store", "config", "pipeline", "running", 1.0, None, None)


def test_the_speed_of_a_running_training_is_shown(figures):
    progress = RunProgress("pretrain", 3, 10, tokens_per_second=1234.5)
    values = parse(format_metrics(build_metrics([replace(figures, progress=progress)])))
    assert [*select(values, "training_tokens_per_second", stage="pretrain").values()] == [1234.5]
    assert [*select(values, "stage_completed_units", stage="pretrain").values()] == [3]
    assert [*select(values, "stage_total_units", stage="pretrain").values()] == [10]


def test_labels_are_escaped_cut_and_bounded_in_number(figures):
    hostile = 'a"b\\c\n# HELP x y\r\u202e\x00\ud800' + "é" * 5000
    assert len(to_label(hostile)) == metrics.MAX_LABEL_CHARACTERS
    stages = {f"{hostile}{number}": StageFigures(1.0, 2, 3) for number in range(3)}
    runs = [
        replace(figures, config=f"{number}", flow=hostile, stages=stages) for number in range(1000)
    ]
    runs += [replace(figures, config=f"{hostile}{number}") for number in range(2)]
    text = format_metrics(build_metrics(runs))
    values = parse(text)
    configs = {dict(key).get("config") for _, key in values}
    assert len(configs) == metrics.MAX_RUNS
    assert all(line.startswith(("#", "hallmark_")) for line in text.splitlines())
    [flow] = {dict(key).get("flow") for _, key in values}
    assert flow == to_label(hostile) and flow.startswith('a"b\\c?# HELP x y??')
    parse(format_metrics(build_metrics(runs[-2:])))  # no series occurs twice


# Of a store, over HTTP -------------------------------------------------------------------------


def read_store(store):
    store_metrics = StoreMetrics(store, lambda: {"scheduled": 2})
    store_metrics.read()
    return store_metrics, parse(format_metrics(store_metrics.metrics))


def test_a_store_has_the_same_metrics_as_the_textfile(tmp_path, store, config):
    run_two_stages(store, config)
    _, values = read_textfile(tmp_path)
    _, of_store = read_store(store)
    own = {"flow_runs", "store_read_timestamp_seconds"}
    assert {key: of_store[key] for key in of_store if key[0] not in own} == values
    assert select(of_store, "flow_runs") == {("scheduled",): 2}
    [read_at] = select(of_store, "store_read_timestamp_seconds").values()
    assert abs(read_at - time.time()) < 60


def test_a_store_shows_the_newest_run_of_each_flow_and_the_last_good_one(store):
    config = load_config("smoke")
    run_two_stages(store, config)
    run_two_stages(store, config, "pretrain")
    with pytest.raises(ValueError), record_run("corpus", config, store):
        raise_text(CountConfig())
    with record_run("trial", config, store):
        make(MakeConfig(documents=3))
    _, values = read_store(store)
    for flow, status in (("corpus", "failed"), ("pretrain", "completed")):
        assert [*select(values, "run_status", flow=flow, status=status).values()] == [1.0]
    assert {dict(key).get("flow") for _, key in values} - {None} == {"corpus", "pretrain"}
    assert all(end > 0 for end in select(values, "last_good_run_timestamp_seconds").values())


def test_ended_runs_are_read_once_and_a_running_one_again(store, monkeypatch):
    config = load_config("smoke")
    run_two_stages(store, config)
    with record_run("pretrain", config, store) as running:
        store_metrics, before = read_store(store)
        reads = []
        read_run_record = metrics_server.read_run_record
        monkeypatch.setattr(
            metrics_server,
            "read_run_record",
            lambda store, run_id: reads.append(run_id) or read_run_record(store, run_id),
        )
        learn(CountConfig())
        store_metrics.read()
        assert {*reads} == {running.id}
        after = parse(format_metrics(store_metrics.metrics))
        assert not select(before, "stage_cached", flow="pretrain")
        assert select(after, "stage_cached", flow="pretrain", stage="learn")
    store_metrics.read()
    reads.clear()
    store_metrics.read()
    assert reads == []


def test_damaged_runs_and_artifacts_hide_no_other_run(store):
    config = load_config("smoke")
    _, made, _ = run_two_stages(store, config)
    run_two_stages(store, config, "pretrain")
    (store.root_folder / "runs" / "zzz").mkdir()
    (store.root_folder / "runs" / "zzz" / "run.json").write_text("{")
    manifest_path = store.root_folder / made.folder / "manifest.json"
    manifest = json.loads(manifest_path.read_text())
    manifest["tables"] = 5
    manifest_path.write_text(json.dumps(manifest))
    _, values = read_store(store)
    assert {dict(key).get("flow") for _, key in values} - {None} == {"corpus", "pretrain"}


def fetch(address):
    with urllib.request.urlopen(address, timeout=30) as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        return parse(response.read().decode())


def test_metrics_are_served_on_loopback(store, monkeypatch):
    run_two_stages(store, load_config("smoke"))
    monkeypatch.setattr(metrics_server, "READ_INTERVAL_SECONDS", 0.05)
    with serve_metrics(store, 0) as address:
        assert address.startswith("http://127.0.0.1:") and address.endswith("/metrics")
        end = time.monotonic() + 30
        while not select(fetch(address), "run_status") and time.monotonic() < end:
            pass
        assert {dict(key).get("flow") for _, key in fetch(address)} - {None} == {"corpus"}
        run_two_stages(store, load_config("smoke"), "pretrain")
        while not select(fetch(address), "run_status", flow="pretrain"):
            assert time.monotonic() < end
        port = int(address.split(":")[2].split("/")[0])
        with (
            pytest.raises(UsageError, match=f"--metrics-port {port}: the port cannot be used"),
            serve_metrics(store, port),
        ):
            pass
    with pytest.raises(OSError):
        fetch(address)


def test_a_store_that_cannot_be_read_is_reported_once(store, monkeypatch, caplog):
    calls = []

    def refuse(*_):
        calls.append(1)
        raise ConnectionError("the store is gone\nwith details")

    monkeypatch.setattr(metrics_server, "list_run_ids", refuse)
    monkeypatch.setattr(metrics_server, "READ_INTERVAL_SECONDS", 0.01)
    with serve_metrics(store, 0) as address:
        end = time.monotonic() + 30
        while len(calls) < 3:
            assert time.monotonic() < end
        assert fetch(address) == {}
    assert [record.getMessage() for record in caplog.records] == [
        "the metrics cannot be read: ConnectionError: the store is gone; trying again every 0.01 "
        "seconds"
    ]
