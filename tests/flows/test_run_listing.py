"""`hallmark runs` lists the runs of a store and how they ended."""

import json
import os
import socket

import pyarrow as pa
import pytest

from hallmark.flows.commands.runs import list_runs, render_run_list, runs
from hallmark.flows.run_progress import format_progress_key
from hallmark.tasks.audits.judging.policy import VERDICTS
from hallmark.tasks.contract import EmptyConfig, Session, StageContext, Store, open_session, stage
from tests.flows.conftest import run_in_this_process


@stage(name="judged", tables={"verdicts": VERDICTS})
def judged(config: EmptyConfig, context: StageContext) -> None:
    rows = [
        {
            "rule": rule,
            "audit": "bias",
            "metric": "m",
            "slice": {"part": part} if part else {},
            "bound": "< 1",
            "distance": distance,
            "verdict": verdict,
            "reason": "",
        }
        for rule, part, verdict, distance in (
            ("polite", "", "pass", -0.5),
            ("fair", "a", "fail", 0.5),
            ("fair", "b", "not_shown", None),
            ("safe", "", "not_shown", None),
        )
    ]
    context.get_table_writer("verdicts").write(pa.Table.from_pylist(rows, schema=VERDICTS))


@pytest.fixture
def store(tmp_path):
    """A store with run.json files of several kinds of runs."""
    store = Store(tmp_path / "store")
    with open_session(Session(store)):
        verdicts = judged(EmptyConfig())
    entry = {
        "label": "policy",
        "stage": verdicts.stage,
        "artifact": verdicts.name,
        "content": verdicts.content_digest,
        "seconds": 1.0,
    }
    began, ended = "2026-11-25T23:59:30+00:00", "2026-11-26T00:20:35+00:00"
    base = {
        "flow": "pipeline",
        "config_name": "demo",
        "config": {},
        "checkpoint": None,
        "status": "completed",
        "started": began,
        "ended": ended,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "platform": "",
        "stages": [],
        "error": None,
    }
    for name, changes in {
        "a": {"stages": [entry | {"cached": False}, entry | {"label": "x", "cached": True}]},
        "b": {
            "flow": "audit",
            "checkpoint": "a@0",
            "config_name": "smoke",
            "ended": None,
            "status": "running",
            "host": "another host",
        },
        "c": {"status": "failed", "error": "the disk is full"},
        "d": {"status": "running", "ended": None},
        "w": {"flow": "trial"},
    }.items():
        store.put(f"runs/{name}/run.json", json.dumps(base | {"run": name} | changes).encode())
    store.put(format_progress_key("b"), b"{}")  # its sign of life
    return str(tmp_path / "store")


def names(rows):
    return [row["run"] for row in rows]


def test_each_run_has_its_status(store):
    a, b, c, d = list_runs(store)
    assert names((a, b, c, d)) == ["a", "b", "c", "d"]
    assert (a["stages"], a["computed_stages"], a["failed_rules"], a["status"]) == (
        2,
        1,
        ["fair"],
        "completed",
    )
    assert (a["not_shown_rules"], a["passed_rules"], b["passed_rules"]) == (
        ["safe"],
        ["polite"],
        [],
    )
    assert (a["policy"], b["policy"]) == ("fail", None)
    assert (b["checkpoint"], b["failed_rules"], b["status"]) == ("a@0", [], "running")
    assert (c["status"], c["error"]) == ("failed", "the disk is full")
    assert d["status"] == "interrupted"  # without a sign of life
    assert d["error"].startswith(f"no sign of life from process {os.getpid()} on ")


@pytest.mark.parametrize(
    ("progress", "stage"),
    [
        ({"label": "pretrain", "completed": 1200, "total": 4500}, "pretrain, 1,200 of 4,500"),
        ({"label": "ingest", "completed": 7}, "ingest, 7"),
        ({"label": "ingest"}, "ingest"),
        (
            {"label": "pretrain", "description": "1 of 2 hosts have joined"},
            "pretrain, 1 of 2 hosts have joined",
        ),
        ({"label": ""}, ""),
        ({"label": "x"}, ""),  # that stage is already in run.json
    ],
)
def test_a_running_run_has_its_current_stage(store, progress, stage):
    opened = Store(store)
    record = json.loads(opened.get("runs/b/run.json"))
    record["stages"] = [json.loads(opened.get("runs/a/run.json"))["stages"][1]]
    opened.put("runs/b/run.json", json.dumps(record).encode())
    for run in "ab":
        opened.put(format_progress_key(run), json.dumps(progress).encode())
    rows = {row["run"]: row["current_stage"] for row in list_runs(store)}
    assert (rows["a"], rows["b"]) == ("", stage)  # "a" has ended, and its file is left over


def test_runs_are_filtered(store):
    assert (
        names(list_runs(store, flow="audit"))
        == names(list_runs(store, config_name="smoke"))
        == ["b"]
    )
    assert names(list_runs(store, status="failed")) == ["c"]
    assert names(list_runs(store, only_policy_failed=True)) == ["a"]
    assert names(list_runs(store, flow="trial")) == ["w"]  # among the others they would be most
    assert list_runs(store, flow="audit", status="failed") == []


def test_the_terminal_shows_one_line_per_run(store):
    head, a, b, *_, d = render_run_list(list_runs(store)).splitlines()
    assert head.split()[:3] == ["run", "flow", "config"]
    assert a.split() == [
        "a",
        "pipeline",
        "demo",
        "2026-11-25",
        "23:59",
        "1,265",
        "s",
        "1",
        "of",
        "2",
        "completed,",
        *("policy", "failed:", "fair,"),
        *("policy", "not", "shown", "to", "pass:", "safe"),
    ]
    assert "audit of a@0" in b and b.endswith("running")
    assert "interrupted: no sign of life from process" in d
    assert render_run_list([]) == "no run matches"


def test_the_arms_of_a_mitigation_are_distinguished(store):
    record = json.loads(Store(store).get("runs/c/run.json"))
    for name, chosen in {
        "m": {"doc_ids_file": "ids.txt", "random_control": True},
        "n": {"doc_ids_file": None, "toxicity_threshold": 0.0, "random_control": False},
        # Nothing says of what.
        "o": {"doc_ids_file": None, "toxicity_threshold": None, "random_control": True},
        "p": [{"doc_ids_file": "ids.txt"}],  # no settings of a stage
    }.items():
        config = {"leave_out": chosen}
        made = json.dumps(record | {"run": name, "config": config, "checkpoint": "a@9"})
        Store(store).put(f"runs/{name}/run.json", made.encode())
    *_, m, n, o, p = list_runs(store)
    assert [row["training_arm"] for row in (m, n, o, p)] == ["control", "documents", "", ""]
    *_, m, n, o = render_run_list([m, n, o]).splitlines()
    assert "pipeline of a@9, control  " in m and "pipeline of a@9, documents removed  " in n
    assert "pipeline of a@9  " in o and "," not in o.split("demo")[0]


def test_missing_verdicts_hide_no_run(store):
    (name,) = [
        row["artifact"]
        for row in json.loads(Store(store).get("runs/a/run.json"))["stages"]
        if row["label"] == "policy"
    ]
    Store(store).delete([f"artifacts/{name}/manifest.json"])
    assert list_runs(store)[0]["policy"] is None and list_runs(store)[0]["failed_rules"] is None
    assert names(list_runs(store, only_policy_failed=True)) == []
    assert "a" in render_run_list(list_runs(store))


def test_unknown_values_are_refused_in_one_sentence(store, tmp_path):
    env = {**os.environ, "HALLMARK_STORE": store}
    done = run_in_this_process(("runs", "--status", "done"), env)
    assert done.returncode == 2 and "completed" in done.stderr
    done = run_in_this_process(("runs", "--store", str(tmp_path / "none")), env)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert names(json.loads(run_in_this_process(("runs", "--json"), env).stdout)) == [
        "a",
        "b",
        "c",
        "d",
    ]


def test_an_empty_store_says_so(tmp_path, capsys):
    (tmp_path / "runs").mkdir()
    runs(store=str(tmp_path))
    assert capsys.readouterr().out.startswith("the store has no runs; start one with: ")
    runs(store=str(tmp_path), status="failed", as_json=True)
    assert capsys.readouterr().out == "[]\n"
    (tmp_path / "runs" / "x").mkdir()
    (tmp_path / "runs" / "x" / "run.json").write_text("{")
    runs(store=str(tmp_path))
    assert capsys.readouterr().out == "no run matches\n"
