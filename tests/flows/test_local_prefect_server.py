"""The Prefect server of one command."""

import os
import subprocess
import sys

import psutil
import pytest

HOLD = """
import sys
from hallmark.flows.local_prefect_server import LocalPrefectServer
server = LocalPrefectServer()
if server.connect_prefect_or_stop():
    server.wait_until_ready()
print(server.process.pid, flush=True)
sys.stdin.readline()
"""


def start(home=None):
    return subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env={**os.environ, **({"PREFECT_HOME": str(home)} if home else {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("killed", [True, False])
def test_the_server_ends_with_its_command_in_every_case(monkeypatch, killed):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    command = start()
    server = psutil.Process(int(command.stdout.readline()))
    if killed:
        command.kill()
    command.communicate("\n", timeout=120)
    gone, _ = psutil.wait_procs([server], timeout=120)
    assert gone


def test_the_server_stops_if_the_user_named_another(tmp_path, monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    profile = '[profiles.mine]\nPREFECT_API_URL = "http://127.0.0.1:9/api"\n'
    (tmp_path / "profiles.toml").write_text('active = "mine"\n\n' + profile)
    command = start(tmp_path)
    assert not psutil.pid_exists(int(command.stdout.readline()))
    command.communicate("\n", timeout=120)
    assert command.returncode == 0


KILL = """
import os, signal
import httpx
from hallmark.flows.local_prefect_server import LocalPrefectServer
server = LocalPrefectServer()
server.wait_until_ready()
first = server.process
answer = httpx.post(f"{server.url}/flows/", json={"name": "kept"}, timeout=60).json()
first.kill()
first.wait()
same = httpx.get(f"{server.url}/flows/{answer['id']}", timeout=180).json()
print(same["name"], server.process.pid != first.pid)
server.stop()
print(server.process.poll() is not None)
"""


@pytest.mark.slow
def test_a_killed_server_is_started_again_with_its_port_and_database(tmp_path, monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    command = subprocess.run(
        [sys.executable, "-c", KILL],
        env={**os.environ, "PREFECT_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert command.stdout.split() == ["kept", "True", "True"], command.stderr
