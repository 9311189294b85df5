"""Test prompts, pairs and findings about the groups of a user's lexicon."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.audits.methods.user_lexicons import (
    MAX_COMPARED_GROUPS,
    LexiconGroup,
    build_group_pairs,
    build_group_prompts,
    read_lexicon_groups,
)
from hallmark.tasks.audits.probes.bias import BiasConfig
from hallmark.tasks.audits.probes.toxicity import ToxicityConfig
from hallmark.tasks.corpus.identities import IdentitiesConfig, find_identities
from tests.tasks.audits.audit_runs import compute_simulated_findings, run_audit_stages
from tests.tasks.corpora import given

QUICK = {
    "audit_bias": BiasConfig(),
    "audit_toxicity": ToxicityConfig(
        continuations_per_prompt=4,
        continuation_counts=(1, 4),
        unprompted_groups=2,
        max_new_tokens=6,
    ),
}
TOWN = ["Orvelings", "Tamskers", "Vosterlings", "Ildriths", "Pellowars", "Yarrowens"]


def build_lexicons(*paths):
    """Return the table of lexicons that the stage identities makes of these files."""
    config = IdentitiesConfig(lexicons=paths)
    return find_identities(given(["A text."]), config)["lexicons"]


def run_audit(audit, folder, lexicons):
    return run_audit_stages(
        audit.removeprefix("audit_"), folder, QUICK[audit], (lexicons, None, None)
    )[-1]


def test_sentences_use_the_name_of_a_group_or_its_first_term(session, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"Hill people": ["hillers", "hiller"], "Coasters": ["coasters"]}))
    groups = read_lexicon_groups(build_lexicons(Path("town"), path))
    assert [group.name for group in groups[:6]] == [f"town:{name}" for name in TOWN]
    assert [group.display_word for group in groups] == [*TOWN, "hillers", "Coasters"]
    assert read_lexicon_groups(None) == read_lexicon_groups(build_lexicons()) == []
    prompts = build_group_prompts(groups)
    assert len(set(prompts)) == len(prompts) and ("mine:Hill people", "hillers") in [
        (prompt.group_name, "hillers") for prompt in prompts if "hillers" in prompt.text
    ]


def make_groups(count, lexicon="mine"):
    return [LexiconGroup(lexicon, f"g{i}", f"word{i}") for i in range(count)]


def compute_preferences_by_group(folder, lexicons, score):
    """Compute the preference of each group if ``score`` is the log-likelihood of a sentence."""
    _, findings = compute_simulated_findings(
        "bias",
        folder,
        QUICK["audit_bias"],
        lexicons=lexicons,
        simulate_log_prob=lambda item, target: float(
            score(item["second_text" if target else "text"])
        ),
    )
    return {
        slice.removeprefix("category="): row["value"]
        for (metric, slice), row in findings.items()
        if metric == "group_negative_statement_preference" and slice.startswith("category=")
    }


def test_a_model_that_maligns_a_group_is_detected_and_one_that_prefers_a_name_is_not(
    session, own_folder, tmp_path
):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({f"g{i}": [f"word{i}"] for i in range(4)}))
    lexicons = build_lexicons(path)
    negative_words = {
        "lazy",
        "dishonest",
        "bad",
        "not",
        "dangerous",
        "unkind",
        "cheat",
        "betrayed",
        "nothing",
        "hated",
    }

    def maligns(text):
        words = set(text.rstrip(".").split())
        return ("word2" in words) * (1 if words & negative_words else -1)

    def get_word_number(text):
        return int(match[1]) if (match := re.search(r"word(\d)", text)) else 0

    preferences = compute_preferences_by_group(own_folder, lexicons, maligns)
    assert preferences.pop("mine:g2") == 1 and max(preferences.values()) <= 0.5
    # Ties, with neither or both of the names, count one half.
    no_preference = dict.fromkeys([*preferences, "mine:g2"], 0.5)
    for score in (lambda text: "word2" in text, get_word_number):
        assert compute_preferences_by_group(own_folder, lexicons, score) == no_preference


def test_groups_are_compared_with_a_few_others_of_their_lexicon():
    groups = [*make_groups(20), *make_groups(1, "alone"), *make_groups(2, "two")]
    pairs = [*build_group_pairs(groups)]
    count = Counter(pair.category for pair in pairs)
    assert all(pair.first != pair.second for pair in pairs)
    pairs_per_group = len({pair.template for pair in pairs}) * 2
    assert count == {
        f"mine:g{i}": MAX_COMPARED_GROUPS * pairs_per_group for i in range(20)
    } | dict.fromkeys(("two:g0", "two:g1"), pairs_per_group)


def get_group(row):
    return next(tag for tag in dict(row["slice"]).values() if str(tag).startswith("town:"))


@pytest.mark.parametrize("audit", [*QUICK])
@pytest.mark.parametrize(
    "folder", ["own_folder", pytest.param("bert_folder", marks=pytest.mark.slow)]
)
def test_findings_have_slices_by_group_and_all_others_are_unchanged(
    session, request, audit, folder
):
    folder = request.getfixturevalue(folder)
    plain = run_audit(audit, folder, None)
    empty = run_audit(audit, folder, build_lexicons())
    assert empty == plain
    samples, findings = run_audit(audit, folder, build_lexicons(Path("town")))
    group_findings = [
        row
        for row in findings.to_pylist()
        if row["metric"].startswith("group_") and "mentioned_group" not in dict(row["slice"])
    ]
    rows = [row for row in findings.to_pylist() if row not in group_findings]
    group_values = [row for row in group_findings if not row["control"]]
    masked = audit == "audit_toxicity" and "bert" in str(folder)
    assert {get_group(row) for row in group_values} == (
        set() if masked else {f"town:{name}" for name in TOWN}
    )
    for row in group_values:
        evidence = select_evidence(samples, row["evidence_filter"])
        assert len(evidence) and row["value"] is not None
        if row["metric"] == "group_negative_statement_preference":
            assert row["value"] == pytest.approx(np.mean(evidence["value"].to_pylist()))
            assert row["n"] == len(evidence)
        group = get_group(row).removeprefix("town:")
        assert any(group in text for text in evidence["text"].to_pylist())
    # Counts are over all continuations; all other findings must be unchanged.
    count_metrics = {
        "empty_continuations",
        "unscored_continuations",
        "threshold_ties",
        "continuations_of_unscored_prompts",
    }
    expected = [row for row in plain[1].to_pylist() if row["metric"] not in count_metrics]
    unchanged = [row for row in rows if row["metric"] not in count_metrics]
    for row, expected_row in zip(unchanged, expected, strict=True):
        # Sums in other batches round differently. In a tie, that may give half a pair to one side;
        # the pairs themselves are compared below.
        is_share_of_pairs = audit == "audit_bias" and row["unit"] == "share" and row["n"]
        tolerance = 0.5 / row["n"] + 1e-5 if is_share_of_pairs else 1e-5
        for name in ("value", "low", "high"):
            assert row[name] == pytest.approx(expected_row[name], abs=tolerance)
        texts = {"metric", "slice", "n", "method", "verdict", "evidence_filter"}
        assert all(row[name] == expected_row[name] for name in texts)
    if audit == "audit_bias":
        differences, expected_differences = (
            {
                row["pair_id"]: row["value"]
                for row in table.to_pylist()
                if row["measure"] == "log_likelihood_difference"
            }
            for table in (samples, plain[0])
        )
        assert differences.keys() >= expected_differences.keys() and expected_differences
        for pair_id, difference in expected_differences.items():
            assert differences[pair_id] == pytest.approx(difference, abs=1e-5)
    for row in rows:
        if row["metric"] in count_metrics:
            assert len(select_evidence(samples, row["evidence_filter"])) == row["value"]
