"""Define fixtures: the command line with a store that has one completed smoke run."""

import io
import json
import logging
import os
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from filelock import FileLock
from prefect import Flow
from prefect.context import refresh_global_settings_context

from hallmark.flows import cli


@dataclass(frozen=True)
class Hallmark:
    """The command line with one store."""

    store: Path
    server: str | None = None  # API of a Prefect server; without one, each flow starts its own

    @property
    def first(self) -> str:
        """Id of the oldest run, the completed smoke run."""
        return min(path.name for path in (self.store / "runs").iterdir())

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command and check its exit code.

        Commands that execute a flow without a shared server run in a new process, as for a user.
        All others run in this process, which has already imported everything."""
        env = {**os.environ, "HALLMARK_STORE": str(self.store)}
        if self.server:
            env.setdefault("PREFECT_API_URL", self.server)
        flow = arguments[0] in ("run", "audit", "replay") and code != 2
        if flow and "--dry-run" not in arguments and not self.server:
            # As for trainings in this process: the number of threads changes the last bits.
            env["OMP_NUM_THREADS"] = str(torch.get_num_threads())
            done = subprocess.run(
                [sys.executable, "-m", "hallmark.flows.cli", *arguments],
                env=env,
                capture_output=True,
                text=True,
                timeout=280,
            )
        else:
            done = run_in_this_process(arguments, env)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    def json(self, *arguments: str, code: int = 0):
        return json.loads(self(*arguments, "--json", code=code).stdout)


def run_in_this_process(
    arguments: tuple[str, ...], env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    out, err, code = io.StringIO(), io.StringIO(), 0
    logger = logging.getLogger("hallmark")
    level, handlers = logger.level, list(logger.handlers)
    with patch.dict(os.environ, env), redirect_stdout(out), redirect_stderr(err):
        refresh_global_settings_context()
        try:
            cli.main(list(arguments))
        except SystemExit as ended:
            code = ended.code
        finally:
            logger.setLevel(level)
            logger.handlers = handlers
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module", autouse=True)
def trainers(forked_trainers):
    """Fork the trainer process; the first run and deployments start it as users do."""


@pytest.fixture(scope="module")
def plain_calls():
    """Call flows as plain functions, without Prefect, in tests of their results.

    test_pipeline and test_serve test flows with Prefect."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Flow, "__call__", lambda self, *given, **named: self.fn(*given, **named))
        yield


@pytest.fixture(scope="module")
def apart(smoke, shared, tmp_path_factory) -> Hallmark:
    """Copy the store of the smoke run, as created, for tests that need it with one run only.

    Other test files of the same process add runs to `smoke`.
    """
    store = tmp_path_factory.mktemp("apart") / "store"
    shutil.copytree(shared / "smoke", store, symlinks=True)
    return replace(smoke, store=store)


@pytest.fixture(scope="session")
def smoke(tmp_path_factory, shared, request) -> Hallmark:
    """Return a copy of a store with one completed smoke run, which the first process creates."""
    made = Hallmark(shared / "smoke")
    with FileLock(shared / "smoke.lock"):
        if not (shared / "smoke.made").exists():
            assert made.json("run", "smoke")["status"] == "completed"
            (shared / "smoke.made").touch()
    store = tmp_path_factory.mktemp("smoke") / "store"
    shutil.copytree(made.store, store, symlinks=True)
    return Hallmark(store, request.getfixturevalue("server"))
