"""Checkpoints of transformers are audited as they appear, by two commands on a real server."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from hallmark import open_run
from hallmark.flows.checkpoint_versions import CheckpointVersion
from hallmark.flows.checkpoint_watch import AuditRequester
from hallmark.flows.run_request import RunRequest
from hallmark.tasks.contract import Store
from tests.flows.test_checkpoint_deployment import Commands
from tests.flows.test_serve import api, prefect_server, wait_for
from tests.tasks.audits.conftest import gpt2_folder

__all__ = ["gpt2_folder", "prefect_server"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def commands(apart, prefect_server, tmp_path):
    environment = {
        **os.environ,
        "HALLMARK_STORE": str(apart.store),
        "PREFECT_API_URL": prefect_server,
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",
    }
    return Commands(Store(apart.store), prefect_server, environment, tmp_path / "output.log")


@pytest.fixture
def watched(tmp_path):
    folder = tmp_path / "trainer"
    folder.mkdir()
    return folder


class Watch:
    """Commands that watch a folder, and the flow runs that they request."""

    def __init__(self, commands, watched):
        self.commands, self.watched = commands, str(watched)
        self.name = f"watched-{commands.store.compute_secret_id()[:8]}"
        self.known_ids = set()  # of the flow runs of other tests with this store

    def start(self):
        options = ["--watch", self.watched, "--allowed-root", self.watched, "--poll-seconds", "1"]
        return self.commands.start("serve", "smoke", *options, "--only", "bias")

    def wait_for_deployment(self, process):
        def find_deployment():
            answer = api.get(f"{self.commands.server}/deployments/name/audit/{self.name}")
            log = self.commands.log_path.read_text()
            return (
                answer.json() if answer.is_success and f"watching {self.watched}" in log else None
            )

        self.deployment = wait_for("the deployment", find_deployment, process)

    def find_flow_runs(self):
        return self.commands.find_flow_runs(self.deployment, self.known_ids)

    def wait_for_flow_runs(self, count, process):
        def find_flow_runs():
            flow_runs = self.find_flow_runs()
            return flow_runs if len(flow_runs) >= count else None

        flow_runs = wait_for(f"flow run {count}", find_flow_runs, process)
        return sorted(flow_runs, key=lambda flow_run: flow_run["created"])


def scale_weights(folder, factor):
    """Replace the weights in place, as a later save of a trainer."""
    from safetensors.numpy import load_file, save_file

    path = folder / "model.safetensors"
    tensors = {name: tensor * factor for name, tensor in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})


def test_versions_are_audited_once_by_two_commands(commands, watched, gpt2_folder, hallmark_json):
    watch = Watch(commands, watched)
    checkpoint = watched / "run" / "checkpoint-10"
    checkpoint.mkdir(parents=True)
    names = sorted((path.name for path in gpt2_folder.iterdir()), key="config.json".__ne__)
    names.sort(key="model.safetensors".__eq__)  # the weights come last, in two parts
    with ExitStack() as stack:
        first = stack.enter_context(watch.start())
        second = stack.enter_context(watch.start())
        watch.wait_for_deployment(first)
        for name in names[:-1]:
            shutil.copy(gpt2_folder / name, checkpoint / name)
        weights = (gpt2_folder / names[-1]).read_bytes()
        with (checkpoint / names[-1]).open("wb") as file:
            file.write(weights[: len(weights) // 2])
            file.flush()
            time.sleep(4)  # several polls see the half-written file
            assert watch.find_flow_runs() == []
            file.write(weights[len(weights) // 2 :])
        end_of_writing = datetime.now(UTC)
        (checkpoint / "optimizer.pt").write_bytes(b"the state of the training comes last")

        [flow_run] = watch.wait_for_flow_runs(1, first)
        delay = datetime.fromisoformat(flow_run["created"]) - end_of_writing
        assert delay.total_seconds() < 5 + 1, delay
        version = CheckpointVersion.parse(flow_run["parameters"]["checkpoint"])
        assert version.location == str(checkpoint)
        # The trainer replaces the checkpoint before its audit begins, which reads a copy.
        scale_weights(checkpoint, 0.5)
        flow_runs = watch.wait_for_flow_runs(2, first)
        ended = [commands.wait_for_end(flow_run, first) for flow_run in flow_runs]
        log = commands.log_path.read_text()
        assert [flow_run["state"]["type"] for flow_run in ended] == ["COMPLETED"] * 2, log
        versions = [CheckpointVersion.parse(f["parameters"]["checkpoint"]) for f in flow_runs]
        assert len({version.digest for version in versions}) == 2

        # A watch that is killed and started again requests nothing again.
        second.send_signal(signal.SIGKILL)
        second.wait()
        with watch.start() as third:
            wait_for(
                "the restarted watch",
                lambda: commands.log_path.read_text().count(f"watching {watched}") == 3,
                third,
            )
            time.sleep(5)
        assert len(watch.find_flow_runs()) == 2
        # Prefect's server itself creates one flow run for each version of a store.
        request = RunRequest(flow="audit", checkpoint="latest", store=commands.store.uri)
        with temporary_settings({PREFECT_API_URL: commands.server}):
            requester = AuditRequester(commands.store, request)
            assert requester.request_audit(versions[0]) == flow_runs[0]["id"]
    log = commands.log_path.read_text()
    assert log.count("requested an audit of the checkpoint") == 2, log
    copies = commands.store.work_folder / "checkpoints"
    assert [path.name for path in copies.iterdir()] == ["lock"]

    runs = [open_run(flow_run["name"], commands.store) for flow_run in ended]
    assert [run.record["checkpoint"] for run in runs] == [version.name for version in versions]
    listed = hallmark_json(commands, "runs", "--flow", "audit")
    assert [row["checkpoint"] for row in listed][-2:] == [version.name for version in versions]
    short_names = [version.short_name for version in versions]
    compared = hallmark_json(commands, "compare", *short_names)
    assert [each["run"] for each in compared["checkpoints"]] == [run.id for run in runs]
    assert [each["name"] for each in compared["checkpoints"]] == short_names


def test_a_checkpoint_in_a_bucket_is_audited(commands, bucket, gpt2_folder, tmp_path):
    watch = Watch(commands, "s3://hallmark/trainer")
    checkpoint = tmp_path / "checkpoint-1"
    shutil.copytree(gpt2_folder, checkpoint)
    scale_weights(checkpoint, 0.25)  # a version that no other test has

    def upload(name, file_names):
        for file_name in file_names:
            body = (checkpoint / file_name).read_bytes()
            bucket.put_object(Bucket="hallmark", Key=f"trainer/{name}/{file_name}", Body=body)

    names = [path.name for path in checkpoint.iterdir()]
    commands.environment |= {name: os.environ[name] for name in os.environ if "AWS" in name}
    upload("half-written", [name for name in names if name != "model.safetensors"])
    with watch.start() as serve:
        watch.wait_for_deployment(serve)
        watch.known_ids = {flow_run["id"] for flow_run in watch.find_flow_runs()}
        upload("checkpoint-1", names)
        [flow_run] = watch.wait_for_flow_runs(1, serve)
        ended = commands.wait_for_end(flow_run, serve)
        assert ended["state"]["type"] == "COMPLETED", commands.log_path.read_text()
        sentence = (
            "s3://hallmark/trainer/half-written was not audited: the folder has neither "
            "model.safetensors nor model.safetensors.index.json; it will be audited once the "
            "problem has been fixed"
        )
        wait_for("the sentence", lambda: sentence in commands.log_path.read_text(), serve)
        assert len(watch.find_flow_runs()) == 1
    assert commands.log_path.read_text().count(sentence) == 1
    run = open_run(ended["name"], commands.store)
    version = CheckpointVersion.parse(run.record["checkpoint"])
    assert version.location == "s3://hallmark/trainer/checkpoint-1"
    copies = commands.store.work_folder / "checkpoints"
    assert [path.name for path in copies.iterdir()] == ["lock"]


@pytest.fixture
def hallmark_json():
    def call(commands, *arguments):
        command = [sys.executable, "-m", "hallmark.flows.cli", *arguments, "--json"]
        done = subprocess.run(command, env=commands.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return call
