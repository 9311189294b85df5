"""Test bits per byte, intervals and cloze accuracy of simulated models with known answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import scipy.stats

from hallmark.tasks.audits.ability.baselines import NgramModel, estimate_gzip_bits_per_byte
from hallmark.tasks.audits.ability.capability import (
    CapabilityConfig,
    MeasuredTexts,
    compute_bits_per_byte_findings,
    compute_text_bits,
    estimate_bits_per_byte,
)
from hallmark.tasks.audits.ability.capability_baselines import build_text_bits_table
from hallmark.tasks.audits.ability.capability_texts import (
    generate_random_texts,
    sample_split_documents,
)
from hallmark.tasks.audits.ability.cloze import (
    build_cloze_sample_rows,
    compute_cloze_findings,
    extract_first_word,
    find_cloze_passages,
)
from hallmark.tasks.audits.audited_models.audited_model import AuditedModel
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import (
    HallmarkError,
    Session,
    Store,
    open_session,
)
from tests.findings import findings_to_rows
from tests.tasks.small_corpus import corpus_of, sentences

CONFIG = CapabilityConfig(min_passage_words=3, recurrent_tokens=20_000)


class ByteModel(AuditedModel):
    """A model of bytes that each cost ``bits``; ``say`` returns its continuations."""

    model_kind = "causal"
    name, context_length, vocab_size, bos_id, opening_description = (
        "bytes",
        64,
        257,
        256,
        "after nothing",
    )

    def __init__(self, bits: float = 8.0) -> None:
        self.bits = bits

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode()) for text in texts]

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode()

    def compute_log_probs(self, sequences: Sequence[Sequence[int]]) -> list[np.ndarray]:
        return [np.full(len(s) - 1, -self.bits * np.log(2), np.float32) for s in sequences]

    def generate_texts(self, prompts: Sequence[str], **options: Any) -> list[list[str]]:
        return [[self.say(prompt, row)] for row, prompt in enumerate(prompts)]

    def say(self, prompt: str, row: int) -> str:
        return f" {prompt.split()[-1]}, and so on"


def compute_findings(
    model: AuditedModel, texts: list[str], training_cost_factor: float = 1.0
) -> list[dict[str, Any]]:
    """Compute findings; ``seen_costs`` multiplies the 5-gram model's bits for training text."""
    table = pa.table(
        {
            "text": pa.array(texts, pa.large_string()),
            "doc_id": pa.array([bytes([i]) * 16 for i in range(len(texts))], pa.binary(16)),
            "source": ["web"] * len(texts),
        }
    )
    ids = model.encode_batch(sentences(50, seed=9))
    ngrams = {"bigram": NgramModel(ids, 2, 257), "fivegram": NgramModel(ids, 5, 257)}
    training_rows = pa.table({"text": pa.array(sentences(50, seed=9))})
    parts = [
        MeasuredTexts(
            part,
            part_texts := rows["text"].to_pylist(),
            build_text_bits_table(part, rows, model, ngrams),
            None if part == "training text" else compute_text_bits(model, part_texts),
        )
        for part, rows in (
            ("text", table),
            ("random characters", generate_random_texts(0)),
            ("training text", training_rows),
        )
    ]
    *_, training_part = parts
    column_index = training_part.text_bits_rows.column_names.index("fivegram_bits")
    scaled_bits = pc.multiply(training_part.text_bits_rows["fivegram_bits"], training_cost_factor)
    parts[-1] = replace(
        training_part,
        text_bits_rows=training_part.text_bits_rows.set_column(
            column_index, "fivegram_bits", scaled_bits
        ),
    )
    findings = compute_bits_per_byte_findings(
        *parts, model, CONFIG, "trained on 50 texts", "no LSTM"
    )
    return findings_to_rows(findings)


def test_a_uniform_model_over_bytes_costs_eight_bits_a_byte() -> None:
    rows = compute_findings(ByteModel(bits=8), sentences(20, seed=1))
    model = next(row for row in rows if name_slice(row["slice"]) == "model")
    assert model["value"] == pytest.approx(8) and model["low"] is None
    assert "no interval: all documents have the same value" in model["method"]


def test_the_negative_control_catches_a_model_that_beats_entropy() -> None:
    """Six bits per character are less than the entropy of 6.57: such scores sum to more than 1."""
    for bits, verdict in ((6.0, "fail"), (6.6, "pass")):
        rows = compute_findings(ByteModel(bits), sentences(20, seed=1))
        (control,) = [row for row in rows if row["control"] == "negative"]
        assert control["verdict"] == verdict


def test_the_interval_of_many_documents_equals_a_bootstrap() -> None:
    rng = np.random.default_rng(4)
    sizes = rng.integers(50, 500, 400)
    bits = sizes * rng.gamma(9, 0.3, 400)
    estimate = estimate_bits_per_byte(bits, sizes)
    assert estimate.value == pytest.approx(bits.sum() / sizes.sum())
    expected = scipy.stats.bootstrap(
        (bits, sizes),
        lambda b, s, axis: b.sum(axis) / s.sum(axis),
        paired=True,
        method="percentile",
        n_resamples=4000,
        rng=7,
    ).confidence_interval
    assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high), rel=0.01)


@pytest.mark.parametrize("count", [2, 5, 9, 20, 40])
def test_intervals_of_few_documents_have_nominal_coverage(count: int) -> None:
    """Long documents cost less per byte; fewer than ten documents have no interval."""
    rng = np.random.default_rng(5)
    sizes = np.exp(rng.normal(4.5, 0.7, 4000)).astype(np.int64) + 10
    bits = sizes * rng.gamma(9, 0.3, 4000) * (sizes / sizes.mean()) ** -0.15
    expected, covered, without_interval = bits.sum() / sizes.sum(), 0, 0
    for _ in range(1000):
        sample = rng.integers(4000, size=count)
        estimate = estimate_bits_per_byte(bits[sample], sizes[sample])
        if np.isnan(estimate.low):
            assert estimate.value > 0 and estimate.method.startswith("no interval: ")
            without_interval += 1
        covered += estimate.low <= expected <= estimate.high
    if count < 10:
        assert without_interval == 1000
        return
    assert without_interval < 60  # large documents decide the mean
    assert 0.925 <= covered / (1000 - without_interval) <= 0.985


def test_the_interval_of_gzip_is_a_group_jackknife() -> None:
    texts = sentences(30, seed=3)
    rows = compute_findings(ByteModel(bits=8), texts)
    gzip = next(row for row in rows if name_slice(row["slice"]) == "gzip")
    rate, error, groups = estimate_gzip_bits_per_byte([text.encode() for text in texts])
    low, high = scipy.stats.t.interval(0.95, groups - 1, rate, error)
    assert groups == 20
    assert [gzip[name] for name in ("value", "low", "high")] == pytest.approx([rate, low, high])


def test_unlearnt_training_text_fails_the_positive_control() -> None:
    """Training text must cost less than the upper end for held-out text."""
    for spread, verdict in ((0.5, "pass"), (4.0, "fail")):
        rows = compute_findings(
            ByteModel(bits=8), sentences(20, seed=1), training_cost_factor=spread
        )
        (control,) = [row for row in rows if row["control"] == "positive"]
        (fivegram,) = [row for row in rows if name_slice(row["slice"]) == "fivegram"]
        assert (control["value"] < fivegram["high"]) == (verdict == "pass")
        assert control["verdict"] == verdict
        model = next(row for row in rows if name_slice(row["slice"]) == "model")
        assert control["value"] < model["value"]  # this comparison would pass in both cases


def test_documents_are_sampled_by_hash_up_to_a_size(tmp_path: Path) -> None:
    rows = [("web", "validation", text) for text in sentences(1000, seed=2)]
    with open_session(Session(Store(tmp_path))):
        corpus = corpus_of([*rows, ("web", "train", "not this"), ("web", "validation", "")])
        everything = sample_split_documents(
            corpus["documents"], "validation", 10**9, seed=0
        ).documents
        assert sorted(everything["text"].to_pylist()) == sorted(text for *_, text in rows)
        size = sum(everything["bytes"].to_pylist())
        sample, split_bytes = sample_split_documents(
            corpus["documents"], "validation", size // 4, seed=0
        )
        assert split_bytes == size
        assert sum(sample["bytes"].to_pylist()) == pytest.approx(size / 4, rel=0.2)
        # A larger sample contains the smaller one, so figures of two sizes share texts.
        assert sample["text"].to_pylist() == everything["text"].to_pylist()[: len(sample)]
        with pytest.raises(HallmarkError, match="the 'holdout' split has no text"):
            sample_split_documents(corpus["documents"], "holdout", 1000, seed=0)


def find_passages(*texts: str, words: int = 3, characters: int = 200) -> list[tuple[str, str]]:
    table = pa.table(
        {"doc_id": [b"0" * 16] * len(texts), "source": ["web"] * len(texts), "text": list(texts)}
    )
    return [(p.prompt, p.answer) for p in find_cloze_passages(table, 9, words, characters)]


def test_passages_end_before_the_last_word_of_a_sentence() -> None:
    assert find_passages("One two three.\nThe old dog\n  sleeps! And then") == [
        ("One two three.\nThe old dog", "sleeps")
    ]
    assert find_passages("Too short here.") == []
    assert find_passages("We met in Åre near naïveté.") == [("We met in Åre near", "naïveté")]
    assert find_passages("call the method foo.bar of it") == []  # it has no sentence end
    # The next character after the cut at "foo." shows that the sentence continues.
    assert find_passages("call the method foo.bar of it", characters=20) == []
    assert find_passages("we call the foo. Not bar", characters=16) == [("we call the", "foo")]


@pytest.mark.parametrize(
    ("continuation", "word"),
    [
        (" word and", "word"),
        ("\n  Word.", "Word"),
        (", word", None),
        ("", None),
        (" été!", "été"),
        (" 12 words", None),
    ],
)
def test_the_first_word_of_a_continuation(continuation: str, word: str | None) -> None:
    assert extract_first_word(continuation) == word


def compute_cloze(model: AuditedModel) -> dict[str, dict[str, Any]]:
    nouns = [
        f"noun{chr(97 + i // 26)}{chr(97 + i % 26)}".replace("noun", "thing") for i in range(60)
    ]
    texts = [f"So here we say {noun} {noun}. More" for noun in nouns]
    table = pa.table({"doc_id": [b"0" * 16] * 60, "source": ["web"] * 60, "text": texts})
    rows = build_cloze_sample_rows(model, find_cloze_passages(table, 60, 3, 200))
    return {name_slice(row["slice"]): row for row in findings_to_rows(compute_cloze_findings(rows))}


def test_a_model_that_repeats_the_last_word_can_be_always_right() -> None:
    findings = compute_cloze(ByteModel())
    assert findings[""]["value"] == 1 and findings[""]["n"] == 60
    assert findings["answers of other passages"]["value"] == 0
    assert {row["verdict"] for row in findings.values()} == {"", "pass"}


def test_the_positive_control_catches_decoding_that_depends_on_the_batch() -> None:
    class Unsteady(ByteModel):
        def say(self, prompt: str, row: int) -> str:
            return f" word{'abcdefghij'[row % 10]}"

    assert compute_cloze(Unsteady())["own greedy words"]["verdict"] == "fail"


def test_a_model_without_words_leaves_the_control_unmeasured() -> None:
    class Mute(ByteModel):
        def say(self, prompt: str, row: int) -> str:
            return "..."

    findings = compute_cloze(Mute())
    assert findings[""]["value"] == 0 and findings[""]["high"] < 0.1
    assert findings["own greedy words"]["value"] is None
