"""The main results of a model card: its controls, its policy, and further harms, by branch."""

import pytest

from hallmark.flows.audit_selection import CORPUS_AUDITS
from hallmark.reports.page.document import DataTable
from hallmark.reports.page.figures import FigureBook
from hallmark.reports.sections.analyses import build_controls_page
from hallmark.reports.sections.card_summary import (
    build_card_summary,
    build_verdicts_table,
    collect_controls,
    find_audit_coverage,
    list_configured_files,
    list_failed_self_checks,
    rank_worst_finding_of_each_metric,
)
from hallmark.reports.sections.decision_sheet import AuditCoverage, describe_status
from hallmark.reports.sections.findings import Findings
from hallmark.reports.sections.missing_results import build_missing_results_section
from hallmark.tasks.audits.judging.findings import FINDINGS, build_finding
from hallmark.tasks.audits.judging.measures import NULL_INTERVAL_NOTE
from hallmark.tasks.audits.judging.policy import PolicyConfig, write_rule_verdicts
from hallmark.tasks.audits.judging.policy_outcome import judge_policy
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS, PROBES
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import StageConfig, StageContext, stage, table_to_rows
from tests.findings import build_titled_table
from tests.reports import pages
from tests.reports.conclusions import findings_of, text_of_blocks, text_of_parts, text_of_section
from tests.reports.pages import card_of

GIVEN = {"n": 40, "unit": "share", "method": "m", "evidence_table": ""}


class ToldConfig(StageConfig):
    audit: str
    failed: tuple[str, ...] = ()
    high: float = 0.6
    odd: str = ""
    mute: bool = False
    empty: bool = False


@stage(name="told", tables={"findings": FINDINGS})
def told(config: ToldConfig, context: StageContext) -> None:
    rows = [
        build_finding(
            config.audit,
            "control",
            None if config.mute and tests == "model" else 0.5 if tests != "scorer" else 0.02,
            tags={"text_kind": "threats"} if tests == "scorer" else {},
            control="positive",
            control_target=tests,
            passed=tests not in config.failed,
            scorer="words 1.0 (ab)" if tests == "scorer" else "",
            **GIVEN,
        )
        for tests in ("instrument", "scorer", "baseline", "model")
    ]
    nothing = GIVEN | {"n": 0, "method": "not measured: it is a masked language model"}
    rows.append(
        build_finding(config.audit, "found", None, **nothing)
        if config.empty
        else build_finding(
            config.audit,
            "found",
            0.5,
            low=0.4,
            high=config.high,
            null_value=0.5,
            worse_when="away_from_null",
            **GIVEN,
        )
    )
    context.get_table_writer("findings").write(build_titled_table(rows))


def screen(failed=(), missing=(), limit=None, high=0.6, why=None, mute=False, empty=(), skipped=()):
    """What the section says of all audits, of which one may fail a control."""
    audits = {
        name: told(
            ToldConfig(
                audit=name,
                failed=failed if name == "bias" else (),
                high=high,
                mute=mute and name == "bias",
                empty=name in empty,
            )
        )
        for name in AUDIT_DESCRIPTIONS
        if name not in (*missing, *skipped)
    }
    rules = {"rule": {"audit": "bias", "metric": "found", "lt": limit}} if limit else {}
    verdicts = write_rule_verdicts(audits, None, PolicyConfig(rules=rules)) if rules else None
    book = FigureBook({f"audit_{name}": artifact for name, artifact in audits.items()})
    findings = Findings(book, audits)
    coverage = find_audit_coverage(findings, why or {}, skipped)
    facts, *rest = build_card_summary(findings, verdicts, coverage, ["Nobody knows."], str)
    said = {term: text_of_parts(parts) for term, parts in facts.entries}
    return said, rest


def missing_results_of(coverage=None, **audits):
    """The section on what was not measured, as tables by caption and as text."""
    findings = findings_of(**audits)
    coverage = coverage or find_audit_coverage(findings, {}, [])
    section = build_missing_results_section(findings, coverage)
    tables = {block.caption: block.rows for block in section.blocks if isinstance(block, DataTable)}
    return tables, text_of_section(section)


@pytest.mark.parametrize(
    ("limit", "failed", "missing", "status"),
    [
        (0.7, (), (), "Pass"),
        (0.7, (), ("bold",), "Pass with gaps"),
        (0.7, ("instrument",), (), "Pass with gaps"),
        (0.7, (), ("bias",), "Not shown"),
        (0.55, (), (), "Fail"),
        (None, (), (), "Not judged"),
    ],
)
def test_each_status_comes_from_findings_and_rules(session, limit, failed, missing, status):
    audits = {
        name: told(ToldConfig(audit=name, failed=failed if name == "bias" else ()))
        for name in AUDIT_DESCRIPTIONS
        if name not in missing
    }
    rules = {"rule": {"audit": "bias", "metric": "found", "lt": limit}} if limit else {}
    verdicts = write_rule_verdicts(audits, None, PolicyConfig(rules=rules))
    findings = Findings(FigureBook({f"audit_{name}": audits[name] for name in audits}), audits)
    said, _ = describe_status(
        judge_policy(table_to_rows(verdicts["verdicts"].read())),
        find_audit_coverage(findings, {}, []),
        list_failed_self_checks(collect_controls(findings)),
    )
    assert said == status


def summary_of(**audits):
    """The main results of a card with these findings."""
    findings = findings_of(**audits)
    coverage = find_audit_coverage(findings, {}, [])
    return build_card_summary(findings, None, coverage, ["Nobody knows."], str)


def test_a_policy_is_explained_rule_by_rule(session):
    said, (verdicts,) = screen(limit=0.7)
    assert said["Policy"] == "Policy passed: 1 rule. Passed: rule."
    assert cells_of(verdicts) == [
        [
            "rule",
            "Found",
            "passed",
            "50.0 %",
            "10.0 points within the limit",
            "the upper end of its interval is 60.0 % and must be < 70.0 %",
        ]
    ]
    said, (verdicts,) = screen(limit=0.55)
    assert said["Policy"] == "Policy failed: 1 of 1 rule failed. Failed: rule."
    assert cells_of(verdicts)[0][2:] == [
        "failed",
        "50.0 %",
        "5.0 points beyond the limit",
        "the upper end of its interval is 60.0 % and must be < 55.0 %",
    ]


def test_nothing_is_repeated_of_what_the_decision_sheet_says(session):
    """Without a policy and without gaps in audits that ran."""
    said, rest = screen(missing=("bbq",), skipped=("weat",))
    assert [*said] == [
        "Do the audits work?",
        "Training text seen",
        "Audit items",
        "Value expected with no effect, and baseline",
    ]
    assert not rest
    assert said["Training text seen"] == "Nobody knows."


def cells_of(table):
    """The cells of a table as text."""
    return [[c if isinstance(c, str) else c.short_text for c in row] for row in table.rows]


def test_a_rule_that_could_not_be_judged_is_neither_passed_nor_failed(session):
    said, (verdicts,) = screen(limit=0.7, empty=("bias",))
    assert said["Policy"] == (
        "Policy not shown to pass: 1 of 1 rule could not be judged. Not shown: rule."
    )
    assert cells_of(verdicts)[0][2:] == [
        "not shown",
        "not measured",
        "–",
        "not measured: it is a masked language model",
    ]
    assert verdicts.note.startswith(
        "Each rule limits a single figure, whereas the risks on the first screen are"
    )
    assert "“Not shown” means that the finding shows neither" in verdicts.note
    # The audit did not run, so the card has no such figure.
    *_, (verdicts,) = screen(limit=0.7, missing=("bias",))
    assert cells_of(verdicts)[0][2:] == [
        "not shown",
        "–",
        "–",
        "not measured: the audit produced no result",
    ]


def test_verdicts_are_listed_worst_first_and_only_the_first_twenty(session):
    rows = [
        {"rule": name, "audit": "bias", "metric": "found", "slice": {}, "bound": "< 1"}
        | {"verdict": verdict, "distance": distance, "interval_end": 1.0, "reason": "why"}
        | {"previous_run": "", "previous_value": None}
        for name, verdict, distance in (
            ("passed", "pass", -0.5),
            ("at", "pass", -0.1),
            ("unknown", "not_shown", None),
            ("near", "fail", 0.1),
            ("far", "fail", 0.5),
            *((f"p{n}", "pass", -0.9) for n in range(17)),
        )
    ]
    table = build_verdicts_table(rows, findings_of(bias=[{"metric": "found", "value": 0.5}]))
    names = [row[0] for row in table.rows]
    assert names[:5] == ["far", "near", "unknown", "at", "passed"] and len(names) == 20
    assert table.note.endswith(" The run's verdicts table contains 2 further verdicts.")
    table = build_verdicts_table(rows[:2], findings_of(bias=[{"metric": "found", "value": 0.5}]))
    assert "further verdict" not in table.note


@pytest.mark.parametrize(
    ("worsening", "verdict", "distance", "words"),
    [
        (0.013, "pass", "0.70 points within the limit", "worse by at most 1.3 points"),
        (0.05, "fail", "3.0 points beyond the limit", "worse by at most 5.0 points"),
        (-0.02, "pass", "4.0 points within the limit", "better by at least 2.0 points"),
        (0.02, "fail", "exactly at the limit", "worse by at most 2.0 points"),
    ],
)
def test_a_verdict_about_the_previous_release_says_both_values(
    session, worsening, verdict, distance, words
):
    row = {"rule": "r", "audit": "bias", "metric": "found", "slice": {}, "reason": "why"}
    row |= {"bound": "worse by < 0.02", "previous_run": "20260101", "previous_value": 0.31}
    row |= {"verdict": verdict, "distance": worsening - 0.02, "interval_end": worsening}
    table = build_verdicts_table([row], findings_of(bias=[{"metric": "found", "value": 0.32}]))
    *_, value, distance_text, reason = cells_of(table)[0]
    assert (value, distance_text) == ("32.0 %", distance)
    assert reason == (
        f"in run 20260101 it was 31.0 %; the confidence interval of the paired difference "
        f"shows that it is now {words}; the rule allows a worsening of less than 2.0 points"
    )


def test_an_audit_that_measured_nothing_is_said_with_its_reason(session):
    said, _ = screen(empty=("bbq", "weat"), missing=("honest",))
    assert "Figures without a result" not in said
    missing = {
        "metric": "m",
        "value": None,
        "method": "not measured: it is a masked language model",
    }
    tables, _ = missing_results_of(bbq=[missing], weat=[missing, missing])
    rows = {row[0]: row[1:] for row in tables["Audits without a result or conclusion"]}
    for audit in ("bbq", "weat"):
        description = AUDIT_DESCRIPTIONS[audit]
        reason = "measured nothing: it is a masked language model"
        assert rows[description.title] == [reason, description.question]
    assert "Missing figures and items in audits with a result" not in tables


def test_controls_pass_and_fail_in_the_words_of_the_headline(session):
    control = {"metric": "control", "value": 0.5, "control": "positive", "control_target": "model"}
    rows = [control | {"passed": passed, "tags": {"k": passed}} for passed in (True, False)]
    table = findings_of(bias=rows).build_controls_table()
    assert [row[table.columns.index("verdict")] for row in table.rows] == ["passed", "failed"]


def test_an_audit_that_failed_is_said_with_its_reason(session):
    failed = {"toxicity": "stage x: no number.", "attention_maps": "no memory."}
    coverage = find_audit_coverage(findings_of(), failed, [])
    tables, text = missing_results_of(coverage)
    title = AUDIT_DESCRIPTIONS["toxicity"].title
    first = tables["Audits without a result or conclusion"][0]
    message = AUDIT_DESCRIPTIONS["toxicity"].not_run_message
    assert first == [title, "failed: stage x: no number", message]
    assert text.endswith("\nattention_maps failed: no memory.")


def test_every_reason_why_an_audit_gave_no_result(session):
    """Each is one of them: no data, no corpus, the user's choice, or a model that is too weak."""
    coverage = AuditCoverage(
        skipped=["weat"],
        without_data=["honest", "bbq"],
        without_corpus=["membership"],
        inconclusive={"bias": "the model is too weak for this audit: x is 0"},
    )
    tables, _ = missing_results_of(coverage, bias=[{"metric": "m", "value": 1}])
    assert [*tables] == ["Audits without a result or conclusion"]
    assert [row[:2] for row in tables["Audits without a result or conclusion"]] == [
        ["Associations between words (WEAT)", "the user skipped this audit"],
        [
            "Hurtful completions (HONEST)",
            "no data was provided; set audit_honest.templates and audit_honest.lexicon",
        ],
        ["Stereotyped answers (BBQ)", "no data was provided; set audit_bbq.items"],
        ["Membership inference", "the training corpus is not known"],
        ["Bias", "the model is too weak for this audit: x is 0"],
    ]
    assert [row[2] for row in tables["Audits without a result or conclusion"]] == [
        *(
            AUDIT_DESCRIPTIONS[audit].not_run_message
            for audit in ("weat", "honest", "bbq", "membership")
        ),
        AUDIT_DESCRIPTIONS["bias"].question,
    ]


def test_the_reason_of_an_audit_that_did_not_run_is_the_one_that_applies(session):
    coverage = find_audit_coverage(findings_of(), {"toxicity": "x"}, ["weat"])
    assert set(coverage.without_data) == {
        probe.name for probe in PROBES if probe.find_missing_settings(probe.config_class())
    }
    assert {*coverage.without_corpus} >= {*CORPUS_AUDITS}
    assert coverage.missing_count == COUNT


def test_missing_figures_and_items_of_an_audit_are_counted(session):
    repeated = {"metric": "repeated_items", "value": 3, "unit": "items"}
    rows = [{"metric": "m", "value": 1}, {"metric": "m", "value": None, "tags": {"k": 1}}]
    control = {"metric": "c", "value": None, "control": "negative", "control_target": "model"}
    control |= {"passed": False}
    tables, text = missing_results_of(
        AuditCoverage(), bias=[*rows, repeated, control], toxicity=rows, weat=rows[:1]
    )
    [caption] = tables
    assert caption == "Missing figures and items in audits with a result"
    assert tables[caption] == [
        ["Toxic continuations", "1 of 2", "–"],
        ["Bias", "1 of 3", "repeated items: 3"],
    ]
    tables, _ = missing_results_of(AuditCoverage(), bias=[rows[0], repeated])
    assert [*tables.values()] == [[["Bias", "–", "repeated items: 3"]]]
    tables, text = missing_results_of(AuditCoverage(), bias=rows[:1])
    assert not tables and text.endswith("Every audit produced a result, and no figure is missing.")


def test_a_finding_of_an_unknown_audit_has_no_question(session):
    """Of an audit of another version only the title is unknown."""
    coverage = AuditCoverage(empty={"rudeness": "no text"})
    tables, _ = missing_results_of(coverage)
    assert [*tables.values()] == [[["rudeness", "measured nothing: no text", "–"]]]


COUNT = len(AUDIT_DESCRIPTIONS)


def test_a_blind_scorer_breaks_no_audit(session):
    said, _ = screen(failed=("scorer",))
    assert said["Do the audits work?"].startswith(
        "All audit and baseline controls gave the expected result. Controls with the expected "
        f"result: audits {COUNT} of {COUNT}, baselines {COUNT} of {COUNT}, this model {COUNT} of "
        f"{COUNT}, scorers 1 of 2 (1 failed). Figures based on a scorer do not cover harmful text "
        "that the scorer misses; “Limits” on the first screen lists the affected types of text."
    )
    said, _ = screen(failed=("scorer", "instrument"))
    assert said["Do the audits work?"].startswith("No: Bias did not detect a known effect, or ")
    assert f"audits {COUNT - 1} of {COUNT} (1 failed), base" in said["Do the audits work?"]
    said, _ = screen()
    assert "scorers 1 of 1." in said["Do the audits work?"]
    assert "Figures based on a scorer" not in said["Do the audits work?"]


def test_equal_controls_of_a_scorer_are_shown_once(session):
    control = {"metric": "control", "control": "positive", "control_target": "scorer"}
    control |= {"scorer": "words 1.0 (ab)"}
    rows = [
        control | {"value": value, "passed": value > 0.5, "tags": {"text_kind": kind}}
        for kind, value in (("threats", 0.02), ("insults", 0.9))
    ]
    rows.append(
        control
        | {"control": "negative", "value": 0.4, "passed": False}
        | {"tags": {"text_kind": "mentions of groups", "mentioned_group": "Jews"}}
    )
    findings = findings_of(bias=rows, bold=rows)
    table = findings.build_scorer_controls_table()
    shown = [[row[table.columns.index(name)] for name in table.columns[:4]] for row in table.rows]
    assert shown == [
        ["words 1.0", "threats", "yes", "failed"],
        ["words 1.0", "insults", "yes", "passed"],
        ["words 1.0", "mentions of Jews", "no", "failed"],
    ]
    assert not findings.build_controls_table().rows


@pytest.mark.parametrize("tests", ["instrument", "baseline"])
def test_a_broken_instrument_is_no_weak_model(session, tests):
    said, _ = screen(failed=(tests,))
    assert said["Do the audits work?"].startswith("No: Bias did not detect")
    assert "too weak" not in said["Do the audits work?"]


def test_a_weak_model_breaks_no_instrument(session):
    said, _ = screen(failed=("model",))
    text = said["Do the audits work?"]
    assert text.startswith("All audit and baseline controls gave the expected res")
    assert f"this model {COUNT - 1} of {COUNT} (1 failed), scorers 1 of 1." in text
    assert text.endswith(
        "model is too weak for 1 audit, so the card draws no conclusion from its figures. Too "
        "little training is one possible cause. “Not measured” lists this audit."
    )
    assert "require: Capability (Control); Toxic " in text and "Bias (Control)" not in text


def test_the_controls_that_a_model_passes_are_named_and_no_more_is_claimed(session):
    control = {"metric": "preference", "value": 0.8, "control": "positive", "passed": True}
    control |= {"control_target": "model"}
    text = text_of_blocks(summary_of(bias=[control], toxicity=[{"metric": "m", "value": 1}]))
    assert (
        "This model passes the controls that these audits require: Bias (Preference). Capability "
        "was not tested for audits that are not listed here or under “Not measured”."
    ) in text
    assert "strong" not in text
    text = text_of_blocks(summary_of(bias=[control | {"control_target": "instrument"}]))
    assert "require" not in text


def test_a_capability_control_without_an_interval_does_not_call_the_model_weak(session):
    instrument = {"metric": "c", "value": 1.0, "control": "negative", "passed": True}
    instrument |= {"control_target": "instrument"}
    capability = {"metric": "d", "value": 0.9, "control": "positive", "passed": False}
    capability |= {"control_target": "model", "verdict": "not_shown"}
    text = text_of_blocks(summary_of(bias=[instrument, capability]))
    assert (
        "It could not be determined whether this model is capable enough for these audits: Bias"
        in text
    )
    assert (
        "The card draws no conclusion from their figures; the reasons are on the pages for these "
        "audits."
    ) in text
    assert "this model 0 of 1 (1 without a clear result)" in text
    assert "too weak" not in text and "require" not in text


def test_a_model_that_gives_no_numbers_is_not_only_called_weak(session):
    said, _ = screen(failed=("model",), mute=True)
    assert (
        "The model returned no valid number in Bias. Check its weights for NaN or infinite values. "
    ) in said["Do the audits work?"]
    said, _ = screen(failed=("model",))
    assert "no valid number" not in said["Do the audits work?"]


@stage(name="several", tables={"findings": FINDINGS})
def several(config: ToldConfig, context: StageContext) -> None:
    options = GIVEN | {"null_value": 0.0, "worse_when": "up"}
    rows = [
        build_finding(
            config.audit,
            f"metric {n}",
            n / 10 + 0.1,
            low=n / 10,
            high=n / 10 + 0.2,
            part=part,
            **options,
        )
        for n in range(1, 8)
        for part in ("", "k=1")
    ]
    rows.append(
        build_finding(config.audit, "metric 1", 0.95, low=0.9, high=1.0, tags={"k": 8}, **options)
    )
    context.get_table_writer("findings").write(build_titled_table(rows))


def test_the_worst_of_each_metric_come_first_and_lead_to_their_rows(session, made):
    audit = several(ToldConfig(audit="extraction"))
    book = FigureBook({"audit_extraction": audit})
    found = rank_worst_finding_of_each_metric(Findings(book, {"extraction": audit}))
    assert [(each.row["metric"], name_slice(each.row["slice"])) for each in found] == [
        ("metric 1", "k=8"),
        *((f"metric {n}", "") for n in (7, 6, 5, 4, 3, 2)),
    ]
    assert [each.part_count for each in found] == [3, 2, 2, 2, 2, 2, 2]
    card = card_of(made.checkpoint, {"extraction": audit})
    text = " ".join(pages.read(pages.write_pages(card) / "model_card.html").text.split())
    further = text.split("Further harms, counted but not listed on the first screen:")[1]
    assert "Metric 1 (k: 8)" not in further.split("This list contains only")[0]  # the main harm
    assert (
        "Training-data extraction, Metric 7: 80.0 % (95 % interval 70.0 % to 90.0 %, n = 40 "
        "excerpts); lowest possible value: 0.0 %. It is the worst of 2 parts; corrected for this "
        "choice, the interval is "
    ) in further
    assert (
        "This list contains only the largest finding for each audit metric, up to 5 "
        "findings. It omits 9 further harms; to list all of them, run hallmark findings."
    ) in further


def test_the_worst_of_several_parts_without_an_interval_is_called_so(session):
    """Where all values of a part agree, there is a p and no interval."""
    main = {"metric": "main", "worse_when": "up", "null_value": 0.0, "value": 0.9, "p": 1e-9}
    part = main | {"metric": "rate", "p": 1e-6}
    parts = [main, part, part | {"tags": {"k": 1}, "value": 0.8}]
    text = text_of_blocks(summary_of(bias=parts))
    assert (
        "Bias, Rate: 90.0 % (n = 9 pairs); value expected with no effect: 0.0 %. It is the "
        "worst of 2 parts."
    ) in text
    text = text_of_blocks(summary_of(bias=parts[:2]))
    assert text.endswith("Bias, Rate: 90.0 % (n = 9 pairs); value expected with no effect: 0.0 %.")


def test_no_risk_is_listed_of_an_audit_whose_question_cannot_be_asked(session):
    """The model shows none of the associations planted in its training text."""
    bias = {"metric": "rate", "worse_when": "up", "null_value": 0.5, "value": 0.9, "p": 1e-6}
    others = [bias | {"metric": "other", "p": 1e-9}, bias]
    strength = {
        "metric": "association_strength",
        "unit": "nats",
        "value": 0.1,
        "low": -1.0,
        "high": 1.2,
        "tags": {"assigned_trait_share": 1.0},
    }
    audits = {"bias": others, "toxicity": others, "associations": [strength]}
    weak = text_of_blocks(summary_of(**audits))
    assert "Toxic continuations, Rate" in weak and "Bias, Rate" not in weak
    assert "This model is too weak for 1 audit" not in weak  # no audit ran a control
    control = {"metric": "c", "value": 1.0, "control": "negative", "control_target": "instrument"}
    audits["bias"] = [*others, control | {"passed": True}]
    text = text_of_blocks(summary_of(**audits))
    assert (
        "This model is too weak for 1 audit, so the card draws no conclusion from its figures. Too "
        "little training is one possible cause. “Not measured” lists this audit."
    ) in text
    slope = strength | {"metric": "strength_by_trait_share", "tags": {}, "low": 0.1}
    shown = text_of_blocks(summary_of(bias=others, associations=[strength, slope]))
    assert "Bias, Rate" in shown and "too weak" not in shown


def test_a_list_of_harms_says_how_many_it_omits(session):
    one = {"worse_when": "up", "null_value": 0.0, "value": 1.0, "low": 0.5, "high": 1.5}
    one |= {"metric": "rate"}
    text = text_of_blocks(summary_of(bias=[one]))
    assert "Further harms" not in text  # the decision sheet names it
    rows = [one, one | {"tags": {"k": 1}}, one | {"metric": "other"}]
    text = text_of_blocks(summary_of(bias=rows))
    assert "Further harms, counted but not listed" in text and "Bias, Other: 100.0 %" in text
    assert "It omits 1 further harm; to list all of them, run" in text
    text = text_of_blocks(summary_of(bias=[rows[0], rows[2]]))
    assert "Bias, Other: 100.0 %" in text and "This list contains only" not in text


def test_harms_in_units_without_a_range_are_listed_after_the_others(session):
    harm = {"worse_when": "up", "null_value": 0.0, "value": 1.0, "low": 0.5, "high": 1.5}
    main = harm | {"metric": "main", "unit": "share", "value": 9.0, "high": 9.5}
    nats = harm | {"metric": "surprise", "unit": "nats"}
    text = text_of_blocks(summary_of(bias=[main, nats, harm | {"metric": "rate"}]))
    assert text.index("Bias, Rate") < text.index("Bias, Surprise: 1.000 nats")


def test_it_names_the_files_that_audits_were_made_on(session):
    config = {
        "pairs": "sets/crows_pairs.csv",
        "pro": ["a/pro.txt", "a/anti.txt"],
        "seed": 3,
        "kind": "all",
        "prompts": None,
    }
    assert list_configured_files(config) == ["crows_pairs.csv", "pro.txt", "anti.txt"]
    said, _ = screen()
    assert said["Audit items"] == ("The audits use built-in items or the training corpus.")
    said, _ = screen(empty=[*AUDIT_DESCRIPTIONS])
    assert said["Audit items"] == "No audit produced any measurements."


def test_files_of_items_are_named_for_each_audit(session):
    findings = findings_of(bias=[{"metric": "m", "value": 1}], weat=[{"metric": "m", "value": 1}])
    config = findings.audit_artifacts["bias"].manifest["parts"]["config"]
    config["pairs"] = "sets/crows_pairs.csv"
    coverage = find_audit_coverage(findings, {}, [])
    text = text_of_blocks(build_card_summary(findings, None, coverage, ["x"], str.upper))
    assert (
        "Audit items: 1 audit reads files; the table below lists them. The other audits use "
        "built-in items or the training corpus."
    ) in text
    assert text.endswith("Files that contain audit items\n\nBias\nCROWS_PAIRS.CSV")
    findings.audit_artifacts["weat"].manifest["parts"]["config"]["words"] = "words.json"
    text = text_of_blocks(build_card_summary(findings, None, coverage, ["x"], str))
    assert "Audit items: 2 audits read files; the table below lists them.\n" in text
    assert "Bias\ncrows_pairs.csv\nAssociations between words (WEAT)\nwords.json" in text


def test_the_interval_of_a_control_says_its_level_and_what_it_contains(session):
    control = {"metric": "exposure_of_never_planted", "value": 1.5, "low": 0.7, "high": 2.5}
    control |= {"control": "negative", "control_target": "instrument", "passed": True}
    null_interval = f"log2; {NULL_INTERVAL_NOTE} the mean of 16 values"
    rows = [
        control | {"tags": {"k": "a"}, "method": null_interval, "confidence_level": 0.99},
        control | {"tags": {"k": "b"}, "confidence_level": 0.999},
        control | {"tags": {"k": "c"}},
        control | {"tags": {"k": "d"}, "low": None, "high": None},
    ]
    table = findings_of(extraction=rows).build_controls_table()
    position = table.columns.index("meaning of the interval")
    assert table.columns[position - 1] == "interval"
    assert [row[position] for row in table.rows] == [
        "99 % range expected with no effect",
        "99.9 % confidence interval",
        "95 % confidence interval",
        "–",
    ]
    assert position not in table.numeric_columns and position + 1 in table.numeric_columns


def test_the_controls_page_says_why_a_passed_control_is_not_sufficient(session):
    control = {"metric": "preference", "value": 0.9, "control": "positive", "passed": True}
    control |= {"control_target": "model"}
    pairs = {"metric": "stereotype_preference", "value": 0.6, "null_value": 0.5, "p": 0.01}
    pairs |= {"worse_when": "up"}
    planted = {"metric": "association_strength", "tags": {"assigned_trait_share": "1.0"}}
    planted |= {"value": 0.1, "low": -0.4, "high": 0.6, "null_value": 0.0, "unit": "nats"}
    reason = "even though the model passed their controls: Bias."
    for low, is_weak in ((-0.4, True), (0.4, False)):
        slope = planted | {"metric": "strength_by_trait_share", "tags": {}, "low": low}
        slope |= {"value": 0.5, "high": 0.7}
        findings = findings_of(bias=[control, pairs], associations=[planted, slope])
        assert (reason in text_of_blocks(build_controls_page(findings).blocks)) == is_weak
    failed = control | {"passed": False}
    findings = findings_of(bias=[failed, pairs], associations=[planted])
    assert reason not in text_of_blocks(build_controls_page(findings).blocks)
