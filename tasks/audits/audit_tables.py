"""What goes from one stage of an audit to the next: items, requests, responses and scores.

``ask`` writes items and requests, ``respond`` answers requests, ``score`` scores texts, ``judge``
draws findings from them; ``trace`` looks up in the training text what was written and what is
sought. An item is what is measured: a prompt, a pair, a secret. A request is what a model is asked
for its sake. Both are named by a hash of what they hold, so equal requests of two items are
answered once, and checkpoints of one training are asked the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal

import pyarrow as pa

from hallmark.tasks.contract import ID_TYPE, column, table_schema, to_canonical_json

#: Token ids of several texts.
TOKEN_ID_LISTS = pa.list_(pa.list_(pa.int32()))

#: The ``text_kind`` of texts that neither training nor its validation read.
HELD_OUT_TEXT = "held-out text"

REQUESTS = table_schema(
    "What a model is asked; of equal requests each row has the same id.",
    column("request", ID_TYPE, "id", "the request: a hash of all that is asked"),
    column("item", ID_TYPE, "id", "the item for whose sake"),
    column("part", pa.string(), "label", "which of the item's requests, where it has several"),
    column(
        "kind",
        pa.string(),
        "label",
        "generate: go on from the context; score: say how likely each target is behind it; "
        "complete: the likeliest of what may stand behind the context, of a masked model "
        "between it and the target; embed: what the model makes of the places of each target",
    ),
    column("context_ids", pa.list_(pa.int32()), "personal", "token ids that stand before"),
    column(
        "target_ids",
        TOKEN_ID_LISTS,
        "personal",
        "token ids to be read behind the context, a list for each text; null: to be written",
    ),
    column(
        "target_positions",
        TOKEN_ID_LISTS,
        "figure",
        "places in each target that a masked model is asked about, or whose embeddings are "
        "averaged; null: all",
    ),
    column(
        "rank_statistics", pa.bool_(), "figure", "whether also about ranks, and moments of log p"
    ),
    column(
        "score_lowercase",
        pa.bool_(),
        "figure",
        "whether what was written is read again in lower case; null: nothing is written",
    ),
    column(
        "layer",
        pa.int32(),
        "figure",
        "of embeddings: 0 those of the input, without places; "
        "from 1 what that block makes of them, from -1 backwards what the last makes",
    ),
    column("draws", pa.int32(), "figure", "texts to be written", unit="texts"),
    column("max_new_tokens", pa.int32(), "figure", "to be written at most", unit="tokens"),
    column("temperature", pa.float64(), "figure", "of the sampling; 0: greedy"),
    column(
        "first_temperature",
        pa.float64(),
        "figure",
        "of the first token, from which it falls to that of the sampling in 20; null: it is the "
        "same for all",
    ),
    column("top_p", pa.float64(), "figure", "nucleus of the sampling", unit="share"),
    column("top_k", pa.int32(), "figure", "likeliest tokens that are drawn from; 0: all"),
    column("seed", pa.int64(), "figure", "of the sampling"),
    column(
        "doc_ids",
        pa.list_(pa.binary()),
        "id",
        "documents of the corpus whose text stands in it; null: of none",
    ),
    column("source_text", pa.large_string(), "corpus text", "what of them stands in it"),
    column(
        "prefix_text",
        pa.large_string(),
        "audit text",
        "what a scorer that reads whole texts reads before what is written; null: it reads nothing",
    ),
    column(
        "masked_words",
        pa.list_(pa.string()),
        "label",
        "what is hidden from it: whom they are about",
    ),
)

#: What requests that are answered in one call share.
REQUEST_SETTINGS = (
    "kind",
    "draws",
    "max_new_tokens",
    "temperature",
    "first_temperature",
    "top_p",
    "top_k",
    "seed",
    "rank_statistics",
    "score_lowercase",
    "layer",
)

LOOKUPS = table_schema(
    "What is looked for in the training text, to tell how often the model had read an item.",
    column("item", ID_TYPE, "id", "the item for whose sake"),
    column(
        "token_ids", pa.list_(pa.int32()), "personal", "token ids of a text, as it is spelled there"
    ),
    column(
        "doc_ids",
        pa.list_(pa.binary()),
        "id",
        "documents of the corpus whose text stands in it; null: of none",
    ),
    column("source_text", pa.large_string(), "corpus text", "what of them stands in it"),
)

TOKENIZER = table_schema(
    "What was known of the model when the requests were written: no weights.",
    column("model_kind", pa.string(), "label", "causal or masked"),
    column("opening_description", pa.string(), "project text", "what stands before every text"),
)

SKIPPED = table_schema(
    "What was not asked, and why.",
    column("metric", pa.string(), "label", "what of the audit it concerns; empty: all"),
    column("tags", pa.string(), "label", "which part of that, as findings have it: JSON"),
    column("reason", pa.string(), "project text", "the reason, as findings say it"),
    column(
        "count",
        pa.int64(),
        "figure",
        "items that it concerns; null where that says nothing",
        unit="items",
    ),
)

RESPONSES = table_schema(
    "What the model answered: one row a draw, or a text that it read.",
    column("request", ID_TYPE, "id", "the request that it answers"),
    column("draw", pa.int32(), "figure", "which text written, or which target read, from 0"),
    column("text", pa.large_string(), "model text", "what was written; null where it was read"),
    column(
        "token_ids",
        pa.list_(pa.int32()),
        "personal",
        "token ids of what was written, without the one that ended it; null where it was read",
    ),
    column(
        "log_probs",
        pa.list_(pa.float32()),
        "figure",
        "of each token written or read, under the model itself",
        unit="nats",
    ),
    column(
        "ranks",
        pa.list_(pa.int32()),
        "figure",
        "place of each token among all that the model may write there, by their likelihood, "
        "from 1; null where it was not asked for",
    ),
    column(
        "vocabulary_mean",
        pa.list_(pa.float32()),
        "figure",
        "of log p over the vocabulary under the model, at each token",
        unit="nats",
    ),
    column(
        "vocabulary_std",
        pa.list_(pa.float32()),
        "figure",
        "standard deviation of the same",
        unit="nats",
    ),
    column(
        "lowercase_log_probs",
        pa.list_(pa.float32()),
        "figure",
        "of each token of what was written, in lower case; null where it was not asked for",
        unit="nats",
    ),
    column(
        "stop_reason",
        pa.string(),
        "label",
        "end: the model ended its text; length: it had to stop; empty where it was read",
    ),
)

EMBEDDINGS = table_schema(
    "What the model makes of texts, one row a text; none where embeddings were not asked for.",
    column("request", ID_TYPE, "id", "the request that it answers"),
    column("draw", pa.int32(), "figure", "which of its targets, from 0"),
    column("layer", pa.int32(), "figure", "as in the request"),
    column("vector", pa.list_(pa.float32()), "figure", "mean over the places of the target"),
)

MODEL = table_schema(
    "What the responses were computed in; no row where nothing was asked.",
    column("precision", pa.string(), "label", "fp32 or bf16"),
)

TRAINING_OVERLAP = table_schema(
    "How much of what was written stands in the training text, in the order of the responses.",
    column("request", ID_TYPE, "id", "the request that it answers"),
    column("draw", pa.int32(), "figure", "which text written, or which target read, from 0"),
    column(
        "longest_run_tokens",
        pa.int32(),
        "figure",
        "tokens of its longest run that stands in the training "
        "text; 0: none of those that are told; null: it was read",
        unit="tokens",
    ),
    column(
        "verbatim_tokens",
        pa.int32(),
        "figure",
        "its tokens within runs of verbatim reuse",
        unit="tokens",
    ),
    column(
        "planted_run_tokens",
        pa.int32(),
        "figure",
        "tokens of its longest run that stands in a planted document",
        unit="tokens",
    ),
)

#: What is told there of each response.
OVERLAP_COLUMNS = ("longest_run_tokens", "verbatim_tokens", "planted_run_tokens")

OCCURRENCE_COUNTS = table_schema(
    "How often training had read what was sought, an item's texts together.",
    column("item", ID_TYPE, "id", "the item for whose sake"),
    column(
        "occurrences",
        pa.int64(),
        "figure",
        "places in the rows where one stands whole, each as "
        "often as its row was read by this checkpoint's step; null: they are shorter than the "
        "shortest run that is told",
        unit="times",
    ),
)

REFERENCE_SCORES = table_schema(
    "How likely a reference model finds what was written.",
    column("request", ID_TYPE, "id", "the request that it answers"),
    column("draw", pa.int32(), "figure", "which text written, from 0"),
    column(
        "reference_log_likelihood",
        pa.float64(),
        "figure",
        "its log-likelihood under that model, behind the "
        "text of its item; null where the model gave no number",
        unit="nats",
    ),
)

SCORES = table_schema(
    "What scorers say of texts, each distinct text once.",
    column("text_hash", ID_TYPE, "id", "hash of the text"),
    column("scorer", pa.string(), "label", "name and digest"),
    column("head", pa.string(), "label", "what was scored: toxicity, insult ..."),
    column("score", pa.float32(), "figure", "null where the scorer failed", unit="score"),
)

#: Also where no text could be scored, findings name who was asked.
SCORERS = table_schema(
    "The scorers that were asked.",
    column("scorer", pa.string(), "label", "name and digest, as findings name it"),
    column("heads", pa.list_(pa.string()), "label", "what it scores: toxicity, sentiment ..."),
)


#: The column of items that names what they share beside their cluster, where they share two things.
CROSSED_CLUSTER = column(
    "crossed_cluster", pa.string(), "label", "what items share beside their cluster"
)


def build_items_schema(
    *tag_columns: pa.Field,
    text_kind: Literal["audit text", "corpus text", "personal"] = "audit text",
) -> pa.Schema:
    """The schema of a probe's items; ``tags`` are the columns that tell them apart, ``kind`` that
    of their text."""
    return table_schema(
        "What is measured, one row an item.",
        column("item", ID_TYPE, "id", "the item: a hash of what it holds"),
        column("cluster", pa.string(), "label", "items that share something: no independent units"),
        column(
            "text", pa.large_string(), text_kind, "the item as a scorer, or the model, reads it"
        ),
        *tag_columns,
    )


def hash_json_values(*values: Any) -> bytes:
    """16 bytes that stand for JSON values."""
    return blake2b(to_canonical_json(values), digest_size=16).digest()


class RequestBuilder:
    """Collects the items of a probe and what is asked for their sake."""

    def __init__(self) -> None:
        self.items: dict[bytes, dict[str, Any]] = {}
        self.requests: list[dict[str, Any]] = []
        self.lookups: list[dict[str, Any]] = []
        self._requested: set[tuple[bytes, str]] = set()
        self.skipped: list[dict[str, Any]] = []

    def add_item(self, text: str, cluster: str = "", **tags: Any) -> bytes:
        """The id of an item; one with the same text, cluster and tags is the same. Where nothing
        else is, its text is what it shares: as a hash, for a label is shown on every page."""
        cluster = cluster or hash_json_values(text).hex()
        item_id = hash_json_values(text, cluster, tags)
        self.items.setdefault(item_id, {"item": item_id, "cluster": cluster, "text": text, **tags})
        return item_id

    def request_continuations(
        self,
        item_id: bytes,
        context_ids: Sequence[int],
        *,
        max_new_tokens: int,
        draws: int = 1,
        temperature: float = 1.0,
        first_temperature: float | None = None,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        rank_statistics: bool = False,
        score_lowercase: bool = False,
        part: str = "",
        prefix_text: str | None = None,
        masked_words: Sequence[str] = (),
        doc_ids: Sequence[bytes] | None = None,
        source_text: str | None = None,
    ) -> None:
        """Ask for ``draws`` texts behind a context of at least one token. What was written is then
        read again behind the same: ``moments``: as it is, for ranks and moments; ``lower``: in
        lower case. ``before`` and ``masked``: what a scorer of whole texts reads before them, and
        what it does not see. ``doc_ids`` and ``text``: what the context holds of the corpus."""
        request: dict[str, Any] = {
            "kind": "generate",
            "context_ids": list(context_ids),
            "draws": draws,
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "first_temperature": first_temperature,
            "top_p": top_p,
            "top_k": top_k,
            "seed": seed,
            "rank_statistics": rank_statistics,
            "score_lowercase": score_lowercase,
        }
        source_columns = {
            "prefix_text": prefix_text,
            "masked_words": list(masked_words),
            "source_text": source_text,
            "doc_ids": None if doc_ids is None else list(doc_ids),
        }
        self._add_request(item_id, part, request, source_columns)

    def request_log_probs(
        self,
        item_id: bytes,
        context_ids: Sequence[int],
        target_ids: Sequence[Sequence[int]],
        *,
        target_positions: Sequence[Sequence[int]] | None = None,
        rank_statistics: bool = False,
        part: str = "",
        doc_ids: Sequence[bytes] | None = None,
        source_text: str | None = None,
    ) -> None:
        """Ask how likely each token of each target is behind a context, which is read once for
        many of them. Behind none a causal model is not asked about their first token. ``moments``:
        also about ranks, of a causal model. ``doc_ids`` and ``text``: what it holds of the corpus,
        so that a purge finds it."""
        request = {
            "kind": "score",
            "context_ids": list(context_ids),
            "target_ids": [*map(list, target_ids)],
            "target_positions": None
            if target_positions is None
            else [*map(list, target_positions)],
            "rank_statistics": rank_statistics,
        }
        source_columns = {
            "doc_ids": None if doc_ids is None else list(doc_ids),
            "source_text": source_text,
        }
        self._add_request(item_id, part, request, source_columns)

    def request_completions(
        self,
        item_id: bytes,
        context_ids: Sequence[int],
        suffix_ids: Sequence[int],
        *,
        count: int,
        max_new_tokens: int,
        part: str = "",
    ) -> None:
        """Ask for the ``count`` likeliest completions behind a context, of at most ``tokens``; a
        masked model is asked for a single one, between the context and what stands ``after``."""
        request = {
            "kind": "complete",
            "context_ids": list(context_ids),
            "target_ids": [list(suffix_ids)],
            "draws": count,
            "max_new_tokens": max_new_tokens,
        }
        self._add_request(item_id, part, request)

    def request_embeddings(
        self,
        item_id: bytes,
        target_ids: Sequence[Sequence[int]],
        target_positions: Sequence[Sequence[int]],
        *,
        layer: int,
        part: str = "",
    ) -> None:
        """Ask for the embeddings of some ``places`` of each target, averaged over them; targets are
        read as they stand, with what opens and ends them."""
        request = {
            "kind": "embed",
            "context_ids": [],
            "target_ids": [*map(list, target_ids)],
            "target_positions": [*map(list, target_positions)],
            "layer": layer,
        }
        self._add_request(item_id, part, request)

    def request_lookup(
        self,
        item_id: bytes,
        token_id_lists: Sequence[Sequence[int]],
        doc_ids: Sequence[bytes] | None = None,
        source_text: str | None = None,
    ) -> None:
        """Have texts looked for in the training text, by their token ids: an item was read as often
        as they stand there whole. ``doc_ids`` and ``text`` as for ``read``."""
        if (item_id, "lookup") not in self._requested:
            self._requested.add((item_id, "lookup"))
            source_columns = {
                "doc_ids": None if doc_ids is None else list(doc_ids),
                "source_text": source_text,
            }
            distinct_ids = dict.fromkeys(map(tuple, token_id_lists))
            self.lookups += [
                {"item": item_id, "token_ids": list(token_ids), **source_columns}
                for token_ids in distinct_ids
            ]

    def record_skipped(
        self, metric: str, reason: str, count: int | None = None, /, **tags: Any
    ) -> None:
        """Something is not asked: all (``metric`` empty), a measure, or of it what has these tags;
        with a ``count``: so many items of a kind that ``metric`` names."""
        self.skipped.append(
            {"metric": metric, "tags": json.dumps(tags), "reason": reason, "count": count}
        )

    def _add_request(
        self,
        item_id: bytes,
        part: str,
        request: dict[str, Any],
        source_columns: Mapping[str, Any] | None = None,
    ) -> None:
        if (item_id, part) in self._requested:  # an item that was given twice
            return
        self._requested.add((item_id, part))
        keys = {"request": hash_json_values(request), "item": item_id, "part": part}
        self.requests.append(keys | request | dict(source_columns or {}))
