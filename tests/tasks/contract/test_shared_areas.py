"""Work areas that runs with other settings share: what one leaves there another finds."""

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
    """Counts steps in a file, which it keeps for longer climbs."""
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


def climbed(made):
    (rows,) = made["count"].read()["rows"].to_pylist()
    return rows, made.manifest["determinism"]


def test_a_run_goes_on_from_what_one_with_other_settings_left(session):
    with pytest.raises(HallmarkError, match="fell"):
        climb(ClimbConfig(falls_at=2))
    made = climb(ClimbConfig(speed=7))
    assert climbed(made) == (1, "statistical")
    assert made.manifest["parts"]["config"]["speed"] == 7  # all settings count as before
    assert not [*session.store.work_folder.glob("climb-*")]
    assert climbed(climb(ClimbConfig(speed=8))) == (3, "machine")  # nothing was kept


def test_what_is_kept_outlives_the_commit_and_nothing_else_does(session):
    short = climb(ClimbConfig())
    (area,) = session.store.work_folder.glob("climb-*")
    assert {path.name for path in area.iterdir()} == {"height", "lease"}
    longer = climb(ClimbConfig(steps=5))
    assert (climbed(short), climbed(longer)) == ((3, "machine"), (2, "statistical"))
    assert climb(ClimbConfig()).fingerprint == short.fingerprint  # cached, and nothing lost
    assert area.joinpath("height").read_text() == "5"


def test_settings_that_decide_have_areas_of_their_own(session):
    climb(ClimbConfig())
    assert climbed(climb(ClimbConfig(seed=1, steps=5))) == (5, "machine")
    assert len([*session.store.work_folder.glob("climb-*")]) == 2
