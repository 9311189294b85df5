"""One undisturbed smoke run, made by the command line, that the tests of flows look at."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Hallmark:
    """The command line over one store."""

    store: Path

    @property
    def first(self) -> str:
        """Id of the oldest run: the undisturbed one."""
        return min(path.name for path in (self.store / "runs").iterdir())

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", *arguments],
            env={**os.environ, "HALLMARK_STORE": str(self.store)},
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    def json(self, *arguments: str, code: int = 0):
        return json.loads(self(*arguments, "--json", code=code).stdout)


@pytest.fixture(scope="session")
def smoke(tmp_path_factory) -> Hallmark:
    """A store with one completed run of the smoke config."""
    hallmark = Hallmark(tmp_path_factory.mktemp("smoke") / "store")
    report = hallmark.json("run", "smoke")
    assert report["status"] == "completed"
    return hallmark
