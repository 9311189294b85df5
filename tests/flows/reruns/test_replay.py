"""`hallmark replay` on the smoke run; tests/flows/test_replay.py tests differing stages."""

import pytest

from hallmark.tasks.contract import Store

pytestmark = pytest.mark.slow


def test_a_replay_passes_and_looks_up_each_artifact_once(smoke, monkeypatch):
    find, asked = Store.find_artifact, []

    def found(store, *name):
        asked.append(name)
        return find(store, *name)

    monkeypatch.setattr(Store, "find_artifact", found)
    [verdict] = smoke.json("replay", smoke.first)["replays"]
    assert len(asked) < 10 * len(verdict["stages"])
    assert verdict["passed"]
    assert [row["verdict"] for row in verdict["stages"]] == ["equal"] * len(verdict["stages"])
