"""`hallmark compare` compares findings of checkpoints in pairs of the same items."""

import io
import re
import shlex
import shutil
from dataclasses import replace
from urllib.parse import urljoin

import pytest
from fastapi.testclient import TestClient

from hallmark import open_run
from hallmark.flows import console
from hallmark.flows.application.application import create_application
from hallmark.flows.checkpoint_comparison import (
    CheckpointAudits,
    compare_checkpoints,
    find_trainings_with_several_audits,
)
from hallmark.flows.runs import open_store, read_all_runs
from hallmark.reports.page.figures import format_number
from hallmark.reports.review.signatures import SignerFiles
from hallmark.reports.sections.findings import name_finding
from hallmark.tasks.audits.judging.comparison import explain_incomparability
from hallmark.tasks.audits.judging.comparison_units import AuditUnits
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import HallmarkError, Store
from hallmark.tasks.measures.estimates import estimate_mean_or_share
from tests.reports import pages

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def both(apart):
    """The untrained model and the last checkpoint, each audited."""
    apart.json("audit", f"{apart.first}@0", "--only", "toxicity,bias,associations")
    last = open_run(apart.first, str(apart.store)).config.pretrain.train.steps
    return f"{apart.first}@0", f"{apart.first}@{last}"


def test_differences_are_those_of_pairs(apart, both):
    report = apart.json("compare", *both)
    assert [s["name"].partition("@")[2] for s in report["checkpoints"]] == [
        "0",
        both[1].split("@")[1],
    ]
    assert "has no results for the extraction audit" in report["incomparable"]["extraction"]
    rows = {(r["audit"], r["metric"], name_slice(r["slice"])): r for r in report["rows"]}
    runs = [open_run(subject["run"], str(apart.store)) for subject in report["checkpoints"]]
    # Computed here from the pairs.
    sides = [
        {
            r["item"]: (r["value"], r["cluster"])
            for r in run["audit_bias"]["values"].read().to_pylist()
            if r["measure"] == "stereotype_preference"
        }
        for run in runs
    ]
    pairs = [(sides[1][k][0] - sides[0][k][0], sides[0][k][1]) for k in sides[0]]
    cluster_size = len(pairs) / len({cluster for _, cluster in pairs})
    added = [(1, "added up"), (-1, "added down")]
    by_hand = estimate_mean_or_share(
        [difference for difference, _ in pairs + added],
        [cluster for _, cluster in pairs + added],
        weights=[1.0] * len(pairs) + [1.5 * min(2.0, cluster_size)] * 2,
        null_value=0.0,
    )
    (found,) = rows["bias", "stereotype_preference", ""]["differences"]
    assert found["n"] == len(pairs) and found["p"] == pytest.approx(by_hand.p)
    assert found["value"] == pytest.approx(sum(d for d, _ in pairs) / len(pairs))
    assert [found[end] for end in ("low", "high")] == pytest.approx([by_hand.low, by_hand.high])
    for row in report["rows"]:
        (difference,) = row["differences"]
        known = None not in row["values"]
        if (
            difference
            and known
            and difference["missing"] == 0
            and "planted" not in name_slice(row["slice"])
        ):
            gap = row["values"][1] - row["values"][0]
            assert difference["value"] == pytest.approx(gap, abs=1e-9), row
    tested = [d for r in report["rows"] if r["audit"] == "bias" for d in r["differences"] if d]
    assert all(d["p_corrected"] >= d["p"] for d in tested if d["p"] is not None)
    assert any(r["audit"] == "associations" and r["differences"][0] for r in report["rows"])
    assert rows["associations", "strength_by_trait_share", ""]["differences"] == [None]  # no mean
    output = apart("compare", *both).stdout
    assert "difference" in output and "extraction was not compared" in output


def test_all_audited_checkpoints_of_a_training_are_compared_with_the_first(apart, both):
    report = apart.json("compare", f"{apart.first}@all")
    steps = [int(s["name"].partition("@")[2]) for s in report["checkpoints"]]
    assert steps == sorted(steps) and {0, int(both[1].split("@")[1])} <= {*steps}
    row = next(
        r
        for r in report["rows"]
        if r["metric"] == "stereotype_preference" and not name_slice(r["slice"])
    )
    assert len(row["values"]) == len(steps) and len(row["differences"]) == len(steps) - 1


def test_the_page_of_two_runs_has_the_numbers_of_the_command(apart, both, tmp_path):
    folder = tmp_path / "a folder" / "page"
    report = apart.json("compare", *both, "--output", str(folder))
    page = pages.read(folder / "comparison.html")
    shown = {
        tuple(line[:4])
        for table in page.tables
        if table[0][:2] == ["finding", "verdict"]
        for line in table[1:]
    }
    expected = {}
    for row in report["rows"]:
        values = [
            "not measured" if value is None else format_number(value, row["unit"])
            for value in row["values"]
        ]
        if not row["is_unchanged"]:
            expected[name_finding(row), row["verdicts"][0], *values] = row["is_main"]
    assert shown <= expected.keys()
    assert {row for row, is_main in expected.items() if is_main} <= shown
    assert pages.broken_links(folder) == []
    linked = [text for href, text in page.links if "/model_card/rows/" in href]
    assert {value for line in shown for value in line[2:]} <= {*linked, "not measured"}
    text = apart("compare", *both, "--output", str(folder)).stdout
    assert text.splitlines()[-1] == f"page: {folder}/comparison.html"
    done = apart("compare", f"{apart.first}@all", "--output", str(folder), code=2)
    assert "--output requires exactly two" in done.stderr
    (tmp_path / "file").write_text("")
    for folder, problem in (
        (tmp_path / "file", "file is not a folder"),
        (apart.store / "page", f"is inside the store {apart.store}"),
    ):
        done = apart("compare", *both, "--output", str(folder), code=2)
        assert f"{problem}; choose a new folder for the comparison" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_a_damaged_table_ends_with_1_and_hides_no_other_audit(apart, both, tmp_path):
    store = shutil.copytree(apart.store, tmp_path / "store", symlinks=True)
    copied = replace(apart, store=store)
    run = open_run(apart.first, str(store))
    for part in run["audit_toxicity"]["values"].parts:
        part.path.write_bytes(b"PAR1")
    done = copied("compare", *both, code=1)
    assert "toxicity was not compared: cannot be read: " in done.stdout
    assert "bias." in done.stdout and "associations." in done.stdout
    (line,) = done.stderr.strip().splitlines()
    assert "these audits' tables cannot be read: toxicity; run hallmark verify" in line


def test_audits_with_other_requests_are_not_compared(apart, both):
    other = apart.json("audit", both[0], "--only", "bias", "--set", "audit_bias.seed=3")["run"]
    output = apart("compare", both[1], other, code=1).stderr
    assert "nothing can be compared" in output and "bias: the settings differ: seed" in output
    store = str(apart.store)
    seed = apart.json("audit", both[0], "--only", "toxicity", "--set", "audit_toxicity.seed=3")[
        "run"
    ]
    runs = [open_run(name, store) for name in (apart.first, seed)]
    subjects = [CheckpointAudits(run.id, run) for run in runs]
    assert "seed" in explain_incomparability("toxicity", subjects)


def test_bad_names_are_one_sentence(apart, both):
    assert "specify two checkpoints" in apart("compare", code=2).stderr
    assert "is empty" in apart("compare", both[0], "", code=2).stderr
    assert (
        "runs whose ids begin with '2'; specify more of the id"
        in apart("compare", both[0], "2", code=2).stderr
    )
    assert (
        "only one of the checkpoints has been audited" in apart("compare", both[0], code=2).stderr
    )
    assert (
        "has not been audited in this store yet"
        in apart("compare", both[0], f"{apart.first}@20", code=2).stderr
    )
    assert "no checkpoint 'nobody'" in apart("compare", both[0], "nobody", code=2).stderr


def test_a_run_is_not_compared_with_itself(apart, both):
    for names in ((both[0], both[0]), (apart.first, both[1]), (both[1], apart.first[:-1])):
        error = apart("compare", *names, code=2).stderr
        assert "refer to the same audit, in run " in error and len(error.strip().splitlines()) == 1
    # Named twice among others, a checkpoint is compared once.
    report = apart.json("compare", both[0], both[1], both[0])
    assert len(report["checkpoints"]) == 2


def test_the_application_shows_the_comparison_and_the_trajectory(apart, both, tmp_path):
    application = create_application(open_store(str(apart.store)), 8321, SignerFiles())
    client = TestClient(application, base_url="http://127.0.0.1:8321")
    page = client.get("/compare", params=dict(zip(("before", "after"), both, strict=True))).text
    assert all(name in page for name in both) and "No finding shows a change." in page
    rows = sorted(set(re.findall(r'href="(/runs/[^"]+/rows/[^"]+)"', page)))
    assert rows and all(client.get(path).status_code == 200 for path in rows[:10])
    folder = f"/runs/{apart.first}/trajectory/"
    assert "trajectory/trajectory.html" in client.get(f"/runs/{apart.first}/").text
    trajectory = client.get(f"{folder}trajectory.html").text
    for pattern, count in ((r'rows/[^"]+', 5), (r'\.\./\.\./[^"]+', 10)):
        paths = sorted(set(re.findall(f'href="({pattern})"', trajectory)))
        assert paths
        for path in paths[:count]:
            assert client.get(urljoin(folder, path)).status_code == 200, path
    pairs = client.get(urljoin(folder, re.search(r'href="(rows/[^"]+)"', trajectory)[1]))
    assert "'sha256-" in pairs.headers["content-security-policy"]  # of the style that it brings
    assert client.get(f"{folder}rows/other.html").status_code == 404
    # What was computed from tables is not shown from memory after the tables are gone.
    folder = apart.store / "artifacts" / "audit_bias"
    shutil.move(folder, tmp_path / "moved")
    names = dict(zip(("before", "after"), both, strict=True))
    assert client.get("/compare", params=names).text != page
    shutil.move(tmp_path / "moved", folder)
    assert client.get("/compare", params=names).text == page


def test_runs_without_a_model_are_compared_by_their_training_data(apart, both):
    options = (
        "--until",
        "datasheet",
        "--set",
        "select_scored.rules.toxicity={lt=0.3, action='remove'}",
    )
    run = apart.json("run", "smoke", *options)["run"]
    report = apart.json("compare", apart.first, run)
    assert report["rows"] == [] and report["checkpoints"][1] == {
        "name": f"corpus of run {run}",
        "run": run,
    }
    names = {row["setting"] for row in report["settings"]}
    assert names and all(name.startswith("select_scored.rules.") for name in names)
    titles = [table["title"] for table in report["training_data"]]
    assert titles[0] == "Documents by source" and "Removal rates by group" in titles
    until_ingest = apart.json("run", "smoke", "--until", "ingest")["run"]
    done = apart("compare", apart.first, until_ingest, code=2)
    assert "has neither an audited model nor a datasheet" in done.stderr


def test_nothing_to_compare_is_reported(apart):
    run = open_run(apart.first, str(apart.store))
    with pytest.raises(HallmarkError, match="no audit ran"):
        compare_checkpoints(
            [CheckpointAudits("a", _without(run)), CheckpointAudits("b", _without(run))]
        )
    units, rows = AuditUnits(run["audit_capability"]), run["audit_capability"]["findings"].read()
    known = {
        name_slice(row["slice"]): units.build_units_by_key(row)
        for row in rows.to_pylist()
        if row["metric"] == "bits_per_byte" and not row["control"]
    }
    assert known["model"] and not any(known[name] for name in ("bigram", "fivegram", "gzip"))


def test_all_checkpoints_are_audited_by_one_command_with_a_trajectory_page(
    apart, both, monkeypatch
):
    printed = io.StringIO()
    monkeypatch.setattr(console.stderr, "file", printed)
    before = {run.id for run in read_all_runs(Store(apart.store))}
    rule = 'policy.rules.none={audit="associations", metric="association_preference", lt=0.01}'
    only = ("--only", "associations", "--set", rule)
    done = apart("audit", f"{apart.first}@all", *only, code=3)
    first = open_run(apart.first, str(apart.store))
    steps = first["pretrain"]["checkpoints"].read(["step"])["step"].to_pylist()
    runs = [run for run in read_all_runs(Store(apart.store)) if run.id not in before]
    assert [run.record["checkpoint"] for run in runs] == [f"{apart.first}@{n}" for n in steps]
    assert len({run["associations_build_requests"].name for run in runs}) == 1
    *_, output = done.stderr.splitlines()
    verdict = "policy failed: 1 of 1 rule failed; failed: none (associations.association_preference"
    assert all(f"{apart.first}@{step}: {verdict}" in output for step in steps)
    names = [f"{apart.first}@{step}" for step in steps]
    assert [line for line in printed.getvalue().splitlines() if line in names] == names
    shown = re.findall(r"hallmark trace (\S+) ('?)(associations\.\S+)\2 shows its rows", output)
    assert [run_id for run_id, _, _ in shown] == [run.id for run in runs]
    for run_id, _, finding in shown:
        assert apart("trace", run_id, finding).stdout

    report = apart.json("compare", f"{apart.first}@all")
    # A newer run with --only does not hide earlier audits.
    assert apart.json("compare", *both)["incomparable"]["bias"] == "the settings differ: seed"
    row = next(
        r for r in report["rows"] if r["metric"] == "association_strength" and not r["slice"]
    )
    path = apart.store / "site/runs" / apart.first / "trajectory/trajectory.html"
    assert apart("compare", f"{apart.first}@all").stdout.endswith(f"charts: {path}\n")
    page = pages.read(path)
    course = next(t for t in page.tables if t[0][0] == "step" and len(t) == 1 + len(steps))
    assert [line[:2] for line in course[1:]] == [
        [f"{step:,}", format_number(value, row["unit"])]
        for step, value in zip(steps, row["values"], strict=True)
    ]
    assert pages.broken_links(path.parent) == []
    # The page is reused, since nothing that it shows has changed.
    text, file = path.read_bytes(), path.stat().st_ino
    apart.json("run", "smoke", "--until", "ingest")
    assert path.stat().st_ino == file
    apart.json("export-site")
    assert path.stat().st_ino == file and path.read_bytes() == text
    assert (
        find_trainings_with_several_audits([first]) == []
    )  # no page for a single audited checkpoint


def _without(run):
    from copy import copy

    bare = copy(run)
    bare.record = run.record | {"stages": []}
    return bare


def test_a_failed_policy_names_the_trace_command_with_its_store(apart, both, tmp_path):
    """The printed command works in a shell where no store is configured."""
    rule = 'policy.rules.r={audit="toxicity", metric="expected_maximum_toxicity", lt=-0.5}'
    elsewhere = replace(apart, store=tmp_path / "a store")
    asked = ("audit", both[0], "--only", "toxicity", "--set", rule, "--store", str(apart.store))
    output = elsewhere(*asked, code=3).stderr
    program, *command = shlex.split(re.search("; (hallmark trace .*) shows its rows", output)[1])
    assert program == "hallmark" and command[-2:] == ["--store", str(apart.store)]
    assert "expected_maximum_toxicity[" in command[2]
    assert "expected_maximum_toxicity" in elsewhere(*command).stdout
