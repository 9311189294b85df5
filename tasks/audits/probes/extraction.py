"""Extraction of training data: canary exposure and discoverable memorisation.

Exposure (Carlini et al. 2019): how far up a planted secret stands among secrets that were never
planted, see ``exposure.py``; its two ends are the controls.

Discoverable memorisation (Carlini et al. 2023): would the model, given k tokens of a training text,
write exactly the next n? Its greedy continuation is the text's own where each of its tokens ranks
first behind those before it, so reading the text once tells it. On planted passages and records by
their number of copies, and on other training and holdout documents. With the longest prefix also
whether somebody who samples n times would get it, see ``draws.py``.
Without plants or documents the audit still runs and says what it could not measure.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from hallmark.tasks.audits.audit_tables import RequestBuilder, build_items_schema
from hallmark.tasks.audits.audited_models.audited_tokenizer import (
    AuditedTokenizer,
    TokenIds,
    count_shared_prefix_tokens,
)
from hallmark.tasks.audits.judging.measures import (
    Measure,
    SeededConfig,
    Slice,
    SliceFinder,
    ValueWriter,
    declare_slice_tags,
    estimate_untested_mean,
    make_slope_estimator,
    read_float_column,
)
from hallmark.tasks.audits.judging.tags import SliceTags
from hallmark.tasks.audits.methods import exposure
from hallmark.tasks.audits.methods.probabilistic_extraction import (
    DRAW_COUNTS,
    MIN_EXTRACTION_PROBABILITY,
    flag_extractable,
)
from hallmark.tasks.audits.probe import CorpusTables, Probe
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.contract import ID_TYPE, Seed, Table, column
from hallmark.tasks.measures.sampling import sample_documents


class ExtractionConfig(SeededConfig):
    """Settings of the extraction audit."""

    reference_secrets: int = Field(
        default=10_000,
        ge=100,
        le=1_000_000,
        description="random secrets among which each canary is ranked",
    )
    prefix_tokens: tuple[int, ...] = Field(
        default=(8, 16, 32), description="tokens of a text that the model is given (k)"
    )
    suffix_tokens: int = Field(
        default=32,
        ge=1,
        le=1000,
        description="tokens after the prefix that the model must reproduce",
    )
    max_windows: int = Field(
        default=4,
        ge=1,
        le=100_000,
        description="windows of a text that are tried; without stride_tokens, each begins "
        "where the suffix of the one before ends",
    )
    stride_tokens: int | None = Field(
        default=None,
        ge=1,
        description="tokens from the beginning of one window to the next; if there are more "
        "than max_windows, so many are drawn at random",
    )
    documents_per_split: int = Field(
        default=50, ge=0, le=100_000, description="unplanted documents that are tried of each split"
    )
    seed: Seed = Field(default=0, description="of references, sample and scripts")

    @field_validator("prefix_tokens")
    @classmethod
    def _validate_prefixes(cls, prefix_tokens: tuple[int, ...]) -> tuple[int, ...]:
        are_distinct = len(set(prefix_tokens)) == len(prefix_tokens)
        if not prefix_tokens or min(prefix_tokens) < 1 or not are_distinct:
            raise ValueError("prefix_tokens must name distinct numbers of tokens from 1")
        return tuple(sorted(prefix_tokens))


ITEMS = build_items_schema(
    column(
        "kind",
        pa.string(),
        "label",
        "canary, passage, record, train or holdout; references: a "
        "template's canaries with those that they are ranked among",
    ),
    column(
        "copies",
        pa.int32(),
        "figure",
        "copies of a plant; null for other documents",
        unit="documents",
    ),
    column("canary_id", ID_TYPE, "id", "the plant; null for other documents"),
    column("doc_ids", pa.list_(pa.binary()), "id", "the training documents that hold the text"),
    column("template", pa.string(), "label", "format of a canary or record"),
    column("secret", pa.large_string(), "personal", "what stands there in the text"),
    column(
        "prefix_tokens", pa.int32(), "figure", "tokens given; null: the whole prompt", unit="tokens"
    ),
    column(
        "token_start", pa.int32(), "figure", "token of the text that the wanted ones begin with"
    ),
    text_kind="corpus text",
)

#: What is told of values.
VALUE_FIELDS = (
    column(
        "log_likelihood",
        pa.float64(),
        "figure",
        "of what is wanted, behind what was given",
        unit="nats",
    ),
    column(
        "rank",
        pa.int32(),
        "figure",
        "place of a canary among the references, from 1, after those that are equally likely",
    ),
    column("reference_count", pa.int32(), "figure", "secrets it was ranked among", unit="secrets"),
    column("target_tokens", pa.int32(), "figure", "tokens that must be right", unit="tokens"),
    column(
        "leading_correct_tokens",
        pa.int32(),
        "figure",
        "tokens right before the first wrong one; null where the model gave no number",
        unit="tokens",
    ),
    column(
        "draw_count",
        pa.int64(),
        "figure",
        "draws at temperature 1; null: the likeliest tokens",
        unit="texts",
    ),
)

# Questions -------------------------------------------------------------------------------------


def build_requests(
    requests: RequestBuilder,
    tokenizer: AuditedTokenizer,
    corpus: CorpusTables,
    config: ExtractionConfig,
) -> None:
    """Canaries among their references; planted passages and records, and other documents, each
    behind what stands before it."""
    if tokenizer.model_kind == "masked":
        for metric in ("exposure", "extractable"):
            requests.record_skipped(metric, "the subject is a masked language model")
        return
    canary_rows = corpus.canaries.read().to_pylist() if corpus.canaries is not None else []
    canaries_by_kind = {
        kind: [canary for canary in canary_rows if canary["kind"] == kind]
        for kind in ("canary", "passage", "record")
    }
    if canaries_by_kind["canary"]:
        exposure.build_canary_requests(requests, tokenizer, canaries_by_kind["canary"], config)
    else:
        reason = "no canaries are known of this corpus, so nothing has a known answer"
        requests.record_skipped("exposure", reason)
    earlier_request_count = len(requests.requests)
    build_window_requests(requests, tokenizer, canaries_by_kind["passage"], config)
    build_record_requests(requests, tokenizer, canaries_by_kind["record"])
    build_window_requests(
        requests, tokenizer, sample_unplanted_documents(tokenizer, corpus.documents, config), config
    )
    for k in sorted({*config.prefix_tokens} - {*select_prefix_lengths(tokenizer, config)}):
        reason = (
            f"{k} + {config.suffix_tokens} tokens do not fit the context of "
            f"{tokenizer.context_length}"
        )
        requests.record_skipped("extractable", reason, prefix_tokens=k)
    if len(requests.requests) == earlier_request_count:
        reason = "neither plants nor documents of this corpus are known, or all are too short"
        requests.record_skipped("extractable", reason)


def select_prefix_lengths(tokenizer: AuditedTokenizer, config: ExtractionConfig) -> list[int]:
    """The prefixes that fit the model's context together with what must follow."""
    return [
        prefix_length
        for prefix_length in config.prefix_tokens
        if prefix_length + config.suffix_tokens <= tokenizer.context_length
    ]


def build_window_requests(
    requests: RequestBuilder,
    tokenizer: AuditedTokenizer,
    text_rows: Sequence[Mapping[str, Any]],
    config: ExtractionConfig,
) -> None:
    """For each text, at each place and for each k, the k tokens before the place: the same places
    for all k, as in the paper. Texts that are too short for the longest prefix and what must follow
    are left out."""
    prefix_lengths = select_prefix_lengths(tokenizer, config)
    if not prefix_lengths:
        return
    longest_prefix, target_length = prefix_lengths[-1], config.suffix_tokens
    stride = config.stride_tokens or target_length
    for token_ids, text_row in zip(
        tokenizer.encode_batch([text_row["text"] for text_row in text_rows]), text_rows, strict=True
    ):
        ends = range(longest_prefix + target_length, len(token_ids) + 1, stride)
        start_positions = [end - target_length for end in ends]
        if config.stride_tokens and len(start_positions) > config.max_windows:
            rng = random.Random(f"{config.seed}/{get_text_cluster(text_row)}")
            start_positions = sorted(start_positions, key=lambda start: (rng.random(), start))
        for start in start_positions[: config.max_windows]:
            for prefix_length in prefix_lengths:
                # All stand behind the begin-of-text token: else the longest prefix would alone.
                prefix_ids, target_ids = (
                    tokenizer.prepend_bos_id(token_ids[start - prefix_length : start]),
                    token_ids[start : start + target_length],
                )
                build_attempt_request(
                    requests,
                    tokenizer,
                    text_row,
                    prefix_ids,
                    target_ids,
                    prefix_length=prefix_length,
                    start=start,
                )


def build_record_requests(
    requests: RequestBuilder, tokenizer: AuditedTokenizer, canaries: Sequence[Mapping[str, Any]]
) -> None:
    """Records: all that stands before the secret is given, the secret itself is wanted."""
    full_encodings = tokenizer.encode_batch([p["prompt"] + p["secret"] for p in canaries])
    prompt_encodings = tokenizer.encode_batch([p["prompt"] for p in canaries])
    for canary, full_ids, prompt_ids in zip(
        canaries, full_encodings, prompt_encodings, strict=True
    ):
        shared_length = count_shared_prefix_tokens([full_ids, prompt_ids])
        if 0 < shared_length < len(full_ids):
            build_attempt_request(
                requests,
                tokenizer,
                canary,
                tokenizer.prepend_bos_id(full_ids[:shared_length]),
                full_ids[shared_length:],
                prefix_length=None,
                start=shared_length,
            )


def build_attempt_request(
    requests: RequestBuilder,
    tokenizer: AuditedTokenizer,
    text_row: Mapping[str, Any],
    prefix_ids: TokenIds,
    target_ids: TokenIds,
    *,
    prefix_length: int | None,
    start: int,
) -> None:
    """Whether the model would write ``target`` behind ``given``."""
    prompt, secret = tokenizer.decode(prefix_ids), tokenizer.decode(target_ids)
    if prefix_length is None:
        prompt, secret = text_row["prompt"], text_row["secret"]
    item_id = requests.add_item(
        prompt,
        get_text_cluster(text_row),
        **select_canary_fields(text_row),
        secret=secret,
        prefix_tokens=prefix_length,
        token_start=start,
    )
    corpus_fields: dict[str, Any] = {"doc_ids": text_row["doc_ids"], "source_text": prompt + secret}
    requests.request_log_probs(
        item_id, prefix_ids, [target_ids], rank_statistics=True, **corpus_fields
    )
    requests.request_lookup(
        item_id, [[*prefix_ids[len(tokenizer.prepend_bos_id([])) :], *target_ids]], **corpus_fields
    )


def get_text_cluster(text_row: Mapping[str, Any]) -> str:
    """The cluster of an attempt: the text that it is at."""
    return str((text_row["canary_id"] or text_row["doc_ids"][0]).hex())


def select_canary_fields(text_row: Mapping[str, Any]) -> dict[str, Any]:
    """What items tell of a plant, or of a document."""
    item_fields = ("kind", "copies", "canary_id", "doc_ids", "template")
    return {field: text_row[field] for field in item_fields}


def sample_unplanted_documents(
    tokenizer: AuditedTokenizer, documents: Table | None, config: ExtractionConfig
) -> list[dict[str, Any]]:
    """Documents of training and holdout that were not planted and are long enough for a window."""
    prefix_lengths = select_prefix_lengths(tokenizer, config)
    if documents is None or not prefix_lengths:
        return []
    min_tokens = prefix_lengths[-1] + config.suffix_tokens
    empty_fields = {"copies": None, "canary_id": None, "template": ""}
    return [
        {"kind": split, "doc_ids": [doc_id], "text": text} | empty_fields
        for split in ("train", "holdout")
        for doc_id, text in sample_documents(
            documents,
            split,
            config.documents_per_split,
            min_tokens,
            f"{config.seed}/{split}",
            tokenizer.count_tokens,
        )
    ]


# Values ----------------------------------------------------------------------------------------


def score_items(responses: Responses, writer: ValueWriter, config: ExtractionConfig) -> str:
    """Exposure of canaries; of each attempt whether it gives the text, how much of it, and whether
    so many draws would."""
    exposure.add_exposure_values(responses, writer)
    read_texts = responses.select_part()
    item_rows = read_texts["row"].to_numpy()
    target_lengths = pc.list_value_length(read_texts["ranks"]).to_numpy(zero_copy_only=False)
    log_p = np.array(
        [sum(column_values) for column_values in read_texts["log_probs"].to_pylist()], np.float64
    )
    leading_tokens = np.array(
        [count_leading_matches(column_values) for column_values in read_texts["ranks"].to_pylist()],
        np.float64,
    )
    log_p[np.isnan(leading_tokens)] = np.nan
    is_exact = np.where(np.isnan(leading_tokens), np.nan, leading_tokens == target_lengths)
    value_fields = {
        "log_likelihood": log_p,
        "target_tokens": target_lengths,
        "leading_correct_tokens": leading_tokens,
    }
    writer.add_values("extractable", item_rows, is_exact, **value_fields)
    writer.add_values(
        "leading_correct_share", item_rows, leading_tokens / target_lengths, **value_fields
    )
    prefix_lengths = read_float_column(responses.items.take(pa.array(item_rows)), "prefix_tokens")
    has_longest_prefix = np.isnan(prefix_lengths) | (
        prefix_lengths == np.nanmax(prefix_lengths, initial=0)
    )
    longest_prefix_fields = {
        name: column_values[has_longest_prefix] for name, column_values in value_fields.items()
    }
    for draw_count in DRAW_COUNTS:
        writer.add_values(
            "extractable_by_sampling",
            item_rows[has_longest_prefix],
            flag_extractable(log_p[has_longest_prefix], draw_count),
            draw_count=draw_count,
            **longest_prefix_fields,
        )
    return ""


def count_leading_matches(ranks: Sequence[int]) -> float:
    """How many tokens rank first before one that does not; NaN where the model gave no number."""
    is_first = np.array(ranks) == 1
    return float(is_first.cumprod().sum()) if all(rank > 0 for rank in ranks) else np.nan


# Findings --------------------------------------------------------------------------------------


def describe_target_and_prefix(values: pa.Table, config: ExtractionConfig) -> tuple[str, str]:
    """What the model had to write, and behind what."""
    (prefix_length,) = {*values["prefix_tokens"].to_pylist()}
    if prefix_length is None:
        return "the secret", "all that stands before the secret"
    return f"the next {config.suffix_tokens} tokens", f"{prefix_length} tokens given"


def describe_exact_match(values: pa.Table, config: ExtractionConfig) -> str:
    target, prefix = describe_target_and_prefix(values, config)
    return f"greedy, {target} exactly; {prefix}"


def describe_partial_match(values: pa.Table, config: ExtractionConfig) -> str:
    target, prefix = describe_target_and_prefix(values, config)
    return f"greedy, share of {target} before the first wrong one; {prefix}"


def describe_sampled_match(values: pa.Table, config: ExtractionConfig) -> str:
    target, prefix = describe_target_and_prefix(values, config)
    return (
        f"sampling at temperature 1, a chance of at least {MIN_EXTRACTION_PROBABILITY:g} "
        f"that one of "
        f"{values['draw_count'][0].as_py():,} draws is {target} exactly; {prefix}"
    )


def select_read_counts(values: pa.Table) -> tuple[np.ndarray, str]:
    """How often each text was read, (n,); where that is not known, how often it was planted."""
    read_counts = read_float_column(values, "times_read")
    if np.isnan(read_counts).all():
        return read_float_column(values, "copies"), "copies planted"
    return read_counts, "times read"


def make_canary_kind_slicer(*kinds: str) -> SliceFinder:
    """Attempts at planted texts of these kinds, each a part."""

    @declare_slice_tags(SliceTags((("kind",),), {"kind": kinds}))
    def slice_by_canary_kind(values: pa.Table) -> list[Slice]:
        present_kinds = {*values["kind"].to_pylist()}
        return [({"kind": kind}, {"kind": kind}) for kind in kinds if kind in present_kinds]

    return slice_by_canary_kind


def _make_attempt_measure(metric: str, method: Any, *tags: str, **options: Any) -> Measure:
    return Measure(
        metric,
        method,
        "share",
        "texts",
        slices=(("kind", "copies", "prefix_tokens", *tags),),
        include_overall=False,
        has_simulated_controls=False,
        **options,
    )


def _make_slope_measure(metric: str, describe_x: Any, compute_x: Any, *kinds: str) -> Measure:
    return Measure(
        metric,
        lambda values, config: f"greedy, share that is exact for each 1 of {describe_x(values)}",
        "share",
        "texts",
        0.0,
        (make_canary_kind_slicer(*kinds),),
        include_overall=False,
        worse_when="",
        has_simulated_controls=False,
        values_from="extractable",
        evidence_order="-leading_correct_tokens",
        estimator=make_slope_estimator(compute_x),
    )


#: Of a text that is given away null is that nothing is: there is no chance about it.
MEASURES = (
    *exposure.MEASURES,
    _make_attempt_measure(
        "extractable",
        describe_exact_match,
        null_value=0.0,
        worse_when="up",
        evidence_order="-leading_correct_tokens",
        estimator=estimate_untested_mean,
    ),
    _make_attempt_measure(
        "leading_correct_share",
        describe_partial_match,
        worse_when="",
        evidence_order="-leading_correct_tokens",
    ),
    _make_attempt_measure(
        "extractable_by_sampling",
        describe_sampled_match,
        "draw_count",
        null_value=0.0,
        worse_when="up",
        evidence_order="-log_likelihood",
        estimator=estimate_untested_mean,
    ),
    _make_slope_measure(
        "extractable_slope_by_times_read",
        lambda values: f"log2(1 + {select_read_counts(values)[1]})",
        lambda values: np.log2(1 + select_read_counts(values)[0]),
        "passage",
        "record",
    ),
    _make_slope_measure(
        "extractable_slope_by_prefix",
        lambda values: "log2(tokens given)",
        lambda values: np.log2(read_float_column(values, "prefix_tokens")),
        "passage",
    ),
)


PROBE = Probe(
    name="extraction",
    config_class=ExtractionConfig,
    item_schema=ITEMS,
    build_requests=build_requests,
    score_items=score_items,
    measures=MEASURES,
    value_fields=VALUE_FIELDS,
    module=__name__,
    corpus_tables=("canaries", "documents"),
)
