import atexit
import fcntl
import logging
import os
import shutil
import subprocess
from types import SimpleNamespace

import pytest
from filelock import FileLock
from hypothesis import settings

import hallmark.model  # noqa: F401  what it sets of threads counts only before torch is loaded

# isort: split
import torch

from hallmark.model.training.hardware import retain_freed_memory
from hallmark.tasks.contract.mappers import FORK_CONTEXT, PRELOADED_MODULES

# Thousands of tests ask for the memory that the one before gave back: a twentieth of their time.
retain_freed_memory()
torch.set_num_threads(1)  # two of each of three processes wait for two cores: a tenth of the time
FORK_CONTEXT.set_forkserver_preload([*PRELOADED_MODULES, "tests.preloaded"])

settings.register_profile("untimed", deadline=None)  # beside others a draw may take long
settings.load_profile("untimed")

os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

#: Skips that are expected; in CI any other fails the run.
EXPECTED_SKIPS = (
    "this machine has a CUDA device",
    "needs a CUDA device",
    "needs AVX-512 and oneDNN",
    "Chromium is missing",
    "shared data folder is absent",
)


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="record golden.json of tests/tasks/contract again (make golden)",
    )


def pytest_runtest_makereport(item, call):
    """Make an unexpected skip a failure in CI."""
    if os.environ.get("CI") and call.excinfo and call.excinfo.errisinstance(pytest.skip.Exception):
        reason = str(call.excinfo.value)
        if not any(expected in reason for expected in EXPECTED_SKIPS):
            try:
                raise AssertionError(f"unexpected skip in CI: {reason}") from call.excinfo.value
            except AssertionError:
                call.excinfo = pytest.ExceptionInfo.from_current()


@pytest.fixture
def session(tmp_path):
    """Open a session with a new store."""
    from hallmark.tasks.contract import Session, Store, open_session

    with open_session(Session(Store(tmp_path / "store"))) as opened:
        yield opened


@pytest.fixture(scope="session")
def reviewers(tmp_path_factory):
    """Return reviewers with SSH keys."""
    from tests.reviewers import make_reviewers

    return make_reviewers(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """Return a folder that all processes of the tests share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def server(shared):
    """Return the API of a Prefect server that all processes of the tests share.

    The first process that needs it starts it. It ends after all of them, and after Prefect has
    sent its last messages.
    """
    from hallmark.flows.local_prefect_server import LocalPrefectServer

    users, alone = (shared / "server").open("a+"), FileLock(shared / "server.lock")
    started = False
    with alone:
        users.seek(0)
        if not (url := users.read()):
            started, here = True, LocalPrefectServer()
            # A command that a test runs in this process does not take it for its own.
            LocalPrefectServer.started = None
            atexit.register(fcntl.flock, users, fcntl.LOCK_EX)  # as soon as no other has its share
            here.wait_until_ready()
            url = here.url
            users.write(url)
            users.flush()
        fcntl.flock(users, fcntl.LOCK_SH)  # to the end of this process
    yield url
    with alone:
        if started:
            users.truncate(0)  # who comes now starts another


@pytest.fixture(scope="module")
def forked_trainers():
    """Fork trainer processes, which do not need seconds to import torch."""
    from tests.model.training.training import popen

    with pytest.MonkeyPatch.context() as patch:
        forked = SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE)
        patch.setattr("hallmark.tasks.training.trainer_process.subprocess", forked)
        yield


@pytest.fixture
def small_disk(tmp_path):
    """Mount a real file system of one megabyte, in a separate mount namespace if necessary."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("cannot mount a small file system")
    yield place
    # Arrow may close what it has read a moment later.
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture(scope="module")
def bucket():
    """Start a real S3 server for the tests on this machine."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    with pytest.MonkeyPatch.context() as patch:
        for key, value in {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
        }.items():
            patch.setenv(key, value)
        client = boto3.client("s3", endpoint_url=url, region_name="us-east-1")
        client.create_bucket(Bucket="hallmark")
        yield client
    server.stop()
