"""Test stages in a Prefect flow: the result of a call, and which failures are retried."""

import time
from pathlib import Path

import pytest
from prefect import flow
from prefect.settings import PREFECT_API_URL, temporary_settings

from hallmark.tasks.contract import (
    Artifact,
    HallmarkError,
    RetryPolicy,
    Session,
    StageConfig,
    StageContext,
    Store,
    TemporaryError,
    UsageError,
    open_session,
    stage,
)
from tests.tasks.contract.stages import COUNT


class FailsConfig(StageConfig):
    log: str  # a file that gets a letter a try
    fault: str = ""
    failures: int = 1


@stage(name="fails_once", tables={"count": COUNT})
def fails_once(config: FailsConfig, context: StageContext) -> None:
    """Write the number of tries; the first one fails as the config says."""
    with Path(config.log).open("a") as file:
        file.write("x")
    tries = len(Path(config.log).read_text())
    if config.fault and tries <= config.failures:
        raise {
            "hallmark": HallmarkError("say this"),
            "usage": UsageError("give another"),
            "memory": MemoryError(),
            "other": KeyError("x"),
            "temporary": TemporaryError("the store is away"),
        }[config.fault]
    context.get_table_writer("count").write({"rows": [tries]})


@pytest.fixture
def run(server, tmp_path):
    """Run the stage twice in a flow, and return both results and the events."""

    def run(config, policy=None):
        heard = []

        @flow
        def twice():
            session = Session(Store(tmp_path), listener=heard.append)
            if policy:
                session.get_retry_policy = lambda label, stage_name: policy[label, stage_name]
            with open_session(session):
                return fails_once(config), fails_once.with_label("again")(config)

        with temporary_settings({PREFECT_API_URL: server}):
            return *twice(), [(event.kind, event.label) for event in heard]

    return run


def test_call_in_flow_returns_computed_or_cached_artifact(run, tmp_path):
    made, found, heard = run(FailsConfig(log=str(tmp_path / "log")))
    assert isinstance(made, Artifact) and made.name == found.name
    assert made["count"].read()["rows"].to_pylist() == [1]
    assert heard == [("start", "fails_once"), ("done", "fails_once"), ("cached", "again")]


def test_unexplained_failure_is_retried_once(run, tmp_path):
    made, _, heard = run(FailsConfig(log=str(tmp_path / "log"), fault="other"))
    assert made["count"].read()["rows"].to_pylist() == [2]
    assert [kind for kind, _ in heard] == ["start", "failed", "start", "done", "cached"]


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        ("hallmark", HallmarkError, "^stage fails_once: say this$"),
        ("usage", UsageError, "^stage fails_once: give another$"),
        ("memory", HallmarkError, "^stage fails_once: out of memory "),
    ],
)
def test_failure_that_a_retry_cannot_fix_is_not_retried(run, tmp_path, fault, kind, says):
    with pytest.raises(kind, match=says):
        run(FailsConfig(log=str(tmp_path / "log"), fault=fault))
    assert (tmp_path / "log").read_text() == "x"


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("other", "with KeyError"),
        ("temporary", "with TemporaryError: stage fails_once: the store is away"),
    ],
)
def test_the_policy_decides_how_often_and_when_a_stage_is_retried(
    run, tmp_path, caplog, fault, sentence
):
    policies = {
        ("fails_once", "fails_once"): RetryPolicy(2, 0.5),
        ("again", "fails_once"): RetryPolicy(0),
    }
    began = time.monotonic()
    config = FailsConfig(log=str(tmp_path / "log"), fault=fault, failures=2)
    made, _, heard = run(config, policies)
    assert time.monotonic() - began >= 2 * 0.5
    assert made["count"].read()["rows"].to_pylist() == [3]
    assert [kind for kind, _ in heard] == ["start", "failed"] * 2 + ["start", "done", "cached"]
    messages = [record.getMessage() for record in caplog.records if record.name == "hallmark"]
    assert messages == [
        f"stage fails_once failed {sentence}; attempt {number} of 3 starts in 0.5 seconds"
        for number in (2, 3)
    ]


def test_a_stage_whose_policy_allows_no_retry_fails_at_once(run, tmp_path):
    with pytest.raises(KeyError):
        run(
            FailsConfig(log=str(tmp_path / "log"), fault="other"),
            {("fails_once", "fails_once"): RetryPolicy(0)},
        )
    assert (tmp_path / "log").read_text() == "x"
