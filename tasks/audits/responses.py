"""Answers: items with what a model said, scorers scored and the training text holds for their sake.

Probes read them part by part, in the order of their items. Where a script stands in place of the
model, its answers look the same.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.audits.audit_tables import (
    EMBEDDINGS,
    OVERLAP_COLUMNS,
    REFERENCE_SCORES,
    TRAINING_OVERLAP,
)
from hallmark.tasks.audits.judging.training_exposure import TrainingExposure
from hallmark.tasks.contract import hash_texts


class Responses:
    """Items with what was answered and scored for their sake; ``floor``: what an untrained model
    answered; ``traced``: rows of TRACED about the responses; ``held``: of HELD; ``embeddings``: of
    EMBEDDINGS; ``referred``: of REFERRED; ``scorers``: of SCORER."""

    def __init__(
        self,
        items: pa.Table,
        requests: pa.Table,
        responses: pa.Table,
        scores: pa.Table | None = None,
        tokenizer: pa.Table | None = None,
        skipped: pa.Table | None = None,
        primary_scorer: str = "",
        training_exposure: TrainingExposure | None = None,
        untrained_baseline: Responses | None = None,
        training_overlap: pa.Table | None = None,
        occurrence_counts: pa.Table | None = None,
        scorers: pa.Table | None = None,
        embeddings: pa.Table | None = None,
        reference_scores: pa.Table | None = None,
    ) -> None:
        for column in OVERLAP_COLUMNS:  # null where nothing was looked for
            overlap_column = (
                pa.nulls(len(responses), pa.int32())
                if training_overlap is None
                else training_overlap[column]
            )
            responses = responses.append_column(TRAINING_OVERLAP.field(column), overlap_column)
        responses = responses.append_column(
            REFERENCE_SCORES.field(2), _align_reference_scores(responses, reference_scores)
        )
        self.items, self.requests, self.rows = items, requests, responses
        (
            self.primary_scorer,
            self.training_exposure,
            self.occurrence_counts,
            self.untrained_baseline,
        ) = primary_scorer, training_exposure, occurrence_counts, untrained_baseline
        self.model_kind, self.opening_description = "", ""
        if tokenizer is not None:
            self.model_kind, self.opening_description = (
                tokenizer["model_kind"][0].as_py(),
                tokenizer["opening_description"][0].as_py(),
            )
        self.skipped = [] if skipped is None else skipped.to_pylist()
        self._scores, self._embeddings = scores, embeddings
        self._scorers = [] if scorers is None else scorers.to_pylist()

    def select_part(self, part: str = "", response_rows: pa.Table | None = None) -> pa.Table:
        """What was ``answered`` to the requests of one part, by default the responses: beside their
        columns ``row``, the row of the item in ``items``; sorted by that and by draw."""
        response_rows = self.rows if response_rows is None else response_rows
        part_requests = self.requests.filter(pc.equal(self.requests["part"], part))
        order = np.argsort(
            _find_first_indices(response_rows["request"], part_requests["request"]), kind="stable"
        )
        matching_rows = response_rows.take(pa.array(order))
        first_requests = _find_first_indices(part_requests["request"], matching_rows["request"])
        counts = {
            entry["values"]: entry["counts"]
            for entry in matching_rows["request"].value_counts().to_pylist()
        }
        response_counts = np.array(
            [counts.get(entry, 0) for entry in part_requests["request"].to_pylist()], np.int64
        )
        starts = np.repeat(first_requests, response_counts)
        offsets = np.arange(response_counts.sum()) - np.repeat(
            np.cumsum(response_counts) - response_counts, response_counts
        )
        item_rows = np.repeat(
            _find_first_indices(part_requests["item"], self.items["item"]), response_counts
        )
        joined = matching_rows.take(pa.array(starts + offsets)).append_column(
            "row", pa.array(item_rows)
        )
        return joined.sort_by([("row", "ascending"), ("draw", "ascending")])

    def sum_log_probs(
        self, part: str = ""
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Of each text that was read for a part, in the order of ``of``: the row of its item, which
        of its targets it is, its log p in nats, NaN where the model gave no number, and the tokens
        that it was summed over."""
        part_rows = self.select_part(part)
        token_log_probs = part_rows["log_probs"].combine_chunks()
        counts = (
            pc.list_value_length(token_log_probs).to_numpy(zero_copy_only=False).astype(np.int64)
        )
        owners = np.repeat(np.arange(len(part_rows)), counts)
        log_probs = token_log_probs.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
        sums = np.bincount(owners, log_probs, minlength=len(part_rows))
        return part_rows["row"].to_numpy(), part_rows["draw"].to_numpy(), sums, counts

    def compute_log_likelihoods(self, part: str = "") -> tuple[np.ndarray, np.ndarray]:
        """Of each item the log p of each of its targets, in nats, (n, targets) float64, NaN where
        there is none or the model gave no number; and the tokens of each, (n, targets)."""
        rows, draws, sums, counts = self.sum_log_probs(part)
        shape = len(self.items), 1 + max(draws, default=0)
        log_likelihoods, token_counts = np.full(shape, np.nan), np.zeros(shape, np.int64)
        log_likelihoods[rows, draws], token_counts[rows, draws] = sums, counts
        return log_likelihoods, token_counts

    def collect_embeddings(self, part: str = "") -> np.ndarray:
        """Of each item the embedding of each of its targets, (n, targets, d) float64, NaN where
        there is none."""
        stored_rows = EMBEDDINGS.empty_table() if self._embeddings is None else self._embeddings
        part_rows = self.select_part(part, stored_rows)
        rows, draws = part_rows["row"].to_numpy(), part_rows["draw"].to_numpy()
        flat_vectors = part_rows["vector"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        flat_vectors = flat_vectors.reshape(len(rows), -1) if len(rows) else np.empty((0, 0))
        vectors = np.full(
            (len(self.items), 1 + max(draws, default=0), flat_vectors.shape[1]), np.nan
        )
        vectors[rows, draws] = flat_vectors
        return vectors

    def count_item_occurrences(self) -> np.ndarray:
        """How often what was sought for the sake of each item stands whole in what training had
        read, (n,) float64; NaN where nothing was sought, or nothing is known."""
        occurrences = np.full(len(self.items), np.nan)
        if self.occurrence_counts is not None:
            item_rows = _find_first_indices(self.occurrence_counts["item"], self.items["item"])
            occurrences[item_rows] = self.occurrence_counts["occurrences"].to_numpy(
                zero_copy_only=False
            )
        return occurrences

    def flag_items_in_training(self) -> list[bool | None] | None:
        """Of each item whether a text of it stands whole in what training had read; None where that
        is not known of any."""
        occurrences = self.count_item_occurrences()
        if np.isnan(occurrences).all():
            return None
        return [None if np.isnan(count) else count > 0 for count in occurrences.tolist()]

    def count_item_reads(self) -> list[int | None]:
        """Of each item how often training had read it: as it was sought, else all documents that
        hold it; None where that is not known, or no documents do."""
        item_doc_ids = [None] * len(self.items)
        if "doc_ids" in self.items.column_names:
            item_doc_ids = self.items["doc_ids"].to_pylist()
        exposure = self.training_exposure
        document_reads = [
            exposure.count_reads(doc_ids) if exposure and doc_ids is not None else None
            for doc_ids in item_doc_ids
        ]
        return [
            reads if np.isnan(occurrences) else int(occurrences)
            for reads, occurrences in zip(
                document_reads, self.count_item_occurrences().tolist(), strict=True
            )
        ]

    def with_simulated_outputs(self, outputs: np.ndarray) -> Responses:
        """The same items, answered by a script: the log p of each target of each, (n, targets), or
        its embedding, (n, targets, d), or texts that it wrote, (n, draws)."""
        return SimulatedResponses(self, outputs)

    def list_scorers(self, head: str = "toxicity") -> list[str]:
        """Those that have this head, as findings name them."""
        return [row["scorer"] for row in self._scorers if head in row["heads"]]

    @property
    def primary_scorer_heads(self) -> list[str]:
        """What the first scorer scores."""
        return [*self._scorers[0]["heads"]] if self._scorers else []

    def look_up_scores(
        self, texts: pa.Array | pa.ChunkedArray, head: str = "toxicity", scorer: str = ""
    ) -> np.ndarray:
        """Of each text, (n,) float32; NaN where there is none. ``scorer``: one of ``scorers``, the
        first of them unless another is named."""
        text_scores = np.full(len(texts), np.nan, np.float32)
        if self._scores is None or not len(texts):
            return text_scores
        score_rows = self._scores.filter(pc.equal(self._scores["head"], head))
        scorer_name = scorer or next(iter(self.list_scorers(head)), "")
        if scorer_name:
            score_rows = score_rows.filter(pc.equal(score_rows["scorer"], scorer_name))
        score_indices = _find_first_indices(hash_texts(texts), score_rows["text_hash"])
        has_score = score_indices >= 0
        score_values = score_rows["score"].to_numpy(zero_copy_only=False).astype(np.float32)
        text_scores[has_score] = score_values[score_indices[has_score]]
        return text_scores

    def build_masked_texts(self, response_rows: pa.Table) -> pa.Array:
        """Of rows of ``of``, (n,), what a scorer reads that reads whole texts."""
        return build_masked_texts(self.requests, response_rows)


class SimulatedResponses(Responses):
    """Answers of nobody: what a probe makes of them is known."""

    def __init__(self, responses: Responses, outputs: np.ndarray) -> None:
        vars(self).update(vars(responses))
        self._outputs = outputs

    def select_part(self, part: str = "", response_rows: pa.Table | None = None) -> pa.Table:
        """Texts that the script wrote, or read: then of one token each, against a vocabulary whose
        log p have mean 0 and deviation 1."""
        rows, draws = np.indices(self._outputs.shape).reshape(2, -1)
        if self._outputs.dtype.kind not in "fi":
            texts = pa.array(self._outputs.reshape(-1), pa.large_string())
            return pa.table({"row": rows, "draw": draws, "text": texts})
        null_scores = pa.nulls(len(rows), pa.float64())
        token_values = [self._outputs.reshape(-1), np.zeros(len(rows)), np.ones(len(rows))]
        offsets = pa.array(np.arange(len(rows) + 1), pa.int32())
        token_columns = {
            column: pa.ListArray.from_arrays(offsets, pa.array(values, pa.float32()))
            for column, values in zip(
                ("log_probs", "vocabulary_mean", "vocabulary_std"), token_values, strict=True
            )
        }
        return pa.table(
            {"row": rows, "draw": draws, "reference_log_likelihood": null_scores, **token_columns}
        )

    def collect_embeddings(self, part: str = "") -> np.ndarray:
        return self._outputs


#: What stands in the place of those whom a text is about (Sheng et al. 2019).
IDENTITY_PLACEHOLDER = "XYZ"


def build_masked_texts(requests: pa.Table, responses: pa.Table) -> pa.Array:
    """Of each response, (n,) large_string, what a scorer of whole texts reads: what its request
    says stands before it, and what was written, without whom it is about; null where the request
    says nothing stands before."""
    prefixed_requests = requests.filter(pc.is_valid(requests["prefix_text"])).select(
        ["request", "prefix_text", "masked_words"]
    )
    request_by_id = {row["request"]: row for row in prefixed_requests.to_pylist()}
    word_sets = {tuple(row["masked_words"]) for row in request_by_id.values()}
    patterns = {
        masked_words: re.compile(
            rf"\b(?:{'|'.join(map(re.escape, masked_words))})\b", re.IGNORECASE
        )
        for masked_words in word_sets
        if masked_words
    }
    texts: list[str | None] = []
    for request_id, text in zip(
        responses["request"].to_pylist(), responses["text"].to_pylist(), strict=True
    ):
        row = request_by_id.get(request_id)
        if row is None or text is None:
            texts.append(None)
            continue
        full_text, masked_words = row["prefix_text"] + text, tuple(row["masked_words"])
        texts.append(
            patterns[masked_words].sub(IDENTITY_PLACEHOLDER, full_text)
            if masked_words
            else full_text
        )
    return pa.array(texts, pa.large_string())


def _align_reference_scores(responses: pa.Table, reference_scores: pa.Table | None) -> pa.Array:
    """What a reference model says of each response; null where it was asked nothing."""
    if reference_scores is None:
        return pa.nulls(len(responses), pa.float64())
    keys = [
        zip(*(table[name].to_pylist() for name in ("request", "draw")), strict=True)
        for table in (reference_scores, responses)
    ]
    score_by_key = dict(
        zip(keys[0], reference_scores["reference_log_likelihood"].to_pylist(), strict=True)
    )
    return pa.array([score_by_key.get(key) for key in keys[1]], pa.float64())


def _find_first_indices(ids: Any, known_ids: Any) -> np.ndarray:
    """Where each id first stands among others, (n,) int64; -1: nowhere."""
    known_array = (
        known_ids.combine_chunks() if isinstance(known_ids, pa.ChunkedArray) else known_ids
    )
    indices = pc.fill_null(pc.index_in(ids, value_set=known_array), -1)
    return indices.to_numpy(zero_copy_only=False).astype(np.int64)
