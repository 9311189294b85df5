"""Minimal pairs over a distance: the texts, and readers of known preferences."""

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
    compare_minimal_pairs,
    generate_agreement_pairs,
    generate_garden_path_pairs,
    make_baseline_scorer,
)
from hallmark.tasks.audits.audited_models.audited_model import AuditedModel
from hallmark.tasks.audits.judging.findings import build_findings_table, select_evidence

PLURAL = {plural for _, plural in NOUNS}
VERBS = {"is": False, "are": True, "was": False, "were": True, "has": False, "have": True}


class Words(AuditedModel):
    """Tokens are words and marks; whatever it meets becomes a token."""

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
        self, sequences: Sequence[Sequence[int]], prompt_lengths: object = None
    ) -> list[object]:  # type: ignore[override]
        raise NotImplementedError


def right(sentence: str) -> bool:
    """Whether the first noun and the verb agree."""
    words = sentence.rstrip(".").split()
    return (words[1] in PLURAL) == VERBS[words[-2]]


def test_of_each_pair_the_first_agrees_and_they_differ_in_the_verb_alone() -> None:
    pairs = list(generate_agreement_pairs())
    for pair in pairs:
        good, bad = (sentence.split() for sentence in pair.continuations)
        assert right(pair.continuations[0]) and not right(pair.continuations[1])
        (place,) = [i for i, words in enumerate(zip(good, bad, strict=True)) if len({*words}) > 1]
        assert good[place] in VERBS and pair.distance == place - 2
        assert pair.contexts == ("", "")
    assert len(set(pairs)) == len(pairs) == 12 * 3 * 4 * 2
    assert Counter(pair.distance for pair in pairs) == dict.fromkeys((0, 3, 6, 9), 72)
    # Who goes by the nearest noun is right no more often than who guesses.
    far = [pair.continuations[0].split() for pair in pairs if pair.distance]
    agrees = [(words[-3].endswith("s")) == VERBS[words[-2]] for words in far]
    assert np.mean(agrees) == 0.5


def test_garden_paths_differ_by_what_takes_the_doubt_away() -> None:
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


def of(rows: list[dict[str, object]], metric: str, slice_: str) -> dict[str, object]:
    (row,) = [r for r in rows if r["metric"] == metric and r["slice"] == slice_]
    return row


def knows(texts: Sequence[str], contexts: Sequence[str]) -> np.ndarray:
    """Likes what agrees, up to three words apart, and what was made clear."""
    return np.array(
        [
            float("that was" in context) if context else right(text) and len(text.split()) <= 7
            for text, context in zip(texts, contexts, strict=True)
        ],
        dtype=float,
    )


def test_readers_get_the_figures_of_what_they_know() -> None:
    pairs = [*generate_agreement_pairs(), *generate_garden_path_pairs()]
    readers = {"model": knows, "contrary": lambda t, c: -knows(t, c)}
    rows = compare_minimal_pairs(pairs, readers)
    assert len(rows) == 2 * len(pairs)
    found = compute_dependency_findings(rows, "capability")
    for reader, at_hand in (("model", 1.0), ("contrary", 0.0)):
        for distance, share in ((0, at_hand), (3, at_hand), (6, 0.5), (9, 0.5)):
            row = of(found, "agreement_accuracy", f"{reader}, distance={distance}")
            assert (row["value"], row["n"]) == (share, 72)
        assert of(found, "agreement_accuracy", reader)["value"] == (at_hand + 0.5) / 2
        assert of(found, "garden_path_share", reader)["value"] == at_hand
    table = pa.Table.from_pylist(rows, schema=PAIRS)
    for row in build_findings_table(found).to_pylist():
        behind = select_evidence(table, row["evidence_filter"])
        assert len(behind) == row["n"] and row["evidence_table"] == "pairs"
        assert np.mean(behind["preference_score"].to_pylist()) == pytest.approx(row["value"])


def test_a_bigram_guesses_where_words_stand_between_and_a_fivegram_learns_what_it_reads() -> None:
    subject, pairs = Words(), list(generate_agreement_pairs())
    ids = subject.encode_batch([pair.continuations[0] for pair in pairs if pair.distance <= 3])
    readers = {
        name: make_baseline_scorer(NgramModel(ids, order, 1000), subject)
        for name, order in (("bigram", 2), ("fivegram", 6))
    }
    found = compute_dependency_findings(compare_minimal_pairs(pairs, readers), "capability")
    control = of(found, "agreement_accuracy", "bigram, words between")
    assert (control["value"], control["n"], control["verdict"]) == (0.5, 216, "pass")
    assert of(found, "agreement_accuracy", "bigram, distance=0")["value"] == 1
    for distance, share in ((0, 1), (3, 1), (9, 0.5)):
        row = of(found, "agreement_accuracy", f"fivegram, distance={distance}")
        assert row["value"] == share


def test_the_control_fails_where_a_bigram_knows_too_much() -> None:
    rows = compare_minimal_pairs(list(generate_agreement_pairs()), {"bigram": knows})
    found = compute_dependency_findings(rows, "capability")
    assert of(found, "agreement_accuracy", "bigram, words between")["verdict"] == "fail"


def test_a_baseline_is_asked_for_the_text_behind_its_context() -> None:
    subject = Words()
    ids = subject.encode_batch(["a b c d", "a b d d", "b c c d"])
    model = NgramModel(ids, 3, 1000)
    read = make_baseline_scorer(model, subject)
    nats = read([" c d", "a b"], ["a b", ""])
    p = model.compute_token_probs(subject.encode_batch(["a b c d"]))
    assert nats[0] == pytest.approx(np.log(p[2:]).sum())
    assert nats[1] == pytest.approx(np.log(p[:2]).sum())
