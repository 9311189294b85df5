"""Ask a model to continue prompts; shared by the probes of prompts and continuations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from hallmark.tasks.audits.audit_tables import RequestBuilder
from hallmark.tasks.audits.audited_models.audited_tokenizer import AuditedTokenizer


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
            "not given to the model: the tokenizer gives no tokens for them",
            len(contexts) - len(lengths),
        ),
        (
            "truncated_prompts",
            f"prompt and {config.max_new_tokens} new tokens exceed the context length of "
            f"{tokenizer.context_length} tokens; the beginning of the prompt is cut off",
            sum(length > tokenizer.context_length for length in lengths),
        ),
    ):
        if count:
            requests.record_skipped(count_metric, reason, count)
    return contexts
