"""The subject: the model under audit, our own checkpoint or any Hugging Face folder.

Everything an audit asks of a model goes through here, in text or in token ids. Texts are scored
behind the begin-of-text token. Probabilities are natural logarithms.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from hallmark.tasks.audits.audited_models.audited_tokenizer import (
    AuditedTokenizer,
    TokenIds,
    count_shared_prefix_tokens,
)
from hallmark.tasks.contract import HallmarkError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from hallmark.model.decoding.beam_search import Hypothesis
    from hallmark.model.decoding.token_scores import TokenStatistics

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]
ModelT = TypeVar("ModelT", bound="AuditedModel")
P = ParamSpec("P")
R = TypeVar("R")

#: Libraries that decide the output of every audit that opens a subject.
AUDIT_LIBRARIES = ("numpy", "scipy", "tokenizers", "torch", "transformers")


def run_in_model_precision(
    method: Callable[Concatenate[ModelT, P], R],
) -> Callable[Concatenate[ModelT, P], R]:
    """A method that asks the model: it answers in the subject's precision. HallmarkError where the
    model gives no numbers."""

    @functools.wraps(method)
    def wrapper(self: ModelT, /, *args: P.args, **kwargs: P.kwargs) -> R:
        from hallmark.model.decoding.inference_mode import autocast_to_precision
        from hallmark.model.padding import NanScoresError

        try:
            with autocast_to_precision(self.model, self.precision):
                return method(self, *args, **kwargs)
        except NanScoresError as error:
            raise HallmarkError(str(error).rstrip(".")) from error

    return wrapper


def check_log_probs(log_probs: Iterable[Float32]) -> None:
    """HallmarkError where a log-probability is NaN or above any; -inf is that of a token that the
    model never gives."""
    from hallmark.model.padding import NanScoresError

    if any(np.isnan(values).any() or np.isposinf(values).any() for values in log_probs):
        raise HallmarkError(str(NanScoresError()).rstrip("."))


def check_rank_statistics(statistics: Iterable[TokenStatistics]) -> None:
    """As ``check_scores``."""
    check_log_probs(
        values
        for sequence_statistics in statistics
        for values in (
            sequence_statistics.log_probs,
            sequence_statistics.mean_log_prob,
            sequence_statistics.std_log_prob,
        )
    )


def check_finite_values(arrays: Iterable[Float32]) -> None:
    """HallmarkError where a state or a weight of attention is no finite number."""
    from hallmark.model.padding import NanScoresError

    if not all(np.isfinite(values).all() for values in arrays):
        raise HallmarkError(str(NanScoresError()).rstrip("."))


@dataclass(frozen=True)
class ScoredContinuation:
    """What a model wrote behind a prompt: the ids without the token that ended them (``stopped``),
    and log p of each under the model itself, temperature 1 and no filter, in nats."""

    token_ids: TokenIds
    log_probs: Float32
    has_ended: bool


class AuditedModel(AuditedTokenizer, ABC):
    """A causal or masked language model: a reader with weights.

    precision  what scores and texts are computed in; see model/decoding/inference_mode.py
    saving     tokens from which on it is worth reading a context by itself for several targets
    """

    model: Any
    precision: Literal["fp32", "bf16"] = "fp32"
    min_saved_tokens = 32

    @abstractmethod
    def compute_log_probs(
        self, sequences: Sequence[Sequence[int]], prompt_lengths: Sequence[int] | None = None
    ) -> list[Float32]:
        """log p of each token after the first, in nats; longer than the context: in windows.

        ``given``: how many tokens of each sequence are its prompt, by default the first alone; a
        prefix LM reads them in both directions, and what it says of them is NaN.
        Of a masked model: the pseudo-log-likelihood of each token after the first (Salazar et al.
        2020), masked one at a time; there the first token is the one that opens every sequence.
        """

    def compute_attention(self, token_ids: Sequence[int]) -> dict[str, list[Float32]]:
        """Attention weights while it reads a sequence as it stands: by stack ("decoder",
        "encoder", "cross") one (heads, queries, keys) per layer; see model/decoding/activations.py.

        Raises HallmarkError, one sentence, where the model gives none.
        """
        raise HallmarkError("it gives no attention weights")

    def compute_hidden_states(
        self, sequences: Sequence[Sequence[int]], layer: int
    ) -> list[Float32]:
        """Of each token of each sequence, read as it stands, (length, d): at layer 0 its row of the
        input embeddings, from 1 on what that block makes of it, from -1 backwards what the last
        does. UsageError, one sentence, where there is no such layer."""
        raise HallmarkError(f"{self.name} gives no embeddings")

    def compute_mean_hidden_states(
        self, sequences: Sequence[Sequence[int]], positions: Sequence[Sequence[int]], layer: int
    ) -> Float32:
        """Mean over the tokens at ``places`` of each sequence of their ``states``, (n, d)."""
        from hallmark.model.padding import batch_indices_by_length

        mean_states: list[Float32] = [np.empty(0, np.float32)] * len(sequences)
        for batch in batch_indices_by_length([*map(len, sequences)], MAX_TOKENS_PER_CALL):
            states = self.compute_hidden_states([sequences[i] for i in batch], layer)
            for i, state in zip(batch, states, strict=True):
                mean_states[i] = state[list(positions[i])].mean(0)
            check_finite_values(mean_states[i] for i in batch)
        return np.stack(mean_states)

    def compute_log_likelihoods(
        self, texts: Sequence[str], contexts: Sequence[str] | None = None
    ) -> tuple[Float64, NDArray[np.int64]]:
        """Total log p of each text, in nats, and the number of tokens it was summed over.

        With contexts: of the tokens of context + text, encoded as one, behind those that it
        shares with the context encoded alone. Without a begin-of-text token the first token of a
        text that has no context is not scored.
        """
        context_token_counts = [0] * len(texts)
        if contexts is None:
            encoded_texts = self.encode_batch(texts)
        else:
            text_pairs = zip(contexts, texts, strict=True)
            encoded_texts = self.encode_batch([context + text for context, text in text_pairs])
            encoded_contexts = self.encode_batch(contexts)
            context_token_counts = [
                count_shared_prefix_tokens([a, b])
                for a, b in zip(encoded_contexts, encoded_texts, strict=True)
            ]
        sequences = [self.prepend_bos_id(ids) for ids in encoded_texts]
        opening_tokens = (
            0 if self.bos_id is None else 1
        )  # entry i scores token i + 1 of the opened ids
        target_starts = [
            max(0, token_count + opening_tokens - 1) for token_count in context_token_counts
        ]
        prompt_lengths = None
        if contexts is not None:
            prompt_lengths = [
                min(start + 1, len(ids))
                for start, ids in zip(target_starts, sequences, strict=True)
            ]
        target_log_probs = [
            log_probs[start:]
            for log_probs, start in zip(
                self.compute_log_probs(sequences, prompt_lengths), target_starts, strict=True
            )
        ]
        check_log_probs(target_log_probs)
        totals = np.array(
            [log_probs.sum(dtype=np.float64) for log_probs in target_log_probs], dtype=np.float64
        )
        return totals, np.array([len(log_probs) for log_probs in target_log_probs], dtype=np.int64)

    def compute_target_log_probs(
        self, contexts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[Float32]:
        """log p of each token of each target behind its context, in nats; a context of several
        targets is read once. Behind none, the first token of a target is not scored."""
        log_probs = [np.empty(0, np.float32)] * len(targets)
        unscored_indices = {*range(len(targets))}
        for context_batch in batch_by_shared_context(
            contexts, targets, self.context_length, self.min_saved_tokens
        ):
            unscored_indices -= {*context_batch.target_indices}
            batch_log_probs = self.compute_grouped_log_probs(
                context_batch.contexts,
                context_batch.context_indices,
                [targets[i] for i in context_batch.target_indices],
            )
            for target_index, values in zip(
                context_batch.target_indices, batch_log_probs, strict=True
            ):
                log_probs[target_index] = values[: len(targets[target_index])].copy()
        remaining_indices = sorted(unscored_indices)
        sequence_log_probs = self.compute_log_probs(
            *join_contexts_and_targets(
                [contexts[i] for i in remaining_indices], [targets[i] for i in remaining_indices]
            )
        )
        for target_index, values in zip(remaining_indices, sequence_log_probs, strict=True):
            log_probs[target_index] = values[max(0, len(contexts[target_index]) - 1) :]
        check_log_probs(log_probs)
        return log_probs

    def compute_grouped_log_probs(
        self, contexts: list[TokenIds], context_indices: list[int], targets: Sequence[Sequence[int]]
    ) -> Float32:
        """log p (targets, T) of targets, each behind the one of the contexts that ``rows`` says;
        these are of one length and read once. Behind a target's own end numbers mean nothing."""
        raise HallmarkError(f"{self.name} is a masked language model: it sees both sides")

    def compute_rank_statistics(
        self, contexts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[TokenStatistics]:
        """As ``log_probs_behind``, with ranks, and the moments of log p over the vocabulary; of
        ranks the first, 0, is what a greedy continuation would write."""
        raise HallmarkError(f"{self.name} is a masked language model and ranks no next token")

    def generate_continuations(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        samples: int = 1,
        temperature: float = 1.0,
        first_temperature: float | None = None,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
    ) -> list[list[ScoredContinuation]]:
        """``samples`` continuations of each prompt.

        Prompts are given as they stand, with their begin-of-text token. Temperature 0 is greedy;
        it falls from ``first_temperature``, where that is given, as in model/decoding/sampling.py.
        A draw depends on seed, prompt, sample number and position, not on the batch.
        """
        raise HallmarkError(f"{self.name} is a masked language model and cannot continue a text")

    def generate_completions(
        self,
        contexts: Sequence[Sequence[int]],
        suffixes: Sequence[Sequence[int]],
        *,
        completion_count: int,
        max_new_tokens: int,
    ) -> list[list[ScoredContinuation]]:
        """The ``count`` likeliest completions of each context, best first.

        A causal model's by beam search of as many beams, ranked by log p a token, as transformers
        does it. A masked model's are the likeliest single tokens at a mask between the context and
        what stands ``afters`` it, which no other model sees.
        """
        raise HallmarkError(f"{self.name} completes no texts")

    def generate_token_ids(
        self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, **options: Any
    ) -> list[list[TokenIds]]:
        """The ids of ``write``."""
        continuations = self.generate_continuations(
            prompts, max_new_tokens=max_new_tokens, **options
        )
        return [[continuation.token_ids for continuation in row] for row in continuations]

    def generate_texts(
        self, prompts: Sequence[str], *, max_new_tokens: int, **options: Any
    ) -> list[list[str]]:
        """``write`` for texts. The prompt "" asks for a text from its beginning."""
        prompt_ids = [self.prepend_bos_id(ids) for ids in self.encode_batch(prompts)]
        if not all(prompt_ids):
            raise HallmarkError(
                f"{self.name} has no begin-of-text token: it cannot write without a prompt"
            )
        generated_ids = self.generate_token_ids(
            prompt_ids, max_new_tokens=max_new_tokens, **options
        )
        return [[self.decode(ids) for ids in row] for row in generated_ids]


def join_contexts_and_targets(
    contexts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> tuple[list[TokenIds], list[int]]:
    """Sequences, and how many tokens of each are given: those of its context, at least one."""
    sequences = [[*context, *target] for context, target in zip(contexts, targets, strict=True)]
    prompt_lengths = [
        min(max(1, len(prompt)), len(sequence))
        for prompt, sequence in zip(contexts, sequences, strict=True)
    ]
    return sequences, prompt_lengths


def check_layer_exists(model_name: str, layer: int, layer_count: int) -> None:
    """UsageError unless a model of so many layers has this one."""
    if not -layer_count <= layer <= layer_count:
        layer_phrase = "1 layer" if layer_count == 1 else f"{layer_count} layers"
        raise UsageError(
            f"{model_name} has {layer_phrase}, so it has no layer {layer}; choose one from "
            f"{-layer_count} to {layer_count}"
        )


def look_up_embeddings(
    embedding_table: Tensor, sequences: Sequence[Sequence[int]]
) -> list[Float32]:
    """The rows (length, d) of a table of embeddings (V, d), for each sequence of token ids."""
    return [
        embedding_table[list(sequence)].detach().float().cpu().numpy() for sequence in sequences
    ]


def hypothesis_to_continuation(hypothesis: Hypothesis) -> ScoredContinuation:
    """A hypothesis of a beam search, without the token that ended it."""
    token_count = len(hypothesis.ids) - hypothesis.complete
    log_probs = np.array(hypothesis.log_probs[:token_count], np.float32)
    return ScoredContinuation([*hypothesis.ids[:token_count]], log_probs, hypothesis.complete)


#: Tokens of contexts and targets that are read in one call.
MAX_TOKENS_PER_CALL = 1 << 14


@dataclass(frozen=True)
class ContextBatch:
    """Contexts of one length, and the targets that are read behind them.

    rows    the context of each target, (targets,)
    places  where each target was given
    """

    contexts: list[TokenIds]
    context_indices: list[int]
    target_indices: list[int]


def batch_by_shared_context(
    contexts: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    max_tokens: int,
    min_saved_tokens: int,
) -> Iterator[ContextBatch]:
    """The targets whose context, of more than a token, stands before others, by its length: where
    both fit into ``room`` tokens, and so many tokens are not read again."""
    indices_by_context: dict[tuple[int, ...], list[int]] = {}
    for target_index, (context, target) in enumerate(zip(contexts, targets, strict=True)):
        if len(context) > 1 and 0 < len(target) <= max_tokens - len(context):
            indices_by_context.setdefault(tuple(context), []).append(target_index)
    shared_contexts = [
        shared_context
        for shared_context, target_places in indices_by_context.items()
        if len(shared_context) * (len(target_places) - 1) >= min_saved_tokens
    ]
    shared_contexts.sort(key=lambda shared_context: (len(shared_context), shared_context))
    for context_length, same_length_contexts in groupby(shared_contexts, key=len):
        batch_contexts, context_indices, target_indices, batch_tokens = (
            list[TokenIds](),
            list[int](),
            list[int](),
            0,
        )
        for context in same_length_contexts:
            max_targets, context_targets = (
                max(1, MAX_TOKENS_PER_CALL // (2 * context_length)),
                indices_by_context[context],
            )
            for index_chunk in (
                context_targets[i : i + max_targets]
                for i in range(0, len(context_targets), max_targets)
            ):
                chunk_tokens = len(index_chunk) * (
                    context_length + max(len(targets[i]) for i in index_chunk)
                )
                if batch_contexts and batch_tokens + chunk_tokens > MAX_TOKENS_PER_CALL:
                    yield ContextBatch(batch_contexts, context_indices, target_indices)
                    batch_contexts, context_indices, target_indices, batch_tokens = [], [], [], 0
                context_indices += [len(batch_contexts)] * len(index_chunk)
                batch_contexts.append(list(context))
                target_indices += index_chunk
                batch_tokens += chunk_tokens
        yield ContextBatch(batch_contexts, context_indices, target_indices)
