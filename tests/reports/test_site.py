"""The site over runs: an index, a page a run, copies of the cards, nothing but relative links."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from hallmark.reports.model_card import ModelCardConfig, build_model_card
from hallmark.reports.page.figures import FIGURES
from hallmark.reports.run_summary import read_checkpoint_step, read_key_figure
from hallmark.reports.site import build_site
from hallmark.tasks.audits.judging.policy import PolicyConfig, write_rule_verdicts
from hallmark.tasks.contract import Artifact, EmptyConfig, HallmarkError, StageContext, stage
from tests.reports import finetuning_artifacts, pages
from tests.reports.artifacts import SCRIPT


@pytest.fixture
def records(made, cards):
    artifacts = {**made.corpus, "profile": made.profile, "pretrain": made.pretrained}
    artifacts |= {f"audit_{name}": a for name, a in made.audits.items()} | cards
    stages = [
        {
            "label": label,
            "stage": a.stage,
            "fingerprint": a.fingerprint,
            "content": a.content_digest,
            "artifact": a.name,
            "cached": label == "ingest",
            "seconds": 1.26,
        }
        for label, a in artifacts.items()
    ]
    first = {
        "run": "20260101-100000-aaaa",
        "flow": "pipeline",
        "config_name": "smoke",
        "status": "completed",
        "started": "2026-01-01T10:00:00+00:00",
        "ended": "2026-01-01T10:01:00+00:00",
        "stages": stages,
        "config": {"name": SCRIPT},
    }
    second = {
        "run": "20260102-100000-bbbb",
        "flow": "corpus",
        "config_name": SCRIPT,
        "status": "failed",
        "started": "2026-01-02T10:00:00+00:00",
        "ended": None,
        "stages": stages[:2],
        "error": f"stage redact_spans: {SCRIPT}",
    }
    return [first, second]


@pytest.fixture
def site(session, records, tmp_path):
    return build_site(session.store, records, tmp_path / "site").parent


def test_the_index_lists_runs_newest_first(site):
    page = pages.read(site / "index.html")
    head, *lines = page.tables[0]
    assert [line[0][:20] for line in lines] == ["20260102-100000-bbbb", "20260101-100000-aaaa"]
    cells = [dict(zip(head, line, strict=True)) for line in lines]
    assert cells[0]["status"] == "failed; 1 of 2 stages computed"
    assert cells[1]["status"].startswith("completed")
    assert cells[1]["status"].endswith(" stages computed")
    assert cells[1]["bits per byte"] == "1.500, 95 %: 1.250 to 1.750, n = 2"
    assert cells[0]["bits per byte"] == "–"


def test_the_order_of_the_index_does_not_depend_on_the_clocks_of_hosts(session, records, tmp_path):
    site = build_site(session.store, records[::-1], tmp_path / "site").parent
    _, *lines = pages.read(site / "index.html").tables[0]
    assert [line[0][:20] for line in lines] == ["20260101-100000-aaaa", "20260102-100000-bbbb"]


def test_the_index_says_which_model_and_which_controls_failed(site, made, cards):
    head, _, line = pages.read(site / "index.html").tables[0]
    cell = dict(zip(head, line, strict=True))
    figures = {f["id"]: f["value"] for f in cards["model_card"]["figures"].read().to_pylist()}
    title = cards["model_card"].manifest["parts"]["config"]["title"]
    sizes = [value for name, value in figures.items() if name.startswith("parameters-")]
    assert cell["model"] == f"{title}, {sum(sizes):,.0f} parameters"
    assert cell["step"] == "–"  # a checkpoint from elsewhere
    text = pages.read_whole_card(
        site / "runs" / "20260101-100000-aaaa" / "model_card" / "model_card.html"
    ).text
    assert "controls with the expected result: " in cell["controls"]
    counts = cell["controls"].partition("; controls failed")[0]
    assert counts[:1].upper() + counts[1:] + "." in text


def test_the_cards_of_a_corpus_link_to_each_other(site):
    for card, other, text in (
        ("model_card", "datasheet", "Datasheet for the training corpus"),
        ("datasheet", "model_card", "Model card for the trained model"),
    ):
        run = "20260101-100000-aaaa"
        page = pages.read(site / "runs" / run / card / f"{card}.html")
        assert (f"../../{run}/{other}/{other}.html", text) in page.links[:4]


@pytest.mark.parametrize("card", ["model_card", "task_card"])
def test_a_model_whose_card_has_no_title_is_called_untitled(session, made, records, tmp_path, card):
    found = (
        pages.card_of(made.checkpoint)
        if card == "model_card"
        else finetuning_artifacts.card_of(made.tuned)
    )
    entry = {"label": card, "artifact": found.name}
    record = records[0] | {"stages": [records[0]["stages"][0] | entry]}
    page = pages.read(build_site(session.store, [record], tmp_path / "site"))
    head, line = page.tables[0]
    assert dict(zip(head, line, strict=True))["model"].startswith("untitled")


def test_the_index_says_which_arm_of_an_experiment_a_run_trained(session, records, tmp_path):
    exclusions = {"doc_ids_file": "/somewhere/removed-ab12.txt", "random_control": True}
    arm = records[0] | {"config": {"leave_out": exclusions}}
    cell = pages.read(build_site(session.store, [arm], tmp_path / "arm")).tables[0][1][0]
    assert (
        "control arm: random documents were excluded instead of the documents on the list "
        "removed-ab12.txt"
    ) in cell and "/somewhere" not in cell
    cell = pages.read(build_site(session.store, records, tmp_path / "site")).tables[0][1][0]
    assert "trained without" not in cell


@stage(name="trained")
def trained(config: EmptyConfig, context: StageContext) -> None:
    """Leaves two checkpoints, as a training does."""
    for step in (0, 60):
        folder = context.work_area / str(step)
        folder.mkdir()
        (folder / "config.json").write_text(f"{step}")
        context.commit_child_artifact("checkpoint", {"step": step}, folder)


def test_the_step_is_that_of_the_checkpoint_under_audit(session):
    made = trained(EmptyConfig())
    every = session.store.list_artifacts("checkpoint")
    left = [found for found in every if found.manifest["parts"]["parent"] == made.fingerprint]
    assert len(left) == 2
    for checkpoint in left:
        step = checkpoint.manifest["parts"]["key"]["step"]
        assert checkpoint.fetch_file("config.json").read_text() == f"{step}"
        lineage = {"lineage": {"checkpoint": checkpoint.name}}
        assert read_checkpoint_step(Artifact(lineage, session.store, "card")) == step
    gone = {"lineage": {"checkpoint": "checkpoint/0000000000000000"}}
    assert read_checkpoint_step(Artifact(gone, session.store, "card")) is None


def again(record, day, **changes):
    stages = [entry | {"cached": True} for entry in record["stages"]]
    name = {"run": f"2026010{day}-100000-cccc", "started": f"2026-01-0{day}T10:00:00+00:00"}
    return record | name | {"stages": stages} | changes


def test_a_run_that_made_nothing_is_a_line_under_the_one_it_repeats(session, records, tmp_path):
    first = records[0]
    some = again(first, 4)
    some["stages"] = some["stages"][:3]  # with --until
    failed, empty = again(first, 5, status="failed"), again(first, 6, stages=[])
    other = again(first, 7)
    other["stages"][0] = other["stages"][0] | {"artifact": "ingest/0000000000000000"}
    runs = [*records, again(first, 3), some, failed, empty, other]
    site = build_site(session.store, runs, tmp_path / "site").parent
    page = pages.read(site / "index.html")
    lines = page.tables[0][1:]
    assert [line[0][:8] for line in lines if len(line) > 1] == [
        "20260107",
        "20260106",
        "20260105",
        "20260102",
        "20260101",
    ]
    assert lines[-1] == ["repeated run, fully cached: 20260103-100000-cccc, 20260104-100000-cccc"]
    assert pages.broken_links(site) == []


def test_a_run_that_failed_has_none_below_it_that_made_nothing(session, records, tmp_path):
    failed = records[0] | {"status": "failed"}
    site = build_site(session.store, [failed, again(failed, 3, status="completed")], tmp_path / "s")
    lines = pages.read(site).tables[0][1:]
    assert [line[0][:8] for line in lines] == ["20260103", "20260101"]


def test_a_broken_policy_stands_beside_completed(session, made, records, tmp_path):
    bounds = {"kept": {"ge": -1e9}, "told": {"lt": -1e9}}
    audit, rows = next((name, a["findings"].read().to_pylist()) for name, a in made.audits.items())
    whole = next(row for row in rows if row["value"] is not None and not row["control"])
    about = {"audit": audit, "metric": whole["metric"], "slice": dict(whole["slice"])}
    rules = {name: about | bound for name, bound in bounds.items()}
    judged = write_rule_verdicts(made.audits, None, PolicyConfig(rules=rules))
    entry = records[0]["stages"][0] | {"label": "policy", "artifact": judged.name}
    broken = records[0] | {"stages": [*records[0]["stages"], entry]}
    site = build_site(session.store, [broken], tmp_path / "site").parent
    head, line = pages.read(site / "index.html").tables[0]
    status = dict(zip(head, line, strict=True))["status"]
    assert status.startswith("completed. Not judged. No acceptance policy is configured; 15 of 17")
    assert "policy failed: told" in status
    run = pages.read(site / "runs" / broken["run"] / "index.html")
    assert "completed; policy failed: told" in run.text


def test_names_that_climb_are_not_followed(session, records, tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "manifest.json").write_text("{")
    entries = [
        records[0]["stages"][0] | {"artifact": f"../../..{tmp_path}/secret"},
        records[0]["stages"][0] | {"label": "model_card", "artifact": "../secret/0123"},
    ]
    site = build_site(session.store, [records[0] | {"stages": entries}], tmp_path / "site").parent
    page = pages.read(site / "runs" / records[0]["run"] / "index.html")
    # Each stage says so, and each group that has such a stage.
    assert page.text.count("no longer in the store") == 4


def test_key_figures_say_interval_n_and_scorer_as_far_as_they_have_them():
    rows = [
        {
            "id": "whole",
            "value": 0.5,
            "unit": "share",
            "low": 0.25,
            "high": 0.75,
            "confidence_level": 0.9,
            "n": 1234,
            "scorer": "linear 1.0",
            "evidence_id": "audit-toxicity--values--9",
        },
        {
            "id": "bare-copies-8",
            "value": 2.0,
            "unit": "bits",
            "inconclusive_reason": "the model is too weak for this audit",
            "evidence_id": "b",
        },
        {"id": "unknown", "value": None, "n": 3, "evidence_id": "c"},
    ]
    table = pa.Table.from_pylist(rows, schema=FIGURES)
    said = {
        start: read_key_figure(table, start, start) for start in ("whole", "bare", "unknown", "no")
    }
    assert said["whole"].value == "50.0 %"
    assert said["whole"].details == ("90 %: 25.0 % to 75.0 %", "n = 1,234", "scorer linear 1.0")
    assert said["whole"].page_path == "model_card/rows/audit-toxicity.html#rows-9"
    assert (said["bare"].value, said["bare"].details) == ("2.000", ("no conclusion",))
    for start in ("unknown", "no"):
        assert (said[start].value, said[start].details, said[start].page_path) == ("–", (), "")


def test_all_links_of_the_site_resolve(site):
    assert len(list(site.rglob("*.html"))) > 20
    assert pages.broken_links(site) == []


def test_a_card_leads_back_to_its_run(site):
    cards = [*site.glob("runs/*/*_card/*_card.html"), *site.glob("runs/*/datasheet/datasheet.html")]
    assert cards
    for card in cards:
        text = card.read_text()
        for target in ("../../../index.html", "../index.html"):
            assert f'href="{target}"' in text and (card.parent / target).is_file()
        assert text.count(">This run<") == 1


def test_the_site_can_be_moved(site, tmp_path):
    moved = tmp_path / "elsewhere" / "site"
    shutil.copytree(site, moved)
    shutil.rmtree(site)
    assert pages.broken_links(moved) == []


def find_label(cell):
    """Return the label of a stage from its cell, which may start with the title."""
    title_and_label = re.fullmatch(r".+ \((\w+)\)", cell)
    return title_and_label[1] if title_and_label else cell


def test_a_run_page_shows_stages_tables_and_accounts(site, made):
    page = pages.read(site / "runs" / "20260101-100000-aaaa" / "index.html")
    *groups, accounts = page.tables
    lines = {find_label(line[0]): line for table in groups for line in table[1:]}
    assert lines["ingest"][1] == "cached" and lines["redact_spans"][1] == "1.3"
    assert made.corpus["redact_spans"].name in lines["redact_spans"][4]
    documents = made.corpus["plant_canaries"]["documents"].row_count
    assert f"documents\xa0{documents:,}" in lines["plant_canaries"][2]
    books = {
        (line[0], line[1]): [int(c.replace(",", "")) for c in line[2:]] for line in accounts[1:]
    }
    whole = made.corpus["redact_spans"]["accounts"].read().to_pandas().groupby("unit")
    whole = whole.sum(numeric_only=True)
    for unit in ("rows", "bytes"):
        terms = books[("redact_spans", unit)]
        assert terms == whole.loc[unit].tolist()
        assert terms[0] + terms[1] == sum(terms[2:])


def test_hostile_words_in_a_run_are_inert(site):
    for path in [site / "index.html", *site.glob("runs/*/index.html")]:
        assert "script" not in pages.read(path).tags
    page = pages.read(site / "runs" / "20260102-100000-bbbb" / "index.html")
    assert f"stage redact_spans: {SCRIPT}" in page.text


def test_an_artifact_that_is_gone_is_said_to_be(session, records, tmp_path):
    records[1]["stages"] = [{**records[1]["stages"][0], "artifact": "ingest/0000000000000000"}]
    site = build_site(session.store, records[1:], tmp_path / "site").parent
    page = pages.read(site / "runs" / "20260102-100000-bbbb" / "index.html")
    assert "no longer in the store" in page.text


@pytest.mark.parametrize("name", ["sections", "figures", "evidence"])
def test_a_damaged_card_does_not_hide_the_other_runs(
    session, records, cards, tmp_path, name, caplog
):
    card = cards["model_card"]
    path = card[name].parts[0].path
    aside = path.rename(tmp_path / "aside")
    try:
        site = build_site(session.store, records, tmp_path / "site").parent
        assert len(pages.read(site / "index.html").tables[0]) == 3
        assert not (site / "runs" / records[0]["run"] / "model_card").exists()
        assert (site / "runs" / records[0]["run"] / "datasheet" / "datasheet.html").exists()
        assert f"the site does not show {card.name}: artifact {card.name} is damaged" in caplog.text
    finally:
        aside.rename(path)


@pytest.mark.parametrize(
    "change",
    [{"lineage": {}}, {"lineage": {"checkpoint": 7}}, {"parts": {}}, {"parts": {"config": 7}}],
)
def test_a_card_whose_manifest_was_changed_hides_no_run(session, records, cards, tmp_path, change):
    card = cards["model_card"]
    key = f"{card.folder}/manifest.json"
    whole = session.store.get(key)
    path = session.store.root_folder / key
    path.write_text(json.dumps(json.loads(whole) | change))
    try:
        site = build_site(session.store, records, tmp_path / "site").parent
        assert len(pages.read(site / "index.html").tables[0]) == 3
    finally:
        path.write_bytes(whole)


def test_personal_data_in_an_error_is_masked(session, records, tmp_path):
    records[0]["error"] = "source s, letters of jane.roe@corp.example.jsonl: is empty"
    site = build_site(session.store, records[:1], tmp_path / "site").parent
    text = pages.read(site / "runs" / records[0]["run"] / "index.html").text
    assert "jane.roe" not in text and "letters of [email masked]" in text


def test_numbers_of_the_countries_that_a_run_asked_for_are_masked(session, records, tmp_path):
    told = "source s, letters of 020 7946 0958.jsonl: is empty"
    pages_of = {}
    for regions in (["GB"], "GB", None, [["GB"]], 7):
        records[0] |= {"error": told, "config": {"find_personal_data": {"regions": regions}}}
        site = build_site(session.store, records[:1], tmp_path / str(regions)).parent
        page = pages.read(site / "runs" / records[0]["run"] / "index.html")
        pages_of[str(regions)] = page.text
    for british in (pages_of.pop("['GB']"), pages_of.pop("GB")):
        # A digest on the page may have these four digits, but no other letters are around them.
        assert not re.search(r"(?<![0-9a-f])7946(?![0-9a-f])", british)
        assert "letters of [phone masked]" in british
    # Of the others none asks for a country that is known.
    assert all(told in text for text in pages_of.values())


URI = "s3://AKIAQYLPMN5HHHFPZAM2:wJalrXUtnFEMIK7MDENGbPxRfiCYzq8LmWbT@bucket/letters"


def test_a_run_shows_no_credentials_of_its_config_but_whom_to_ask(session, records, tmp_path):
    source = {"path": URI, "name": "letters", "key": "wJalrXUtnFEMIK7MDENGbPxRfiCYzq8LmWbT"}
    asked = {"prompts": ["tell jane.roe@corp.example", 7, None], "empty": {}}
    card = {"contact": "desk@corp.example"}
    config = {"ingest": {"sources": [source]}, "respond": asked, "datasheet": card, "name": "n"}
    records[0] |= {"config": config, "checkpoint": URI}
    records[1]["config"] = [URI]
    site = build_site(session.store, records, tmp_path / "site").parent
    first, second = (pages.read(site / "runs" / r["run"] / "index.html").text for r in records)
    for text in (first, second):
        assert "wJalr" not in text and "AKIA" not in text and "jane.roe" not in text
    shown = json.loads(first[first.index("{") :])
    assert shown == config | {
        "ingest": {
            "sources": [source | {"path": "[secret masked]/letters", "key": "[secret masked]"}]
        },
        "respond": asked | {"prompts": ["tell [email masked]", 7, None]},
    }


def test_the_index_masks_the_name_of_a_model(session, made, records, tmp_path):
    config = ModelCardConfig(title=f"Model of {URI}")
    card = build_model_card(
        made.checkpoint, None, None, {}, {}, None, None, None, None, {}, None, config
    )
    entry = next(entry for entry in records[0]["stages"] if entry["label"] == "model_card")
    entry |= {
        "artifact": card.name,
        "content": card.content_digest,
        "fingerprint": card.fingerprint,
    }
    page = build_site(session.store, records[:1], tmp_path / "site").read_text()
    assert "wJalr" not in page and "Model of [secret masked]" in page


def files(site):
    return {p.relative_to(site): p.read_bytes() for p in site.rglob("*") if p.is_file()}


def test_building_again_gives_the_same_files(session, records, site):
    before = files(site)
    build_site(session.store, records, site)
    assert files(site) == before


def test_cards_are_taken_from_the_site_before_if_they_are_made_of_the_same(
    session, records, site, tmp_path, monkeypatch
):
    card = Path("runs") / records[0]["run"] / "model_card"
    page, made_of = card / "model_card.html", card / ".made_of"
    whole = files(site)

    def taken(name):
        """What a site takes from the one before; it is the same in any case."""
        again = build_site(session.store, records, tmp_path / name, previous_site=site).parent
        assert files(again) == whole
        return {
            path
            for path in whole
            if (site / path).exists() and os.path.samefile(again / path, site / path)
        }

    found = taken("again")
    assert {page, made_of} <= found and len(found) > 25
    assert {path.parts[2] for path in found} == {"datasheet", "model_card", "task_card"}
    for number, change in enumerate((b"another", b"\xff", None)):
        (site / made_of).unlink()
        if change is not None:
            (site / made_of).write_bytes(change)
        assert page not in taken(str(number))
    (site / made_of).write_bytes(whole[made_of])
    assert page in taken("as it was")
    monkeypatch.setattr("hallmark.reports.site._compute_code_digest", lambda: "another version")
    other = build_site(session.store, records, tmp_path / "other", previous_site=site).parent
    assert not os.path.samefile(other / page, site / page)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_rows_that_come_back_are_shown(session, records, made, site, tmp_path, is_damaged):
    """A card whose rows were missing or damaged is not taken from the site before."""
    page = Path("runs") / records[0]["run"] / "model_card" / "rows" / "audit-toxicity.html"
    assert "of which the" in (site / page).read_text()
    audit = made.audits["toxicity"]
    path = session.store.root_folder / audit.folder
    if is_damaged:
        path = audit["values"].parts[0].path
    aside = path.rename(tmp_path / "aside")
    try:
        if is_damaged:
            path.write_bytes(b"no parquet")
        lacking = build_site(session.store, records, tmp_path / "lacking").parent
        assert "not in this store, or are damaged" in (lacking / page).read_text()
    finally:
        if is_damaged:
            path.unlink()
        aside.rename(path)
    again = build_site(session.store, records, tmp_path / "again", previous_site=lacking).parent
    assert files(again) == files(site)


def test_no_runs_and_bad_ids(session, records, tmp_path):
    assert "no runs yet" in pages.read(build_site(session.store, [], tmp_path)).text
    for run in ("../evil", "..", "", "a/b"):
        with pytest.raises(HallmarkError, match="is not a valid folder name"):
            build_site(session.store, [{**records[0], "run": run}], tmp_path)
