"""A schedule that was missed several times runs once, on a real Prefect server."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.flows.test_serve import api, created, prefect_server, wait_for

__all__ = ["prefect_server"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: Every five seconds; the sixth field of a cron expression are the seconds.
OFTEN = "schedule='* * * * * */5'"


@pytest.fixture
def project(tmp_path):
    """A folder with a config whose runs fail at once, because it has no corpus."""
    source = '[[ingest.sources]]\nkind = "text"\nname = "notes"\npath = "none"\n'
    (tmp_path / "missed.toml").write_text(f'name = "missed"\nstore = "store"\n{source}')
    return tmp_path


@contextmanager
def start_serve(folder, server, *options):
    environment = {
        **os.environ,
        "PREFECT_API_URL": server,
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",
    }
    command = [sys.executable, "-m", "hallmark.flows.cli", "serve", "missed.toml", *options]
    with (folder / "serve.log").open("a") as log:
        serve = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)
    try:
        yield serve
    finally:
        serve.send_signal(signal.SIGTERM)
        serve.wait(timeout=60)


def test_a_missed_schedule_runs_once(prefect_server, project):
    server = prefect_server

    def find_deployment():
        found = api.get(f"{server}/deployments/name/pipeline/missed")
        return found.json() if found.is_success and found.json()["schedules"] else None

    with start_serve(project, server, "--set", OFTEN) as serve:
        deployment = wait_for("the deployment", find_deployment, serve)
    query = {"deployments": {"id": {"any_": [deployment["id"]]}}, "limit": 200}

    def read_flow_runs():
        flow_runs = api.post(f"{server}/flow_runs/filter", json=query).json()
        return {each["id"]: each for each in flow_runs}

    runs_of_first_serve = {
        run_id
        for run_id, each in read_flow_runs().items()
        if each["state"]["type"] not in ("SCHEDULED", "PENDING")
    }

    def find_started(flow_runs):
        """Return the scheduled runs that the second serve executed."""
        return [
            each
            for run_id, each in flow_runs.items()
            if each["auto_scheduled"]
            and each["state"]["type"] == "FAILED"
            and run_id not in runs_of_first_serve
        ]

    late_query = query | {"flow_runs": {"state": {"name": {"any_": ["Late"]}}}}

    def list_three_late_runs():
        late_runs = api.post(f"{server}/flow_runs/filter", json=late_query).json()
        return late_runs if len(late_runs) >= 3 else None

    late_runs = wait_for("three late runs", list_three_late_runs)
    url = f"{server}/deployments/{deployment['id']}/create_flow_run"
    with start_serve(project, server, "--set", "schedule='0 3 29 2 *'") as serve:
        requested = {created(url, {}, serve) for _ in range(2)}

        def read_ended():
            flow_runs = read_flow_runs()
            types = {run_id: each["state"]["type"] for run_id, each in flow_runs.items()}
            watched = [types[each["id"]] for each in late_runs] + [
                types[each] for each in requested
            ]
            is_busy = {"SCHEDULED", "PENDING", "RUNNING"} & {*watched}
            return flow_runs if not is_busy and len(find_started(flow_runs)) > 0 else None

        flow_runs = wait_for("the end of the runs", read_ended, serve)
    assert len(find_started(flow_runs)) == 1
    cancelled = [each for each in flow_runs.values() if each["state"]["type"] == "CANCELLED"]
    assert len(cancelled) >= len(late_runs) - 1
    messages = {each["state"]["message"] for each in cancelled}
    assert all(
        re.fullmatch(r"The scheduled time of this run was missed; run .* starts instead\.", each)
        for each in messages
    )
    assert all(flow_runs[each]["state"]["type"] == "FAILED" for each in requested)
    assert re.search(
        r"\d+ scheduled runs were missed while no process could start them; they are cancelled, "
        r"and the newest run, [\w-]+, starts now",
        (project / "serve.log").read_text(),
    )
