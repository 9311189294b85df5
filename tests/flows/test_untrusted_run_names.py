"""A run.json with names that lead outside its folder is refused in one sentence."""

import json

import pytest

from hallmark.flows.commands.runs import runs
from hallmark.flows.runs import open_artifact, open_run, read_all_runs
from hallmark.tasks.contract import HallmarkError, Store

RECORD = {
    "run": "r1",
    "flow": "pipeline",
    "config_name": "demo",
    "config": {},
    "checkpoint": None,
    "status": "completed",
    "started": None,
    "ended": None,
    "host": "h",
    "pid": 1,
    "platform": "p",
    "error": None,
    "stages": [
        {
            "label": "ingest",
            "stage": "ingest",
            "artifact": "ingest/0123456789abcdef",
            "content": "0",
            "cached": False,
            "seconds": 1.0,
        }
    ],
}
OUTSIDE = ["../x", "../../x/0123", "/etc/0123", "ingest/../0123", "ingest\\..\\0123", "ingest/", ""]


def stored(folder, record):
    store = Store(folder)
    store.put("runs/r1/run.json", json.dumps(record).encode())
    return store


def test_the_unchanged_record_is_valid(tmp_path):
    assert open_run("r1", stored(tmp_path, RECORD)).stages.keys() == {"ingest"}


@pytest.mark.parametrize("name", OUTSIDE)
def test_artifacts_outside_the_store_are_refused_in_a_record(tmp_path, name):
    record = RECORD | {"stages": [RECORD["stages"][0] | {"artifact": name}]}
    store = stored(tmp_path, record)
    with pytest.raises(HallmarkError, match=r"run r1 is damaged: its run\.json in .* run again"):
        open_run("r1", store)
    assert read_all_runs(store) == []


@pytest.mark.parametrize("name", ["../r1", "/r1", "..\\r1", "r2"])
def test_a_record_with_another_id_is_refused(tmp_path, name):
    with pytest.raises(HallmarkError, match="run r1 is damaged"):
        open_run("r1", stored(tmp_path, RECORD | {"run": name}))


@pytest.mark.parametrize("name", OUTSIDE)
def test_artifact_names_outside_the_store_are_refused(tmp_path, name):
    with pytest.raises(HallmarkError, match=r"not an artifact name|has no artifact"):
        open_artifact(name, stored(tmp_path, RECORD))


def test_a_record_cannot_change_the_terminal(tmp_path, capsys):
    hostile = "demo\x1b[2J\u202e"
    stored(tmp_path, RECORD | {"config_name": hostile, "error": hostile})
    runs(store=str(tmp_path))
    output = capsys.readouterr().out
    assert output.count("demo‹U+001B›[2J‹U+202E›") == 2
    assert "\x1b" not in output and "\u202e" not in output
