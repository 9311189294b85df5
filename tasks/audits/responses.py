"""Join items with the responses of a model, their scores and their overlap with training text.

Probes read responses part by part, in the order of their items. Simulated responses, which replace
the model in controls, have the same form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.audits.audit_tables import (
    EMBEDDINGS,
    OVERLAP_COLUMNS,
    REFERENCE_SCORES,
    RESPONSES,
    TRAINING_OVERLAP,
)
from hallmark.tasks.audits.judging.training_exposure import TrainingExposure
from hallmark.tasks.contract import hash_texts, table_to_rows


class TargetLogLikelihoods(NamedTuple):
    """Log-likelihoods of the targets of requests, one entry per target, each array (n,).

    Attributes:
        item_rows: Row of the item.
        target_numbers: Number of the target among those of the item, from 0.
        log_likelihoods: Log probability of the whole target in nats; NaN where the model gave no
            number.
        token_counts: Number of tokens of the target.
    """

    item_rows: np.ndarray
    target_numbers: np.ndarray
    log_likelihoods: np.ndarray
    token_counts: np.ndarray


class Responses:
    """Items with their responses, scores and training exposure.

    Args:
        items: The items of a probe.
        requests: Rows of REQUESTS.
        responses: Rows of RESPONSES.
        scores: Rows of SCORES.
        scorers: Rows of SCORERS, the primary one first.
        tokenizer: The row of TOKENIZER.
        skipped: Rows of SKIPPED.
        training_exposure: How often training had read the items' documents.
        untrained_baseline: Responses of an untrained model to the same requests.
        untrained_models: Responses of small untrained models to the requests of the main part.
        untrained_failure: Why there are no such models; empty if there are, or none were wanted.
        training_overlap: Rows of TRAINING_OVERLAP, in the order of the responses.
        occurrence_counts: Rows of OCCURRENCE_COUNTS.
        embeddings: Rows of EMBEDDINGS.
        reference_scores: Rows of REFERENCE_SCORES.
        reference_answers: Responses of a reference model to requests about the same items.
    """

    def __init__(
        self,
        items: pa.Table,
        requests: pa.Table,
        responses: pa.Table,
        *,
        scores: pa.Table | None = None,
        scorers: pa.Table | None = None,
        tokenizer: pa.Table | None = None,
        skipped: pa.Table | None = None,
        training_exposure: TrainingExposure | None = None,
        untrained_baseline: Responses | None = None,
        untrained_models: Sequence[Responses] = (),
        untrained_failure: str = "",
        training_overlap: pa.Table | None = None,
        occurrence_counts: pa.Table | None = None,
        embeddings: pa.Table | None = None,
        reference_scores: pa.Table | None = None,
        reference_answers: Responses | None = None,
    ) -> None:
        for column in OVERLAP_COLUMNS:  # null if the training text was not searched
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
        self.training_exposure, self.occurrence_counts = training_exposure, occurrence_counts
        self.untrained_baseline, self.reference_answers = untrained_baseline, reference_answers
        self.untrained_models, self.untrained_failure = untrained_models, untrained_failure
        self.model_kind, self.opening_description = "", ""
        if tokenizer is not None:
            self.model_kind, self.opening_description = (
                tokenizer["model_kind"][0].as_py(),
                tokenizer["opening_description"][0].as_py(),
            )
        self.skipped = [] if skipped is None else table_to_rows(skipped)
        self._scores, self._embeddings = scores, embeddings
        self._scorers = [] if scorers is None else scorers.to_pylist()

    def select_part(self, part: str = "", response_rows: pa.Table | None = None) -> pa.Table:
        """Select the responses to the requests of one part, sorted by item and draw.

        Args:
            part: The part.
            response_rows: Rows to select from; by default all responses.

        Returns:
            The selected rows with the ``row`` column, the row of the item in ``items``.
        """
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

    def sum_log_probs(self, part: str = "") -> TargetLogLikelihoods:
        """Sum the log probabilities of each target of a part, in the order of ``select_part``."""
        part_rows = self.select_part(part)
        token_log_probs = part_rows["log_probs"].combine_chunks()
        counts = (
            pc.list_value_length(token_log_probs).to_numpy(zero_copy_only=False).astype(np.int64)
        )
        owners = np.repeat(np.arange(len(part_rows)), counts)
        log_probs = token_log_probs.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
        sums = np.bincount(owners, log_probs, minlength=len(part_rows))
        return TargetLogLikelihoods(
            part_rows["row"].to_numpy(), part_rows["draw"].to_numpy(), sums, counts
        )

    def compute_target_log_likelihoods(self, part: str = "") -> np.ndarray:
        """Return the log probability in nats of each target of each item, (n, targets) float64.

        NaN: there is no such target, or the model gave no number.
        """
        targets = self.sum_log_probs(part)
        log_likelihoods = np.full(self._get_target_shape(targets), np.nan)
        log_likelihoods[targets.item_rows, targets.target_numbers] = targets.log_likelihoods
        return log_likelihoods

    def count_target_tokens(self, part: str = "") -> np.ndarray:
        """Count the tokens of each target of each item, (n, targets); 0: no such target."""
        targets = self.sum_log_probs(part)
        token_counts = np.zeros(self._get_target_shape(targets), np.int64)
        token_counts[targets.item_rows, targets.target_numbers] = targets.token_counts
        return token_counts

    def _get_target_shape(self, targets: TargetLogLikelihoods) -> tuple[int, int]:
        return len(self.items), 1 + max(targets.target_numbers, default=0)

    def collect_embeddings(self, part: str = "") -> np.ndarray:
        """Return the embeddings of each item's targets, (n, targets, d) float64, NaN if missing."""
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
        """Count how often training had read the texts looked up for each item, (n,) float64.

        Only complete occurrences count. NaN: nothing was looked up, or the count is unknown.
        """
        occurrences = np.full(len(self.items), np.nan)
        if self.occurrence_counts is not None:
            item_rows = _find_first_indices(self.occurrence_counts["item"], self.items["item"])
            occurrences[item_rows] = self.occurrence_counts["occurrences"].to_numpy(
                zero_copy_only=False
            )
        return occurrences

    def flag_items_in_training(self) -> list[bool | None] | None:
        """Flag the items with a text that occurs in full in what training had read.

        Returns:
            A flag per item, None for an unknown one; or None if all are unknown.
        """
        occurrences = self.count_item_occurrences()
        if np.isnan(occurrences).all():
            return None
        return [None if np.isnan(count) else count > 0 for count in occurrences.tolist()]

    def count_item_reads(self) -> list[int | None]:
        """Count how often training had read each item.

        Returns:
            Occurrences of the texts that were looked up, else reads of all documents that hold the
            item; None where that is unknown.
        """
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
        """Return the same items with simulated responses.

        Args:
            outputs: Log probabilities of the targets, (n, targets), embeddings of the targets,
                (n, targets, d), or generated texts, (n, draws).
        """
        return SimulatedResponses(self, outputs)

    def list_scorers(self, head: str = "toxicity") -> list[str]:
        """Return the scorers that have this head, as findings name them."""
        return [row["scorer"] for row in self._scorers if head in row["heads"]]

    @property
    def primary_scorer(self) -> str:
        """The name of the first scorer, as in findings; empty without scorers."""
        return str(self._scorers[0]["scorer"]) if self._scorers else ""

    @property
    def primary_scorer_heads(self) -> list[str]:
        """The heads of the first scorer."""
        return [*self._scorers[0]["heads"]] if self._scorers else []

    def look_up_scores(
        self, texts: pa.Array | pa.ChunkedArray, head: str = "toxicity", scorer: str = ""
    ) -> np.ndarray:
        """Return the score of each text, (n,) float32, NaN where there is none.

        ``scorer`` is one of ``list_scorers(head)``, by default the first.
        """
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

    def join_texts_with_words_masked(self, response_rows: pa.Table) -> pa.Array:
        """Join the texts of response rows, see the function ``join_texts_with_words_masked``."""
        return join_texts_with_words_masked(self.requests, response_rows)


class SimulatedResponses(Responses):
    """Responses of a simulated model, for which the correct finding of a probe is known."""

    def __init__(self, responses: Responses, outputs: np.ndarray) -> None:
        vars(self).update(vars(responses))
        self._outputs = outputs

    def select_part(self, part: str = "", response_rows: pa.Table | None = None) -> pa.Table:
        """Return the simulated texts, or log probabilities of targets as one token each.

        The log probabilities over the vocabulary then have mean 0 and standard deviation 1.
        """
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


def split_by_untrained_model(
    items: pa.Table, requests: pa.Table, log_probs: pa.Table, tokenizer: pa.Table
) -> list[Responses]:
    """Return the responses of each small untrained model.

    Args:
        items: The items of a probe.
        requests: Rows of REQUESTS.
        log_probs: Rows of UNTRAINED_LOG_PROBS.
        tokenizer: The row of TOKENIZER.
    """
    models = []
    for number in pc.unique(log_probs["model"]).to_pylist():
        rows = log_probs.filter(pc.equal(log_probs["model"], number))
        columns = {
            field.name: pa.nulls(len(rows), field.type)
            if field.name not in rows.column_names
            else rows[field.name]
            for field in RESPONSES
        }
        response_rows = pa.table(columns, schema=RESPONSES)
        models.append(Responses(items, requests, response_rows, tokenizer=tokenizer))
    return models


#: Replaces the words for the people that a text is about (Sheng et al. 2019).
IDENTITY_PLACEHOLDER = "XYZ"


def join_texts_with_words_masked(requests: pa.Table, responses: pa.Table) -> pa.Array:
    """Build the text that a scorer of whole texts reads for each response, (n,) large_string.

    It is the request's ``prefix_text`` and the response, with the masked words replaced; null where
    the request has no ``prefix_text``.
    """
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
    """Return the reference log-likelihood of each response; null where there is none."""
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


def _find_first_indices(
    ids: pa.Array | pa.ChunkedArray, known_ids: pa.Array | pa.ChunkedArray
) -> np.ndarray:
    """Return the first index of each id in ``known_ids``, (n,) int64; -1 if it is not there."""
    known_array = (
        known_ids.combine_chunks() if isinstance(known_ids, pa.ChunkedArray) else known_ids
    )
    indices = pc.fill_null(pc.index_in(ids, value_set=known_array), -1)
    index_array: np.ndarray = indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return index_array
