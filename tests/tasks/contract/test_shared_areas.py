"""Test work areas that runs with different settings share: a run reuses what another one kept."""

import pytest

from hallmark.tasks.contract import HallmarkError, StageConfig, StageContext, stage
from tests.tasks.contract.stages import COUNT


class ClimbConfig(StageConfig):
    seed: int = 0
    steps: int = 3
    speed: int = 1  # decides nothing
    falls_at: int = 0


@stage(
    name="climb",
    tables={"count": COUNT},
    determinism="machine",
    resume_key=lambda config: {"seed": config.seed},
)
def climb(config: ClimbConfig, context: StageContext) -> None:
    """Count steps in a file, which is kept for runs with more steps."""
    file = context.work_area / "height"
    (context.work_area / "rubbish").mkdir(exist_ok=True)
    height = int(file.read_text()) if file.exists() else 0
    if height:
        context.determinism = "statistical"
    climbed = 0
    while height < config.steps:
        height, climbed = height + 1, climbed + 1
        file.write_text(str(height))
        if height == config.falls_at:
            raise HallmarkError("fell")
    context.get_table_writer("count").write({"rows": [climbed]})
    context.preserved_names = {"height"} if config.speed == 1 else set()


def read_climb(made):
    """Return the number of steps that a run climbed, and its determinism."""
    (rows,) = made["count"].read()["rows"].to_pylist()
    return rows, made.manifest["determinism"]


def test_run_continues_from_files_of_a_run_with_other_settings(session):
    with pytest.raises(HallmarkError, match="fell"):
        climb(ClimbConfig(falls_at=2))
    made = climb(ClimbConfig(speed=7))
    assert read_climb(made) == (1, "statistical")
    assert made.manifest["parts"]["config"]["speed"] == 7  # all settings count as before
    assert not [*session.store.work_folder.glob("climb-*")]
    assert read_climb(climb(ClimbConfig(speed=8))) == (3, "machine")  # nothing was kept


def test_only_preserved_files_remain_after_the_commit(session):
    short = climb(ClimbConfig())
    (area,) = session.store.work_folder.glob("climb-*")
    assert {path.name for path in area.iterdir()} == {"height", "lease"}
    longer = climb(ClimbConfig(steps=5))
    assert (read_climb(short), read_climb(longer)) == ((3, "machine"), (2, "statistical"))
    assert climb(ClimbConfig()).fingerprint == short.fingerprint  # cached, and nothing lost
    assert area.joinpath("height").read_text() == "5"


def test_settings_that_change_results_have_separate_areas(session):
    climb(ClimbConfig())
    assert read_climb(climb(ClimbConfig(seed=1, steps=5))) == (5, "machine")
    assert len([*session.store.work_folder.glob("climb-*")]) == 2
