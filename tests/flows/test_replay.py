"""Verdicts of a replay on stages whose bytes differ."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from hallmark.flows.commands.replay import _compare_artifacts, _has_overlapping_intervals
from hallmark.flows.run_recording import describe_machine
from tests.flows.conftest import Hallmark
from tests.reports.finetuning_artifacts import card_of, tune


@pytest.mark.parametrize(("share", "same"), [(0.85, True), (0.2, False)])
def test_scores_agree_if_all_intervals_overlap(session, tmp_path, share, same):
    before, now = (tune(tmp_path, right=(right, 0.5)) for right in (0.9, share))
    assert _has_overlapping_intervals(before, now) is same and _has_overlapping_intervals(
        before, before
    )


def test_scores_of_other_labels_do_not_agree(session, tmp_path):
    before, now = (tune(tmp_path, kind) for kind in ("classification", "pairs"))
    assert not _has_overlapping_intervals(before, now)


def verdict(before, now):
    run = SimpleNamespace(record={"platform": ""})
    return _compare_artifacts("x", before, now, run, run)["verdict"]


def test_a_card_with_other_inputs_need_not_be_equal(session, tmp_path):
    before, now = (card_of(tune(tmp_path, right=(right, 0.5))) for right in (0.9, 0.85))
    assert verdict(before, before) == "equal"
    assert verdict(before, now) == "other inputs"
    changed = replace(before, manifest={**before.manifest, "content": "0"})
    assert verdict(before, changed) == "differs"


def test_a_run_with_fewer_threads_counts_as_one_of_another_machine(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4))

    def machine(**threads):
        for name in ("OMP", "MKL"):
            monkeypatch.setenv(f"{name}_NUM_THREADS", threads.get(name, ""))
        return describe_machine()

    every = machine()
    for same in ({"OMP": "4"}, {"OMP": "4,1"}, {"OMP": "64"}, {"OMP": "0"}, {"MKL": "all"}):
        assert machine(**same) == every
    assert machine(OMP="1") == machine(OMP="01") == machine(OMP="4", MKL="1")
    assert len({every, machine(OMP="1"), machine(OMP="2,1")}) == 3


def test_relative_paths_start_from_the_folder_of_the_run(tmp_path, server, monkeypatch):
    (home := tmp_path / "home").mkdir()
    (home / "a.txt").write_text("Dear Ottilie, the harbour is full of lamps.")
    source = '[[ingest.sources]]\nkind = "text"\nname = "letters"\npath = "*.txt"\n'
    (home / "my.toml").write_text(f'name = "mine"\n{source}')
    hallmark = Hallmark(home / "store", server)
    monkeypatch.chdir(home)
    hallmark("run", "my.toml", "--until", "ingest")
    monkeypatch.chdir(tmp_path)
    verdict = hallmark.json("replay", "--target-store", "again")
    [replay] = verdict["replays"]
    assert verdict["passed"] and verdict["declared"] == []
    assert [row["verdict"] for row in replay["stages"]] == ["equal"]
    assert (tmp_path / "again" / "artifacts" / "ingest").is_dir()
    assert replay["store"] == "again"
    done = hallmark("replay", "latest", "latest", "--target-store", "third", code=2)
    assert "--target-store accepts only one run, but 2 runs were specified" in done.stderr
    assert not (tmp_path / "third").exists()
