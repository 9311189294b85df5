"""Test that a killed training continues on another host, with the bytes of an undisturbed one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hallmark.tasks.contract import PROJECT_ROOT, Store
from tests.tasks.training.pretraining import run


@pytest.fixture(scope="module")
def expected_digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run(tmp_path_factory.mktemp("undisturbed"))[1].content_digest


#: Whether this process may give a host name of its own to others.
CAN_RENAME = not subprocess.run(["unshare", "--uts", "true"], capture_output=True).returncode


def start_on_host(folder: Path, store: str) -> subprocess.Popen[str]:
    """Train in a process of a host that is called like a folder, which is its local cache."""
    namespace = ["unshare", "--uts", "sh", "-c", f'hostname {folder.name} && exec "$@"', "sh"]
    command = [sys.executable, "-m", "tests.tasks.training.pretraining", store]
    return subprocess.Popen(
        [*(namespace if CAN_RENAME else ()), *command],
        cwd=PROJECT_ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"XDG_CACHE_HOME": str(folder)},
    )


def read_until(process: subprocess.Popen[str], pattern: str) -> list[str]:
    """Return the lines of a process up to one with a pattern."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if re.search(pattern, line):
            return lines
    pytest.fail(f"no line with {pattern}: {lines}")


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def read_to_end(process: subprocess.Popen[str]) -> list[str]:
    output, _ = process.communicate()
    assert process.returncode == 0
    return output.splitlines()


def find_start_step(lines: list[str]) -> int:
    """Return the step from which the last trainer started."""
    steps = [int(m[1]) for line in lines if (m := re.search(r"from step (\d+) of", line))]
    return steps[-1]


@pytest.mark.slow
def test_a_killed_training_continues_on_a_host_with_an_empty_cache(
    bucket: Any, tmp_path: Path, expected_digest: str
) -> None:
    store = "s3://hallmark/two-hosts"
    first = start_on_host(tmp_path / "first", store)
    read_until(first, r"state of step (1|2)\d\d is in the store")
    kill(first)
    killed_at = time.monotonic()
    second = start_on_host(tmp_path / "second", store)
    lines = read_until(second, "from step")
    assert time.monotonic() - killed_at < 60
    assert find_start_step(lines) >= 100
    assert read_to_end(second)[-1] == expected_digest
    holder = rf"process {first.pid} on {'first' if CAN_RENAME else '.*'}, since"
    assert re.search(f"stage pretrain is waiting for {holder}", "\n".join(lines))
    assert re.search(f"the lease of {holder} .* was not renewed for 20 sec", "\n".join(lines))
    assert Store(store).list_keys("work-states") == Store(store).list_keys("leases") == []


@pytest.mark.slow
def test_two_hosts_with_a_shared_folder_need_no_copy(tmp_path: Path, expected_digest: str) -> None:
    store = tmp_path / "store"
    first = start_on_host(tmp_path / "first", str(store))
    read_until(first, r"checkpoint of step 100 ")
    second = start_on_host(tmp_path / "second", str(store))
    holder = rf"process {first.pid} on {'first' if CAN_RENAME else '.*'}, since"
    read_until(second, f"stage .* is waiting for {holder}")
    kill(first)
    killed_at = time.monotonic()
    lines = read_until(second, "from step")
    assert time.monotonic() - killed_at < 30
    assert find_start_step(lines) >= 100
    assert read_to_end(second)[-1] == expected_digest
    assert not (store / "work-states").exists() and not (store / "leases").exists()


@pytest.mark.slow
def test_a_host_that_was_suspended_leaves_the_training_to_another(
    bucket: Any, tmp_path: Path, expected_digest: str
) -> None:
    store = "s3://hallmark/suspended"
    first = start_on_host(tmp_path / "first", store)
    read_until(first, r"state of step \d\d is in the store")
    os.kill(first.pid, signal.SIGSTOP)
    second = start_on_host(tmp_path / "second", store)
    try:
        lines = read_until(second, r"from step")
        assert any("was not renewed for 20 seconds" in line for line in lines)
    finally:
        os.kill(first.pid, signal.SIGCONT)
    rest, _ = first.communicate()
    # It may have seen the artifact of the other before it renewed the lease.
    assert first.returncode == 1, rest
    assert "has taken over this work because this process did not renew its lease" in rest
    assert read_to_end(second)[-1] == expected_digest
    assert Store(store).list_keys("work-states") == Store(store).list_keys("leases") == []
