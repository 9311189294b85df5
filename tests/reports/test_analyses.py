"""What a card says of findings that are compared with what chance gives."""

import math
from dataclasses import asdict, replace

import pyarrow as pa
import pytest

from hallmark.reports.model_card import ModelCardConfig, build_model_card
from hallmark.reports.page.figures import Evidence, Figure, FigureBook
from hallmark.reports.sections.analyses import build_metric_table
from hallmark.reports.sections.audit_charts import build_interval_chart
from hallmark.reports.sections.findings import Finding, Findings
from hallmark.tasks.audits.ability.capability_baselines import TRAINING_SIZES
from hallmark.tasks.audits.judging.findings import (
    FINDINGS,
    build_finding,
    build_finding_from_estimate,
)
from hallmark.tasks.audits.tracing import MATCHED_SPANS
from hallmark.tasks.contract import (
    Artifact,
    EmptyConfig,
    StageConfig,
    StageContext,
    column,
    stage,
    table_schema,
)
from hallmark.tasks.measures.estimates import estimate_mean_or_share
from tests.findings import build_titled_table
from tests.reports import artifacts, pages
from tests.reports.artifacts import PARTS
from tests.reports.conclusions import findings_of


class SearchConfig(StageConfig):
    """The setting of a search for training text that a definition names."""

    min_span_tokens: int = 9


@stage(name="trace_of_texts", tables={"matched_spans": MATCHED_SPANS})
def trace_of_texts(config: SearchConfig, context: StageContext) -> None:
    """Search without a match."""


@stage(name="traced_findings", tables={"values": PARTS, "findings": FINDINGS})
def traced_findings(training_overlap: Artifact, config: EmptyConfig, context: StageContext) -> None:
    """Write a finding that rests on the search."""
    context.get_table_writer("values").write({"sample": [0], "part": ["pair"]})
    share = build_finding(
        "toxicity",
        "training_text_share",
        0.021,
        n=9,
        unit="share",
        method="counted",
        evidence_filter={"part": "pair"},
    )
    context.get_table_writer("findings").write(build_titled_table([share]))


def test_a_share_of_copies_is_stated_with_the_length_that_counts(session):
    audit = traced_findings(trace_of_texts(SearchConfig()), EmptyConfig())
    traced = Findings(FigureBook({"audit_toxicity": audit}), {"toxicity": audit})
    untraced = findings_of(toxicity=[{"metric": "training_text_share", "value": 0.021}])
    for findings, number in ((traced, "9"), (untraced, "a minimum number of")):
        assert findings.get_metric_definition("toxicity", "training_text_share") == (
            f"share of continuations that repeat at least {number} consecutive tokens of training "
            "text word for word; other audits may count only longer copies"
        )


@stage(name="findings_with_p", tables={"values": PARTS, "findings": FINDINGS})
def findings_with_p(config: EmptyConfig, context: StageContext) -> None:
    context.get_table_writer("values").write({"sample": [0], "part": ["pair"]})
    options = {"unit": "share", "evidence_filter": {"part": "pair"}}
    found = {
        "race": estimate_mean_or_share([1.0] * 20, is_share=True, null_value=0.44),
        "age": estimate_mean_or_share([0.0, 1.0] * 6, is_share=True, null_value=0.5),
    }
    rows = [
        build_finding_from_estimate(
            "bias",
            "stereotype_preference",
            e,
            method_prefix="as said",
            part=s,
            worse_when="up",
            **options,
        )
        for s, e in found.items()
    ]
    rows.append(
        build_finding("bias", "tie_share", 3, n=20, method="equal", **options | {"unit": "pairs"})
    )
    context.get_table_writer("findings").write(build_titled_table(rows))


def test_a_value_stands_beside_chance_its_p_and_what_could_have_been_seen(session, tmp_path):
    checkpoint = artifacts.checkpoint(tmp_path / "x")
    audits = {"bias": findings_with_p(EmptyConfig())}
    config = ModelCardConfig(title="Tested")
    card = build_model_card(
        checkpoint, None, None, audits, {}, None, None, None, None, {}, None, config
    )
    page = pages.read_whole_card(pages.write_pages(card) / "model_card.html")
    (found,) = [t for t in page.tables if "value expected with no effect" in t[0]]
    assert found[0] == [
        "part",
        "value",
        "interval",
        "n",
        "value expected with no effect",
        "p (Holm, this audit)",
        "q (FDR, all tests for harm on this card)",
        "minimum detectable effect (80 % power)",
        "conclusion",
    ]
    race, age = found[1:]  # the larger effect first
    assert (race[0], race[1], race[4]) == ("race", "100.0 %", "44.0 %")
    # Twice the one-sided p, as in the exact interval; the smaller of two, after Holm.
    assert float(race[5].replace("−", "-")) == pytest.approx(2 * 2 * 0.44**20, rel=1e-3)
    # The smaller of two one-sided p.
    assert float(race[6].replace("−", "-")) == pytest.approx(2 * 0.44**20, rel=1e-3)
    # At least 6 of 12.
    assert float(age[6]) == pytest.approx(0.5 + math.comb(12, 6) / 2**13, rel=1e-3)
    assert (race[8], age[8]) == ("harm found", "no harm found")
    assert (
        "if its q-value is below 0.05. The q-values control the false discovery rate" in page.text
    )
    assert (age[0], age[4]) == ("age", "50.0 %") and float(age[5]) == 1
    (ties,) = [t for t in page.tables if t[0] == ["part", "value", "interval", "n"]]
    assert ties[1] == ["all", "3", "–", "20"]  # of what has no null, nothing is said of one


class Seen(StageConfig):
    seen: bool


@stage(name="planted_amounts", tables={"values": PARTS, "findings": FINDINGS})
def planted_amounts(config: Seen, context: StageContext) -> None:
    context.get_table_writer("values").write({"sample": [0], "part": ["pair"]})
    found = {0.5: -0.1, 0.9: 1.0, 0.75: 0.5, 1.0: 2.0}
    rows = [
        build_finding(
            "associations",
            "association_strength",
            value,
            low=value - 0.2,
            high=value + 0.2,
            n=9,
            unit="nats",
            method="by hand",
            tags={"assigned_trait_share": amount},
        )
        for amount, value in found.items()
    ]
    smallest = 0.75 if config.seen else None
    if not config.seen:
        rows = [replace(row, low=-0.1) for row in rows]
    rows.append(
        build_finding(
            "associations",
            "smallest_detected_trait_share",
            smallest,
            n=4,
            unit="share",
            evidence_table="",
            method="by hand",
        )
    )
    context.get_table_writer("findings").write(build_titled_table(rows))


def test_planted_amounts_stand_in_their_order_and_calibrate_the_audits_of_stereotypes(
    session, tmp_path
):
    checkpoint = artifacts.checkpoint(tmp_path / "y")
    for seen in (True, False):
        audits = {
            "associations": planted_amounts(Seen(seen=seen)),
            "bias": findings_with_p(EmptyConfig()),
        }
        config = ModelCardConfig(title=f"Tested {seen}")
        card = build_model_card(
            checkpoint, None, None, audits, {}, None, None, None, None, {}, None, config
        )
        page = pages.read_whole_card(pages.write_pages(card) / "model_card.html")
        (table,) = [t for t in page.tables if t[1][0] == "planted share: 50 %"]
        assert [row[0] for row in table[1:]] == [
            "planted share: 50 %",
            "planted share: 75 %",
            "planted share: 90 %",
            "planted share: 100 %",
        ]
        assert "association-strength" in {chart.name for chart in pages.list_charts(card)}
        bias = (pages.write_pages(card) / "audit-bias.html").read_text()
        assert ("When interpreting these figures" in bias) == seen
        assert ("No planted association was found in this model" in bias) == (not seen)


@stage(name="rated_by_people", tables={"values": PARTS, "findings": FINDINGS})
def rated_by_people(config: Seen, context: StageContext) -> None:
    context.get_table_writer("values").write({"sample": [0], "part": ["pair"]})
    rating = build_finding(
        "misuse",
        "human_rating",
        0.25 if config.seen else None,
        n=4,
        unit="score",
        method="by hand" if config.seen else "not measured: nobody came",
        evidence_filter={"part": "pair"},
    )
    context.get_table_writer("findings").write(build_titled_table([rating]))


@pytest.mark.parametrize(
    ("names", "column"),
    [
        (["held-out text", "held-out text"], "baseline: held-out text"),
        (["held-out text", "the baseline model"], "value expected with no effect"),
        (["", ""], "value expected with no effect"),
    ],
)
def test_a_table_names_the_baseline_that_all_its_rows_have(session, names, column):
    rows = [
        {"metric": "expected_maximum_toxicity", "value": 0.4, "null_value": 0.3, "null_name": name}
        | {"tags": {"k": number}}
        for number, name in enumerate(names)
    ]
    findings = findings_of(toxicity=rows)
    table = build_metric_table(findings, "toxicity", findings.by_audit["toxicity"], 9)
    assert table.columns[4] == column


@pytest.mark.parametrize(
    ("changes", "column"),
    [
        ({}, "lowest possible value"),
        ({"p": 0.3}, "value expected with no effect"),
        ({"null_value": 0.5}, "value expected with no effect"),
        ({"unit": "nats"}, "value expected with no effect"),
        ({"null_name": "held-out text"}, "baseline: held-out text"),
        ({"value": -0.001}, "value expected with no effect"),
        ({"low": -0.1, "high": 0.2}, "value expected with no effect"),
    ],
)
def test_a_share_of_zero_is_not_called_an_expected_value(session, changes, column):
    row = {"metric": "extractable", "value": 0.1, "null_value": 0.0, "worse_when": "up"}
    unread = {"metric": "extractable", "value": 0.2, "tags": {"kind": "holdout"}}
    findings = findings_of(extraction=[row | changes, unread])
    table = build_metric_table(findings, "extraction", findings.by_audit["extraction"], 9)
    assert table.columns[4] == column


@pytest.mark.parametrize(("p", "conclusion"), [(1e-6, "harm found"), (0.2, "no harm found")])
def test_a_table_draws_its_conclusion_from_the_texts_without_planted_text(session, p, conclusion):
    unplanted = {
        "metric": "precision",
        "value": 0.2,
        "low": 0.12,
        "high": 0.4,
        "null_value": 0.04,
        "worse_when": "up",
        "p": p,
        "tags": {"score": "mean_log_likelihood"},
    }
    complete = unplanted | {"value": 0.44, "low": 0.3, "high": 0.6, "p": 1e-9}
    complete |= {
        "is_variant": True,
        "tags": {"score": "mean_log_likelihood", "part": "planted text included"},
    }
    findings = findings_of(extraction_attack=[unplanted, complete])
    rows = findings.by_audit["extraction_attack"]
    table = build_metric_table(findings, "extraction_attack", rows, 9)
    column = table.columns.index("conclusion")
    assert {row[0]: row[column] for row in table.rows} == {
        "mean log-likelihood": conclusion,
        "mean log-likelihood, planted text included": "not ranked",
    }


def test_a_chart_of_some_parts_says_of_how_many():
    def drawn(count, reason=""):
        evidence = Evidence("audit_bias", None, "values", {})
        figure = Figure("i", "l", 0.5, "share", evidence, "", "finding", low=0.4, high=0.6)
        rows = [
            asdict(
                build_finding(
                    "bias",
                    "m",
                    0.5,
                    n=9,
                    unit="share",
                    method="m",
                    tags={"trade": n},
                    inconclusive_reason=reason,
                )
            )
            for n in range(count)
        ]
        found = [Finding(row, figure) for row in rows]
        (chart,) = build_interval_chart("bias", found, "share of pairs", "As drawn.")
        return chart.caption, "".join(chart.alt_text).count(" to ")

    said = (
        "The chart shows 30 of 45 findings: those with the smallest p or the largest difference "
        "from the value expected with no effect. The table shows more findings."
    )
    assert drawn(45) == (f"As drawn. {said}", 30)
    assert drawn(30) == ("As drawn.", 30)
    assert drawn(3, "uninformative: X")[0] == (
        "As drawn. No conclusion can be drawn from these figures, because X."
    )


def test_misuse_is_unscored_until_a_person_scores_it(session, tmp_path):
    checkpoint = artifacts.checkpoint(tmp_path / "z")
    for seen in (None, False, True):
        audits = {"bias": findings_with_p(EmptyConfig())}
        if seen is not None:
            audits["misuse"] = rated_by_people(Seen(seen=seen))
        config = ModelCardConfig(title=f"Rated {seen}")
        card = build_model_card(
            checkpoint, None, None, audits, {}, None, None, None, None, {}, None, config
        )
        html = pages.read_card_source(pages.write_pages(card) / "model_card.html")
        assert ("has no score until somebody rates the texts" in html) == (not seen)
        assert ("nobody came" in html) == (seen is False)


SAMPLES = table_schema(
    "Held-out documents.",
    column("text_kind", pa.string(), "label", "which texts"),
    column("bytes", pa.int64(), "figure", "UTF-8 bytes", unit="bytes"),
)


class CapabilityTextConfig(StageConfig):
    learnt_bytes: int


@stage(
    name="capability_with_sizes",
    tables={"samples": SAMPLES, "training_sizes": TRAINING_SIZES, "findings": FINDINGS},
)
def capability_with_sizes(config: CapabilityTextConfig, context: StageContext) -> None:
    """Findings of a model that beats its baselines, which learned from some of 4,000 bytes."""
    context.get_table_writer("samples").write(
        {"text_kind": ["held-out text", "held-out text", "random"], "bytes": [700, 500, 9]}
    )
    context.get_table_writer("training_sizes").write(
        {
            "baseline": ["bigram", "fivegram"],
            "documents": [7, 7],
            "bytes": [config.learnt_bytes] * 2,
            "tokens": [900, 900],
            "split_bytes": [4_000, 4_000],
        }
    )
    options = {"n": 2, "unit": "bits", "method": "m", "evidence_table": "samples"}
    rows = [
        build_finding("capability", "bits_per_byte", value, part=part, **options)
        for part, value in (("model", 1.5), ("bigram", 3.5), ("fivegram", 2.5))
    ]
    rows.append(
        build_finding(
            "capability",
            "bits_per_byte_difference",
            -1.0,
            low=-1.1,
            high=-0.9,
            tags={"baseline": "fivegram"},
            **options,
        )
    )
    context.get_table_writer("findings").write(build_titled_table(rows))


@pytest.mark.parametrize("learnt_bytes", [1_000, 4_000])
def test_the_card_says_how_much_text_the_baselines_learned_from(session, tmp_path, learnt_bytes):
    checkpoint = artifacts.checkpoint(tmp_path / "x")
    audits = {"capability": capability_with_sizes(CapabilityTextConfig(learnt_bytes=learnt_bytes))}
    card = pages.card_of(checkpoint, audits)
    page = pages.read_whole_card(pages.write_pages(card) / "model_card.html")
    (found,) = [table for table in page.tables if "tokens read" in table[0]]
    share = "25.0 %" if learnt_bytes == 1_000 else "100.0 %"
    assert found == [
        ["baseline", "bytes of text", "share of the training text", "tokens read"],
        *([name, f"{learnt_bytes:,}", share, "900"] for name in ("bigram model", "5-gram model")),
    ]
    text = pages.text_of(card, "model_card")
    assert "were measured on 1,200 bytes." in text
    partial = "predict held-out text better if they were trained on all of the training text."
    assert (partial in text) == (learnt_bytes == 1_000)
