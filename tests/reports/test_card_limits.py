"""Cards are short, and each audit has a page that comes from its own declaration."""

from __future__ import annotations

import pytest

from hallmark.reports.model_card import ModelCardConfig, build_model_card
from hallmark.reports.page.document import (
    Callout,
    Chart,
    DataTable,
    Details,
    Paragraph,
    iterate_sections,
)
from hallmark.reports.sections.analyses import (
    NOT_RANKED_NOTE,
    TIMES_READ_COLUMN,
    TIMES_READ_NOTE,
    build_audit_page,
    build_metric_table,
)
from hallmark.reports.sections.decision_sheet import describe_audit_result
from hallmark.tasks.audits.audit_descriptions import (
    ITEMS_IN_TRAINING_TEXT,
    AuditDescription,
    ChartDescription,
)
from hallmark.tasks.audits.catalogue import METRICS_BY_AUDIT
from hallmark.tasks.audits.judging.discoveries import HARM_RULE, INTERVAL_RULE
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS, PROBES
from tests.reports import pages
from tests.reports.conclusions import audit_of, findings_of, text_of_parts, text_of_section
from tests.reports.test_conclusions import declared
from tests.reports.word_counts import count_words

#: Largest number of words of the page of a card, and of the visible prose of an audit's page.
MAX_WORDS = {"model_card": 2500, "datasheet": 1500}
MAX_AUDIT_WORDS = 600

#: Metrics whose titles say all: numbers of texts.
COUNTS = {
    ITEMS_IN_TRAINING_TEXT,
    "continuations_of_unscored_prompts",
    "continuations_with_planted_text",
    "empty_continuations",
    "reference_windows",
    "texts_with_planted_text",
    "threshold_ties",
    "unscored_continuations",
}


def card_with(audits, tmp_path, **settings):
    from tests.reports import artifacts

    checkpoint = artifacts.checkpoint(tmp_path / "checkpoint")
    config = ModelCardConfig(**settings)
    return build_model_card(
        checkpoint, None, None, audits, {}, None, None, None, None, {}, None, config
    )


def read_page(card, name):
    return (pages.write_pages(card) / f"{name}.html").read_text(encoding="utf-8")


def test_words_are_counted_without_cells_and_charts():
    html = (
        "<title>no</title><style>no</style><p>one two</p><svg><text>no</text></svg>"
        "<table><caption>three</caption><tr><td>no <b>no</b></td></tr></table>"
        "<details><summary>four</summary>five six<br>seven</details>"
    )
    counts = count_words(html)
    assert (counts.visible, counts.folded, counts.total) == (4, 3, 7)


@pytest.mark.parametrize("name", ["model_card", "datasheet"])
def test_cards_have_few_words(cards, name):
    assert 300 < count_words(read_page(cards[name], name)).total <= MAX_WORDS[name]


def test_a_card_on_which_every_audit_has_a_figure_is_short(session, tmp_path):
    # The slash ends what could be read as the name of a file of items.
    last = {"metric": "other", "value": 1, "tags": {"part": "a/b"}}
    audits = {
        probe.name: audit_of(
            probe.name,
            *({**row, "low": 0.1, "high": 0.9, "p": 1e-6} for row in declared(probe)),
            last,
        )
        for probe in PROBES
    }
    card = card_with(audits, tmp_path)
    assert count_words(read_page(card, "model_card")).total <= MAX_WORDS["model_card"]
    for name in audits:
        page = f"audit-{name.replace('_', '-')}"
        assert 50 < count_words(read_page(card, page)).visible <= MAX_AUDIT_WORDS


def test_every_metric_has_a_line_in_the_glossary():
    for audit, metrics in METRICS_BY_AUDIT.items():
        description = AUDIT_DESCRIPTIONS[audit]
        missing = {*metrics} - {*description.glossary, *description.skipped_count_metrics} - COUNTS
        assert not missing, audit
        assert {chart.metric for chart in description.charts} <= {*metrics}, audit
        assert description.question.endswith("?") and description.limits.endswith("."), audit
        assert not any(line.endswith(".") for line in description.glossary.values()), audit


OWN = AuditDescription(
    999,
    "Plural verbs",
    "This audit measures agreement.",
    "Agreement was not measured.",
    risk="capability",
    question="Do the verbs agree?",
    limits="Only plural nouns are used.",
    glossary={"right_share": "share of right verbs", "spread": "how far they spread"},
    charts=(
        ChartDescription("right_share", "share of verbs", "Right verbs.", reference_value=0.5),
    ),
)


def test_a_new_audit_gets_its_page_from_its_declaration(session, tmp_path, monkeypatch):
    monkeypatch.setitem(AUDIT_DESCRIPTIONS, "plural", OWN)
    groups = [f"group {n:02}" for n in range(60)]
    rows = [
        {
            "metric": "right_share",
            "value": 0.3 + n / 100,
            "low": 0.1,
            "high": 0.95,
            "null_value": 0.5,
            "worse_when": "down",
            "tags": {"group_name": name},
        }
        for n, name in enumerate(groups)
    ]
    rows.append({"metric": "spread", "value": 2.0, "unit": "words"})
    card = card_with({"plural": audit_of("plural", *rows)}, tmp_path, max_table_rows=5)
    main = pages.read(pages.write_pages(card) / "model_card.html")
    assert ("audit-plural.html", "Plural verbs") in main.links
    page = pages.read(pages.write_pages(card) / "audit-plural.html")
    for said in ("Do the verbs agree?", "Only plural nouns are used.", "how far they spread"):
        assert said in page.text
    # All groups, those with the largest effect first: of fewest right verbs here.
    assert [row[0] for row in page.tables[0][1:]] == groups
    (alt_text,) = page.alts
    assert alt_text.count(" to ") == 60 and pages.broken_links(pages.write_pages(card)) == []


def test_an_audit_without_a_chart_gets_that_of_its_first_metric(session, monkeypatch):
    own = AuditDescription(9, "Own", "It measures.", "Unknown.", risk="bias", question="Is it?")
    monkeypatch.setitem(AUDIT_DESCRIPTIONS, "own", own)
    rows = [{"metric": "first", "value": 0.4, "worse_when": "up"}, {"metric": "other", "value": 1}]
    page = build_audit_page(findings_of(own=rows), "own", 9)
    (chart,) = [block for block in page.blocks if isinstance(block, Chart)]
    assert chart.name == "first"
    empty = build_audit_page(findings_of(own=[{"metric": "first", "value": None}]), "own", 9)
    assert not [block for block in empty.blocks if isinstance(block, Chart)]
    assert text_of_parts(empty.answer) == "Unknown."


def test_the_page_of_an_audit_links_the_others_of_its_risk(session):
    harmless = {"metric": "stereotype_preference", "value": 0.5, "low": 0.4, "high": 0.6, "p": 0.9}
    harmless |= {"null_value": 0.5, "worse_when": "up"}
    harm = {"metric": "effect_size_input", "value": 0.9, "low": 0.5, "high": 1.3, "p": 1e-6}
    harm |= {"null_value": 0.0, "worse_when": "up", "unit": "standard deviations"}
    unknown = {"metric": "stereotype_preference", "value": None}
    rows = {"bias": [harmless], "winobias": [unknown], "weat": [harm], "toxicity": [harmless]}
    findings = findings_of(**rows)

    def read_links(audit):
        blocks = build_audit_page(findings, audit, 9).blocks
        texts = [text_of_parts(block.content) for block in blocks if isinstance(block, Paragraph)]
        return [text.strip() for text in texts if text.startswith("Other audits")]

    titles = {audit: AUDIT_DESCRIPTIONS[audit].title for audit in rows}
    assert read_links("bias") == [
        f"Other audits of “Bias against groups”: {titles['weat']} (harm found), "
        f"{titles['winobias']} (unknown)."
    ]
    assert read_links("weat") == [
        f"Other audits of “Bias against groups”: {titles['winobias']} (unknown), "
        f"{titles['bias']} (no harm found)."
    ]
    assert read_links("toxicity") == []


def test_variants_and_other_metrics_are_folded_away(session):
    rows = [
        {"metric": "stereotype_preference", "value": 0.6, "tags": {"category": "age"}},
        {"metric": "stereotype_preference", "value": 0.9, "is_variant": True, "tags": {"k": "1"}},
        {"metric": "tie_share", "value": 0.1},
        {
            "metric": "stereotype_preference",
            "value": 1.0,
            "control": "positive",
            "passed": True,
            "control_target": "instrument",
        },
    ]
    page = build_audit_page(findings_of(bias=rows), "bias", 9)
    (main,) = [block for block in page.blocks if isinstance(block, DataTable)]
    assert [row[0] for row in main.rows] == ["age"]
    folded = [
        block.summary
        for section in iterate_sections(page.sections)
        for block in section.blocks
        if isinstance(block, Details)
    ]
    assert folded == [
        "Methods in full",
        "Stereotype preference: all other figures",
        "Tie share",
        "Controls for this audit",
    ]


HARMFUL = {"value": 0.9, "low": 0.8, "high": 0.95, "p": 1e-6}
TESTED = {"metric": "auc", "null_value": 0.5, "worse_when": "up", "low": 0.4, "high": 0.6}


@pytest.mark.parametrize(
    ("audit", "rows", "state", "said"),
    [
        ("membership", [TESTED | HARMFUL], "found", "Harm found. "),
        (
            "membership",
            [TESTED | {"value": 0.51, "p": 0.8}],
            "not found",
            "The test does not show harm. Result: Auc: 51.0 %",
        ),
        (
            "counterfactual",
            [
                TESTED
                | {"metric": "toxicity_difference", "value": value, "tags": {"group_name": g}}
                for g, value in (("men", 0.51), ("women", 0.55))
            ],
            "not found",
            "Least favourable result: Toxicity difference (women): 55.0 %",
        ),
        ("bias", [{"metric": "tie_share", "value": 0.1}], "unknown", "was not measured."),
        (
            "bias",
            [{"metric": "stereotype_preference", "value": 0.5}],
            "unknown",
            "The model prefers the stereotypical sentence in 50.0 %",
        ),
        (
            "amplification",
            [{"metric": "women_share", "value": 0.5}],
            "unknown",
            "no conclusion: there is no value to compare the finding with.",
        ),
        ("unknown_audit", [TESTED | HARMFUL], "unknown", "does not include this audit"),
    ],
)
def test_the_answer_of_an_audit_follows_from_its_rows(session, audit, rows, state, said):
    result = describe_audit_result(audit, findings_of(**{audit: rows}))
    assert result.state == state and said in text_of_parts(result.content)
    page = build_audit_page(findings_of(**{audit: rows}), audit, 9)
    (callout,) = [block for block in page.blocks if isinstance(block, Callout)]
    assert callout.kind == ("bad" if state == "found" else "note")
    first = page.blocks[0]
    if audit in AUDIT_DESCRIPTIONS:
        assert isinstance(first, Paragraph)
        assert text_of_parts(first.content) == AUDIT_DESCRIPTIONS[audit].question


def test_of_two_discoveries_the_other_one_is_mentioned(session):
    rows = [TESTED | HARMFUL | {"tags": {"score": score}} for score in "abc"]
    for count, said in (
        (2, "The other test also shows harm."),
        (3, "Both other tests also show harm."),
    ):
        result = describe_audit_result("membership", findings_of(membership=rows[:count]))
        assert said in text_of_parts(result.content)


def test_the_limits_of_a_scorer_are_stated_once_and_not_in_each_method(session, tmp_path):
    caveat = "; the scorer words (12) often misses threats"
    control = {
        "metric": "scorer_sensitivity",
        "value": 0.0,
        "low": 0.0,
        "high": 0.1,
        "control": "positive",
        "passed": False,
        "control_target": "scorer",
        "scorer": "words (12)",
        "tags": {"text_kind": "threats"},
    }
    rows = [
        {"metric": name, "value": 0.5, "scorer": "words (12)", "method": f"a mean{caveat}"}
        for name in ("mean_toxicity", "toxic_share")
    ]
    # The controls of a scorer are among the findings of the first audit that uses it.
    audits = {"toxicity": audit_of("toxicity", control), "counterfactual": audit_of("x", *rows)}
    folder = pages.write_pages(card_with(audits, tmp_path))
    audit_page = pages.read(folder / "audit-counterfactual.html")
    (methods,) = [t for t in audit_page.tables if t[0][1:2] == ["method used for the first figure"]]
    assert [row[1] for row in methods[1:]] == ["a mean", "a mean"]
    assert "The Limits section lists what the scorers often miss." in audit_page.text
    assert audit_page.text.count("threats") == 1
    metrics_page = pages.read(folder / "metrics.html")
    assert [row[3] for row in metrics_page.tables[0][1:]] == ["a mean", "a mean"]
    assert "threats" not in metrics_page.text


def test_tables_of_planted_copies_state_how_often_these_were_read(session):
    read = "share; read completely 14 to 24 times (mean 19.6) up to this checkpoint's step"
    planted = {"metric": "extractable", "value": 0.0, "tags": {"copies": "64"}, "method": read}
    unplanted = {"metric": "extractable", "value": 0.0, "tags": {"kind": "holdout"}}
    difference = planted | {"tags": {"copies": "64-0"}}
    for rows, cells in (
        ([planted, unplanted], ["19.6", "–"]),
        ([planted | {"method": "share"}], None),
        ([difference, unplanted], None),
    ):
        findings = findings_of(extraction=rows)
        table = build_metric_table(findings, "extraction", findings.by_audit["extraction"], 9)
        assert (TIMES_READ_NOTE in table.note) == (TIMES_READ_COLUMN in table.columns)
        assert (TIMES_READ_COLUMN in table.columns) == (cells is not None)
        if cells:
            position = table.columns.index(TIMES_READ_COLUMN)
            assert sorted(row[position] for row in table.rows) == cells


UNPLANTED_SHARE = {"metric": "verbatim_share", "null_value": 0.0, "worse_when": "up", "n": 104}
UNPLANTED_SHARE |= {"value": 0.038, "low": 0.011, "high": 0.096, "method": "an exact interval"}
ALL_SHARE = UNPLANTED_SHARE | {"value": 0.171, "low": 0.122, "high": 0.235, "n": 175}
ALL_SHARE |= {"method": "a Wilson interval", "is_variant": True}
ALL_SHARE |= {"tags": {"part": "planted text included"}}


def test_the_stated_method_is_that_of_the_first_figure_of_the_table(session, tmp_path):
    missing = {"metric": "longest_training_run", "value": None, "method": "nothing to measure"}
    longest = [
        missing | {"tags": {"part": "a"}},
        missing | {"tags": {"part": "c"}, "value": 7, "method": "the second one"},
        missing | {"tags": {"part": "b"}, "value": 5, "method": "the first one"},
    ]
    audit = audit_of("extraction_attack", ALL_SHARE, UNPLANTED_SHARE, *longest)
    folder = pages.write_pages(card_with({"extraction_attack": audit}, tmp_path))
    page = pages.read(folder / "audit-extraction-attack.html")
    (main, *_) = page.tables
    assert [row[3] for row in main[1:]] == ["104"]
    (methods,) = [t for t in page.tables if t[0][1:2] == ["method used for the first figure"]]
    expected = ["an exact interval", "the first one"]
    assert [(row[1], row[3]) for row in methods[1:]] == list(zip(expected, "23", strict=True))
    metrics_page = pages.read(folder / "metrics.html")
    assert [row[3] for row in metrics_page.tables[0][1:]] == expected


def text_of_method(audit, *rows):
    page = build_audit_page(findings_of(**{audit: rows}), audit, 9)
    (section,) = [section for section in page.sections if section.title == "Method"]
    return text_of_section(section)


def test_a_page_states_by_which_rule_its_figures_are_judged(session):
    assert INTERVAL_RULE in text_of_method("extraction_attack", ALL_SHARE, UNPLANTED_SHARE)
    tested = TESTED | {"value": 0.51, "p": 0.8}
    text = text_of_method("membership", tested)
    assert HARM_RULE in text and INTERVAL_RULE not in text
    assert INTERVAL_RULE in text_of_method("membership", tested, TESTED | {"value": 0.51})


SLOPE = {"metric": "log_odds_amplification", "unit": "log-odds per log-odds", "null_value": 1.0}
SLOPE |= {"worse_when": "up", "value": 0.65, "low": -1.1, "high": 2.4, "p": 0.7}
OCCUPATION = SLOPE | {"value": 1.5, "low": -1.5, "high": 5.6, "p": None, "n": 2}
OCCUPATION |= {"tags": {"occupation": "scientist"}}


def test_the_largest_effect_is_one_of_the_tested_figures(session):
    result = describe_audit_result("amplification", findings_of(amplification=[OCCUPATION, SLOPE]))
    text = text_of_parts(result.content)
    assert "The test does not show harm. Result: Log odds amplification: 0.6500" in text
    assert "scientist" not in text
    alone = describe_audit_result("amplification", findings_of(amplification=[OCCUPATION]))
    assert "Log odds amplification (scientist): 1.500" in text_of_parts(alone.content)
    harm = OCCUPATION | {"low": 1.2}
    result = describe_audit_result("amplification", findings_of(amplification=[harm, SLOPE]))
    text = text_of_parts(result.content)
    assert result.state == "found" and "The other test does not show harm." in text
    untestable = OCCUPATION | {"low": None, "high": None}
    result = describe_audit_result("amplification", findings_of(amplification=[untestable]))
    assert result.state == "unknown"


def test_a_table_says_that_figures_that_are_not_ranked_are_no_tests_for_harm(session):
    difference = TESTED | {"metric": "toxicity_difference", "value": 0.51, "p": 0.8}
    distance = TESTED | {"metric": "toxicity_distance", "value": 0.9, "p": 0.001}
    findings = findings_of(bold=[difference, distance | {"is_variant": True}])
    for metric, is_noted in (("toxicity_difference", False), ("toxicity_distance", True)):
        metric_findings = findings.select_by_metric("bold", metric)
        table = build_metric_table(findings, "bold", metric_findings, 9)
        assert (NOT_RANKED_NOTE in table.note) == is_noted
        (conclusion,) = [row[table.columns.index("conclusion")] for row in table.rows]
        assert (conclusion == "not ranked") == is_noted
    untested = distance | {"is_variant": True, "p": None}
    table = build_metric_table(*_table_arguments(untested))
    assert NOT_RANKED_NOTE not in table.note


def _table_arguments(row):
    findings = findings_of(bold=[row])
    return findings, "bold", findings.by_audit["bold"], 9


def test_n_counts_what_the_audit_measured(session):
    honest = AUDIT_DESCRIPTIONS["honest"]
    assert honest.get_sample_unit("hurtful_share") == "prompts"
    assert honest.get_sample_unit("hurtful_excess_over_others") == "people named"
    excess = TESTED | {"metric": "hurtful_excess_over_others", "value": 0.51, "p": None}
    excess |= {"low": None, "high": None, "tags": {"category": "women"}}
    share = {"metric": "hurtful_share", "value": 0.1, "n": 1515, "worse_when": "up"}
    share |= {"tags": {"completion_count": 20}}
    result = describe_audit_result("honest", findings_of(honest=[share, excess]))
    assert (
        "10.0 % of the 20 completions of each prompt are hurtful (n = 1,515 prompts)"
        in text_of_parts(result.content)
    )
