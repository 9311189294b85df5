"""Rank texts that a model wrote by how likely they are memorised training text.

This is the attack of Carlini et al. 2021, "Extracting training data": the attacker has the model
but not the corpus. A higher score means more like training text:

mean_log_likelihood
                  mean log-likelihood of the tokens; ranks like perplexity, in reverse
reference_ratio   log-likelihood over that under a reference model, which discounts text that is
                  likely under any model
zlib_ratio        log-likelihood over the size after zlib compression, which discounts repetition
lowercase_ratio   log-likelihood over that of the same text in lower case
likeliest_window  highest mean log-likelihood of a window of consecutive tokens
min_k_plus_plus   mean of the lowest 20 % of the token log-likelihoods, each standardised by mean
                  and standard deviation over the vocabulary (Zhang et al. 2025)

The text's own log-likelihood is the numerator of all ratios, so that a certain text ranks first.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hallmark.tasks.audits.judging.findings import Finding, build_finding_from_estimate
from hallmark.tasks.audits.judging.instrument_controls import CONTROL_LEVEL
from hallmark.tasks.measures.estimates import Estimate, estimate_mean_or_share
from hallmark.tasks.measures.statistics import Float64

RANKING_SCORES = (
    "mean_log_likelihood",
    "reference_ratio",
    "zlib_ratio",
    "lowercase_ratio",
    "likeliest_window",
    "min_k_plus_plus",
)

#: Share of the tokens, those with the lowest values, that min_k_plus_plus averages.
MIN_K_SHARE = 0.2

BoolArray = NDArray[np.bool_]


def compute_ranking_scores(responses: pa.Table, window_size: int) -> dict[str, Float64]:
    """Compute the ranking scores of each text.

    Args:
        responses: Columns text, log_probs, lowercase_log_probs, vocabulary_mean and vocabulary_std
            of ``RESPONSES``, and reference_log_likelihood of ``REFERENCE_SCORES``.
        window_size: Tokens of a window of likeliest_window.

    Returns:
        The scores by name, (n,) each; NaN where a model gave no finite number.
    """
    text_indices, log_p = flatten_lists(responses["log_probs"])
    token_counts = np.bincount(text_indices, minlength=len(responses))
    totals = np.bincount(text_indices, log_p, minlength=len(responses))
    lowercase_totals = np.bincount(
        *flatten_lists(responses["lowercase_log_probs"]), minlength=len(responses)
    )
    compressed_sizes = [len(zlib.compress(text.encode())) for text in responses["text"].to_pylist()]
    mean, std = (
        flatten_lists(responses[name]).values for name in ("vocabulary_mean", "vocabulary_std")
    )
    reference_totals = (
        responses["reference_log_likelihood"].to_numpy(zero_copy_only=False).astype(np.float64)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        raw_scores = {
            "mean_log_likelihood": totals / token_counts,
            "reference_ratio": -totals / reference_totals,
            "zlib_ratio": totals / np.array(compressed_sizes, np.float64),
            "lowercase_ratio": -totals / lowercase_totals,
            "likeliest_window": find_highest_window_mean(
                text_indices, log_p, token_counts, window_size
            ),
            "min_k_plus_plus": compute_min_k_mean(text_indices, (log_p - mean) / std, token_counts),
        }
    has_tokens = token_counts > 0
    return {
        name: np.where(np.isfinite(values) & has_tokens, values, np.nan)
        for name, values in raw_scores.items()
    }


class FlattenedLists(NamedTuple):
    """Hold the numbers of a column of lists, each array (numbers,).

    Attributes:
        row_indices: Row of each number.
        values: The numbers.
    """

    row_indices: NDArray[np.int64]
    values: Float64


def flatten_lists(lists: pa.ChunkedArray) -> FlattenedLists:
    """Flatten a column of lists; null is an empty list."""
    combined = lists.combine_chunks()
    counts = pc.fill_null(pc.list_value_length(combined), 0).to_numpy(zero_copy_only=False)
    row_indices = np.repeat(np.arange(len(combined)), counts.astype(np.int64))
    values = combined.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
    return FlattenedLists(row_indices, values)


def find_highest_window_mean(
    text_indices: NDArray[np.int64],
    values: Float64,
    token_counts: NDArray[np.int64],
    window_size: int,
) -> Float64:
    """Find the highest mean of ``window_size`` consecutive values in each text.

    A text shorter than the window gets its mean, a text with a value that is not finite NaN.
    """
    text_starts = np.cumsum(token_counts) - token_counts
    text_sums = np.bincount(text_indices, values, minlength=len(token_counts))
    finite_values = np.where(np.isfinite(values), values, 0.0)
    prefix_sums = np.concatenate([[0.0], np.cumsum(finite_values)])
    window_sizes = np.minimum(window_size, token_counts)
    positions = np.arange(len(values))
    is_complete = (
        positions + window_sizes[text_indices] <= (text_starts + token_counts)[text_indices]
    )
    window_means = (
        prefix_sums[positions[is_complete] + window_sizes[text_indices][is_complete]]
        - prefix_sums[positions[is_complete]]
    ) / window_sizes[text_indices][is_complete]
    highest_means = np.full(len(token_counts), -np.inf)
    np.maximum.at(highest_means, text_indices[is_complete], window_means)
    return np.where(np.isfinite(text_sums), highest_means, np.nan)


def compute_min_k_mean(
    text_indices: NDArray[np.int64], values: Float64, token_counts: NDArray[np.int64]
) -> Float64:
    """Compute the mean of the lowest values of each text: a share ``MIN_K_SHARE``, at least one."""
    order = np.lexsort((values, text_indices))
    lowest_counts = np.maximum(1, (MIN_K_SHARE * token_counts).astype(np.int64))
    token_ranks = np.arange(len(values)) - np.repeat(
        np.cumsum(token_counts) - token_counts, token_counts
    )
    is_lowest = token_ranks < lowest_counts[text_indices]
    sums = np.bincount(
        text_indices[is_lowest], values[order][is_lowest], minlength=len(token_counts)
    )
    has_nan = np.bincount(text_indices, np.isnan(values), minlength=len(token_counts)) > 0
    return np.where((token_counts == 0) | has_nan, np.nan, sums / lowest_counts)


#: Number of texts that are compared with all earlier texts at a time.
TEXTS_PER_BLOCK = 512


def flag_non_duplicates(token_id_lists: Sequence[Sequence[int]]) -> BoolArray:
    """Flag the texts that are not near-duplicates of an earlier kept text.

    A text is kept if it shares less than half of its token trigrams, as a multiset, with each kept
    text before it. Texts of fewer than three tokens are not kept. Memory: about 100 bytes per
    token, and the pairs of texts of a block that share a trigram.

    Args:
        token_id_lists: Token ids of each text.

    Returns:
        Whether each text is kept, (n,).
    """
    from scipy.sparse import csr_array

    text_lengths = np.array([len(token_ids) for token_ids in token_id_lists], np.int64)
    tokens = np.fromiter(chain.from_iterable(token_id_lists), np.int64, text_lengths.sum())
    text_indices = np.repeat(np.arange(len(token_id_lists)), text_lengths)
    if len(tokens) < 3:
        return np.zeros(len(token_id_lists), bool)
    is_within_text = text_indices[:-2] == text_indices[2:]
    # No vocabulary has 2**21 tokens.
    packed_trigrams = tokens[:-2] << 42 | tokens[1:-1] << 21 | tokens[2:]
    trigrams = np.unique(packed_trigrams[is_within_text], return_inverse=True)[1]
    text_indices = text_indices[:-2][is_within_text]
    # Multisets: the second occurrence of a trigram in a text is a separate element.
    order = np.lexsort((trigrams, text_indices))
    sorted_rows, trigrams = text_indices[order], trigrams[order]
    group_starts = np.flatnonzero(
        np.append(True, (sorted_rows[1:] != sorted_rows[:-1]) | (trigrams[1:] != trigrams[:-1]))
    )
    group_starts = group_starts[: len(order)]
    repetitions = np.arange(len(order)) - np.repeat(
        group_starts, np.diff(np.append(group_starts, len(order)))
    )
    numbered_trigrams = trigrams * (1 + repetitions.max(initial=0)) + repetitions
    elements = np.unique(numbered_trigrams, return_inverse=True)[1]
    shape = len(token_id_lists), int(elements.max(initial=-1)) + 1
    incidence = csr_array((np.ones(len(elements), np.int32), (sorted_rows, elements)), shape=shape)
    sizes = np.bincount(text_indices, minlength=len(token_id_lists))
    is_kept, transposed = sizes > 0, incidence.T.tocsr()
    for block_start in range(0, len(token_id_lists), TEXTS_PER_BLOCK):
        shared_counts = (
            incidence[block_start : block_start + TEXTS_PER_BLOCK] @ transposed
        ).tocoo()
        later_texts, earlier_texts = shared_counts.row + block_start, shared_counts.col
        is_duplicate = (earlier_texts < later_texts) & (
            2 * shared_counts.data >= sizes[later_texts]
        )
        order = np.lexsort((earlier_texts[is_duplicate], later_texts[is_duplicate]))
        for later_text, earlier_text in zip(
            later_texts[is_duplicate][order].tolist(),
            earlier_texts[is_duplicate][order].tolist(),
            strict=True,
        ):
            is_kept[later_text] &= not is_kept[earlier_text]
    return is_kept


def score_kept_texts(
    responses: pa.Table, is_kept: BoolArray, window_size: int
) -> dict[str, Float64]:
    """Compute the ranking scores of the kept texts, NaN for all others."""
    raw_scores = compute_ranking_scores(responses, window_size)
    return {score: np.where(is_kept, values, np.nan) for score, values in raw_scores.items()}


def compute_top_weights(scores: Float64, top_count: int) -> Float64:
    """Compute the weight of each text among the ``top_count`` highest scores, (n,).

    The weight is 1 or 0, or for texts that tie for the last places the share of them that fits.
    Texts without a score have weight 0.
    """
    known_scores = scores[~np.isnan(scores)]
    if not len(known_scores) or top_count < 1:
        return np.zeros(len(scores))
    bound = np.sort(known_scores)[::-1][min(top_count, len(known_scores)) - 1]
    with np.errstate(invalid="ignore"):
        is_above, is_tied = scores > bound, scores == bound
    weights: Float64 = is_above + is_tied * (
        (min(top_count, len(known_scores)) - is_above.sum()) / is_tied.sum()
    )
    return weights


def compute_ranks(scores: Float64) -> NDArray[np.int64]:
    """Compute the rank of each text by score: 1 is the highest, ties share it, 0: no score."""
    sorted_scores = np.sort(scores[~np.isnan(scores)])
    ranks = len(sorted_scores) - np.searchsorted(sorted_scores, scores, "right") + 1
    return np.where(np.isnan(scores), 0, ranks)


def estimate_precision(
    scores: Float64, is_hit: BoolArray, top_count: int, level: float = 0.95
) -> Estimate:
    """Estimate the share of hits among the ``top_count`` texts with the highest scores.

    The null value is the share among all texts, and p is that of a random selection
    (hypergeometric). If texts tie for the last places, the number of hits may be fractional; the
    interval then spans those of the next lower and the next higher integer.
    """
    has_score = ~np.isnan(scores)
    missing_count = int((~has_score).sum())
    scores, is_hit = scores[has_score], is_hit[has_score]
    weights, top_count = compute_top_weights(scores, top_count), min(top_count, len(scores))
    is_certain = weights == 1
    tied_hits = is_hit[(weights > 0) & ~is_certain]
    top_hits = np.concatenate(
        [
            is_hit[is_certain],
            np.full(top_count - is_certain.sum(), tied_hits.mean() if len(tied_hits) else np.nan),
        ]
    ).astype(np.float64)
    base_rate = float(is_hit.mean()) if len(is_hit) else np.nan
    top_estimate = estimate_mean_or_share(
        top_hits, null_value=base_rate, is_share=True, confidence_level=level, unit="texts"
    )
    if top_count > 1 and tied_hits.any() and not tied_hits.all():
        # The mean of the ties in the last places would make the variance too small.
        hit_total = float(top_hits.sum())
        neighbour_estimates = [
            estimate_mean_or_share(
                np.arange(top_count) < hit_count,
                null_value=base_rate,
                is_share=True,
                confidence_level=level,
                unit="texts",
            )
            for hit_count in (np.floor(hit_total + 1e-9), np.ceil(hit_total - 1e-9))
        ]
        # This choice is never the estimate in which all texts are hits, or none is.
        nearest_estimate = neighbour_estimates[int(top_estimate.value < 0.5)]
        top_estimate = replace(
            nearest_estimate,
            value=top_estimate.value,
            low=neighbour_estimates[0].low,
            high=neighbour_estimates[1].high,
            method=f"{nearest_estimate.method}; texts with tied scores compete for the last "
            f"{top_count - is_certain.sum()} positions",
        )
    p = p_above_null = np.nan
    if top_count:
        counts = len(scores), int(is_hit.sum()), top_count, float(top_hits.sum())
        p = compute_hypergeometric_p(*counts)
        p_above_null = compute_hypergeometric_p_above(*counts)
    return replace(top_estimate, p=p, p_above_null=p_above_null, missing=missing_count)


def estimate_recall(
    scores: Float64, is_hit: BoolArray, top_count: int, level: float = 0.95
) -> Estimate:
    """Estimate the share of hits that are among the ``top_count`` highest scores.

    p is NaN because it would repeat that of ``estimate_precision``.
    """
    has_score = ~np.isnan(scores)
    scores, is_hit = scores[has_score], is_hit[has_score]
    null_value = min(top_count, len(scores)) / max(1, len(scores))
    recall_estimate = estimate_mean_or_share(
        compute_top_weights(scores, top_count)[is_hit],
        null_value=null_value,
        is_share=True,
        confidence_level=level,
        unit="texts",
    )
    return replace(recall_estimate, p=np.nan)


def compute_hypergeometric_p(
    text_count: int, hit_count: int, top_count: int, top_hits: float
) -> float:
    """Compute the two-sided p of ``top_hits`` hits in a random selection of ``top_count`` texts.

    It sums over all counts that are at most as likely. For a fractional count, due to ties, the
    likelier of the two neighbouring integers is used.
    """
    from scipy.stats import hypergeom

    probabilities = hypergeom.pmf(np.arange(top_count + 1), text_count, hit_count, top_count)
    observed_probability = max(
        probabilities[int(np.floor(top_hits + 1e-9))], probabilities[int(np.ceil(top_hits - 1e-9))]
    )
    return float(min(1.0, probabilities[probabilities <= observed_probability * (1 + 1e-7)].sum()))


def compute_hypergeometric_p_above(
    text_count: int, hit_count: int, top_count: int, top_hits: float
) -> float:
    """Compute the probability of at least ``top_hits`` hits in a random selection.

    A fractional count, due to ties, is rounded down.
    """
    from scipy.stats import hypergeom

    least_hits = np.floor(top_hits + 1e-9)
    return float(hypergeom.sf(least_hits - 1, text_count, hit_count, top_count))


#: Simulated control: number of texts, tokens per text, share of hits.
SIMULATED_TEXTS, SIMULATED_TOKENS, SIMULATED_HIT_SHARE = 400, 40, 0.2


class SimulatedTexts(NamedTuple):
    """Hold simulated texts of a model.

    Attributes:
        responses: The columns that ``score_kept_texts`` reads.
        is_hit: Whether each text is training text, (n,).
    """

    responses: pa.Table
    is_hit: BoolArray


def simulate_texts(has_effect: bool, rng: np.random.Generator) -> SimulatedTexts:
    """Simulate texts; the tokens of training text are likelier if ``has_effect``."""
    is_hit = rng.random(SIMULATED_TEXTS) < SIMULATED_HIT_SHARE
    token_columns = {
        name: rng.normal(mean, 1.0, (SIMULATED_TEXTS, SIMULATED_TOKENS))
        for name, mean in (
            ("log_probs", -4.0),
            ("lowercase_log_probs", -6.0),
            ("vocabulary_mean", -9.0),
        )
    }
    token_columns["log_probs"] += 2.0 * (is_hit & has_effect)[:, None]
    token_columns["vocabulary_std"] = np.full((SIMULATED_TEXTS, SIMULATED_TOKENS), 2.0)
    token_ids = rng.integers(0, 1000, (SIMULATED_TEXTS, SIMULATED_TOKENS))
    responses = pa.table(
        {
            "token_ids": token_ids.tolist(),
            "text": [" ".join(map(str, row)) for row in token_ids],
            "reference_log_likelihood": rng.normal(
                -6.0 * SIMULATED_TOKENS, SIMULATED_TOKENS**0.5, SIMULATED_TEXTS
            ),
            **{name: values.tolist() for name, values in token_columns.items()},
        }
    )
    return SimulatedTexts(responses, is_hit)


def compute_instrument_controls(window_size: int, seed: int) -> list[Finding]:
    """Test the ranking on simulated responses with and without an effect.

    With an effect the score with the lowest precision must pass, without one the score furthest
    from chance.
    """
    control_rows = []
    for has_effect in (False, True):
        responses, is_hit = simulate_texts(has_effect, np.random.default_rng(seed))
        scores = score_kept_texts(
            responses, flag_non_duplicates(responses["token_ids"].to_pylist()), window_size
        )
        precision_estimates = [
            estimate_precision(score_values, is_hit, SIMULATED_TEXTS // 4, CONTROL_LEVEL)
            for score_values in scores.values()
        ]
        if has_effect:
            worst_estimate = min(precision_estimates, key=lambda candidate: candidate.value)
            passed = (
                worst_estimate.value > worst_estimate.null_value
                and worst_estimate.p < 1 - CONTROL_LEVEL
            )
            method = (
                "tokens in training text are simulated as more likely than tokens in other text; "
                "the control passes if p is below 0.001"
            )
        else:
            worst_estimate = max(
                precision_estimates,
                key=lambda candidate: abs(candidate.value - candidate.null_value),
            )
            passed = worst_estimate.low <= worst_estimate.null_value <= worst_estimate.high
            method = (
                "in this simulation, training text does not differ from other text; the control "
                "passes if the 99.9 % interval covers the null value"
            )
        control_rows.append(
            build_finding_from_estimate(
                "extraction_attack",
                "precision",
                worst_estimate,
                unit="share",
                confidence_level=CONTROL_LEVEL,
                part=f"scripted {'effect' if has_effect else 'chance'}",
                evidence_table="",
                method_prefix="result of the worst-performing ranking score on simulated "
                f"responses; {method}",
                control="positive" if has_effect else "negative",
                passed=bool(passed),
                control_target="instrument",
            )
        )
    return control_rows
