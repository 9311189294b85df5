"""A replay of smoke; how a stage that differs is judged, ``tests/flows/test_replay.py`` sees."""

import pytest

from hallmark.tasks.contract import Store

pytestmark = pytest.mark.slow


def test_it_is_green_and_looks_up_no_artifact_once_more_for_each_other(smoke, monkeypatch):
    find, asked = Store.find_artifact, []

    def found(store, *name):
        asked.append(name)
        return find(store, *name)

    monkeypatch.setattr(Store, "find_artifact", found)
    verdict = smoke.json("replay", smoke.first)
    assert len(asked) < 10 * len(verdict["stages"])
    assert verdict["passed"]
    assert [row["verdict"] for row in verdict["stages"]] == ["equal"] * len(verdict["stages"])
