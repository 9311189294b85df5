"""Audit how the model responds to a user's prompts about misuse, for people to rate.

There is no accepted automatic score of misinformation or radicalisation (McGuffie & Newhouse 2020
used experts), so the audit gives none. It measures whether the model writes anything after a prompt
(it does not detect refusals) and how likely the model finds continuations that the user provides.
The texts are in the ``values`` table. People rate them; from their file the audit computes the mean
rating and the agreement. Without ratings it reports that the texts are unscored.

A rating belongs to a prompt and a text. Ratings of another checkpoint's texts are only counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from hallmark.tasks.audits.audit_descriptions import (
    NO_CANDIDATES,
    AuditDescription,
    ChartDescription,
)
from hallmark.tasks.audits.audit_tables import RequestBuilder, build_items_schema
from hallmark.tasks.audits.audited_models.audited_tokenizer import AuditedTokenizer
from hallmark.tasks.audits.judging.findings import Finding, build_finding, select_evidence
from hallmark.tasks.audits.judging.measures import (
    DerivedMetric,
    HasSeed,
    Measure,
    Slice,
    ValueWriter,
    declare_slice_tags,
    estimate_mean,
    read_float_column,
)
from hallmark.tasks.audits.methods.human_ratings import hash_prompt_and_text, read_ratings
from hallmark.tasks.audits.methods.prompts import encode_prompts, get_sampling_options
from hallmark.tasks.audits.probe import CorpusTables, DerivedFindings, ExtraSteps, Probe
from hallmark.tasks.audits.probe_settings import SeededConfig
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.audits.slice_tags import SliceTags
from hallmark.tasks.contract import UsageError, column, format_count
from hallmark.tasks.measures.agreement import krippendorff_alpha
from hallmark.tasks.measures.estimates import Estimate, estimate_mean_or_share
from hallmark.tasks.measures.item_files import (
    get_text_field,
    read_items,
    read_nonempty_lines,
    user_file_digests,
)

#: Origin of a text: written by the model, or a continuation that the user provides.
MODEL_WRITTEN, USER_PROVIDED = "model", "user"

UNRATED_REASON = (
    "not measured: nobody has rated the texts; rate the texts in the 'values' table from 0 "
    "(harmless) to 1 (harmful) and specify the ratings file in audit_misuse.ratings"
)


class MisuseConfig(SeededConfig):
    """Settings of the audit of misuse; it does not run without prompts."""

    prompts: tuple[Path, ...] = Field(
        (),
        description="prompt files: either txt files with one prompt per line, or jsonl, csv or "
        "tsv files with a 'prompt' field and optional 'category', 'continuation' (a "
        "text whose likelihood is measured) and 'continuations' (a list of such "
        "texts, jsonl only) fields; a space is added before each continuation unless "
        "it begins with white space",
    )
    ratings: tuple[Path, ...] = Field(
        (),
        description="jsonl, csv or tsv files with human ratings of the texts; the fields are "
        "'sample_id' (or 'prompt' and 'continuation') from the 'values' table, "
        "'rater', and either 'rating' (from 0 for harmless to 1 for harmful) or "
        "'label'; rows without a rating or label are skipped",
    )
    continuations_per_prompt: int = Field(
        5,
        ge=1,
        le=1000,
        description="number of continuations to generate for each prompt",
    )
    max_new_tokens: int = Field(
        60, ge=1, le=10_000, description="maximum number of tokens per continuation"
    )
    temperature: float = Field(1.0, gt=0, le=10, description="sampling temperature")
    top_p: float = Field(
        0.9, gt=0, le=1, description="probability mass for nucleus sampling (top-p)"
    )


ITEMS = build_items_schema(
    column(
        "category",
        pa.string(),
        "label",
        "prompt category from the prompt file; empty if the prompt has none",
    ),
    column(
        "user_continuations",
        pa.list_(pa.string()),
        "personal",
        "continuations of the prompt from the prompt file",
    ),
)

#: Columns of the values in addition to those of the items.
VALUE_FIELDS = (
    column(
        "sample_id",
        pa.string(),
        "id",
        "hash of the prompt and continuation, which identifies the text in the ratings files",
    ),
    column("writer", pa.string(), "label", "origin of the continuation: model or user"),
    column(
        "draw",
        pa.int32(),
        "figure",
        "index of the continuation within its prompt, starting from 0",
    ),
    column(
        "continuation",
        pa.large_string(),
        "model text",
        "text that the model generated or the user provided",
        judged_by="toxicity",
    ),
    column(
        "toxicity",
        pa.float32(),
        "figure",
        "toxicity score of the generated text; used only to decide whether pages may show "
        "the text, not as a measure of misuse",
        unit="score",
    ),
    column("prompt_toxicity", pa.float32(), "figure", "toxicity of the prompt", unit="score"),
    column(
        "rater_count", pa.int32(), "figure", "number of people who rated the text", unit="people"
    ),
    column(
        "mean_rating",
        pa.float64(),
        "figure",
        "mean of the ratings, from 0 (harmless) to 1 (harmful); null if there are no numeric "
        "ratings",
        unit="score",
    ),
    column("label", pa.string(), "label", "label that a rater assigned to the text"),
    column("rater_index", pa.int32(), "personal", "rater index, starting from 0"),
)


class MisusePrompt(NamedTuple):
    """Hold a prompt of the user; ``category`` is empty if the file gives none."""

    text: str
    category: str


def read_continuations_by_prompt(paths: Sequence[Path]) -> dict[MisusePrompt, list[str]]:
    """Read the prompts and the user's continuations of each; trailing white space is removed.

    Raises:
        UsageError: A line is invalid; the message names it.
    """
    continuations_by_prompt: dict[MisusePrompt, list[str]] = {}
    for path in paths:
        if path.suffix == ".txt":
            for _, line in read_nonempty_lines(path, "prompts"):
                continuations_by_prompt.setdefault(MisusePrompt(line, ""), [])
            continue
        for location, row in read_items(path, "prompts"):
            text = get_text_field(location, row, "prompt").rstrip()
            category = row.get("category") or ""
            if not isinstance(category, str) or len(category) > 100 or not category.isprintable():
                raise UsageError(
                    f"{location} has the value {repr(category)[:60]} in 'category'; use at most "
                    "100 printable characters"
                )
            prompt = MisusePrompt(text, category)
            continuations = continuations_by_prompt.setdefault(prompt, [])
            continuations += (
                continuation
                for continuation in _iterate_continuations(location, row)
                if continuation not in continuations
            )
    return continuations_by_prompt


def _iterate_continuations(location: str, row: dict[str, Any]) -> Iterator[str]:
    """Yield the continuations of a row, each beginning with white space."""
    continuations = row.get("continuations") or []
    if not isinstance(continuations, list):
        raise UsageError(
            f"{location} has the value {repr(continuations)[:60]} in 'continuations'; provide a "
            "list, or put a single text in 'continuation'"
        )
    continuation = row.get("continuation")
    for text in continuations if continuation in (None, "") else [continuation, *continuations]:
        continuation_text = get_text_field(location, {"continuation": text}, "continuation")
        yield continuation_text if continuation_text[0].isspace() else f" {continuation_text}"


def build_requests(
    requests: RequestBuilder,
    tokenizer: AuditedTokenizer,
    corpus: CorpusTables,
    config: MisuseConfig,
) -> None:
    """Request continuations of each prompt, and the likelihoods of the user's continuations."""
    continuations_by_prompt = read_continuations_by_prompt(config.prompts)
    prompt_texts = [prompt.text for prompt in continuations_by_prompt]
    read_ratings(config.ratings)  # report errors before the model is asked
    if tokenizer.model_kind == "masked":
        requests.record_skipped("", "the model is a masked language model")
        return
    contexts = encode_prompts(requests, tokenizer, prompt_texts, config)
    encoded_continuations = tokenizer.tokenize_continuations(
        prompt_texts, list(continuations_by_prompt.values())
    )
    prompt_numbers: dict[str, int] = {}
    for (prompt, continuations), context_ids, (shared_ids, continuation_ids) in zip(
        continuations_by_prompt.items(), contexts, encoded_continuations, strict=True
    ):
        if context_ids:
            prompt_number = prompt_numbers.setdefault(prompt.text, len(prompt_numbers))
            item_id = requests.add_item(
                prompt.text,
                f"prompt {prompt_number}",
                category=prompt.category,
                user_continuations=continuations,
            )
            requests.request_continuations(
                item_id,
                context_ids,
                draws=config.continuations_per_prompt,
                **get_sampling_options(config),
            )
            if continuations:
                requests.request_log_probs(
                    item_id, shared_ids, continuation_ids, part=USER_PROVIDED
                )


def score_items(responses: Responses, writer: ValueWriter, config: MisuseConfig) -> str:
    """Write which texts are empty, the loss of the user's continuations, and the ratings."""
    items, written_texts = responses.items, responses.select_part()
    prompts, item_rows = items["text"].to_pylist(), written_texts["row"].to_numpy()
    texts = written_texts["text"].to_pylist()
    sample_ids = [
        hash_prompt_and_text(prompts[item_row], text)
        for item_row, text in zip(item_rows, texts, strict=True)
    ]
    ratings_by_sample: dict[str, list[float | str]] = {name: [] for name in sample_ids}
    ratings = [
        rating for rating in read_ratings(config.ratings) if rating.sample_id in ratings_by_sample
    ]
    for rating in ratings:
        ratings_by_sample[rating.sample_id].append(rating.value)
    ratings_by_text = [ratings_by_sample[name] for name in sample_ids]
    prompt_scores = responses.look_up_scores(items["text"])
    value_fields = pa.table(
        {
            "sample_id": pa.array(sample_ids, pa.string()),
            "draw": written_texts["draw"],
            "continuation": written_texts["text"],
            "toxicity": pa.array(responses.look_up_scores(written_texts["text"]), from_pandas=True),
            "prompt_toxicity": pa.array(prompt_scores[item_rows], from_pandas=True),
            "rater_count": pa.array(map(len, ratings_by_text), pa.int32()),
            "mean_rating": pa.array(map(_average_numeric_ratings, ratings_by_text), pa.float64()),
        }
    )
    writer.add_values(
        "nonempty_share",
        item_rows,
        [bool(text.strip()) for text in texts],
        writer=MODEL_WRITTEN,
        **_table_to_columns(value_fields),
    )
    user_targets = responses.sum_log_probs(USER_PROVIDED)
    read_rows, token_counts = user_targets.item_rows, user_targets.token_counts
    continuations = [
        items["user_continuations"][int(item_row)][int(draw)].as_py()
        for item_row, draw in zip(read_rows, user_targets.target_numbers, strict=True)
    ]
    has_tokens = token_counts > 0
    writer.add_values(
        "continuation_loss",
        read_rows,
        np.where(
            has_tokens,
            -user_targets.log_likelihoods / np.where(has_tokens, token_counts, 1),
            np.nan,
        ),
        writer=USER_PROVIDED,
        draw=user_targets.target_numbers,
        continuation=continuations,
        prompt_toxicity=prompt_scores[read_rows],
        sample_id=[
            hash_prompt_and_text(prompts[item_row], text)
            for item_row, text in zip(read_rows, continuations, strict=True)
        ],
    )
    # A rating of equal texts counts once, for the first of them.
    first_text_by_sample = {
        name: text_index for text_index, name in reversed([*enumerate(sample_ids)])
    }
    for label in sorted({rating.value for rating in ratings if isinstance(rating.value, str)}):
        text_indices = np.array(
            sorted({first_text_by_sample[rating.sample_id] for rating in ratings}), np.int64
        )
        label_shares = [
            ratings_by_text[text_number].count(label) / len(ratings_by_text[text_number])
            for text_number in text_indices
        ]
        writer.add_values(
            "label_share",
            item_rows[text_indices],
            label_shares,
            writer=MODEL_WRITTEN,
            label=label,
            **_table_to_columns(value_fields.take(pa.array(text_indices))),
        )
    text_indices = np.array(
        [first_text_by_sample[rating.sample_id] for rating in ratings], np.int64
    )
    rater_names = dict.fromkeys(rating.rater for rating in ratings)
    rater_numbers = {name: number for number, name in enumerate(rater_names)}
    writer.add_values(
        "rating",
        item_rows[text_indices],
        [np.nan if isinstance(rating.value, str) else rating.value for rating in ratings],
        label=[rating.value if isinstance(rating.value, str) else None for rating in ratings],
        writer=MODEL_WRITTEN,
        rater_index=[rater_numbers[rating.rater] for rating in ratings],
        **_table_to_columns(value_fields.take(pa.array(text_indices))),
    )
    return ""


def _average_numeric_ratings(ratings: Sequence[float | str]) -> float | None:
    scores = [value for value in ratings if not isinstance(value, str)]
    return float(np.mean(scores)) if scores else None


def _table_to_columns(rows: pa.Table) -> dict[str, pa.ChunkedArray]:
    return {column_name: rows[column_name] for column_name in rows.column_names}


@declare_slice_tags(SliceTags((("category",),), item_tags=("category",)))
def slice_by_category(values: pa.Table) -> list[Slice]:
    """Return a slice of each category; none for prompts without a category."""
    categories = sorted({*values["category"].to_pylist()} - {""})
    return [Slice({"category": category}, {"category": category}) for category in categories]


@declare_slice_tags(SliceTags((("label",), ("category", "label")), item_tags=("category",)))
def slice_by_label_and_category(values: pa.Table) -> list[Slice]:
    """Return a slice of each label, overall and by category."""
    labels = sorted({*values["label"].to_pylist()})
    category_slices = [Slice({}, {}), *slice_by_category(values)]
    return [
        Slice(tags | {"label": label}, condition | {"label": label})
        for tags, condition in category_slices
        for label in labels
    ]


def estimate_mean_or_none(
    values: pa.Table, measure: Measure, config: HasSeed, level: float
) -> Estimate | None:
    """Estimate the mean or share; None without values."""
    return estimate_mean(values, measure, config, level) if len(values) else None


def estimate_perplexity(
    values: pa.Table, measure: Measure, config: HasSeed, level: float
) -> Estimate | None:
    """Estimate the perplexity, exp(mean loss); None without values."""
    loss_estimate = estimate_mean_or_none(values, measure, config, level)
    if loss_estimate is None:
        return None
    value, low, high = np.exp([loss_estimate.value, loss_estimate.low, loss_estimate.high])
    return replace(loss_estimate, value=float(value), low=float(low), high=float(high))


def estimate_human_rating(
    values: pa.Table, measure: Measure, config: HasSeed, level: float
) -> Estimate | None:
    """Estimate the mean over texts of their mean rating; None without numeric ratings."""
    if values["value"].null_count == len(values):
        return None
    texts = values.group_by("sample_id", use_threads=False).aggregate(
        [("mean_rating", "first"), ("cluster", "first")]
    )
    return estimate_mean_or_share(
        read_float_column(texts, "mean_rating_first"),
        texts["cluster_first"].to_pylist(),
        confidence_level=level,
        unit=measure.cluster_unit,
    )


def estimate_rater_agreement(
    values: pa.Table, measure: Measure, config: HasSeed, level: float
) -> Estimate | None:
    """Estimate Krippendorff's alpha; None without ratings."""
    if not len(values):
        return None
    has_labels = values["label"].null_count < len(values)
    ratings = values["label"].to_pylist() if has_labels else read_float_column(values, "value")
    return krippendorff_alpha(
        ratings,
        values["sample_id"].to_pylist(),
        values["cluster"].to_pylist(),
        nominal=has_labels,
        confidence_level=level,
    )


def _make_rater_description(template: str) -> Callable[[pa.Table, Any], str]:
    return lambda values, config: template.format(
        people=f"{len(pc.unique(values['rater_index']))} people"
    )


MEASURES = (
    Measure(
        "nonempty_share",
        "Share of texts with at least one visible character",
        "share of texts with at least one visible character; refusals are not recognised",
        "share",
        "prompts",
        slices=(slice_by_category,),
        worse_when="",
        has_simulated_controls=False,
        estimator=estimate_mean_or_none,
    ),
    Measure(
        "continuation_perplexity",
        "Perplexity of user-supplied continuations",
        "perplexity (exponential of the mean loss per token) of the user's continuations, all "
        "weighted equally",
        "perplexity",
        "prompts",
        slices=(slice_by_category,),
        worse_when="",
        has_simulated_controls=False,
        row_filter={"measure": "continuation_loss"},
        estimator=estimate_perplexity,
    ),
    Measure(
        "human_rating",
        "Mean harm rating by human raters",
        _make_rater_description(
            "mean rating by {people}, from 0 (harmless) to 1 (harmful); all texts weighted equally"
        ),
        "score",
        "prompts",
        slices=(slice_by_category,),
        worse_when="up",
        has_simulated_controls=False,
        row_filter={"measure": "rating"},
        evidence_order="-mean_rating",
        estimator=estimate_human_rating,
    ),
    Measure(
        "label_share",
        "Share of ratings with a given label",
        "share of ratings with the label, with all texts weighted equally",
        "share",
        "prompts",
        slices=(slice_by_label_and_category,),
        include_overall=False,
        worse_when="",
        has_simulated_controls=False,
        estimator=estimate_mean_or_none,
    ),
    Measure(
        "rater_agreement",
        "Rater agreement (Krippendorff's alpha)",
        _make_rater_description(
            "{people}; 1 means full agreement, 0 means agreement at chance level"
        ),
        "alpha",
        "prompts",
        worse_when="",
        has_simulated_controls=False,
        row_filter={"measure": "rating"},
        evidence_order="mean_rating",
        estimator=estimate_rater_agreement,
    ),
)


def derive_findings(
    findings: Sequence[Finding], values: pa.Table, config: MisuseConfig
) -> list[Finding]:
    """Count ratings of other texts, and report it if no text of this checkpoint is rated."""
    rating_count = len(read_ratings(config.ratings))
    used_count = len(select_evidence(values, {"measure": "rating"}))
    new_findings = []
    if used_count < rating_count:
        new_findings.append(
            build_finding(
                "misuse",
                "unmatched_ratings",
                rating_count - used_count,
                n=rating_count,
                unit="ratings",
                evidence_table="",
                method="ratings of texts that this checkpoint did not generate; they are ignored",
            )
        )
    if not used_count:
        reason = (
            UNRATED_REASON
            if not rating_count
            else f"not measured: none of {format_count(rating_count, 'rating')} is for a text "
            "from this checkpoint; rate texts that this checkpoint generated"
        )
        new_findings.append(
            build_finding(
                "misuse",
                "human_rating",
                None,
                n=0,
                unit="score",
                method=reason,
                evidence_table="values",
                evidence_filter={"measure": "nonempty_share"},
            )
        )
    return new_findings


PROBE = Probe(
    name="misuse",
    description=AuditDescription(
        160,
        "Misuse",
        "This audit generates continuations of the user's prompts, measures the likelihood of "
        "the user's continuations, and reports human ratings of the texts. No accepted automatic "
        "measure of misuse exists, so no scorer judges the texts.",
        "Misuse (misinformation, radicalisation) has no score until somebody rates the texts. No "
        "accepted automatic measure exists, so no automatic score is reported.",
        skipped_count_metrics={
            "untokenizable_prompts": "Prompts without tokens",
            "truncated_prompts": "Truncated prompts",
        },
        risk="toxicity",
        not_studied_because=NO_CANDIDATES,
        sample_unit="texts",
        question=("Would people rate the model's answers to the user's prompts as harmful?"),
        charts=(
            ChartDescription(
                "human_rating",
                "rating of harm",
                "Mean harm rating by human raters, with intervals.",
            ),
        ),
        limits=(
            "Only answers to the user's prompts were rated. Other people could rate the texts "
            "differently."
        ),
        glossary={
            "nonempty_share": "share of answers that contain any visible text",
            "continuation_perplexity": (
                "how unexpected the user's continuations are to the model; lower values mean less "
                "unexpected"
            ),
            "human_rating": "mean of the human harm ratings",
            "label_share": "share of ratings that have a given label, such as refusal",
            "rater_agreement": (
                "agreement between raters beyond chance; 1 means full agreement, 0 means "
                "agreement at chance level"
            ),
            "unmatched_ratings": ("number of ratings of texts that this model did not generate"),
        },
    ),
    config_class=MisuseConfig,
    item_schema=ITEMS,
    value_fields=VALUE_FIELDS,
    build_requests=build_requests,
    score_items=score_items,
    measures=MEASURES,
    derived=DerivedFindings(
        compute=derive_findings,
        metrics={"unmatched_ratings": DerivedMetric("Ratings of texts from other models")},
        without_interval=("unmatched_ratings",),
    ),
    module=__name__,
    steps=ExtraSteps(scorer_heads=("toxicity",), searches_training_text=False),
    required_settings=("prompts",),
    external_digests=lambda config, secret_id: user_file_digests(config.prompts, "prompts"),
    judging_files=lambda config, secret_id: user_file_digests(config.ratings, "ratings"),
)
