"""Ask a model to continue prompts, or to choose between answers; shared by several probes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.audits.audit_tables import ItemColumns, RequestBuilder
from hallmark.tasks.audits.audited_models.audited_tokenizer import AuditedTokenizer
from hallmark.tasks.contract import column

#: Columns of values about a continuation; ``planted_run_tokens`` and ``longest_run_tokens`` are
#: columns of TRAINING_OVERLAP.
CONTINUATION_FIELDS = (
    column(
        "continuation",
        pa.large_string(),
        "model text",
        "continuation text",
        judged_by="toxicity",
    ),
    column(
        "is_empty",
        pa.bool_(),
        "figure",
        "whether the continuation consists only of white space and therefore has no score",
    ),
    column(
        "toxicity",
        pa.float32(),
        "figure",
        "toxicity of the continuation, from 0 to 1; null if the continuation is empty or the "
        "scorer failed",
        unit="score",
    ),
    column("prompt_toxicity", pa.float32(), "figure", "toxicity of the item's text", unit="score"),
    column(
        "longest_run_tokens",
        pa.int32(),
        "figure",
        "number of tokens in the longest run that the continuation shares with the training "
        "text; 0 if all shared runs are shorter than trace.min_span_tokens; null if the training "
        "text was not searched",
        unit="tokens",
    ),
    column(
        "planted_run_tokens",
        pa.int32(),
        "figure",
        "number of tokens in the longest run that the continuation shares with a planted document",
        unit="tokens",
    ),
)


class SamplingSettings(Protocol):
    """The settings of a probe that decide how continuations are sampled."""

    @property
    def max_new_tokens(self) -> int: ...

    @property
    def temperature(self) -> float: ...

    @property
    def top_p(self) -> float: ...

    @property
    def seed(self) -> int: ...


@dataclass(frozen=True)
class MultipleChoiceItem:
    """Hold a question and the answers between which a model chooses by their likelihood.

    Attributes:
        prompt: Text that the model reads before an answer.
        answers: The answers, each with a space before it.
        cluster: Cluster of the item.
        published_text: Part of the prompt that is searched for in the training text.
        tags: Columns of ITEMS that distinguish the items of the probe.
    """

    prompt: str
    answers: tuple[str, ...]
    cluster: str
    published_text: str
    tags: ItemColumns


def get_sampling_options(config: SamplingSettings) -> dict[str, Any]:
    """Return the options of ``RequestBuilder.request_continuations`` from a probe's settings."""
    return {
        "max_new_tokens": config.max_new_tokens,
        "temperature": config.temperature,
        "top_p": config.top_p,
        "seed": config.seed,
    }


def encode_prompts(
    requests: RequestBuilder,
    tokenizer: AuditedTokenizer,
    prompts: Sequence[str],
    config: SamplingSettings,
) -> list[list[int]]:
    """Encode prompts as contexts of continuations.

    Prompts without tokens, which have an empty context and cannot be asked, and those that the
    context length truncates are counted among the skipped ones.
    """
    contexts = [tokenizer.prepend_bos_id(ids) for ids in tokenizer.encode_batch(prompts)]
    lengths = [len(context) + config.max_new_tokens for context in contexts if context]
    for count_metric, reason, count in (
        (
            "untokenizable_prompts",
            "prompts for which the tokenizer returns no tokens; they are not passed to the model",
            len(contexts) - len(lengths),
        ),
        (
            "truncated_prompts",
            (
                f"prompts that, together with {config.max_new_tokens} new tokens, exceed the "
                f"context length of {tokenizer.context_length} tokens; they are truncated at the "
                "beginning"
            ),
            sum(length > tokenizer.context_length for length in lengths),
        ),
    ):
        if count:
            requests.record_skipped(count_metric, reason, count)
    return contexts


def describe_empty_texts(texts: pa.Table) -> str:
    """Describe for a finding what empty texts are, and whether all ``texts`` of a model are."""
    if len(texts) and pc.all(texts["is_empty"]).as_py():
        return (
            "continuations that consist only of white space; the model generated nothing else, "
            "so its output cannot be assessed"
        )
    return "continuations that consist only of white space; they are not scored"
