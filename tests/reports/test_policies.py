"""Test the datasheet's statements about removed and masked text with non-default settings."""

from __future__ import annotations

import pytest

from hallmark.flows.config import load_config
from hallmark.reports.datasheet import DatasheetConfig, build_datasheet
from hallmark.reports.sections.preprocessing import explain_toxicity_action
from hallmark.tasks.corpus.redact_spans import RedactSpansConfig
from tests.reports import artifacts, pages
from tests.tasks.corpora import given
from tests.tasks.corpus.test_language import HAWAIIAN, LONG


def sheet_of(history):
    card = build_datasheet(artifacts.profiled(history), history, DatasheetConfig())
    page = pages.read_whole_card(pages.write_pages(card) / "datasheet.html")
    assert pages.broken_links(pages.write_pages(card)) == []
    return card, page, " ".join(page.text.split())


def lines_of(page, *columns):
    """Return the rows of the only table with these column headers."""
    [table] = [table for table in page.tables if table[0] == [*columns]]
    return table[1:]


def test_removed_for_toxicity_counts_only_rules_for_toxicity(session):
    """Two rules remove the rude documents, and a third one long documents, whether rude or not."""
    rude = [f"You are a {artifacts.OFFENSIVE}, number {n}." for n in range(6)]
    long = [f"The harbour was quiet, and {'the boats lay still, ' * 9} {n}." for n in range(9)]
    short = [f"Rain fell on the orchard, night {n}." for n in range(10)]
    sources = ["a"] * 4 + ["b"] * 2 + ["b"] * 9 + ["a"] * 10
    rules = {
        "long": {"signal": "word_count", "le": 30},
        "worst": {"signal": "toxicity", "lt": 0.95},
    }
    rules |= {"toxicity": {"lt": 0.5}, "seen": {"signal": "toxicity", "lt": 0, "action": "tag"}}
    made = artifacts.curated(given([*rude, *long, *short], sources), rules)
    ledger = made["select_scored"]["ledger"].read().to_pylist()
    reasons = [row["reason"] for row in ledger if row["action"] == "removed"]
    assert reasons.count("long") == 9 and len(reasons) == 15
    _, page, said = sheet_of(made)
    assert (
        "The worst rule removed 6 documents. The config sets the rule's action. Warning: the "
        "embedded scorer matches words, not meaning, and may rate harmless mentions of minorities "
        "as toxic." in said
    )
    assert "Documents removed or tagged by the toxicity filter" in said  # rules of both kinds
    assert "“Input” is the number of documents that this stage received" in said
    assert said.count("See “Toxicity filter: ") == 1  # after the last rule
    lines = lines_of(page, "source", "input", "removed", "share removed")
    assert lines == [["a", "14", "4", "28.6 %"], ["b", "11", "2", "18.2 %"]]


def test_without_a_rule_for_toxicity_nothing_is_removed_for_it(session):
    texts = [f"You are a {artifacts.OFFENSIVE}, number {n}." for n in range(30)]
    texts += ["The harbour was quiet, " + "and the boats lay still, " * 9]
    made = artifacts.curated(given(texts), {"long": {"signal": "word_count", "le": 30}})
    assert made["select_scored"]["ledger"].row_count == 1
    _, _, said = sheet_of(made)
    assert "No rule that uses the toxicity score removed documents." in said
    assert "Removed for toxicity" not in said


#: Harmless sentences about people that the embedded scorer scores 0.8 or more, and others.
ABOUT_PEOPLE = [
    "I am a Black gay man, and my husband runs the small gay bookshop in the old town.",
    "My wife and I are two black lesbian women, and we run a gay choir and a black bookshop.",
]
#: Where the datasheet says which rule applied, and why.
TAGGED = ("rule", "source", "documents kept", "tagged", "share tagged")


def test_harmless_documents_about_minorities_are_tagged_and_kept_by_default(session):
    """The embedded scorer's scores of these documents are wrong."""
    own = [f"{ABOUT_PEOPLE[n % 2]} Page {n}." for n in range(24)]
    others = [f"Rain fell on the orchard, night {n}." for n in range(16)]
    source = {"kind": "text", "name": "a", "path": "a"}
    default = load_config({"name": "mine", "ingest": {"sources": [source]}}).select_scored.rules[0]
    made = artifacts.curated(
        given([*own, *others], ["a"] * 30 + ["b"] * 10),
        {default.name: default.model_dump(exclude={"name"})},
    )
    kept = made["select_scored"]["documents"].read().to_pylist()
    assert len(kept) == 40 and made["select_scored"]["ledger"].row_count == 0
    tagged = [row["text"] for row in kept if row["tags"]]
    assert len(tagged) == 24 and all("gay" in text for text in tagged)
    for book in made["select_scored"]["accounts"].read().to_pylist():
        assert book["input"] == book["kept"] and not book["removed_rows"]
    card, page, said = sheet_of(made)
    lines = lines_of(page, *TAGGED)
    assert lines == [["toxicity", "a", "30", "24", "80.0 %"], ["toxicity", "b", "10", "0", "0.0 %"]]
    assert (
        "The toxicity rule tagged 24 documents and kept them. This is the rule's default action. "
        "Warning: the embedded scorer matches words, not meaning, and may" in said
    )
    assert "No rule that uses the toxicity score removed documents." in said
    figures = {row["label"]: row["value"] for row in card["figures"].read().to_pylist()}
    assert figures["documents that toxicity tagged"] == 24
    ratios = read_removal_counts(made, "lesbian, gay and bisexual people")
    assert ratios == [(24, 24, 16, 0)]
    assert "select_scored: toxicity (tagged, not removed)" in said


@pytest.mark.parametrize(
    ("action", "kind", "expected"),
    [
        ("remove", "detoxify", "This is the rule's default action."),
        (
            "tag",
            "detoxify",
            "The config sets the rule's action.",
        ),
        (
            "tag",
            "linear",
            "This is the rule's default action. Warning: the embedded scorer matches words, not "
            "meaning, and may rate harmless mentions of minorities as toxic.",
        ),
        (
            "remove",
            "linear",
            "The config sets the rule's action. Warning: the embedded scorer matches words, not "
            "meaning, and may rate harmless mentions of minorities as toxic.",
        ),
    ],
)
def test_every_branch_about_the_action_of_a_toxicity_rule(action, kind, expected):
    assert explain_toxicity_action(action, kind) == expected


def read_removal_counts(made, group):
    return [
        (
            row["documents"],
            row["removed_documents"],
            row["other_documents"],
            row["other_removed_documents"],
        )
        for row in made["removal_effects"]["removal_rates"].read().to_pylist()
        if (row["reason"], row["slice"]) == ("toxicity", group)
    ]


LETTERS = [f"Letter {n} from clerk{n}@corp.example of the harbour office." for n in range(9)]
FOUND = ("type", "spans found", "in documents", "treatment", "number")


@pytest.mark.parametrize(
    ("policy", "became", "many", "used"),
    [
        ("mask", "masked", "9", "is masked where"),
        ("cut", "cut out", "9", "is cut out where"),
        ("drop", "removed with its document", "9", "is removed with its document where"),
        ("keep", "kept unchanged", "all", "is kept unchanged where"),
    ],
)
def test_treatment_of_personal_data_is_reported_for_every_policy(
    session, policy, became, many, used
):
    texts = [*LETTERS, *(f"Rain fell on the orchard, night {n}." for n in range(30))]
    made = artifacts.curated(given(texts), scrubbing=RedactSpansConfig(action=policy))
    _, page, said = sheet_of(made)
    assert lines_of(page, *FOUND) == [["EMAIL", "9", "9", became, many]]
    assert f"Personal data {used} a detector found it; undetected personal data may remain." in said
    assert "The detectors found no personal data." not in said


def test_spans_removed_from_documents_count_as_removed(session):
    made = artifacts.curated(given(LETTERS), scrubbing=RedactSpansConfig(action="cut"))
    ledger = made["redact_spans"]["ledger"].read().to_pylist()
    cut = sum(row["bytes_before"] for row in ledger)
    card, _, _ = sheet_of(made)
    came = sum(map(len, LETTERS))
    figures = {row["id"]: row["value"] for row in card["figures"].read().to_pylist()}
    assert figures["flow-redact-spans-bytes-rate"] == pytest.approx(cut / came)
    assert figures["flow-redact-spans-rows-rate"] == 0
    assert "the sum of removed_rows and removed_spans divided by the sum of in" in " ".join(
        pages.read(path).text for path in pages.write_pages(card).glob("rows/profile.html")
    )


def test_treatment_of_personal_data_is_reported_by_type(session):
    """One of the letters consists of an address alone, so that the whole letter is removed."""
    texts = [
        *LETTERS,
        "call (650) 253-0000 now",
        "clerk9@corp.example",
        "IBAN GB82 WEST 1234 5698 7654 32",
    ]
    texts += [f"Rain fell on the orchard, night {n}." for n in range(30)]
    policies = {"EMAIL": "cut", "PHONE": "drop", "REPEAT": "cut"}
    scrubbing = RedactSpansConfig(action="keep", actions_by_type=policies)
    made = artifacts.curated(given(texts), scrubbing=scrubbing)
    _, page, said = sheet_of(made)
    assert {line[0]: line[1:] for line in lines_of(page, *FOUND)} == {
        "EMAIL": ["10", "10", "cut out", "9"],
        "IBAN": ["1", "1", "kept unchanged", "all"],
        "PHONE": ["1", "1", "removed with its document", "1"],
    }
    assert (
        "Personal data is kept unchanged where a detector found it (EMAIL: cut out, PHONE: "
        "removed with its document); undetected personal data may remain."
    ) in said


def test_no_detected_personal_data_is_reported(session):
    made = artifacts.curated(given([f"Rain fell on the orchard, night {n}." for n in range(30)]))
    assert "The detectors found no personal data." in sheet_of(made)[2]


STATUS = ("documents", "outcome", "number")
OTHER = "in languages that the scorer does not support"
OTHER_SCRIPT = "in an undetermined language and a script that the scorer does not support"


@pytest.mark.parametrize(
    ("unknown", "fate"), [("keep", "kept"), ("remove", "removed: toxicity unknown")]
)
def test_treatment_of_unscored_documents_is_reported(session, unknown, fate):
    texts = [f"{LONG['de']} {n}" for n in range(4)]
    texts += [f"{HAWAIIAN} {n}" for n in range(2)]  # undetermined, in the scorer's script
    texts += [f"ёж {n}" for n in range(2)]  # undetermined, in another script
    texts += [f"Rain fell on the orchard, night {n}." for n in range(20)]
    texts += [f"You are a {artifacts.OFFENSIVE}, number {n}." for n in range(3)]
    rules = {"toxicity": {"lt": 0.5, "on_missing": unknown}}
    made = artifacts.curated(given([*texts, " "]), rules, asked=True)
    _, page, said = sheet_of(made)
    assert lines_of(page, *STATUS) == [
        ["scored", "kept", "22"],
        ["scored", "removed: toxicity", "3"],
        [OTHER, fate, "4"],
        [OTHER_SCRIPT, fate, "2"],
        ["without visible characters", fate, "1"],
    ]
    assert "If a document has no score, its toxicity is unknown, neither high nor low" in said
