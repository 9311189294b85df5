"""Deployments on a real Prefect server: a pipeline run and an audit, started through its API."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest
from prefect.blocks.webhook import Webhook
from prefect.context import refresh_global_settings_context
from prefect.settings import PREFECT_API_URL, temporary_settings

from hallmark.flows.pipeline import audit
from hallmark.tasks.contract import UsageError

pytestmark = pytest.mark.slow

#: Asked hundreds of times: for each client of its own the certificates of all authorities are read.
api = httpx.Client()


def wait_for(what, condition, process=None, seconds=120):
    """Wait for a value of the condition; fail if a process, if one is given, ends before."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        has_ended = process is not None and process.poll() is not None
        assert not has_ended, f"the process ended while waiting for {what}"
        with contextlib.suppress(httpx.HTTPError):
            if value := condition():
                return value
        time.sleep(0.25)
    raise AssertionError(f"{what} did not come within {seconds} s")


def post_until_answered(url, content, process):
    """Send a request and return the answer; retry while a busy server answers 503."""

    def post():
        answer = api.post(url, json=content, timeout=30)
        assert answer.is_success or answer.status_code == 503, answer.text
        return answer if answer.is_success else None

    return wait_for(f"an answer of {url}", post, process)


def created(url, given, process):
    """Create a flow run and return its id."""
    return post_until_answered(url, given, process).json()["id"]


class PrefectServer:
    """A Prefect server that can be stopped and started again at the same address."""

    def __init__(self, home):
        self.home = home
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/api"
        self.start()

    def start(self):
        env = {
            **os.environ,
            "PREFECT_HOME": str(self.home),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_UI_ENABLED": "false",
        }
        command = [sys.executable, "-m", "prefect", "server", "start", "--port", str(self.port)]
        with (self.home / "server.log").open("a") as log:
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        wait_for("the server", lambda: api.get(f"{self.url}/health").is_success, self.process)

    def stop(self, signal_number=signal.SIGTERM):
        self.process.send_signal(signal_number)
        self.process.wait(timeout=30)


@pytest.fixture(scope="module")
def prefect_server(tmp_path_factory):
    """The API of a Prefect server for these tests."""
    server = PrefectServer(tmp_path_factory.mktemp("prefect"))
    yield server.url
    server.stop()


def test_the_pipeline_and_an_audit_run_as_deployments(apart, prefect_server, tmp_path):
    server = prefect_server
    env = {
        **os.environ,
        "HALLMARK_STORE": str(apart.store),
        "PREFECT_API_URL": server,
        "PREFECT_HOME": str(tmp_path),
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",
    }
    command = [
        sys.executable,
        "-m",
        "hallmark.flows.cli",
        "serve",
        "smoke",
        "--set",
        "schedule=0 3 * * *",
    ]
    log_path = tmp_path / "serve.log"
    log = log_path.open("w")
    serve = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:

        def deployments():
            found = api.post(f"{server}/deployments/filter", json={}).json()
            return {d["name"]: d for d in found} if len(found) == 2 else None

        registered = wait_for("the deployments", deployments, serve)
        [schedule] = registered["smoke"]["schedules"]
        assert schedule["schedule"]["cron"] == "0 3 * * *"
        assert not registered["on-demand"]["schedules"]

        def scheduled():
            found = api.post(f"{server}/flow_runs/filter", json={}).json()
            return [run for run in found if run["auto_scheduled"]]

        mine = registered["smoke"]["id"]
        assert {r["deployment_id"] for r in wait_for("a schedule", scheduled, serve)} == {mine}

        def begun(name, **given):
            url = f"{server}/deployments/{registered[name]['id']}/create_flow_run"
            return created(url, {"parameters": registered[name]["parameters"] | given}, serve)

        form = registered["smoke"]["parameter_openapi_schema"]["properties"]
        assert form["until"]["title"] == "Last stage" and form["until"]["description"]
        url = f"{server}/deployments/{registered['smoke']['id']}/create_flow_run"
        for wrong in ({"until": "pak"}, {"audits": ["taste"]}, {"overrides": ["steps"]}):
            refused = api.post(url, json={"parameters": wrong})
            [name] = wrong
            assert refused.status_code == 409 and f"field '{name}" in refused.text, refused.text

        runs = {
            "smoke": begun("smoke"),
            "on-demand": begun("on-demand", checkpoint="latest@0", audits=["bias"]),
        }
        for name, run in runs.items():

            def ended(run=run):
                state = api.get(f"{server}/flow_runs/{run}").json()["state"]["type"]
                return state if state in ("COMPLETED", "FAILED", "CRASHED") else None

            assert wait_for(name, ended, serve) == "COMPLETED", (tmp_path / "serve.log").read_text()
            made = api.get(f"{server}/flow_runs/{run}").json()["name"]
            assert made in (apart.store / "site" / "index.html").read_text()
            flow = "pipeline" if name == "smoke" else "audit"
            page = apart.store / "site" / "runs" / made / "index.html"
            lines = (
                rf"run {made} \({flow} smoke\) started\n",
                rf"run {made} \({flow} smoke\) completed, [\d,]+ s: {re.escape(str(page))}\n",
            )
            for line in lines:  # Prefect reports the end before the process prints it
                wait_for(line, lambda line=line: re.search(line, log_path.read_text()), serve, 30)
        query = {"flow_runs": {"id": {"any_": [runs["smoke"]]}}}
        tasks = api.post(f"{server}/task_runs/filter", json=query).json()
        assert {task["state"]["name"] for task in tasks} == {"Cached"}
    finally:
        serve.terminate()
        serve.wait(timeout=60)


@pytest.fixture
def webhook():
    """The address of a web server on this machine, and the list of the bodies sent to it."""
    bodies = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", bodies
    server.shutdown()


def create_automation(server, name, event, resource, block_id, template):
    trigger = {"type": "event", "posture": "Reactive", "expect": [event], "match": resource}
    action = {"type": "call-webhook", "block_document_id": block_id, "payload": template}
    automation = {
        "name": name,
        "trigger": trigger | {"threshold": 1, "within": 0},
        "actions": [action],
    }
    api.post(f"{server}/automations/", json=automation).raise_for_status()


def test_automations_notify_of_a_policy_that_is_not_met(apart, prefect_server, webhook, tmp_path):
    server, (address, bodies) = prefect_server, webhook
    with temporary_settings({PREFECT_API_URL: server}):
        block_id = str(Webhook(url=address).save("notify"))
    create_automation(
        server,
        "any flow run that fails",
        "prefect.flow-run.Failed",
        {"prefect.resource.id": "prefect.flow-run.*"},
        block_id,
        {"failed": "{{ flow_run.name }}", "why": "{{ flow_run.state.message }}"},
    )
    create_automation(
        server,
        "the policy is not shown to pass",
        "hallmark.run.ended",
        {"hallmark.verdict": "not_shown"},
        block_id,
        {"run": "{{ event.payload.run }}", "rules": "{{ event.payload.not_shown_rules }}"},
    )
    env = {
        **os.environ,
        "HALLMARK_STORE": str(apart.store),
        "PREFECT_API_URL": server,
        "PREFECT_HOME": str(tmp_path),
    }
    rule = '{audit = "bias", metric = "stereotype_preference", slice = {}, lt = 0.001}'
    command = [sys.executable, "-m", "hallmark.flows.cli", "audit", "latest", "--only", "bias"]
    done = subprocess.run(
        [*command, "--set", f"policy.rules.fair={rule}"],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    outcome = "policy not shown to pass: 1 of 1 rule could not be judged; not shown: fair (bias."
    assert done.returncode == 3 and outcome in done.stderr, done.stderr
    end = time.monotonic() + 60
    while len(bodies) < 2 and time.monotonic() < end:
        time.sleep(0.25)
    failed, judged = sorted(bodies, key=lambda body: "run" in body)
    assert failed["why"].startswith(outcome)
    assert judged == {"run": failed["failed"], "rules": "['fair']"}


def test_an_unknown_audit_fails_with_its_sentence(server, monkeypatch, tmp_path):
    monkeypatch.setenv("HALLMARK_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PREFECT_API_URL", server)
    refresh_global_settings_context()
    state = audit(checkpoint="latest@0", audits=["taste"], return_state=True)
    message = api.get(f"{server}/flow_runs/{state.state_details.flow_run_id}").json()["state"]
    assert message["type"] == "FAILED" and "there is no audit 'taste'" in message["message"]
    with pytest.raises(UsageError, match="choose from capability, "):
        state.result()


def test_serve_explains_how_to_start_a_server(smoke, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    done = smoke("serve", "smoke", code=1)
    assert "no Prefect server responds" in done.stderr
    assert "prefect server start" in done.stderr


def test_the_metrics_of_served_deployments_count_their_flow_runs(prefect_server, tmp_path):
    env = {
        **os.environ,
        "PREFECT_API_URL": prefect_server,
        "PREFECT_HOME": str(tmp_path / "prefect"),
    }
    command = [sys.executable, "-m", "hallmark.flows.cli", "serve", "smoke"]
    options = ["--store", str(tmp_path / "store"), "--metrics-port", "0"]
    log_path = tmp_path / "serve.log"
    with log_path.open("w") as log:
        serve = subprocess.Popen([*command, *options], env=env, stdout=log, stderr=log)
    try:
        pattern = r"metrics for Prometheus: (http://127\.0\.0\.1:\d+/metrics)\n"
        address = wait_for("the address", lambda: re.search(pattern, log_path.read_text()), serve)[
            1
        ]
        counts = wait_for("flow runs", lambda: read_flow_runs(address), serve)
        assert counts == {"scheduled": 0.0, "pending": 0.0, "running": 0.0}
    finally:
        serve.terminate()
        serve.wait(timeout=60)


def read_flow_runs(address):
    """Read the numbers of flow runs by state from an endpoint for Prometheus."""
    lines = re.findall(r'hallmark_flow_runs\{state="(\w+)"\} (\S+)', api.get(address).text)
    return {state: float(count) for state, count in lines}


@pytest.fixture
def served(prefect_server, tmp_path):
    """Serve a folder with a config and a corpus; return a function that requests a run and
    returns its final state."""
    home, outside = tmp_path / "home", tmp_path / "outside"
    for folder, text in ((home, "Words of the corpus."), (outside, "The secret of outside.")):
        (folder / "notes").mkdir(parents=True)
        (folder / "notes" / "a.txt").write_text(text)
    source = '[[ingest.sources]]\nkind = "text"\nname = "notes"\npath = "notes"\n'
    (home / "bounded.toml").write_text(f'name = "bounded"\nstore = "store"\n{source}')
    env = {
        **os.environ,
        "PREFECT_API_URL": prefect_server,
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",
        "HALLMARK_STORE": str(outside / "store"),
    }
    command = [sys.executable, "-m", "hallmark.flows.cli", "serve", "bounded.toml"]
    log = (tmp_path / "serve.log").open("w")
    serve = subprocess.Popen(command, env=env, cwd=home, stdout=log, stderr=log)

    def deployment():
        url = f"{prefect_server}/deployments/name/pipeline/bounded"
        found = api.get(url)
        return found.json() if found.is_success else None

    def request(**parameters):
        url = f"{prefect_server}/deployments/{registered['id']}/create_flow_run"
        given = {"parameters": registered["parameters"] | parameters}
        run = created(url, given | {"enforce_parameter_schema": False}, serve)

        def ended():
            state = api.get(f"{prefect_server}/flow_runs/{run}").json()["state"]
            return state if state["type"] in ("COMPLETED", "FAILED", "CRASHED") else None

        return wait_for("the end of the run", ended, serve)

    try:
        registered = wait_for("the deployment", deployment, serve)
        yield home, outside, request
    finally:
        serve.terminate()
        serve.wait(timeout=60)


def test_a_request_is_confined_to_the_roots(served):
    home, outside, request = served
    (home / "link").symlink_to(outside)
    overrides = [
        "ingest.sources.0.path=/etc/passwd",
        "ingest.sources.0.path=link/notes",
        f"reporters.tensorboard.folder={outside}/events",
    ]
    refused = [({"overrides": [each]}, each.partition("=")[0]) for each in overrides]
    refused += [({"store": f"{outside}/store"}, "store"), ({"start": "link/notes"}, "start")]
    for parameters, setting in refused:
        state = request(**parameters)
        assert state["type"] == "FAILED", state
        assert f"{setting}: " in state["message"]
        assert f"leads outside the allowed roots ({home}, " in state["message"]
        assert "hallmark serve --allowed-root PATH" in state["message"]
    assert {path.name for path in outside.iterdir()} == {"notes"}
    assert not (home / "store" / "artifacts").exists()

    state = request(until="ingest")
    assert state["type"] == "COMPLETED", state
    assert (home / "store" / "artifacts" / "ingest").is_dir()


def test_wrong_parameters_fail_with_their_sentence(served):
    home, _, request = served
    wrong = [
        ({"untill": "ingest"}, "the pipeline flow has no parameter 'untill' (did you mean until?)"),
        ({"audits": "bias"}, "the parameters of the pipeline flow are not valid: audits: "),
    ]
    for parameters, output in wrong:
        state = request(**parameters)
        assert (state["type"], state["name"]) == ("FAILED", "Failed"), state
        assert state["message"].startswith(output) and "\n" not in state["message"]
        printed = (home.parent / "serve.log").read_text()
        assert re.search(
            rf"run [\w-]+ \(pipeline\) was refused: {re.escape(state['message'])}\n", printed
        )
