"""The example prefect.yaml, deployed to a process work pool of a real server, and a worker."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from hallmark.tasks.contract import PROJECT_ROOT
from hallmark.tasks.contract.allowed_roots import ROOTS_ENVIRONMENT_VARIABLE
from tests.flows.test_serve import api, created, prefect_server, wait_for

__all__ = ["prefect_server"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLES = PROJECT_ROOT / "docs" / "work-pool"


@pytest.fixture
def work_pool(prefect_server, tmp_path):
    """Deploy the example from a folder with a config, and start a worker.

    Return the folder, the deployments by name, and a function that requests a run and returns its
    final state.
    """
    home = tmp_path / "home"
    (home / "notes").mkdir(parents=True)
    (home / "notes" / "a.txt").write_text("Words of the corpus.")
    source = '[[ingest.sources]]\nkind = "text"\nname = "notes"\npath = "notes"\n'
    (home / "my.toml").write_text(f'name = "my"\n{source}')
    shutil.copy(EXAMPLES / "prefect.yaml", home)
    environment = {
        **os.environ,
        "PREFECT_API_URL": prefect_server,
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        ROOTS_ENVIRONMENT_VARIABLE: json.dumps({"folders": [str(home)], "uris": []}),
    }

    def run_prefect(*arguments):
        command = [sys.executable, "-m", "prefect", "--no-prompt", *arguments]
        done = subprocess.run(
            command, env=environment, cwd=home, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    template = EXAMPLES / "base-job-template.json"
    options = ["--type=process", "--overwrite", f"--base-job-template={template}"]
    run_prefect("work-pool", "create", "hallmark", *options)
    run_prefect("deploy", "--all")
    answer = api.post(f"{prefect_server}/deployments/filter", json={}).json()
    deployments = {each["name"]: each for each in answer}
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "hallmark"]
    with (tmp_path / "worker.log").open("w") as log:
        worker = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=log, stderr=log)

    def request(name, job_variables=None, **parameters):
        url = f"{prefect_server}/deployments/{deployments[name]['id']}/create_flow_run"
        given = {"parameters": parameters, "job_variables": job_variables or {}}
        flow_run = created(url, given | {"enforce_parameter_schema": False}, worker)

        def read_final_state():
            state = api.get(f"{prefect_server}/flow_runs/{flow_run}").json()["state"]
            return state if state["type"] in ("COMPLETED", "FAILED", "CRASHED") else None

        return wait_for("the end of the run", read_final_state, worker)

    try:
        yield home, deployments, request
    finally:
        worker.kill()  # its runs have ended
        worker.wait(timeout=60)


def test_a_worker_runs_the_deployments_of_the_example(work_pool):
    home, deployments, request = work_pool
    assert {*deployments} == {"nightly", "on-demand"}
    [schedule] = deployments["nightly"]["schedules"]
    assert schedule["schedule"]["cron"] == "0 3 * * *"
    form = deployments["on-demand"]["parameter_openapi_schema"]
    assert form["required"] == ["checkpoint"]
    assert form["properties"]["audits"]["title"] == "Audits"

    state = request("nightly", config="my.toml", store="store", until="ingest")
    assert state["type"] == "COMPLETED", state
    [run_file] = (home / "store" / "runs").glob("*/run.json")
    asked = json.loads(run_file.read_text())["request"]
    assert asked["format"] == 1 and asked["until"] == "ingest"
    assert asked["config"] == str(home / "my.toml")

    state = request("nightly", untill="ingest")
    assert state["type"] == "FAILED"
    assert "the pipeline flow has no parameter 'untill' (did you mean until?)" in state["message"]


def test_the_worker_confines_runs_to_its_roots(work_pool, tmp_path):
    """The base job template of the example lets no request change the command or environment."""
    _, _, request = work_pool
    job_variables = {
        "env": {ROOTS_ENVIRONMENT_VARIABLE: json.dumps({"folders": ["/"], "uris": []})},
        "command": f"touch {tmp_path}/touched",
        "working_dir": "/",
    }
    outside = str(tmp_path / "outside")
    state = request("nightly", job_variables, config="my.toml", store=outside, until="ingest")
    assert state["type"] == "FAILED"
    assert f"store: '{outside}' leads outside the allowed roots" in state["message"]
    assert not (tmp_path / "outside").exists() and not (tmp_path / "touched").exists()
