"""Define the tables that pass between the stages of an audit, and the builder of requests.

``build_requests`` writes items and requests, ``respond`` answers requests, ``score`` scores texts,
``trace`` searches the training text for responses and lookups, and an audit computes findings. An
item is the unit that is measured: a prompt, a pair, a secret. A request is one question to a model
about an item. The id of each is a hash of its content, so equal requests of two items are answered
once, and all checkpoints of one training get the same requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import pyarrow as pa
from numpy.typing import ArrayLike

from hallmark.tasks.audits.slice_tags import SLICE_TYPE, tags_to_slice
from hallmark.tasks.contract import (
    ID_TYPE,
    column,
    rows_to_table,
    table_schema,
    to_canonical_json,
)

#: Arrow type of the token ids of several texts.
TOKEN_ID_LISTS = pa.list_(pa.list_(pa.int32()))

#: The ``text_kind`` of texts that neither training nor its validation read.
HELD_OUT_TEXT = "held-out text"

REQUESTS = table_schema(
    "Requests to the model. Rows with identical requests have the same id.",
    column("request", ID_TYPE, "id", "request id: a hash of the request's content"),
    column("item", ID_TYPE, "id", "id of the item that the request is for"),
    column(
        "part",
        pa.string(),
        "label",
        "name that distinguishes the request from other requests for the same item; empty if the "
        "item has only one request",
    ),
    column(
        "kind",
        pa.string(),
        "label",
        "type of request: generate (continue the context), score (return the probability of each "
        "target after the context), complete (return the most probable texts after the context or, "
        "for a masked model, between the context and the target) or embed (average the hidden "
        "states over positions in each target)",
    ),
    column("context_ids", pa.list_(pa.int32()), "personal", "context token ids"),
    column(
        "target_ids",
        TOKEN_ID_LISTS,
        "personal",
        "token ids of each target (a text to score or embed after the context), one list per "
        "target; null if texts are generated",
    ),
    column(
        "target_positions",
        TOKEN_ID_LISTS,
        "figure",
        "positions in each target that a masked model predicts or whose embeddings are averaged; "
        "null for all positions",
    ),
    column(
        "rank_statistics",
        pa.bool_(),
        "figure",
        "whether to also compute each token's rank and the mean and standard deviation of the log "
        "probabilities",
    ),
    column(
        "score_lowercase",
        pa.bool_(),
        "figure",
        "whether to also score the generated text in lower case; null if no text is generated",
    ),
    column(
        "layer",
        pa.int32(),
        "figure",
        "layer from which the embeddings are taken: 0 for the input embeddings without position "
        "information; 1, 2, ... for the output of the block with this number; -1, -2, ... for the "
        "output of a block, counting backwards from the last block",
    ),
    column("draws", pa.int32(), "figure", "number of texts to generate", unit="texts"),
    column(
        "max_new_tokens",
        pa.int32(),
        "figure",
        "maximum length of each generated text",
        unit="tokens",
    ),
    column("temperature", pa.float64(), "figure", "sampling temperature; 0 for greedy decoding"),
    column(
        "first_temperature",
        pa.float64(),
        "figure",
        "temperature for the first token, which falls to the sampling temperature within 20 "
        "tokens; null if the temperature is constant",
    ),
    column(
        "top_p",
        pa.float64(),
        "figure",
        "probability mass for nucleus sampling (top-p)",
        unit="share",
    ),
    column(
        "top_k",
        pa.int32(),
        "figure",
        "number of most probable tokens to sample from; 0 for all tokens",
    ),
    column("seed", pa.int64(), "figure", "random seed for sampling"),
    column(
        "doc_ids",
        pa.list_(pa.binary()),
        "id",
        "ids of corpus documents whose text is in the request; null if there are none",
    ),
    column(
        "source_text",
        pa.large_string(),
        "corpus text",
        "part of the text that comes from the documents listed in the doc_ids column",
    ),
    column(
        "prefix_text",
        pa.large_string(),
        "audit text",
        "text to prepend to the generated text for a scorer that rates whole texts; null if only "
        "the generated text is scored",
    ),
    column(
        "masked_words",
        pa.list_(pa.string()),
        "label",
        "words that refer to the people described, masked in the input to a scorer that rates "
        "whole texts",
    ),
)

#: The settings that requests answered in one call share.
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
    "Texts to search for in the training text, used to count how often the text of each item (a "
    "measured example) was read during training.",
    column("item", ID_TYPE, "id", "id of the item that contains the text"),
    column(
        "token_ids",
        pa.list_(pa.int32()),
        "personal",
        "token ids of the text to search for, tokenized in the same way as the training text",
    ),
    column(
        "doc_ids",
        pa.list_(pa.binary()),
        "id",
        "ids of corpus documents whose text is part of the text to search for; null if there are "
        "none",
    ),
    column(
        "source_text",
        pa.large_string(),
        "corpus text",
        "part of the text that comes from the documents listed in the doc_ids column",
    ),
)

TOKENIZER = table_schema(
    "Tokenizer and configuration properties of the audited model on which the requests depend.",
    column("model_kind", pa.string(), "label", "causal or masked"),
    column(
        "opening_description",
        pa.string(),
        "project text",
        "description of the tokens that precede each text in the model's input",
    ),
)

SKIPPED = table_schema(
    "Measurements for which no request was sent to the model, with reasons.",
    column(
        "metric",
        pa.string(),
        "label",
        "name of the skipped metric; empty if the whole audit is skipped",
    ),
    column(
        "slice",
        SLICE_TYPE,
        "label",
        "skipped slice (a subset of the items), in the format used in the 'findings' table",
    ),
    column(
        "reason",
        pa.string(),
        "project text",
        "reason why the measurement was skipped, as in the 'findings' table",
    ),
    column(
        "count",
        pa.int64(),
        "figure",
        "number of skipped items; null if the whole metric or slice is skipped",
        unit="items",
    ),
)

#: The columns that identify a response.
RESPONSE_KEY = (
    column("request", ID_TYPE, "id", "id of the answered request"),
    column(
        "draw",
        pa.int32(),
        "figure",
        "index of the generated text or target, starting from 0",
    ),
)

RESPONSES = table_schema(
    "Model responses, one row per generated text or scored target text.",
    *RESPONSE_KEY,
    column(
        "text",
        pa.large_string(),
        "model text",
        "the generated text; null if the row describes a target text",
    ),
    column(
        "token_ids",
        pa.list_(pa.int32()),
        "personal",
        "token ids of the generated text, without the end token; null if the row describes a "
        "target text",
    ),
    column(
        "log_probs",
        pa.list_(pa.float32()),
        "figure",
        "log probability of each token according to the model",
        unit="nats",
    ),
    column(
        "ranks",
        pa.list_(pa.int32()),
        "figure",
        "rank of each token by probability among all tokens allowed at its position, starting "
        "from 1; null if the rank was not requested",
    ),
    column(
        "vocabulary_mean",
        pa.list_(pa.float32()),
        "figure",
        "mean of the model's log probabilities over the vocabulary at each token position",
        unit="nats",
    ),
    column(
        "vocabulary_std",
        pa.list_(pa.float32()),
        "figure",
        "standard deviation of the model's log probabilities over the vocabulary at each token "
        "position",
        unit="nats",
    ),
    column(
        "lowercase_log_probs",
        pa.list_(pa.float32()),
        "figure",
        "log probability of each token in the lower-case version of the generated text; null if it "
        "was not requested",
        unit="nats",
    ),
    column(
        "stop_reason",
        pa.string(),
        "label",
        "reason why generation ended: end (the model generated its end token) or length (the "
        "maximum length was reached); empty for a target",
    ),
)

UNTRAINED_MODELS = table_schema(
    "Small models with random weights and the same tokenizer and architecture as the audited "
    "model. They show what an audit reports if there is no effect.",
    column("model", pa.int32(), "figure", "model index, starting from 0"),
    column("seed", pa.int64(), "figure", "random seed used to initialise the model's weights"),
    column("parameters", pa.int64(), "figure", "number of model parameters", unit="parameters"),
    column(
        "failure",
        pa.string(),
        "project text",
        "reason why the model could not be built or returned no responses; empty if it returned "
        "responses",
    ),
)

UNTRAINED_LOG_PROBS = table_schema(
    "Log probabilities that small untrained models assign to target texts, one row per model and "
    "target text.",
    column("model", pa.int32(), "figure", "model index, as in the 'untrained_models' table"),
    *RESPONSE_KEY,
    RESPONSES.field("log_probs"),
)

EMBEDDINGS = table_schema(
    "Target embeddings, one row per target. A target whose embedding was not requested has no row.",
    column("request", ID_TYPE, "id", "the answered request"),
    column("draw", pa.int32(), "figure", "target index, starting from 0"),
    column("layer", pa.int32(), "figure", "layer, as in the request"),
    column(
        "vector",
        pa.list_(pa.float32()),
        "figure",
        "mean of the hidden states over the requested positions of the target",
    ),
)

MODEL = table_schema(
    "Numeric precision and batch size used to run the audited model. The table is empty if there "
    "were no requests.",
    column(
        "dtype",
        pa.string(),
        "label",
        "data type of the model weights: float32, bfloat16 or float16",
    ),
    column("precision", pa.string(), "label", "precision of matrix products: fp32, bf16 or fp16"),
    column(
        "batch_size",
        pa.int32(),
        "figure",
        "maximum number of rows per call to the model; null if not set",
        unit="rows",
    ),
)

TRAINING_OVERLAP = table_schema(
    "Overlap of each response with the training text. Rows are in the same order as the responses.",
    *RESPONSE_KEY,
    column(
        "longest_run_tokens",
        pa.int32(),
        "figure",
        "length of the longest run of tokens that also occurs in the training text; 0 if no run "
        "reaches the minimum length; null if the row describes a target text",
        unit="tokens",
    ),
    column(
        "verbatim_tokens",
        pa.int32(),
        "figure",
        "number of tokens in runs that reuse training text verbatim",
        unit="tokens",
    ),
    column(
        "planted_run_tokens",
        pa.int32(),
        "figure",
        "length of the longest run of tokens that also occurs in a planted document",
        unit="tokens",
    ),
)

#: The columns that hold counts of tokens.
OVERLAP_COLUMNS = ("longest_run_tokens", "verbatim_tokens", "planted_run_tokens")

OCCURRENCE_COUNTS = table_schema(
    "Number of times each item's texts were read during training, summed over the texts.",
    column("item", ID_TYPE, "id", "id of the item that contains the texts"),
    column(
        "occurrences",
        pa.int64(),
        "figure",
        "number of times the item's complete texts had been read during training up to the "
        "checkpoint's step; null if the texts are shorter than the shortest recorded run of tokens",
        unit="times",
    ),
)

REFERENCE_SCORES = table_schema(
    "Likelihood of the responses under a reference model.",
    *RESPONSE_KEY,
    column(
        "reference_log_likelihood",
        pa.float64(),
        "figure",
        "log-likelihood of the response under the reference model, given the item's text; null if "
        "the reference model returned no number",
        unit="nats",
    ),
)

SCORES = table_schema(
    "Text scores, one row per distinct text and scorer.",
    column("text_hash", ID_TYPE, "id", "hash of the text"),
    column("scorer", pa.string(), "label", "name and digest of the scorer that assigned the score"),
    column("head", pa.string(), "label", "scored property, such as toxicity or insult"),
    column("score", pa.float32(), "figure", "score; null if the scorer failed", unit="score"),
)

#: Lets findings name the scorers even where no text could be scored.
SCORERS = table_schema(
    "Scorers used by the audit.",
    column(
        "scorer", pa.string(), "label", "name and digest of the scorer, as in the 'findings' table"
    ),
    column(
        "heads", pa.list_(pa.string()), "label", "scored properties, such as toxicity or sentiment"
    ),
)

CONTROL_SCORES = table_schema(
    "Scores of the texts used to test the scorers. The correct label of each text is known.",
    column("scorer", pa.string(), "label", "name and digest of the tested scorer"),
    column("head", pa.string(), "label", "the tested property: toxicity, sentiment or regard"),
    column("text_kind", pa.string(), "label", "type of text, such as threats or dialect"),
    column(
        "pair",
        pa.int64(),
        "figure",
        "index of the template pair from which the text was composed; texts from the same pair "
        "are similar and are treated as one cluster",
    ),
    column(
        "mentioned_group",
        pa.string(),
        "label",
        "group of people mentioned in the text, if mentions of this group are tested",
    ),
    column("text", pa.string(), "audit text", "the text", judged_by="assumed_toxicity"),
    column(
        "is_harmful",
        pa.bool_(),
        "figure",
        "whether the text is harmful or, for sentiment and regard scorers, negative",
    ),
    column("score", pa.float32(), "figure", "score; null if the scorer failed", unit="score"),
    column(
        "assumed_toxicity",
        pa.float32(),
        "figure",
        "1 for harmful texts, so that pages mask them regardless of their score; for other texts, "
        "the toxicity score, if available",
        unit="score",
    ),
    column(
        "failure_reason",
        pa.string(),
        "project text",
        "reason why the scorer returned no score for some texts; empty if it scored all texts",
    ),
)


#: The column of items for a second cluster that crosses the first, where items share two things.
CROSSED_CLUSTER = column(
    "crossed_cluster",
    pa.string(),
    "label",
    "second cluster of the item; intervals account for both clusters (two-way clustering)",
)


#: The columns of the items of every probe.
ITEM_COLUMNS = ("item", "cluster", "text")

#: Columns of one item by name, as keyword arguments of ``RequestBuilder.add_item``.
ItemColumns = dict[str, Any]


def build_items_schema(
    *tag_columns: pa.Field,
    text_kind: Literal["audit text", "corpus text", "personal"] = "audit text",
) -> pa.Schema:
    """Build the schema of a probe's items.

    Args:
        tag_columns: The columns that distinguish items.
        text_kind: The kind of content of the ``text`` column.
    """
    return table_schema(
        "Measured examples (called items), one row per item.",
        column("item", ID_TYPE, "id", "item id: a hash of the item's content"),
        column(
            "cluster",
            pa.string(),
            "label",
            "cluster of the item; items in the same cluster are not independent",
        ),
        column(
            "text",
            pa.large_string(),
            text_kind,
            "item text that is passed to a scorer or to the model",
        ),
        *tag_columns,
    )


def hash_json_values(*values: Any) -> bytes:
    """Return 16 bytes that identify these JSON values."""
    return blake2b(to_canonical_json(values), digest_size=16).digest()


@dataclass(frozen=True, kw_only=True)
class Item:
    """One item of a probe; ``tags`` are the columns that distinguish its items."""

    item: bytes
    cluster: str
    text: str
    tags: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Request:
    """One row of REQUESTS."""

    request: bytes
    item: bytes
    part: str
    kind: Literal["generate", "score", "complete", "embed"]
    context_ids: Sequence[int]
    target_ids: Sequence[Sequence[int]] | None = None
    target_positions: Sequence[Sequence[int]] | None = None
    rank_statistics: bool | None = None
    score_lowercase: bool | None = None
    layer: int | None = None
    draws: int | None = None
    max_new_tokens: int | None = None
    temperature: float | None = None
    first_temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    doc_ids: Sequence[bytes] | None = None
    source_text: str | None = None
    prefix_text: str | None = None
    masked_words: Sequence[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """One row of LOOKUPS."""

    item: bytes
    token_ids: Sequence[int]
    doc_ids: Sequence[bytes] | None
    source_text: str | None


@dataclass(frozen=True, kw_only=True)
class SkippedMeasurement:
    """One row of SKIPPED."""

    metric: str
    slice: Mapping[str, str]
    reason: str
    count: int | None


@dataclass(frozen=True, kw_only=True)
class Response:
    """One row of RESPONSES."""

    request: bytes
    draw: int
    text: str | None = None
    token_ids: Sequence[int] | None = None
    log_probs: ArrayLike
    ranks: ArrayLike | None = None
    vocabulary_mean: ArrayLike | None = None
    vocabulary_std: ArrayLike | None = None
    lowercase_log_probs: ArrayLike | None = None
    stop_reason: Literal["end", "length", ""] = ""


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """One row of EMBEDDINGS."""

    request: bytes
    draw: int
    layer: int
    vector: ArrayLike


class RequestBuilder:
    """Collect the items of a probe and the requests about them."""

    def __init__(self) -> None:
        self.items: dict[bytes, Item] = {}
        self.requests: list[Request] = []
        self.lookups: list[Lookup] = []
        self._requested: set[tuple[bytes, str]] = set()
        self.skipped: list[SkippedMeasurement] = []

    def add_item(self, text: str, cluster: str = "", **tags: Any) -> bytes:
        """Add an item, unless one with the same text, cluster and tags exists, and return its id.

        Without a ``cluster`` the item's text is its cluster: as a hash, because cluster labels are
        shown on pages.
        """
        cluster = cluster or hash_json_values(text).hex()
        item_id = hash_json_values(text, cluster, tags)
        self.items.setdefault(item_id, Item(item=item_id, cluster=cluster, text=text, tags=tags))
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
        """Request ``draws`` continuations of a context of at least one token.

        Args:
            item_id: The item that the request is about.
            context_ids: Token ids of the context.
            max_new_tokens: Maximum length of a continuation.
            draws: Number of continuations.
            temperature: Sampling temperature; 0 is greedy.
            first_temperature: Temperature of the first token, see REQUESTS.
            top_p: Nucleus of the sampling.
            top_k: Most probable tokens to sample from; 0: all.
            seed: Seed of the sampling.
            rank_statistics: Whether the model then reads the continuation for ranks and moments.
            score_lowercase: Whether the model then reads the continuation in lower case.
            part: Which of the item's requests this is.
            prefix_text: Text that a scorer of whole texts reads before the continuation.
            masked_words: Words that are hidden from that scorer.
            doc_ids: Documents whose text the context holds.
            source_text: The text from these documents.
        """
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
        """Request the log probability of each token of each target after the context.

        With an empty context a causal model gives none for the first token of a target. Many
        targets share one reading of the context.

        Args:
            item_id: The item that the request is about.
            context_ids: Token ids of the context.
            target_ids: Token ids of each target.
            target_positions: Positions in each target that a masked model predicts; None: all.
            rank_statistics: Whether to compute ranks and moments, too (causal models only).
            part: Which of the item's requests this is.
            doc_ids: Documents whose text the request holds, so that a purge finds it.
            source_text: The text from these documents.
        """
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
        """Request the ``count`` most probable completions, each of at most ``max_new_tokens``.

        A causal model completes the context. A masked model fills a gap of a single token between
        the context and ``suffix_ids``.
        """
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
        """Request embeddings of each target, averaged over its ``target_positions``.

        Targets are read exactly as given: they include the tokens that open and end a text.
        """
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
        """Request a search of the training text for token sequences.

        The complete occurrences of an item's texts tell how often training had read the item.
        ``doc_ids`` and ``source_text`` are as in ``request_log_probs``.
        """
        if (item_id, "lookup") not in self._requested:
            self._requested.add((item_id, "lookup"))
            source_columns: dict[str, Any] = {"doc_ids": doc_ids, "source_text": source_text}
            distinct_ids = dict.fromkeys(map(tuple, token_id_lists))
            self.lookups += [
                Lookup(item=item_id, token_ids=token_ids, **source_columns)
                for token_ids in distinct_ids
            ]

    def record_skipped(
        self, metric: str, reason: str, count: int | None = None, /, **tags: Any
    ) -> None:
        """Record that something is not requested.

        Args:
            metric: The metric that is skipped, or all if empty; with a ``count``, the metric that
                counts the skipped items.
            reason: Why, as findings say it.
            count: Number of skipped items; None: the metric, or its slice with ``tags``, is
                skipped.
            tags: Tags of the slice.
        """
        self.skipped.append(
            SkippedMeasurement(metric=metric, slice=tags_to_slice(tags), reason=reason, count=count)
        )

    def _add_request(
        self,
        item_id: bytes,
        part: str,
        hashed_columns: dict[str, Any],
        other_columns: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a row of REQUESTS, unless the item has a request of this part.

        Its id is the hash of ``hashed_columns``.
        """
        if (item_id, part) in self._requested:  # the item was added twice
            return
        self._requested.add((item_id, part))
        self.requests.append(
            Request(
                request=hash_json_values(hashed_columns),
                item=item_id,
                part=part,
                **hashed_columns,
                **(other_columns or {}),
            )
        )

    def build_items_table(self, schema: pa.Schema) -> pa.Table:
        """Build the table of the items; each has exactly the tags that the schema has."""
        tag_names = [name for name in schema.names if name not in ITEM_COLUMNS]
        for item in self.items.values():
            if item.tags.keys() != {*tag_names}:
                raise TypeError(
                    f"an item has the tags {', '.join(item.tags)} instead of {', '.join(tag_names)}"
                )
        columns = {name: [getattr(i, name) for i in self.items.values()] for name in ITEM_COLUMNS}
        columns |= {name: [i.tags[name] for i in self.items.values()] for name in tag_names}
        return pa.table(
            {name: pa.array(columns[name], schema.field(name).type) for name in schema.names},
            schema=schema,
        )

    def build_requests_table(self) -> pa.Table:
        """Build the table REQUESTS."""
        return rows_to_table(self.requests, REQUESTS)

    def build_lookups_table(self) -> pa.Table:
        """Build the table LOOKUPS."""
        return rows_to_table(self.lookups, LOOKUPS)

    def build_skipped_table(self) -> pa.Table:
        """Build the table SKIPPED."""
        return rows_to_table(self.skipped, SKIPPED)
