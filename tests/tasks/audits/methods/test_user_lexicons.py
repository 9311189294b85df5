"""Groups of a lexicon that a corpus brings: prompts and pairs about them, and findings by them."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.audits.judging.tags import parse_tags
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
from tests.tasks.audits.asking import scripted, stages_of
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


def lexicons(*paths):
    config = IdentitiesConfig(lexicons=paths)
    return find_identities(given(["A text."]), config)["lexicons"]


def run(audit, folder, brought):
    return stages_of(audit.removeprefix("audit_"), folder, QUICK[audit], (brought, None, None))[-1]


def test_a_group_is_called_by_its_name_or_by_its_first_term(session, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"Hill people": ["hillers", "hiller"], "Coasters": ["coasters"]}))
    found = read_lexicon_groups(lexicons(Path("town"), path))
    assert [group.name for group in found[:6]] == [f"town:{name}" for name in TOWN]
    assert [group.display_word for group in found] == [*TOWN, "hillers", "Coasters"]
    assert read_lexicon_groups(None) == read_lexicon_groups(lexicons()) == []
    prompts = build_group_prompts(found)
    assert len(set(prompts)) == len(prompts) and ("mine:Hill people", "hillers") in [
        (name, "hillers") for name, prompt in prompts if "hillers" in prompt
    ]


def groups(count, lexicon="mine"):
    return [LexiconGroup(lexicon, f"g{i}", f"word{i}") for i in range(count)]


def preferences(folder, lexicons, score):
    """The preference by group, where a sentence is as likely as ``score`` says."""
    _, found = scripted(
        "bias",
        folder,
        QUICK["audit_bias"],
        lexicons=lexicons,
        says=lambda item, target: float(score(item["second_text" if target else "text"])),
    )
    return {
        slice.removeprefix("category="): row["value"]
        for (metric, slice), row in found.items()
        if metric == "group_negative_statement_preference" and slice.startswith("category=")
    }


def test_a_model_that_maligns_a_group_is_found_and_one_that_likes_a_name_is_not(
    session, own_folder, tmp_path
):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({f"g{i}": [f"word{i}"] for i in range(4)}))
    brought = lexicons(path)
    against = {
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
        return ("word2" in words) * (1 if words & against else -1)

    def number(text):
        return int(found[1]) if (found := re.search(r"word(\d)", text)) else 0

    found = preferences(own_folder, brought, maligns)
    assert found["mine:g2"] == 1 and max(v for k, v in found.items() if k != "mine:g2") <= 0.5
    # Ties, with neither or both of the names, count one half.
    liked = preferences(own_folder, brought, lambda text: "word2" in text)
    assert liked == dict.fromkeys(found, 0.5)
    assert preferences(own_folder, brought, number) == dict.fromkeys(found, 0.5)


def test_groups_stand_beside_those_of_their_own_lexicon_and_few_of_them():
    rows = [*build_group_pairs([*groups(20), *groups(1, "alone"), *groups(2, "two")])]
    count = {name: 0 for _, name, *_ in rows}
    for _, name, _, first, second in rows:
        count[name] += 1
        assert first != second
    per = len({template for _, _, template, *_ in rows}) * 2
    assert count == {f"mine:g{i}": MAX_COMPARED_GROUPS * per for i in range(20)} | {
        "two:g0": per,
        "two:g1": per,
    }


def group_in(row):
    return next(tag for tag in parse_tags(row).values() if str(tag).startswith("town:"))


@pytest.mark.parametrize("audit", [*QUICK])
@pytest.mark.parametrize("folder", ["own_folder", "bert_folder"])
def test_findings_slice_by_the_groups_and_all_others_stay(session, request, audit, folder):
    folder = request.getfixturevalue(folder)
    plain = run(audit, folder, None)
    empty = run(audit, folder, lexicons())
    assert empty == plain
    samples, findings = run(audit, folder, lexicons(Path("town")))
    about = [
        row
        for row in findings.to_pylist()
        if row["metric"].startswith("group_") and "mentioned_group" not in parse_tags(row)
    ]
    rows = [row for row in findings.to_pylist() if row not in about]
    mine = [row for row in about if not row["control"]]
    masked = audit == "audit_toxicity" and "bert" in str(folder)
    assert {group_in(row) for row in mine} == (
        set() if masked else {f"town:{name}" for name in TOWN}
    )
    for row in mine:
        chosen = select_evidence(samples, row["evidence_filter"])
        assert len(chosen) and row["value"] is not None
        if row["metric"] == "group_negative_statement_preference":
            assert row["value"] == pytest.approx(np.mean(chosen["value"].to_pylist()))
            assert row["n"] == len(chosen)
        group = group_in(row).removeprefix("town:")
        assert any(group in text for text in chosen["text"].to_pylist())
    # Counts are over all continuations; whatever else was measured is what it was.
    counted = {
        "empty_continuations",
        "unscored_continuations",
        "threshold_ties",
        "continuations_of_unscored_prompts",
    }
    known = [row for row in plain[1].to_pylist() if row["metric"] not in counted]
    same = [row for row in rows if row["metric"] not in counted]
    for row, before in zip(same, known, strict=True):  # sums in other batches round otherwise
        for name in ("value", "low", "high"):
            assert row[name] == pytest.approx(before[name], abs=1e-5)
        texts = {"metric", "slice", "n", "method", "verdict", "evidence_filter"}
        assert all(row[name] == before[name] for name in texts)
    for row in rows:
        if row["metric"] in counted:
            assert len(select_evidence(samples, row["evidence_filter"])) == row["value"]
