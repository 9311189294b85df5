"""Test error rates on cards: on a study's card, and for a model card's audits."""

import re

import pytest

from hallmark.reports.model_card import ModelCardConfig, build_model_card
from hallmark.reports.sections.error_rates import format_planted_amount
from hallmark.reports.study_card import StudyCardConfig, build_study_card
from hallmark.tasks.contract import EmptyConfig
from tests.reports import artifacts, pages
from tests.reports.test_analyses import findings_with_p
from tests.tasks.audits.experiments.test_error_rates import candidate, rates_of_trials


def build_error_rates(session, found=True, alarm=0.5, whole=0.5):
    """Build the rates of a trial with a secret and an association at the largest amount, and of one
    without.
    """
    some = [
        candidate("canary", "c", 64, p=0.01 if found else 0.9, whole=whole),
        candidate("canary", "a", 0, p=alarm),
        candidate("association", "x", 1.0, p=0.01),
        candidate("association", "y", 0.5, p=0.6),
    ]
    none = [candidate("canary", "a", 0, p=alarm), candidate("association", "y", 0.5, p=0.7)]
    return rates_of_trials({"one": some, "two": none}, {"three": "its answer key was changed"})


def card_of(made, **settings):
    return build_study_card(made, StudyCardConfig(**settings))


def test_study_card_states_conclusions(session):
    page = pages.read(pages.write_pages(card_of(build_error_rates(session))) / "study_card.html")
    text = " ".join(page.text.split())
    found = "every audit with a planted effect detects its largest effect in at least 95 % of cases"
    assert f"Detection: {found}; results from so few trials are weak evidence." in text
    many = {str(n): [candidate("canary", "c", 64, p=0.01, whole=0.5)] for n in range(10)}
    text = " ".join(
        pages.read(
            pages.write_pages(card_of(rates_of_trials(many))) / "study_card.html"
        ).text.split()
    )
    assert "at least 95 % of cases. False alarms:" in text and "so few trials" not in text
    assert "Intervals: no candidate type is shown" in text  # ten intervals
    many = {
        str(n): [
            candidate("canary", f"{m}", 64, p=0.01, whole=0.5 + (m % 20 == 0)) for m in range(40)
        ]
        for n in range(10)
    }
    text = " ".join(
        pages.read(
            pages.write_pages(card_of(rates_of_trials(many))) / "study_card.html"
        ).text.split()
    )
    assert "Intervals: the 95 % intervals cover the true value in 92 to 98 % of cases." in text
    assert "False alarms: no audit has been shown to produce false alarms" in page.text
    assert (
        "Intervals: no candidate type is shown to have intervals that cover the true value in fewer"
    ) in " ".join(page.text.split())
    beyond = {
        str(n): [candidate("canary", f"{m}", 64, p=0.01, whole=2.0) for m in range(9)]
        for n in range(30)
    }
    wide = pages.read(pages.write_pages(card_of(rates_of_trials(beyond))) / "study_card.html")
    assert (
        "Planted secrets: the intervals cover the true value too rarely, in 0.0 % of 270"
        in " ".join(wide.text.split())
    )
    assert re.search(r"the highest rate is [\d.]+ % \([\d.]+ % to [\d.]+ %\), ", page.text)
    assert "three" in page.text and "its answer key was changed" in page.text
    page = pages.read(
        pages.write_pages(card_of(build_error_rates(session, found=False))) / "study_card.html"
    )
    text = " ".join(page.text.split())
    assert (
        "Planted secrets at 64 (copies): found in 0.0 %, 95.0 points less than the required" in text
    )
    missed = {str(n): [candidate("canary", "c", 64, p=0.9)] for n in range(3)}
    page = pages.read(pages.write_pages(card_of(rates_of_trials(missed))) / "study_card.html")
    text = " ".join(page.text.split())
    assert re.search(
        r"found in 0\.0 % \(0\.0 % to [\d.]+ %\), 95\.0 points less than the required", text
    )


def said_of(*trials, void=None):
    made = rates_of_trials({str(n): rows for n, rows in enumerate(trials)}, void)
    page = pages.read(pages.write_pages(card_of(made)) / "study_card.html")
    return " ".join(page.text.split())


def test_trials_without_effects_count_for_false_alarms(session):
    """Trials in which only the speech about people differs count, too."""
    none = [candidate("canary", "a", 0, p=0.01), candidate("canary", "b", 0, p=0.01)]
    text = said_of(*[none] * 12, void={"one": "gone"})
    assert "towards the results: 12 of 13." in text
    assert "Detection: no trial that counts towards the results has a planted effect." in text
    assert "False alarms: Planted secrets: false alarms in 100.0 %" in text
    speech = [candidate("speech", "g", 1.0, p=0.01), candidate("speech", "h", 0.0, p=0.2)]
    text = said_of(*[[*speech, candidate("association", "x", 0.5, p=0.9)]] * 12)
    assert (
        "every audit with a planted effect detects its largest effect in at least 95 % of cases"
        in text
    )
    assert "points less than the required" not in text and "less than in other groups" in text
    assert "nothing was measured. Trials created: 1." in said_of(void={"one": "gone"})


def test_candidates_without_a_verdict_are_reported(session):
    silent = [
        (None, {"kind": "canary", "candidate_id": str(n), "effect_level": 4}) for n in range(3)
    ]
    text = said_of([candidate("canary", "a", 64, p=0.01), *silent])
    assert "Not judged: 3 candidates" in text
    assert "Of 3 more" not in said_of([candidate("canary", "a", 64, p=0.01)])


def callouts(*trials):
    """Read the statements of the first screen of a study's card: status and text by title."""
    made = rates_of_trials({str(n): rows for n, rows in enumerate(trials)})
    html = (pages.write_pages(card_of(made)) / "study_card.html").read_text()
    said = re.findall(r'<p class="callout (\w+)">(.*?)</p>', html, re.DOTALL)
    plain = [(how, " ".join(re.sub("<[^>]+>", "", text).split())) for how, text in said]
    return {text.partition(":")[0]: (how, text) for how, text in plain}


@pytest.mark.parametrize("kind", ["canary", "passage"])
def test_unjudged_candidates_are_not_detected(session, kind):
    """Check trials in which all or some candidates of a kind at the largest amount are unjudged."""
    judged = [candidate("canary", "c", 64, p=0.01), candidate("canary", "n", 0, p=0.5)]
    assert callouts(*[judged] * 12)["Detection"][0] == "good"
    silent = [
        (None, {"kind": kind, "candidate_id": f"s{n}", "effect_level": 64}) for n in range(19)
    ]
    how, said = callouts(*[[*judged, *silent]] * 12)["Detection"]
    what = {"canary": "planted secrets", "passage": "repeated passages"}[kind]
    assert how == "note" and f"228 at 64 (copies) could not be judged ({what})." in said
    how, said = callouts(*[[candidate("canary", "n", 0, p=0.5), *silent]] * 12)["Detection"]
    assert how == "note" and "every audit" not in said and "228 at 64" in said
    smaller = (None, {"kind": "canary", "candidate_id": "s", "effect_level": 4})
    assert callouts(*[[*judged, smaller]] * 12)["Detection"][0] == "good"
    larger = [
        (None, {"kind": "canary", "candidate_id": f"s{n}", "effect_level": amount})
        for n, amount in enumerate((64, 128, 128))
    ]
    how, said = callouts(*[[*judged, *larger]] * 12)["Detection"]
    assert how == "note" and "the largest effect on which it reached a verdict" in said
    assert "24 at 128 (copies) could not be judged" in said


@pytest.mark.parametrize(("kind", "amount"), [("passage", 0.0), ("association", 0.5)])
def test_trials_without_effects_lack_no_verdict(session, kind, amount):
    nothing = [
        candidate("canary", "n", 0, p=0.5),
        (None, {"kind": kind, "candidate_id": "s", "effect_level": amount}),
    ]
    how, said = callouts(*[nothing] * 12)["Detection"]
    assert (how, said) == (
        "note",
        "Detection: no trial that counts towards the results has a planted effect.",
    )


def test_rate_without_cases_is_not_good(session):
    made = callouts(*[[candidate("canary", "c", 64, p=0.01, low=None, high=None)]] * 12)
    assert made["False alarms"] == (
        "note",
        "False alarms: no audit reached a verdict on a candidate without an effect.",
    )
    assert made["Intervals"] == (
        "note",
        "Intervals: no interval can be compared with a true value.",
    )


def test_intervals_with_one_end_are_counted_separately(session, tmp_path):
    two = [candidate("canary", f"{n}", 64, p=0.01) for n in range(3)]
    one = [candidate("canary", f"s{n}", 64, p=0.01, high=None) for n in range(2)]
    said = "Not counted: 4 candidates, which lack a two-sided interval or a known true"
    assert said in said_of([*two, *one], [*two, *one]) and "Not counted" not in said_of(two, two)
    known = {"extraction": rates_of_trials({"one": [*two, *one]})}
    card = build_model_card(
        artifacts.checkpoint(tmp_path / "x"),
        None,
        None,
        {"extraction": findings_with_p(EmptyConfig())},
        {},
        None,
        None,
        None,
        None,
        known,
        None,
        ModelCardConfig(),
    )
    text = " ".join(pages.read_whole_card(pages.write_pages(card) / "model_card.html").text.split())
    assert re.search(
        r"in 100\.0 %.*, not counting 2 candidates that lack a two-sided interval, a known true "
        "value, or both",
        text,
    )


def test_figures_are_means_over_candidates(session):
    made = build_error_rates(session)
    card = card_of(made)
    figures = {row["id"]: row for row in pages.read_figures(card).to_dict("records")}
    units = made["candidates"].read().to_pylist()
    mine = [u for u in units if u["kind"] == "canary" and u["has_effect"] is False]
    row = figures["claimed-canary"]
    assert row["row_count"] == len(mine) == 2
    assert row["value"] == pytest.approx(sum(u["is_detected"] for u in mine) / 2)
    assert row["confidence_level"] == pytest.approx(1 - 0.05 / 2)
    assert pages.broken_links(pages.write_pages(card)) == []


def test_model_card_reports_error_rates_of_its_audits(session, tmp_path):
    checkpoint = artifacts.checkpoint(tmp_path / "checkpoint")
    audits = dict.fromkeys(("extraction", "bias"), findings_with_p(EmptyConfig()))
    known = {"extraction": build_error_rates(session)}
    card = build_model_card(
        checkpoint, None, None, audits, {}, None, None, None, None, known, None, ModelCardConfig()
    )
    text = " ".join(pages.read_whole_card(pages.write_pages(card) / "model_card.html").text.split())
    assert "could not be judged" not in text
    assert (
        "Error rates (planted secrets): in 2 synthetic corpora (trials) with known effects that "
        "were hidden from the audit, it found 100.0 % of the candidates (possible effects) at "
        "64 (copies)"
    ) in text
    assert text.count("Error rates (") == 1  # nothing is known of bias
    assert "are not known, because this store has no study" not in text
    card = build_model_card(
        checkpoint, None, None, audits, {}, None, None, None, None, {}, None, ModelCardConfig()
    )
    text = " ".join(pages.read_whole_card(pages.write_pages(card) / "model_card.html").text.split())
    assert "are not known, because this store has no study of their current versions" in text


def test_model_card_reports_candidates_without_a_verdict(session, tmp_path):
    checkpoint = artifacts.checkpoint(tmp_path / "checkpoint")
    silent = (None, {"kind": "canary", "candidate_id": "s", "effect_level": 64})
    known = {"extraction": rates_of_trials({"one": [candidate("canary", "c", 64, p=0.01), silent]})}
    audits = {"extraction": findings_with_p(EmptyConfig())}
    card = build_model_card(
        checkpoint, None, None, audits, {}, None, None, None, None, known, None, ModelCardConfig()
    )
    text = " ".join(pages.read_whole_card(pages.write_pages(card) / "model_card.html").text.split())
    assert "64 (copies), while 1 at 64 (copies) could not be judged (planted secrets)" in text


def test_amounts_are_copies_or_shares():
    said = [format_planted_amount(amount) for amount in (0.0, 29 / 48, 1.0, 64.0, 1000.0, 1024.0)]
    assert said == ["0", "0.604", "1", "64", "1,000", "1,024"]
