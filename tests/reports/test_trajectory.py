"""The page of a training whose checkpoints were audited: its numbers, their rows, what is not
compared, and that nothing on it is what must not be shown."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from hallmark.reports.page.figures import format_number as shown
from hallmark.reports.sections.checkpoint_comparison import format_p_value
from hallmark.reports.site import build_site
from hallmark.reports.trajectory import AuditedTraining
from hallmark.tasks.audits.audit_tables import build_items_schema
from hallmark.tasks.audits.judging.findings import (
    FINDINGS,
    build_finding,
    build_finding_from_estimate,
)
from hallmark.tasks.audits.judging.measures import ValueWriter, build_values_schema
from hallmark.tasks.contract import StageConfig, StageContext, column, stage, table_schema
from hallmark.tasks.measures.estimates import estimate_mean_or_share
from tests.findings import build_titled_table
from tests.reports import pages
from tests.reports.artifacts import EMAIL, HIDDEN, SCRIPT, UNJUDGED

#: Values of twelve items of two parts, at three steps. Differences of items are symmetric around
#: their mean, so intervals of changes are those of paired t tests, without skewness.
STEPS = (0, 100, 400)
FIRST = (0.1, 0.4, 0.2, 0.3, 0.5, 0.2, 0.1, 0.4, 0.3, 0.2, 0.5, 0.1)
EARLY, LATE = (0.2, 0.1, 0.3, -0.1, 0.15, 0.05), (0.1, -0.2, 0.3, 0.25, -0.15, 0.2)


def move(values, mean, deviations):
    """Add a mean and deviations, half of the items with each sign."""
    signed = (*deviations, *(-deviation for deviation in deviations))
    return tuple(
        round(value + mean + deviation, 6) for value, deviation in zip(values, signed, strict=True)
    )


SECOND = move(FIRST, 0.2, EARLY)
WHOLE = (FIRST, SECOND, move(SECOND, 0.75, LATE))
PART = tuple(tuple(2 * value - 0.3 for value in values) for values in WHOLE)
ITEMS = tuple(f"item {n}" for n in range(len(FIRST)))


class FoundConfig(StageConfig):
    """``told``: slice and values of the findings; ``more``: slices of findings without units."""

    audit: str = "bias"
    seed: int = 0
    told: tuple[tuple[str, tuple[float, ...]], ...] = ()
    more: tuple[tuple[str, float | None], ...] = ()
    worse: str = "up"
    clusters: tuple[str, ...] = ITEMS


TOLD = (column("slice", pa.string(), "label", "which part of the finding"),)


@stage(
    name="found",
    tables={"findings": FINDINGS, "values": build_values_schema(build_items_schema(), TOLD)},
)
def found(config: FoundConfig, context: StageContext) -> None:
    rows = []
    about = [
        {"item": name.encode().ljust(16), "cluster": cluster, "text": name}
        for name, cluster in zip(ITEMS, config.clusters, strict=True)
    ]
    units = ValueWriter(pa.Table.from_pylist(about, schema=build_items_schema()), value_fields=TOLD)
    for part, values in config.told:
        made = estimate_mean_or_share(values, config.clusters, null_value=0.25)
        units.add_values("strength", range(len(ITEMS)), values, slice=part)
        rows.append(
            build_finding_from_estimate(
                config.audit,
                "strength",
                made,
                unit="nats",
                method_prefix="m",
                part=part,
                worse_when=config.worse,
                evidence_filter={"measure": "strength", "slice": part},
                scorer="linear 1.0",
            )
        )
    for part, value in config.more:
        rows.append(
            build_finding(
                config.audit,
                "slope",
                value,
                unit="nats",
                method=f"none: {SCRIPT}",
                n=3,
                part=part,
                worse_when="up",
                evidence_table="values",
                evidence_filter={},
            )
        )
    context.get_table_writer("findings").write(build_titled_table(rows))
    context.get_table_writer("values").write(units.to_table())


@dataclass
class Site:
    folder: Path
    page: pages.Page

    @property
    def text(self) -> str:
        return " ".join(self.page.text.split())

    def rows(self, start: str, number: int = 0) -> list[dict[str, str]]:
        """The rows of a table that begins with a column of that name."""
        chosen = [t for t in self.page.tables if t[0][0] == start][number]
        return [dict(zip(chosen[0], row, strict=True)) for row in chosen[1:]]


@pytest.fixture
def show(session, made, tmp_path):
    """The site about audits of checkpoints, one a step."""

    def build(each, folder="site", history=None, newer=None) -> Site:
        """``newer``: of some steps what another run left, behind the first."""
        records, audits = [], {}
        runs = [(f"run-{step}", step, artifacts) for step, artifacts in each.items()]
        runs += [(f"newer-{step}", step, artifacts) for step, artifacts in (newer or {}).items()]
        for run, step, artifacts in runs:
            named = {name.removeprefix("audit_"): a for name, a in artifacts.items()}
            left = artifacts | {"model_card": pages.card_of(made.checkpoint, named)}
            left |= (history or {}) if not records else {}
            stages = [
                {
                    "label": label,
                    "stage": a.stage,
                    "content": a.content_digest,
                    "cached": False,
                    "artifact": a.name,
                    "seconds": 1.0,
                }
                for label, a in left.items()
            ]
            records.append(
                {
                    "run": run,
                    "flow": "audit",
                    "config_name": "c",
                    "status": "completed",
                    "started": f"2026-01-0{len(records) + 1}T10:00:00+00:00",
                    "ended": None,
                    "stages": stages,
                }
            )
            audits[step] = (run, *audits.get(step, ()))
        first = records[0]["run"]
        training = AuditedTraining(first, frozenset(record["run"] for record in records), audits)
        out = build_site(session.store, records, tmp_path / folder, [training]).parent
        assert pages.broken_links(out) == []
        page = pages.read(out / "runs" / first / "trajectory" / "trajectory.html")
        return Site(out, page)

    return build


def three(**more):
    return {
        step: {
            "audit_bias": found(FoundConfig(told=(("", whole), ("part=x", part)), **more)),
        }
        for step, whole, part in zip(STEPS, WHOLE, PART, strict=True)
    }


def holm(p):
    """The plainest way: the largest of the corrected up to each, in their order."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    made = [min(1.0, p[i] * (len(p) - rank)) for rank, i in enumerate(order)]
    return {i: max(made[: rank + 1]) for rank, i in enumerate(order)}


def test_the_numbers_are_those_of_the_tables_and_of_paired_t_tests(session, show):
    site = show(three())
    changes = site.rows("steps")
    pairs = [(0, 2), (0, 1), (1, 2)]
    tests = [stats.ttest_rel(values[j], values[i]) for values in (WHOLE, PART) for i, j in pairs]
    corrected = holm([test.pvalue for test in tests])
    assert [row["steps"] for row in changes] == ["0 → 400", "0 → 100", "100 → 400"]
    for place, ((i, j), row) in enumerate(zip(pairs, changes, strict=True)):
        test = tests[place]
        gap = np.mean(WHOLE[j]) - np.mean(WHOLE[i])
        assert float(row["change"]) == pytest.approx(gap, abs=6e-5)
        low, high = map(float, row["95 % interval"].split(" to "))
        assert (low, high) == pytest.approx(tuple(test.confidence_interval(0.95)), rel=1e-3)
        p = corrected[place]
        assert row["p, corrected"] == format_p_value(p)
        assert row["pairs"] == "12"
    for step, values, row in zip(STEPS, WHOLE, site.rows("step"), strict=True):
        assert (
            row["step"] == f"{step}"
            and row["n"] == "12"
            and row["value expected with no effect"] == "0.2500"
        )
        assert float(row["value"]) == pytest.approx(np.mean(values), abs=6e-5)
    (summed,) = site.rows("finding")
    assert summed["verdict"] == "worse" and summed["change"] == changes[0]["change"]
    (other,) = site.rows("finding", 1)
    assert other["finding"] == "Strength, part=x"
    assert float(other["change"]) == pytest.approx(2 * float(summed["change"]), abs=2e-4)
    assert (
        "linear 1.0" in site.text
        and "Confidence level: 95 %, not corrected for the number of tests." in site.text
    )


def test_every_figure_leads_to_its_rows(show):
    site = show(three())
    home = site.folder / "runs" / "run-0" / "trajectory"
    links = {text: href for href, text in site.page.links}
    for step, values in zip(STEPS, WHOLE, strict=True):
        href = links[shown(np.mean(values), "nats")]
        page = pages.read_evidence(home, href)
        assert f"run-{step}/model_card/rows/" in href
        rows = [float(value) for value in re.findall(r"Strength(-?[\d.]+) nats", page.text)]
        assert rows and all(min(abs(row - value) for value in values) < 1e-6 for row in rows)
    (change,) = {
        href
        for href, text in site.page.links
        if text == shown(np.mean(WHOLE[2]) - np.mean(WHOLE[0]), "nats")
    }
    table_ = pages.read(home / change).tables[0]
    assert table_[0] == ["item", "cluster", "text", "step 0", "step 400", "change"]
    gaps = [float(row[-1]) for row in table_[1:]]
    assert gaps == sorted(gaps, reverse=True)  # the worst first
    for _, _, item, *numbers in table_[1:]:
        n = ITEMS.index(item)
        known = [WHOLE[0][n], WHOLE[2][n], WHOLE[2][n] - WHOLE[0][n]]
        assert [float(number) for number in numbers] == pytest.approx(known, abs=1e-5)
    assert "trajectory" in {
        text.lower() for _, text in pages.read(site.folder / "index.html").links
    }
    for run in ("run-0", "run-400"):
        page = pages.read(site.folder / "runs" / run / "index.html")
        assert "Trajectory" in {text for _, text in page.links}


def test_the_same_store_gives_the_same_bytes(show):
    def files(site):
        folder = site.folder / "runs" / "run-0" / "trajectory"
        return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    once, again = files(show(three())), files(show(three(), "again"))
    assert once == again
    assert files(show(three())) == once  # in the place of the first
    (svg,) = pages.read_charts(show(three()).folder / "runs/run-0/trajectory/trajectory.html")
    assert "<script" not in svg and "<metadata" not in svg and "<image" not in svg


def test_what_cannot_be_compared_is_said_with_its_reason(show):
    each = three()
    each[0]["audit_toxicity"] = found(FoundConfig(audit="toxicity", told=(("", WHOLE[0]),)))
    for step, seed in ((0, 1), (100, 2)):
        made = found(FoundConfig(audit="extraction", seed=seed, told=(("", WHOLE[0]),)))
        each[step]["audit_extraction"] = made
    for step in STEPS:
        more = (("", 1.0 + step), *([("k=1", 2.0), ("k=2", 2.0)] if step else []))
        values = (("", WHOLE[STEPS.index(step)]),)
        each[step]["audit_bias"] = found(FoundConfig(told=values, more=more))
    site = show(each)
    said = [tuple(row.values()) for row in site.rows("audit")]
    assert said == [
        (
            "Toxic continuations",
            "all findings",
            "of the compared checkpoints, only step 0 has results for this audit",
        ),
        ("Bias", "Slope, 2 parts", "not found at step 0"),
        (
            "Bias",
            "Slope",
            "compared by value only, because it is not a mean over the same units at each "
            "checkpoint",
        ),
        ("Training-data extraction", "all findings", "the settings differ: seed"),
    ]
    slope = next(row for row in site.rows("finding") if row["finding"] == "Slope")
    assert slope["verdict"] == "not tested" and slope["change"] == "not paired"


def test_an_audit_of_some_checkpoints_is_compared_among_those(show):
    each = three()
    del each[0]["audit_bias"]
    each[0]["audit_toxicity"] = found(FoundConfig(audit="toxicity", told=(("", WHOLE[0]),)))
    site = show(each)
    assert [row["steps"] for row in site.rows("steps")] == ["100 → 400"]
    assert "This audit ran at step 100, step 400." in site.text


def test_each_audit_of_a_checkpoint_is_that_of_the_newest_run_that_made_it(show):
    toxic = {"audit_toxicity": found(FoundConfig(audit="toxicity", told=(("", WHOLE[0]),)))}
    again = {"audit_bias": found(FoundConfig(told=(("", WHOLE[1]), ("part=x", PART[2]))))}
    site = show(three(), newer={0: toxic, 400: again})
    ends = [(row["value"], float(row["value"])) for row in site.rows("step")]
    means = [np.mean(WHOLE[n]) for n in (0, 1, 1)]
    assert [value for _, value in ends] == pytest.approx(means, abs=6e-5)
    links = {text: href for href, text in site.page.links}
    assert "/newer-400/model_card/rows/" in links[ends[2][0]]
    assert "/run-0/model_card/rows/" in links[ends[0][0]]
    assert links["step 0"] == "../../newer-0/model_card/model_card.html"


@pytest.mark.parametrize("worse", ["up", ""])
def test_a_part_that_was_chosen_by_the_result_is_said_to_be(show, worse):
    each = {
        step: {
            "audit_bias": found(
                FoundConfig(told=(("part=x", whole), ("part=y", part)), worse=worse)
            )
        }
        for step, whole, part in zip(STEPS, WHOLE, PART, strict=True)
    }
    site = show(each)
    (first,) = site.rows("finding")
    assert (first["finding"], first["verdict"]) == {
        "up": ("Strength, part=y", "worse"),
        "": ("Strength, part=x", "changed"),
    }[worse]
    assert ("This is the most harmful of 2 findings of this metric at step 400" in site.text) == (
        worse == "up"
    )


def test_a_change_of_few_pairs_has_a_value_and_no_test(show):
    clusters = tuple(f"cluster {n % 9}" for n in range(len(ITEMS)))
    site = show(three(clusters=clusters))
    (first,) = site.rows("finding")
    assert (first["verdict"], first["95 % interval"], first["p, corrected"]) == (
        "not tested",
        "–",
        "–",
    )
    assert float(first["change"]) == pytest.approx(np.mean(WHOLE[2]) - np.mean(WHOLE[0]), abs=6e-5)
    assert "too few of them for a test" in site.text


def test_where_nothing_can_be_compared_the_page_says_so(show):
    each = {
        step: {"audit_bias": found(FoundConfig(seed=step, told=(("", WHOLE[0]),)))}
        for step in STEPS
    }
    site = show(each)
    assert "Nothing can be compared" in site.text and "settings differ: seed" in site.text
    assert "img" not in site.page.tags


def test_what_is_not_measured_at_a_step_is_a_gap_with_its_reason(show):
    each = {
        step: {"audit_bias": found(FoundConfig(more=(("", value),)))}
        for step, value in zip(STEPS, (None, 2.0, 3.0), strict=True)
    }
    site = show(each)
    rows = site.rows("step")
    assert rows[0]["value"] == "not measured" and rows[1]["value"] == "2.000"
    assert rows[0]["not measured because"] == f"none: {SCRIPT}"
    assert "script" not in site.page.tags


def test_nothing_on_it_is_what_must_not_be_shown(show, made):
    secret = made.secrets[0]
    clusters = (f"of {EMAIL}", SCRIPT, f"says {secret}", HIDDEN, *ITEMS[4:])
    part = f"{EMAIL} {SCRIPT} {secret}"
    each = {
        step: {"audit_bias": found(FoundConfig(told=((part, values),), clusters=clusters))}
        for step, values in zip(STEPS, WHOLE, strict=True)
    }
    site = show(each, history=made.corpus)
    folder = site.folder / "runs" / "run-0" / "trajectory"
    files = {path: path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert len(files) == 1 + 3 + 1  # one says of what the others are made
    for path, text in files.items():
        assert EMAIL not in text and secret not in text and SCRIPT not in text, path
        assert "\u202e" not in text, path
        if path.suffix == ".html":
            assert "script" not in pages.read(path).tags
    pair = next(text for path, text in files.items() if path.parent.name == "rows")
    assert "[email masked]" in pair and "[planted secret masked]" in pair


VALUES = table_schema(
    "Values with a text of the corpus that nobody has scored.",
    column("measure", pa.string(), "label", "metric"),
    column("value", pa.float64(), "figure", "value"),
    column("item", pa.string(), "label", "item"),
    pa.field("cluster", pa.string()),
    column("text", pa.string(), "corpus text", "text"),
)


@stage(name="unjudged", tables={"findings": FINDINGS, "values": VALUES})
def unjudged(config: FoundConfig, context: StageContext) -> None:
    ((_, values),) = config.told
    context.get_table_writer("values").write(
        {
            "measure": ["strength"] * len(values),
            "value": values,
            "item": ITEMS,
            "cluster": [UNJUDGED] * len(values),
            "text": [UNJUDGED] * len(values),
        }
    )
    made = build_finding_from_estimate(
        config.audit,
        "strength",
        estimate_mean_or_share(values, null_value=0.0),
        unit="nats",
        method_prefix="m",
        worse_when="up",
        evidence_table="values",
        evidence_filter={"measure": "strength"},
    )
    context.get_table_writer("findings").write(build_titled_table([made]))


def test_text_that_nobody_judged_and_columns_that_say_nothing_are_denied(show):
    each = {
        step: {"audit_bias": unjudged(FoundConfig(told=(("", values),)))}
        for step, values in zip(STEPS, WHOLE, strict=True)
    }
    site = show(each)
    folder = site.folder / "runs" / "run-0" / "trajectory"
    assert all(UNJUDGED not in path.read_text() for path in folder.rglob("*.html"))
    pair = next((folder / "rows").iterdir())
    row = pages.read(pair).tables[0][1]
    assert (
        "not shown: may contain personal data" in row[1]
        and "not shown: no toxicity score" in row[2]
    )


def test_a_damaged_audit_is_said_and_hides_nothing_else(session, show, tmp_path):
    each = three()
    for left, values in zip(each.values(), WHOLE, strict=True):
        left["audit_extraction"] = found(FoundConfig(audit="extraction", told=(("", values),)))
    show(each)
    path = each[100]["audit_bias"]["values"].parts[0].path
    path.rename(tmp_path / "aside")
    try:
        site = show(each)
    finally:
        (tmp_path / "aside").rename(path)
    (said,) = site.rows("audit")
    assert said["audit"] == "Bias" and said["why"].startswith("cannot be read: ")
    assert len(site.rows("steps")) == 3
    assert len(pages.read(site.folder / "index.html").tables[0]) == 4
    assert not [*site.folder.rglob("trajectory/.made_of")]  # no site behind it takes this page


def changed(session, artifact, **what):
    """Write other things into the manifest of an artifact; returns what puts it right again."""
    path = session.store.root_folder / artifact.folder / "manifest.json"
    whole = path.read_bytes()
    path.write_text(json.dumps(json.loads(whole) | what))
    return lambda: path.write_bytes(whole)


def test_the_ids_of_a_chart_do_not_say_what_its_part_is_called(show):
    told = ((f"category={EMAIL}" + "a question about people " * 14, WHOLE[0]),)
    site = show({step: {"audit_bias": found(FoundConfig(told=told))} for step in STEPS[:2]})
    (svg,) = pages.read_charts(site.folder / "runs/run-0/trajectory/trajectory.html")
    assert "could not be compared" not in site.text and "roe" not in svg


def test_an_audit_whose_manifest_was_changed_hides_no_other_page(session, show, caplog):
    each = three()
    show(each)
    audit = each[100]["audit_bias"]
    back = changed(session, audit, parts={})
    try:
        site = show(each)
    finally:
        back()
    (warning,) = caplog.messages
    assert warning.startswith(f"the site does not show {audit.name}: ") and "is damaged" in warning
    assert "Strength" in site.text  # of the other checkpoints
    assert len(pages.read(site.folder / "index.html").tables[0]) == 4


def test_it_says_how_many_documents_were_purged(session, show):
    each = three()
    site = show(each)
    assert "purged" not in site.text
    back = changed(session, each[100]["audit_bias"], purged={"0" * 32: "2026-01-01"})
    try:
        site = show(each)
    finally:
        back()
    folder = site.folder / "runs" / "run-0" / "trajectory"
    pages_ = [pages.read(path).text for path in folder.rglob("*.html")]
    assert len(pages_) > 3 and all("1 document from the corpus was purged" in p for p in pages_)
