"""Stages in a Prefect flow: what a call returns there, and what is tried again."""

from pathlib import Path

import pytest
from prefect import flow
from prefect.settings import PREFECT_API_URL, temporary_settings

from hallmark.tasks.contract import (
    Artifact,
    HallmarkError,
    Session,
    StageConfig,
    StageContext,
    Store,
    UsageError,
    open_session,
    stage,
)
from tests.tasks.contract.stages import COUNT


class FailsConfig(StageConfig):
    log: str  # a file that gets a letter a try
    fault: str = ""


@stage(name="fails_once", tables={"count": COUNT})
def fails_once(config: FailsConfig, context: StageContext) -> None:
    """Leaves in how many tries; the first goes wrong as the config says."""
    with Path(config.log).open("a") as file:
        file.write("x")
    tries = len(Path(config.log).read_text())
    if config.fault and tries == 1:
        raise {
            "hallmark": HallmarkError("say this"),
            "usage": UsageError("give another"),
            "memory": MemoryError(),
            "other": KeyError("x"),
        }[config.fault]
    context.get_table_writer("count").write({"rows": [tries]})


@pytest.fixture
def run(server, tmp_path):
    """The stage twice in a flow; what both calls returned, and what a listener heard."""

    def run(config):
        heard = []

        @flow
        def twice():
            with open_session(Session(Store(tmp_path), listener=heard.append)):
                return fails_once(config), fails_once.with_label("again")(config)

        with temporary_settings({PREFECT_API_URL: server}):
            return *twice(), [(event.kind, event.label) for event in heard]

    return run


def test_a_call_in_a_flow_returns_the_artifact_that_it_made_or_found(run, tmp_path):
    made, found, heard = run(FailsConfig(log=str(tmp_path / "log")))
    assert isinstance(made, Artifact) and made.name == found.name
    assert made["count"].read()["rows"].to_pylist() == [1]
    assert heard == [("start", "fails_once"), ("done", "fails_once"), ("cached", "again")]


def test_what_nobody_explains_is_tried_once_more(run, tmp_path):
    made, _, heard = run(FailsConfig(log=str(tmp_path / "log"), fault="other"))
    assert made["count"].read()["rows"].to_pylist() == [2]
    assert [kind for kind, _ in heard] == ["start", "start", "done", "cached"]


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        ("hallmark", HallmarkError, "^stage fails_once: say this$"),
        ("usage", UsageError, "^stage fails_once: give another$"),
        ("memory", HallmarkError, "^stage fails_once: out of memory "),
    ],
)
def test_what_another_try_cannot_mend_fails_at_once(run, tmp_path, fault, kind, says):
    with pytest.raises(kind, match=says):
        run(FailsConfig(log=str(tmp_path / "log"), fault=fault))
    assert (tmp_path / "log").read_text() == "x"
