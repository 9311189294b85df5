"""Define the interface of an audited model: a Hallmark checkpoint or a Hugging Face folder.

Audits use a model only through this interface, with text or token ids. Texts are scored after the
begin-of-text token. Probabilities are natural logarithms.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeVar

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

#: Libraries that decide the output of every audit that opens a model.
AUDIT_LIBRARIES = ("numpy", "scipy", "tokenizers", "torch", "transformers")


#: Data type of the weights of an audited model. "auto" reads the weights of a Hugging Face model in
#: float32 and multiplies matrices in bfloat16 on a GPU that supports it.
ModelDtype = Literal["auto", "float32", "bfloat16", "float16"]


def run_in_model_precision(
    method: Callable[Concatenate[ModelT, P], R],
) -> Callable[Concatenate[ModelT, P], R]:
    """Run a method in the model's precision, and raise HallmarkError if the model gives NaN."""

    @functools.wraps(method)
    def wrapper(self: ModelT, /, *args: P.args, **kwargs: P.kwargs) -> R:
        from hallmark.model.decoding.inference_mode import autocast_to_precision
        from hallmark.model.padding import NanScoresError

        try:
            with autocast_to_precision(self.model, self.autocast_precision):
                return method(self, *args, **kwargs)
        except NanScoresError as error:
            raise HallmarkError(str(error).rstrip(".")) from error

    return wrapper


def check_log_probs(log_probs: Iterable[Float32]) -> None:
    """Check log probabilities; -inf is allowed for a token that the model never gives.

    Raises:
        HallmarkError: One is NaN or +inf.
    """
    from hallmark.model.padding import NanScoresError

    if any(np.isnan(values).any() or np.isposinf(values).any() for values in log_probs):
        raise HallmarkError(str(NanScoresError()).rstrip("."))


def check_statistics_are_numbers(statistics: Iterable[TokenStatistics]) -> None:
    """Check the log probabilities and moments of statistics as ``check_log_probs`` does."""
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
    """Check that hidden states or attention weights are finite.

    Raises:
        HallmarkError: One is not.
    """
    from hallmark.model.padding import NanScoresError

    if not all(np.isfinite(values).all() for values in arrays):
        raise HallmarkError(str(NanScoresError()).rstrip("."))


@dataclass(frozen=True)
class ScoredContinuation:
    """Hold a text that a model wrote after a prompt.

    Attributes:
        token_ids: Its token ids, without an end token.
        log_probs: Log probability of each token in nats, at temperature 1 and without filters.
        has_ended: Whether the model ended the text.
    """

    token_ids: TokenIds
    log_probs: Float32
    has_ended: bool


class TextLogLikelihoods(NamedTuple):
    """Hold log-likelihoods of texts.

    Attributes:
        log_likelihoods: Sum of the log probabilities of the scored tokens of each text, in nats,
            (texts,).
        token_counts: Number of scored tokens of each text, (texts,).
    """

    log_likelihoods: Float64
    token_counts: NDArray[np.int64]


class JoinedSequences(NamedTuple):
    """Hold contexts, each joined with its target.

    Attributes:
        sequences: Token ids of context and target.
        prompt_lengths: Number of tokens of each context, at least one.
    """

    sequences: list[TokenIds]
    prompt_lengths: list[int]


class AuditedModel(AuditedTokenizer, ABC):
    """A causal or masked language model with its weights.

    Attributes:
        model: The torch module.
        weights_dtype: Data type of the weights.
        precision: Precision of matrix products.
        autocast_precision: Precision for ``autocast_to_precision``; bf16 if the weights are in
            float32 and matrices are multiplied in bfloat16.
        batch_size: Largest number of rows in one call of the model; None: limited by memory only.
        min_saved_tokens: Number of tokens that reading a shared context once must save.
    """

    model: Any
    weights_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    autocast_precision: Literal["fp32", "bf16"] = "fp32"
    batch_size: int | None = None
    min_saved_tokens = 32

    @abstractmethod
    def compute_log_probs(
        self,
        sequences: Sequence[Sequence[int]],
        prefix_lm_prompt_lengths: Sequence[int] | None = None,
    ) -> list[Float32]:
        """Compute the log probability of each token after the first, in nats.

        Sequences longer than the context are read in windows. A masked model gives the
        pseudo-log-likelihood of each token, masked one at a time (Salazar et al. 2020); its first
        token is the one that opens every sequence.

        Args:
            sequences: Token ids.
            prefix_lm_prompt_lengths: Tokens of each sequence that are its prompt, by default 1.
                Only a prefix LM uses them: it reads the prompt in both directions and gives NaN.
        """

    def redraw_untrained_weights(self, seed: int) -> None:
        """Replace the weights of an untrained model by others, drawn from a seed."""
        raise HallmarkError(
            f"{self.name} is not an untrained model, so its weights cannot be replaced"
        )

    def build_inference_settings_row(self) -> dict[str, Any]:
        """Build the row of the table MODEL: data type, precision and batch size."""
        return {
            "dtype": self.weights_dtype,
            "precision": self.precision,
            "batch_size": self.batch_size,
        }

    def compute_attention_by_stack(self, token_ids: Sequence[int]) -> dict[str, list[Float32]]:
        """Compute attention weights for a sequence, which is read exactly as given.

        Returns:
            For each stack ("decoder", "encoder" or "cross") the weights (heads, queries, keys) of
            each layer; see model/decoding/activations.py.

        Raises:
            HallmarkError: The model gives none.
        """
        raise HallmarkError(f"{self.name} does not return attention weights")

    def compute_hidden_states(
        self, sequences: Sequence[Sequence[int]], layer: int
    ) -> list[Float32]:
        """Compute the hidden states of each sequence, which is read exactly as given.

        Returns:
            States (length, d) per sequence: at layer 0 the input embeddings, from 1 on the output
            of that block, from -1 backwards counted from the last block.

        Raises:
            UsageError: There is no such layer.
        """
        raise HallmarkError(f"{self.name} does not return embeddings")

    def compute_mean_hidden_states(
        self, sequences: Sequence[Sequence[int]], positions: Sequence[Sequence[int]], layer: int
    ) -> Float32:
        """Average the hidden states of each sequence over its ``positions``, (n, d)."""
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
    ) -> TextLogLikelihoods:
        """Compute the log-likelihood of each text, by default without a context.

        With contexts, context + text is encoded as one, and the tokens are those after the prefix
        that it shares with the encoded context. Without a begin-of-text token, the first token of
        a text without context is not scored.
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
        # Entry i scores token i + 1 of the sequence with its begin-of-text token.
        opening_tokens = 0 if self.bos_id is None else 1
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
        token_counts = np.array([len(log_probs) for log_probs in target_log_probs], dtype=np.int64)
        return TextLogLikelihoods(totals, token_counts)

    def compute_target_log_probs(
        self, contexts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[Float32]:
        """Compute the log probability of each token of each target after its context, in nats.

        A context with several targets is read once. After an empty context, the first token of a
        target is not scored.
        """
        log_probs = [np.empty(0, np.float32)] * len(targets)
        unscored_indices = {*range(len(targets))}
        for context_batch in batch_by_shared_context(
            contexts,
            targets,
            self.context_length,
            self.min_saved_tokens,
            max_targets=self.batch_size,
            max_scored_tokens=MAX_LOGITS // self.vocab_size,
        ):
            unscored_indices -= {*context_batch.target_indices}
            batch_log_probs = self.compute_log_probs_after_shared_contexts(
                context_batch.contexts,
                context_batch.context_indices,
                [targets[i] for i in context_batch.target_indices],
            )
            for target_index, values in zip(
                context_batch.target_indices, batch_log_probs, strict=True
            ):
                log_probs[target_index] = values[: len(targets[target_index])].copy()
        remaining_indices = sorted(unscored_indices)
        joined = join_contexts_and_targets(
            [contexts[i] for i in remaining_indices], [targets[i] for i in remaining_indices]
        )
        sequence_log_probs = self.compute_log_probs(joined.sequences, joined.prompt_lengths)
        for target_index, values in zip(remaining_indices, sequence_log_probs, strict=True):
            log_probs[target_index] = values[max(0, len(contexts[target_index]) - 1) :]
        check_log_probs(log_probs)
        return log_probs

    def compute_log_probs_after_shared_contexts(
        self, contexts: list[TokenIds], context_indices: list[int], targets: Sequence[Sequence[int]]
    ) -> Float32:
        """Compute log probabilities (targets, T) after contexts of one length, each read once.

        ``context_indices`` gives the context of each target. Values after a target's end have no
        meaning.
        """
        raise HallmarkError(
            f"{self.name} is a masked language model and cannot score a continuation"
        )

    def compute_rank_statistics(
        self, contexts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[TokenStatistics]:
        """Compute log probabilities of targets with ranks and moments over the vocabulary.

        Rank 0 is the token that a greedy continuation writes.
        """
        raise HallmarkError(f"{self.name} is a masked language model and cannot rank next tokens")

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
        """Generate ``samples`` continuations of each prompt.

        Prompts are read exactly as given, so they include a begin-of-text token. Temperature 0 is
        greedy; with a ``first_temperature`` it falls as in model/decoding/sampling.py. A draw
        depends on seed, prompt, sample number and position, not on the batch.
        """
        raise HallmarkError(f"{self.name} is a masked language model and cannot continue text")

    def generate_completions(
        self,
        contexts: Sequence[Sequence[int]],
        suffixes: Sequence[Sequence[int]],
        *,
        completion_count: int,
        max_new_tokens: int,
    ) -> list[list[ScoredContinuation]]:
        """Generate the most probable completions of each context, best first.

        A causal model uses beam search with ``completion_count`` beams, ranked by log probability
        per token as in transformers. A masked model gives the most probable single tokens between
        context and suffix; a causal model ignores the suffix.
        """
        raise HallmarkError(f"{self.name} cannot complete texts")

    def generate_token_ids(
        self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, **options: Any
    ) -> list[list[TokenIds]]:
        """Generate continuations as ``generate_continuations`` does, and return their token ids."""
        continuations = self.generate_continuations(
            prompts, max_new_tokens=max_new_tokens, **options
        )
        return [[continuation.token_ids for continuation in row] for row in continuations]

    def generate_texts(
        self, prompts: Sequence[str], *, max_new_tokens: int, **options: Any
    ) -> list[list[str]]:
        """Generate continuations of texts; the prompt "" asks for a text from its beginning."""
        prompt_ids = [self.prepend_bos_id(ids) for ids in self.encode_batch(prompts)]
        if not all(prompt_ids):
            raise HallmarkError(
                f"{self.name} has no begin-of-text token, so it cannot generate text without a "
                "prompt"
            )
        generated_ids = self.generate_token_ids(
            prompt_ids, max_new_tokens=max_new_tokens, **options
        )
        return [[self.decode(ids) for ids in row] for row in generated_ids]


def join_contexts_and_targets(
    contexts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> JoinedSequences:
    """Join each context with its target."""
    sequences = [[*context, *target] for context, target in zip(contexts, targets, strict=True)]
    prompt_lengths = [
        min(max(1, len(prompt)), len(sequence))
        for prompt, sequence in zip(contexts, sequences, strict=True)
    ]
    return JoinedSequences(sequences, prompt_lengths)


def check_layer_exists(model_name: str, layer: int, layer_count: int) -> None:
    """Raise UsageError unless a model with ``layer_count`` layers has this layer."""
    if not -layer_count <= layer <= layer_count:
        layer_phrase = "1 layer" if layer_count == 1 else f"{layer_count} layers"
        raise UsageError(
            f"{model_name} has {layer_phrase}, so layer {layer} does not exist; choose a layer "
            f"from {-layer_count} to {layer_count}"
        )


def look_up_embeddings(
    embedding_table: Tensor, sequences: Sequence[Sequence[int]]
) -> list[Float32]:
    """Look up the rows (length, d) of an embedding table (V, d) for each sequence."""
    return [
        embedding_table[list(sequence)].detach().float().cpu().numpy() for sequence in sequences
    ]


def hypothesis_to_continuation(hypothesis: Hypothesis) -> ScoredContinuation:
    """Convert a hypothesis of a beam search, without the token that ended it."""
    token_count = len(hypothesis.ids) - hypothesis.complete
    log_probs = np.array(hypothesis.log_probs[:token_count], np.float32)
    return ScoredContinuation([*hypothesis.ids[:token_count]], log_probs, hypothesis.complete)


#: Maximum number of tokens of contexts and targets in one call of the model.
MAX_TOKENS_PER_CALL = 1 << 14

#: Maximum number of logits held at a time (float32: 256 MiB).
MAX_LOGITS = 1 << 26


@dataclass(frozen=True)
class ContextBatch:
    """Hold contexts of one length and the targets that follow them.

    Attributes:
        contexts: The contexts.
        context_indices: Index of the context of each target, (targets,).
        target_indices: Index of each target in the caller's list, (targets,).
    """

    contexts: list[TokenIds]
    context_indices: list[int]
    target_indices: list[int]


def batch_by_shared_context(
    contexts: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    max_tokens: int,
    min_saved_tokens: int,
    *,
    max_targets: int | None = None,
    max_scored_tokens: int = MAX_TOKENS_PER_CALL,
) -> Iterator[ContextBatch]:
    """Yield batches of targets with shared contexts of more than one token, by context length.

    Only targets that fit into ``max_tokens`` with their context are included, and only contexts
    whose sharing saves at least ``min_saved_tokens``. A batch has at most ``max_targets`` targets,
    and its targets, padded to one length, have at most ``max_scored_tokens`` tokens. One target may
    have more.
    """
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
        batch_contexts, context_indices, target_indices = (
            list[TokenIds](),
            list[int](),
            list[int](),
        )
        batch_tokens, longest_target = 0, 0
        for context in same_length_contexts:
            context_targets = indices_by_context[context]
            chunk_size = min(
                MAX_TOKENS_PER_CALL // (2 * context_length),
                max_scored_tokens // max(len(targets[i]) for i in context_targets),
            )
            chunk_size = max(1, min(chunk_size, max_targets or chunk_size))
            for index_chunk in (
                context_targets[i : i + chunk_size]
                for i in range(0, len(context_targets), chunk_size)
            ):
                longest_of_chunk = max(len(targets[i]) for i in index_chunk)
                chunk_tokens = len(index_chunk) * (context_length + longest_of_chunk)
                target_count = len(target_indices) + len(index_chunk)
                longest_target = max(longest_target, longest_of_chunk)
                if batch_contexts and (
                    batch_tokens + chunk_tokens > MAX_TOKENS_PER_CALL
                    or target_count * longest_target > max_scored_tokens
                    or target_count > (max_targets or target_count)
                ):
                    yield ContextBatch(batch_contexts, context_indices, target_indices)
                    batch_contexts, context_indices, target_indices = [], [], []
                    batch_tokens, longest_target = 0, longest_of_chunk
                context_indices += [len(batch_contexts)] * len(index_chunk)
                batch_contexts.append(list(context))
                target_indices += index_chunk
                batch_tokens += chunk_tokens
        yield ContextBatch(batch_contexts, context_indices, target_indices)
