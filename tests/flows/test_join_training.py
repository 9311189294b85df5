"""Test `hallmark join-training`: two "hosts" on this machine train the model of a run."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from hallmark.flows.commands import join_training as command
from hallmark.flows.config import load_config
from hallmark.flows.forecast.training_plan import read_training_speeds
from hallmark.flows.run_recording import record_run
from hallmark.flows.runs import Run, open_run
from hallmark.model.config import RendezvousAddress
from hallmark.tasks.contract import HallmarkError, Store, UsageError
from hallmark.tasks.training.pretrain import read_training_versions
from tests.flows.conftest import Hallmark
from tests.time_limits import limit_time


def find_free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def record_small_run(folder: Path, *overrides: str) -> AbstractContextManager[Run]:
    """Record a run that computes nothing, in a store of its own."""
    return record_run("pipeline", load_config("smoke", overrides), Store(folder / "store"))


def two_hosts(address: object) -> list[str]:
    return ["pretrain.train.hosts=2", f'pretrain.train.rendezvous="{address}"']


@pytest.fixture
def ended_run(tmp_path):
    with record_small_run(tmp_path, *two_hosts(find_free_address())) as run:
        pass
    return open_run(run.id, run.store)


def test_a_run_on_one_host_cannot_be_joined(smoke):
    done = smoke("join-training", "latest", code=2)
    assert (
        "trains on one host; to train on several hosts, set pretrain.train.hosts and"
    ) in done.stderr


def test_a_run_that_does_not_exist_cannot_be_joined(smoke):
    assert "no run" in smoke("join-training", "99990101", code=2).stderr


def test_a_run_that_has_ended_cannot_be_joined(ended_run):
    with pytest.raises(HallmarkError, match=f"run {ended_run.id} is completed, so no host can"):
        command.join_training(ended_run.id, store=ended_run.store.uri)


def test_the_command_waits_until_a_run_ends_that_does_not_train(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "POLL_SECONDS", 0.05)
    with ThreadPoolExecutor() as pool:
        with record_small_run(tmp_path, *two_hosts(find_free_address())) as run:
            joined = pool.submit(command.join_training, run.id, store=run.store.uri)
            with pytest.raises(TimeoutError):
                joined.result(timeout=0.5)
        with pytest.raises(HallmarkError, match="is completed, so no host can join its training"):
            joined.result()


def test_a_store_that_is_no_folder_is_refused(bucket):
    store = Store("s3://hallmark/join")
    with (
        record_run("pipeline", load_config("smoke", two_hosts("10.0.0.1:1")), store) as run,
        pytest.raises(UsageError, match="s3://hallmark/join is not a folder, but hosts"),
    ):
        command.join_training(run.id, store=store.uri)


@pytest.mark.parametrize("until", [[], ["--until", "pretrain"]])
def test_a_run_on_several_hosts_needs_a_folder_as_its_store(smoke, bucket, until):
    options = [option for override in two_hosts("10.0.0.1:1") for option in ("--set", override)]
    done = smoke("run", "smoke", "--store", "s3://hallmark/hosts", *until, *options, code=2)
    assert "pretrain.train.hosts is 2, but the store is not a folder; hosts that" in done.stderr
    assert Store("s3://hallmark/hosts").list_keys("artifacts") == []


def test_a_server_of_another_kind_is_one_sentence(tmp_path, monkeypatch):
    from hallmark.model.training import hosts

    monkeypatch.setattr(hosts, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = RendezvousAddress("127.0.0.1", other.getsockname()[1])
        with (
            record_small_run(tmp_path, *two_hosts(address)) as run,
            pytest.raises(HallmarkError, match=f"No Hallmark training run responds at {address}"),
        ):
            command.join_training(run.id, store=run.store.uri)


@pytest.mark.parametrize("name", ["pretrain-0123", "..", "pack-0123"])
def test_a_training_of_another_store_is_refused(ended_run, name):
    with pytest.raises(HallmarkError, match="does not contain the first host's training; all"):
        command.find_job(ended_run, name)


def write_job(run: Run, **fields: object) -> Path:
    job_path = run.store.work_folder / "pretrain-0123" / "job.json"
    job_path.parent.mkdir(parents=True)
    data = {"train": "train.parquet"}
    job = {"model": {"vocab_size": 40}, "train": {}, "data": data, "tokenizer": "t"}
    work_folder = str(job_path.parent / "training-0")
    job_path.write_text(json.dumps(job | {"work": work_folder} | fields))
    return job_path


def test_other_versions_are_refused(ended_run):
    versions = read_training_versions()
    job_path = write_job(ended_run, versions=versions)
    assert command.find_job(ended_run, "pretrain-0123") == job_path
    for name, version in (("torch", "1.0"), ("the code of Hallmark", "0" * 64)):
        changed = json.loads(job_path.read_text()) | {"versions": versions | {name: version}}
        job_path.write_text(json.dumps(changed))
        with pytest.raises(HallmarkError, match=rf"{name} differs .* first host \({version[:16]}"):
            command.find_job(ended_run, "pretrain-0123")


@pytest.mark.parametrize("work_folder", ["/elsewhere/work/pretrain-0123/training-0", "training-0"])
def test_a_store_at_another_path_is_refused(ended_run, work_folder):
    write_job(ended_run, work=work_folder)
    with pytest.raises(HallmarkError, match=r"the first host trains in .* at the same path"):
        command.find_job(ended_run, "pretrain-0123")


@pytest.mark.parametrize("versions", [[], {"torch": 1}])
def test_a_damaged_job_is_refused(ended_run, versions):
    write_job(ended_run, versions=versions)
    with pytest.raises(HallmarkError, match="versions must be an object whose values are strings"):
        command.find_job(ended_run, "pretrain-0123")


# Real runs -----------------------------------------------------------------------------------


def start(hallmark: Hallmark, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hallmark.flows.cli", *arguments],
        env=os.environ
        | {"HALLMARK_STORE": str(hallmark.store), "PREFECT_API_URL": hallmark.server or ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def start_run(hallmark: Hallmark, *overrides: str) -> tuple[subprocess.Popen[str], str]:
    """Start a run and return its process and its id; the corpus is in the store already."""
    runs_folder = hallmark.store / "runs"
    runs_before = {path.name for path in runs_folder.iterdir()}
    options = [option for override in overrides for option in ("--set", override)]
    process = start(hallmark, "run", "smoke", "--debug", "--until", "pretrain", *options)
    read_until(process, "1 of 2 hosts have joined")
    (run_id,) = {path.name for path in runs_folder.iterdir()} - runs_before
    return process, run_id


def read_until(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Read the output of a process up to a pattern, and return the match."""
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.search(pattern, line):
            return match
    pytest.fail(f"the process ended without {pattern}")


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=200)
    return output


@pytest.mark.slow
def test_a_run_on_two_hosts_gives_checkpoints_with_lineage(apart):
    address, waiting_stage = find_free_address(), "pretrain, 1 of 2 hosts have joined"
    process, run_id = start_run(apart, *two_hosts(address), "pretrain.train.threads=1")
    with limit_time(60):
        while apart.json("status", run_id)["current_stage"] != waiting_stage:
            time.sleep(0.2)
    joined = start(apart, "join-training", run_id)
    output = finish(joined)
    assert joined.returncode == 0, output
    assert f"joined the training of run {run_id} at {address} as host 2 of 2" in output
    assert output.endswith(f"the training of run {run_id} is complete\n")
    output = finish(process)
    assert process.returncode == 0, output
    assert "2 of 2 hosts have joined" in output

    first, second = (open_run(name, Store(apart.store)) for name in (apart.first, run_id))
    lineage = [run["pretrain"].manifest["lineage"] for run in (first, second)]
    assert lineage[0] == lineage[1]
    settings = second["pretrain"]["settings"].read().to_pylist()
    values = {row["setting"]: row["value"] for row in settings}
    assert (values["hosts"], values["processes"]) == ("2", "1")
    (speed,) = read_training_speeds(load_config("smoke"), [second])
    measured = second["pretrain"].read_telemetry("speed")["tokens_per_second"].to_pylist()[1:]
    assert speed.tokens_per_second == [value / 2 for value in measured]
    late = start(apart, "join-training", run_id)
    assert "the training of run" in finish(late) and late.returncode == 1

    report = apart.json("audit", run_id, "--only", "bias")
    assert report["status"] == "completed" and report["checkpoint"].startswith(f"{run_id}@")


@pytest.mark.slow
def test_a_run_whose_second_host_is_killed_is_continued_by_the_next(apart):
    settings = [
        *two_hosts(find_free_address()),
        "pretrain.train.steps=5000",
        "pretrain.train.sample_count=0",
    ]
    process, run_id = start_run(apart, *settings)
    joined = start(apart, "join-training", run_id)
    run = open_run(run_id, Store(apart.store))
    while not run.list_committed_checkpoints()[1:]:
        assert process.poll() is None
        run = open_run(run_id, Store(apart.store))
    os.killpg(joined.pid, signal.SIGKILL)
    output = finish(process)
    assert process.returncode == 1, output
    assert f"The host {socket.gethostname()} no longer answers, so training has" in output
    finish(joined)

    process, run_id = start_run(apart, *settings)
    joined = start(apart, "join-training", run_id)
    assert int(read_until(process, r"from step (\d+) of 5000")[1]) > 0
    os.killpg(process.pid, signal.SIGKILL)
    output = finish(joined)
    assert joined.returncode == 1 and "See the run for the reason" in output, output
    finish(process)
