"""MLflow and Weights & Biases read the figures of a run; both are tested with their libraries.

The libraries are extras that are not part of the installation for developers:

    pip install -c constraints.txt -e '.[mlflow,wandb]'
"""

from __future__ import annotations

import struct

import pytest

from hallmark.flows.config import load_config
from hallmark.flows.reporters import mlflow_reporter, tracked_figures, wandb_reporter
from hallmark.flows.reporters.tracked_figures import (
    collect_training_settings,
    to_metric_name,
)
from hallmark.flows.run_recording import record_run
from hallmark.tasks.contract import Store
from tests.flows.reporters.stages import WORD, learn, raise_text
from tests.tasks.contract.stages import CountConfig, MakeConfig, make


def execute(tmp_path, monkeypatch, overrides, *, fails=False):
    """Execute a run with key figures; return it."""
    key_figures = {"card/bias.gap": 0.25}
    for module in (mlflow_reporter, wandb_reporter):
        monkeypatch.setattr(module, "collect_key_figures", lambda run: key_figures)
    with (
        pytest.raises(ValueError) if fails else pytest.MonkeyPatch.context(),
        record_run("corpus", load_config("smoke", overrides), Store(tmp_path / "store")) as run,
    ):
        make(MakeConfig(documents=20, word=WORD))
        learn(CountConfig())
        if fails:
            raise_text(CountConfig())
    return run


def read_all_bytes(folder):
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_names_contain_only_what_trackers_accept():
    assert to_metric_name("card/é\n<x>:1") == "card/___x__1"
    assert len(to_metric_name("x" * 500)) == tracked_figures.MAX_NAME_CHARACTERS


def test_only_settings_of_the_training_are_sent(tmp_path):
    config = load_config("smoke")
    with record_run("corpus", config, Store(tmp_path)) as run:
        settings = collect_training_settings(run)
    assert settings["pretrain.train.steps"] == config.pretrain.train.steps
    assert settings["pack.context"] == config.pack.context
    assert all(name.startswith(("pack.", "pretrain.")) for name in settings)


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_mlflow_reads_the_figures_of_a_run(tmp_path, monkeypatch, caplog, fails):
    from mlflow.tracking import MlflowClient

    monkeypatch.setattr(mlflow_reporter, "MAX_SETTINGS", 7)  # several requests
    folder = tmp_path / "ml runs"
    overrides = ['report_to=["mlflow"]', f"reporters.mlflow.uri={folder}"]
    run = execute(tmp_path, monkeypatch, overrides, fails=fails)
    assert [record.getMessage() for record in caplog.records if "MLflow" in record.msg] == []
    client = MlflowClient(folder.as_uri())
    experiment = client.get_experiment_by_name("hallmark")
    [found] = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(found.info.run_id, "learn/loss")
    assert [(metric.step, metric.value) for metric in history] == [(1, 4), (2, 2), (3, 4 / 3)]
    assert found.info.run_name == found.data.tags["hallmark.run"] == run.id
    assert found.info.status == ("FAILED" if fails else "FINISHED")
    assert found.data.tags.get("hallmark.verdict") == (None if fails else "none")
    settings = collect_training_settings(run)
    assert len(settings) > 7
    assert found.data.params == {name: str(value) for name, value in settings.items()}
    assert found.data.metrics["make/rows"] == 20 and found.data.metrics["card/bias.gap"] == 0.25
    assert "learn/mfu" not in found.data.metrics
    assert WORD.encode() not in read_all_bytes(folder)


def read_wandb_records(folder):
    """Read the records of the offline run in a folder.

    The file has a header of 7 bytes and blocks of 32 KiB. A record is cut into pieces, each with a
    checksum, a length and a kind: 1 whole, 2 first, 3 middle, 4 last.
    """
    from wandb.proto import wandb_internal_pb2

    [path] = folder.rglob("*.wandb")
    data, position, pieces = path.read_bytes(), 7, b""
    while position + 7 <= len(data):
        if (left := 32_768 - position % 32_768) < 7:
            position += left
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        pieces += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(pieces)
            pieces = b""


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_wandb_reads_the_figures_of_an_offline_run(tmp_path, monkeypatch, caplog, fails):
    folder = tmp_path / "w"
    overrides = ['report_to=["wandb"]', f"reporters.wandb.folder={folder}"]
    run = execute(tmp_path, monkeypatch, overrides, fails=fails)
    assert [r.getMessage() for r in caplog.records if "Weights & Biases" in r.getMessage()] == []
    records = [*read_wandb_records(folder)]
    [created] = [record.run for record in records if record.HasField("run")][:1]
    assert (created.project, created.display_name) == ("hallmark", run.id)
    rows = [
        {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    assert [(row["learn/step"], float(row["learn/loss"])) for row in rows] == [
        ("1", 4.0),
        ("2", 2.0),
        ("3", pytest.approx(4 / 3)),
    ]
    summary = {
        "/".join(item.nested_key) or item.key: item.value_json
        for record in records
        if record.HasField("summary")
        for item in record.summary.update
    }
    assert summary["card/bias.gap"] == "0.25" and float(summary["make/rows"]) == 20
    assert summary.get("hallmark.verdict") == (None if fails else '"none"')
    [ended] = [record.exit for record in records if record.HasField("exit")]
    assert ended.exit_code == int(fails)
    assert WORD.encode() not in read_all_bytes(folder)
    assert not [*folder.rglob("requirements.txt")] and not [*folder.rglob("*.patch")]
