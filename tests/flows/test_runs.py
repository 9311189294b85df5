"""Runs with damaged or missing files are reported."""

import json
import shutil
import stat
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from hallmark.flows.checkpoint_resolution import (
    ResolvedCheckpoint,
    get_permanent_name,
    resolve_checkpoint,
)
from hallmark.flows.commands.flow_execution import call_flow_and_get_run
from hallmark.flows.commands.replay import copy_store_secret, replay_run
from hallmark.flows.commands.status import build_status_report, render_status
from hallmark.flows.commands.trace import trace_document
from hallmark.flows.run_order import assign_run_number
from hallmark.flows.run_recording import generate_flow_run_name, start_run
from hallmark.flows.run_request import RunRequest
from hallmark.flows.runs import Run, find_artifact, open_run, read_all_runs
from hallmark.tasks.contract import HallmarkError, Session, Store, UsageError, open_session
from hallmark.tasks.training.pack import PackConfig, pack
from hallmark.tasks.training.train_tokenizer import TokenizerConfig, train_tokenizer
from tests.run_requests import resolve
from tests.tasks.contract.stages import DropConfig, MakeConfig, drop, make
from tests.tasks.corpora import given


@pytest.fixture
def store(tmp_path):
    """A store with two artifacts and the run "a" that computed them."""
    store = Store(tmp_path / "store")
    with open_session(Session(store)):
        raw = make(MakeConfig(documents=100))
        made = {"make": raw, "drop": drop(raw, DropConfig())}
    record = dict.fromkeys(
        ("checkpoint", "ended", "error", "platform", "python", "request", "started")
    )
    record |= {"run": "a", "flow": "pipeline", "config_name": "x", "config": {}}
    record |= {"status": "completed", "host": "h", "pid": 1}
    record["stages"] = [
        {
            "label": label,
            "stage": label,
            "artifact": artifact.name,
            "content": artifact.content_digest,
            "cached": False,
            "seconds": 1.0,
        }
        for label, artifact in made.items()
    ]
    store.put("runs/a/run.json", json.dumps(record).encode())
    return store


def damaged(store, **changes):
    record = json.loads(store.get("runs/a/run.json")) | {"run": "b"}
    return json.dumps(record | changes).encode()


@pytest.mark.parametrize(
    "changes",
    [
        {"stages": None},
        {"stages": [1]},
        {"stages": [{"label": "make"}]},
        {"config": None},
        {"flow": []},
        {"started": {}},
        {"pid": "x"},
        {"run": "../b"},
        {"pid": -1},
        {"pid": 10**30},
        {"unredacted_sites": 7},
        {"findings": [[]]},
        {"seeds": "3"},
        {"arms": []},
        {"arms": {"base": 1}},
        {"flow": "audit", "checkpoint": None},
        {"checkpoints": [{"label": "l", "step": 5, "artifact": "pack/0123456789abcdef"}]},
        {"checkpoints": [{"label": "l", "step": -5, "artifact": "checkpoint/0123456789abcdef"}]},
    ],
)
def test_a_record_with_wrong_types_is_damaged(store, changes):
    store.put("runs/b/run.json", damaged(store, **changes))
    with pytest.raises(HallmarkError, match=r"run b is damaged"):
        open_run("b", store)
    assert [run.id for run in read_all_runs(store)] == ["a"]


@pytest.mark.parametrize("seconds", ["NaN", "Infinity", "-1", "1e11", "1" + "0" * 400, '"1"'])
def test_a_record_with_an_impossible_duration_is_damaged(store, seconds):
    record = json.loads(store.get("runs/a/run.json")) | {"run": "b"}
    record["stages"][0]["seconds"] = 123.25
    store.put("runs/b/run.json", json.dumps(record).encode())
    assert open_run("b", store).stages["make"]["seconds"] == 123.25
    store.put("runs/b/run.json", json.dumps(record).replace("123.25", seconds).encode())
    with pytest.raises(HallmarkError, match=r"run b is damaged"):
        open_run("b", store)


CLIMBING = ("../../etc/0123", "..", "a/../b", "/etc/passwd", "make/../0123", "a/b/0123", "")


@pytest.mark.parametrize("key", ["label", "stage", "artifact"])
@pytest.mark.parametrize("name", CLIMBING)
def test_a_record_with_names_outside_its_folder_is_damaged(store, caplog, key, name):
    entry = json.loads(store.get("runs/a/run.json"))["stages"][0]
    store.put("runs/b/run.json", damaged(store, stages=[entry | {key: name}]))
    with pytest.raises(HallmarkError, match=r"run b is damaged: .* remove that folder"):
        open_run("b", store)
    assert [run.id for run in read_all_runs(store)] == ["a"]
    assert "skipped: run b is damaged" in caplog.text


@pytest.mark.parametrize("name", CLIMBING)
def test_an_invalid_artifact_name_is_refused(store, name):
    with pytest.raises(HallmarkError, match="is not an artifact name"):
        find_artifact(store, name)


def test_a_checkpoint_name_outside_the_store_is_refused(store, tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "manifest.json").write_text("{}")
    with pytest.raises(UsageError, match=r"no checkpoint 'checkpoint/\.\./\.\./secret'"):
        resolve_checkpoint(store, "checkpoint/../../secret")


@pytest.mark.parametrize("file", ["../my.toml", "sub/../../my", "../../etc/passwd"])
def test_a_config_path_with_dots_is_not_read(store, tmp_path, monkeypatch, file):
    (tmp_path / "here" / "sub").mkdir(parents=True)
    (tmp_path / "my.toml").write_text("secret = 'told'")
    monkeypatch.chdir(tmp_path / "here")
    run = open_run("a", store)
    run.record["request"] = {"format": 1, "flow": "pipeline", "config": file}
    problem = build_status_report(run)["config_problem"]
    assert file in problem and "told" not in problem and "secret" not in problem


def test_a_run_records_the_absolute_path_of_its_config(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    monkeypatch.setenv("HALLMARK_STORE", str(tmp_path / "store"))
    source = '[[ingest.sources]]\nkind = "text"\nname = "s"\npath = "x"\n'
    (tmp_path / "my.toml").write_text(f'name = "my"\n{source}')
    assert resolve("../my.toml", []).config_file == str(tmp_path / "my.toml")
    assert resolve("smoke", []).config_file == "smoke"


def test_the_newest_run_with_a_stage_skips_damaged_runs(store, caplog):
    store.put("runs/b/run.json", b"{")
    assert open_run("latest", store, stage="drop").id == "a"
    assert "skipped: run b is damaged" in caplog.text


@pytest.mark.parametrize("data", [b"", b'{"run": "b", "fl', b"{}", b"[1]", b"\xff", None])
def test_a_damaged_run_is_reported_and_hides_no_other(store, data):
    assign_run_number(store, "b")
    if data is None:
        (store.root_folder / "runs" / "b").mkdir()
    else:
        store.put("runs/b/run.json", data)
    for name in ("b", "latest"):
        with pytest.raises(HallmarkError, match=r"run b is damaged: .* remove that folder"):
            open_run(name, store)
    assert [run.id for run in read_all_runs(store)] == ["a"]
    assert open_run("a", store).status == "completed"


def test_a_replay_names_a_missing_artifact_before_it_starts(store):
    run = open_run("a", store)
    shutil.rmtree(store.root_folder / run["make"].folder)
    with pytest.raises(HallmarkError, match="has no artifact make/"):
        replay_run(run)


@pytest.mark.parametrize("flow", ["study", "trial", "nonsense"])
def test_a_flow_that_cannot_be_replayed_is_refused_before_a_store_is_created(store, tmp_path, flow):
    store.put("runs/b/run.json", damaged(store, flow=flow))
    with pytest.raises(
        UsageError, match=rf"run b was started by the '{flow}' flow.*hallmark status b"
    ):
        replay_run(open_run("b", store), str(tmp_path / "fresh"))
    assert not (tmp_path / "fresh").exists()


def test_a_replay_keeps_the_secret_private(store, tmp_path):
    fresh = Store(tmp_path / "fresh")
    copy_store_secret(store, fresh)
    assert fresh.secret == store.secret
    for place in (store, fresh):
        assert stat.S_IMODE((place.root_folder / "secret").stat().st_mode) == 0o600


def test_a_replay_refuses_a_store_with_another_secret(store, tmp_path):
    fresh = Store(tmp_path / "fresh")
    assert fresh.secret != store.secret
    with pytest.raises(UsageError, match="already has a secret key"):
        replay_run(open_run("a", store), str(tmp_path / "fresh"))


def test_status_names_a_missing_artifact_and_shows_the_rest(store):
    run = open_run("a", store)
    shutil.rmtree(store.root_folder / run["make"].folder)
    report = build_status_report(run)
    gone, there = report["stages"]
    assert "has no artifact make/" in gone["stale_reasons"][0]
    assert there["tables"]["documents"] == 99
    assert there["balanced"]
    assert "the input make is stale" in there["stale_reasons"]
    assert "has no artifact make/" in render_status(report)


def test_a_damaged_table_is_named_when_it_is_searched(session):
    documents = given(["a text to read"], splits=["train"], kind="split")
    tokenizer = train_tokenizer(documents, None, TokenizerConfig(vocab_size=300))
    packed = pack(documents, tokenizer, PackConfig(context=16))
    stages = [{"label": a.stage, "stage": a.stage, "artifact": a.name} for a in (documents, packed)]
    run = Run(session.store, {"run": "one", "config": {}, "stages": stages})
    [doc_id] = documents["documents"].read()["doc_id"].to_pylist()
    assert len(trace_document(run, doc_id.hex())["spans"]) == 1
    path = next(part.path for part in packed["spans"].parts if part.row_count)
    whole = path.read_bytes()
    pages = pq.read_metadata(path).row_group(0).column(1)  # "sequence", which has no dictionary
    place = pages.data_page_offset + pages.total_compressed_size - 1
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.raises(HallmarkError, match=rf"{packed.name} is damaged: {path} .* run again"):
        trace_document(run, doc_id.hex())


def test_a_manifest_without_its_fingerprint_parts_is_damaged(store):
    run = open_run("a", store)
    path = store.root_folder / run["make"].folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"parts": {}}))
    made = build_status_report(run)["stages"][0]
    (reason,) = made["stale_reasons"]
    assert "is incomplete or invalid (parts.config: field required); remove" in reason


def test_the_record_names_the_checkpoint_before_the_first_stage(tmp_path):
    """So a kill during the first stage does not lose the command of the run."""
    request = RunRequest(flow="pipeline", config="smoke", store=str(tmp_path), audits=("bias",))
    with start_run(request) as run:
        run.update_record(checkpoint="one@7")
        record = open_run(run.id, run.store).record
        assert (record["checkpoint"], record["request"]["audits"]) == ("one@7", ["bias"])
        assert record["status"] == run.record["status"] == "running"


def test_external_folders_are_named_by_path_and_artifacts_by_name(store, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert get_permanent_name(store, resolve_checkpoint(store, "./model"), "./model") == str(folder)
    held = open_run("a", store)["make"]
    assert get_permanent_name(store, ResolvedCheckpoint(held), "latest") == held.name
    assert get_permanent_name(Store(tmp_path / "other"), ResolvedCheckpoint(held), "model") == str(
        folder
    )


def test_status_of_a_proof_that_was_killed_early(store):
    store.put("runs/b/run.json", damaged(store, flow="prove", status="failed"))
    report = build_status_report(open_run("b", store)) | {"config_problem": None}
    assert render_status(report).splitlines()[-1].startswith("continue with: hallmark prove latest")


def test_an_arm_of_an_experiment_is_continued_by_its_command(store):
    """As a run of its own, it would become the latest."""
    request = RunRequest(flow="pipeline", experiment_arm="control arm of mitigate")
    changes = {"status": "failed", "request": request.to_record()}
    store.put("runs/b/run.json", damaged(store, **changes))
    report = build_status_report(open_run("b", store)) | {"config_problem": None}
    assert render_status(report).splitlines()[-1] == (
        "this run is the control arm of mitigate; repeat that command to continue the run"
    )


def test_a_run_has_ended_even_if_no_server_is_told(tmp_path, caplog):
    def flow(fails, config="smoke"):
        store = str(tmp_path / "store")
        with start_run(RunRequest(flow="pipeline", config=config, store=store)):
            if fails:
                raise HallmarkError("stage ingest: nothing to read")
        raise ConnectionError("refused")

    done = call_flow_and_get_run(lambda: flow(fails=False))
    assert open_run("latest", done.store).status == done.status == "completed"
    assert (
        f"run {done.id} is recorded as completed in the store, but Prefect was not notified and "
        "may show it as Running or Failed: refused" in caplog.text
    )
    with pytest.raises(HallmarkError, match="nothing to read"):
        call_flow_and_get_run(lambda: flow(fails=True))
    with pytest.raises(UsageError, match="no config 'nonsense'"):
        call_flow_and_get_run(lambda: flow(fails=False, config="nonsense"))


def test_an_external_model_is_not_called_the_demo(tmp_path, monkeypatch):
    monkeypatch.setenv("HALLMARK_STORE", str(tmp_path / "store"))
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_text("{}")
    settings, file, _ = resolve(None, ["audit_bias.seed=3"], checkpoint=str(tmp_path / "gpt2"))
    card = settings.model_card
    assert (settings.name, card.title, file) == ("audit", "Audit of gpt2", None)
    assert (card.intended_use, card.out_of_scope, settings.datasheet.motivation) == (None,) * 3
    assert settings.audit_bias.seed == 3


def test_ids_of_runs_sort_by_start_time(monkeypatch):
    """Also for runs within a second, and across the boundary to the next second."""
    second = datetime(2026, 11, 26, 23, 59, 58, tzinfo=UTC)
    moments = [second + timedelta(microseconds=n) for n in (0, 20, 500_000, 999_999, 1_000_000)]
    clock = SimpleNamespace(now=lambda zone: moments[len(ids)])
    monkeypatch.setattr("hallmark.flows.run_recording.datetime", clock)
    ids: list[str] = []
    while len(ids) < len(moments):
        ids.append(generate_flow_run_name())
    assert ids == sorted(set(ids)) and len({len(i) for i in ids}) == 1
    assert ids[0] == "20261126-235958-0000" and ids[3] == "20261126-235958-ffff"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("2026", "has 2 runs whose ids begin with '2026'; specify more of the id, such as 2026-b"),
        ("", "has 2 runs whose ids begin with ''; specify more of the id, such as 2026-b"),
        ("x" * 10_000, "has no run named 'x{79}; newest: 2026-b"),
    ],
)
def test_a_name_that_does_not_mean_one_run(store, name, sentence):
    record = json.loads(store.get("runs/a/run.json"))
    shutil.rmtree(store.root_folder / "runs" / "a")
    for run_id in ("2026-a", "2026-b"):
        store.put(f"runs/{run_id}/run.json", json.dumps(record | {"run": run_id}).encode())
    with pytest.raises(UsageError, match=f"{sentence}$"):
        open_run(name, store)
