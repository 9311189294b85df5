"""Test minimal pairs: the texts, and the findings of systems with known preferences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from hallmark.tasks.audits.ability.baselines import NgramModel
from hallmark.tasks.audits.ability.dependencies import compute_dependency_findings
from hallmark.tasks.audits.ability.minimal_pairs import (
    NOUNS,
    PAIRS,
    build_minimal_pair_rows,
    generate_agreement_pairs,
    generate_garden_path_pairs,
    make_baseline_scorer,
)
from hallmark.tasks.audits.audit_descriptions import CAPABILITY_METRICS
from hallmark.tasks.audits.audited_models.audited_model import AuditedModel
from hallmark.tasks.audits.judging.findings import Finding, build_findings_table, select_evidence
from hallmark.tasks.audits.slice_tags import name_slice

PLURAL = {plural for _, plural in NOUNS}
VERBS = {"is": False, "are": True, "was": False, "were": True, "has": False, "have": True}


class WordModel(AuditedModel):
    """A model whose tokens are words and punctuation; new words extend the vocabulary."""

    model_kind, name, context_length, bos_id, opening_description = "causal", "words", 64, None, ""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return 1000

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        split = [text.replace(".", " .").split() for text in texts]
        return [[self.known.setdefault(word, len(self.known)) for word in words] for words in split]

    def decode(self, token_ids: Sequence[int]) -> str:
        return " ".join(list(self.known)[i] for i in token_ids)

    def compute_log_probs(
        self, sequences: Sequence[Sequence[int]], prefix_lm_prompt_lengths: object = None
    ) -> list[object]:  # type: ignore[override]
        raise NotImplementedError


def nouns_agree(sentence: str) -> bool:
    """Return whether the first noun and the verb agree."""
    words = sentence.rstrip(".").split()
    return (words[1] in PLURAL) == VERBS[words[-2]]


def test_agreement_pairs_differ_only_in_the_verb() -> None:
    pairs = list(generate_agreement_pairs())
    for pair in pairs:
        good_words, bad_words = (sentence.split() for sentence in pair.continuations)
        assert nouns_agree(pair.continuations[0]) and not nouns_agree(pair.continuations[1])
        (verb_index,) = [
            i
            for i, words in enumerate(zip(good_words, bad_words, strict=True))
            if len({*words}) > 1
        ]
        assert good_words[verb_index] in VERBS and pair.distance == verb_index - 2
        assert pair.contexts == ("", "")
    assert len(set(pairs)) == len(pairs) == 12 * 3 * 4 * 2
    assert Counter(pair.distance for pair in pairs) == dict.fromkeys((0, 3, 6, 9), 72)
    # A system that uses the nearest noun is right no more often than chance.
    distant_sentences = [pair.continuations[0].split() for pair in pairs if pair.distance]
    agrees = [(words[-3].endswith("s")) == VERBS[words[-2]] for words in distant_sentences]
    assert np.mean(agrees) == 0.5


def test_garden_path_pairs_differ_only_in_the_disambiguating_words() -> None:
    pairs = list(generate_garden_path_pairs())
    for pair in pairs:
        clear, ambiguous = pair.contexts
        assert clear.replace(" that was", "") == ambiguous
        assert pair.continuations[0] == pair.continuations[1] and pair.continuations[0].startswith(
            " "
        )
        participle = ambiguous.split()[2:]
        assert pair.distance == len(participle) - 1
    assert len({pair.contexts for pair in pairs}) == len(pairs) == 36
    assert len({pair.distance for pair in pairs}) >= 3


def get_finding(findings: list[Finding], metric: str, slice_: str) -> Finding:
    (finding,) = [f for f in findings if f.metric == metric and name_slice(f.slice) == slice_]
    return finding


def score_by_agreement(texts: Sequence[str], contexts: Sequence[str]) -> np.ndarray:
    """Prefer agreement up to three words apart, and the unambiguous beginning."""
    return np.array(
        [
            float("that was" in context)
            if context
            else nouns_agree(text) and len(text.split()) <= 7
            for text, context in zip(texts, contexts, strict=True)
        ],
        dtype=float,
    )


def test_findings_show_the_preferences_of_each_system() -> None:
    pairs = [*generate_agreement_pairs(), *generate_garden_path_pairs()]
    scorers = {"model": score_by_agreement, "contrary": lambda t, c: -score_by_agreement(t, c)}
    rows = build_minimal_pair_rows(pairs, scorers)
    assert len(rows) == 2 * len(pairs)
    findings = compute_dependency_findings(rows, "capability")
    for system, near_share in (("model", 1.0), ("contrary", 0.0)):
        for distance, share in ((0, near_share), (3, near_share), (6, 0.5), (9, 0.5)):
            row = get_finding(findings, "agreement_accuracy", f"{system}, distance={distance}")
            assert (row.value, row.n) == (share, 72)
        assert get_finding(findings, "agreement_accuracy", system).value == (near_share + 0.5) / 2
        assert get_finding(findings, "garden_path_share", system).value == near_share
    table = pa.Table.from_pylist(rows, schema=PAIRS)
    for row in build_findings_table(findings, CAPABILITY_METRICS).to_pylist():
        evidence = select_evidence(table, row["evidence_filter"])
        assert len(evidence) == row["n"] and row["evidence_table"] == "pairs"
        assert np.mean(evidence["preference_score"].to_pylist()) == pytest.approx(row["value"])


def test_a_bigram_guesses_over_a_distance_and_a_fivegram_learns() -> None:
    model, pairs = WordModel(), list(generate_agreement_pairs())
    ids = model.encode_batch([pair.continuations[0] for pair in pairs if pair.distance <= 3])
    scorers = {
        name: make_baseline_scorer(NgramModel(ids, order, 1000), model)
        for name, order in (("bigram", 2), ("fivegram", 6))
    }
    findings = compute_dependency_findings(build_minimal_pair_rows(pairs, scorers), "capability")
    control = get_finding(findings, "agreement_accuracy", "bigram, words between")
    assert (control.value, control.n, control.verdict) == (0.5, 216, "pass")
    assert get_finding(findings, "agreement_accuracy", "bigram, distance=0").value == 1
    for distance, share in ((0, 1), (3, 1), (9, 0.5)):
        row = get_finding(findings, "agreement_accuracy", f"fivegram, distance={distance}")
        assert row.value == share


def test_the_control_fails_if_a_bigram_knows_too_much() -> None:
    rows = build_minimal_pair_rows(list(generate_agreement_pairs()), {"bigram": score_by_agreement})
    findings = compute_dependency_findings(rows, "capability")
    assert get_finding(findings, "agreement_accuracy", "bigram, words between").verdict == "fail"


def test_a_baseline_scores_the_text_after_its_context() -> None:
    word_model = WordModel()
    ids = word_model.encode_batch(["a b c d", "a b d d", "b c c d"])
    model = NgramModel(ids, 3, 1000)
    score = make_baseline_scorer(model, word_model)
    nats = score([" c d", "a b"], ["a b", ""])
    p = model.compute_token_probs(word_model.encode_batch(["a b c d"]))
    assert nats[0] == pytest.approx(np.log(p[2:]).sum())
    assert nats[1] == pytest.approx(np.log(p[:2]).sum())
