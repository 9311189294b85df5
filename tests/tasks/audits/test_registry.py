"""Test the discovery of probes: every file is found once, and names are unique."""

import sys
from importlib import import_module

import pytest

from hallmark.tasks.audits.registry import (
    AUDIT_DESCRIPTIONS,
    PROBES,
    SKIPPED_COUNT_METRICS,
    discover_probes,
)
from hallmark.tasks.contract import PROJECT_ROOT, HallmarkError


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package for probes outside the project."""
    (tmp_path / "planted_probes").mkdir()
    (tmp_path / "planted_probes/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield import_module("planted_probes"), tmp_path / "planted_probes"
    for name in [name for name in sys.modules if name.startswith("planted_probes")]:
        del sys.modules[name]


def test_every_file_is_a_probe_of_the_same_name():
    files = {path.stem for path in (PROJECT_ROOT / "tasks/audits/probes").glob("*.py")}
    assert {probe.name for probe in PROBES} == files - {"__init__"}
    assert [*AUDIT_DESCRIPTIONS] == ["capability", *(probe.name for probe in PROBES)]
    positions = [description.position for description in AUDIT_DESCRIPTIONS.values()]
    assert len({*positions}) == len(positions) and positions == sorted(positions)
    assert SKIPPED_COUNT_METRICS["weat"] == {"skipped_words": "Skipped words"}


def test_probes_are_in_the_order_of_their_positions(package):
    module, folder = package
    for name, position in (("a", 7), ("b", 3), ("c", 7)):
        (folder / f"{name}.py").write_text(
            "from dataclasses import replace\n"
            "from hallmark.tasks.audits.probes.weat import PROBE as W\n"
            f"PROBE = replace(W, name={name!r}, description=replace(W.description, "
            f"position={position}))\n"
        )
    assert [probe.name for probe in discover_probes(module)] == ["b", "a", "c"]


def test_two_probes_with_the_same_name_are_refused(package):
    module, folder = package
    for name in ("first", "second"):
        (folder / f"{name}.py").write_text("from hallmark.tasks.audits.probes.weat import PROBE\n")
    with pytest.raises(
        HallmarkError, match=r"two audits are named 'weat' \(.*second.*\); rename one"
    ):
        discover_probes(module)


def test_a_file_without_a_probe_is_refused(package):
    module, folder = package
    (folder / "helper.py").touch()
    with pytest.raises(HallmarkError, match=r"planted_probes\.helper has no PROBE; define one"):
        discover_probes(module)
