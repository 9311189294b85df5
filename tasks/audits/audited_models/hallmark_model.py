"""Audit Hallmark checkpoints: decoders, encoders and encoder-decoders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from hallmark.model.architecture import Transformer
from hallmark.model.batch import Batch
from hallmark.model.decoding.activations import (
    compute_contextual_embeddings,
    extract_attention_weights,
)
from hallmark.model.decoding.beam_search import decode_with_beam_search
from hallmark.model.decoding.cache import (
    KeyValueCache,
    allocate_cache,
    compute_hidden_states_with_cache,
    make_prefix_lm_lengths,
)
from hallmark.model.decoding.generation import Continuation, generate
from hallmark.model.decoding.token_scores import (
    TokenStatistics,
    compute_target_log_probs,
    compute_target_statistics,
    compute_token_log_probs,
    compute_token_statistics,
    gather_log_probs,
)
from hallmark.model.interchange.checkpoint import (
    CheckpointError,
    load_checkpoint,
    load_untrained,
    read_model_config,
)
from hallmark.model.padding import pad_rows
from hallmark.model.special_tokens import END_OF_TEXT_ID, PAD_ID
from hallmark.tasks.audits.audited_models.audited_model import (
    AuditedModel,
    Float32,
    ScoredContinuation,
    check_layer_exists,
    check_log_probs,
    check_statistics_are_numbers,
    hypothesis_to_continuation,
    join_contexts_and_targets,
    look_up_embeddings,
    run_in_model_precision,
)
from hallmark.tasks.audits.audited_models.audited_tokenizer import TokenIds
from hallmark.tasks.audits.audited_models.hallmark_tokenizer import (
    HallmarkTokenizer,
    check_is_language_model,
    load_checkpoint_tokenizer,
)
from hallmark.tasks.audits.audited_models.masked_model import MaskedModel
from hallmark.tasks.audits.audited_models.small_configs import scale_down_hallmark_config
from hallmark.tasks.contract import UsageError


def open_hallmark_model(
    folder: Path,
    name: str,
    device: str,
    *,
    allow_pairs: bool = False,
    untrained_seed: int | None = None,
    is_scaled_down: bool = False,
) -> AuditedModel:
    """Open a Hallmark checkpoint, or the same model before any training.

    An untrained model may be scaled down, see ``small_configs.py``.

    Raises:
        UsageError: It cannot be loaded, is no language model, or was trained on pairs and
            ``allow_pairs`` is false.
    """
    try:
        model = (
            load_checkpoint(folder, device)
            if untrained_seed is None
            else _load_untrained_model(
                folder, device, untrained_seed, is_scaled_down=is_scaled_down
            )
        )
    except CheckpointError as error:
        raise UsageError(str(error).rstrip(".")) from error
    check_is_language_model(model.config, model.is_trained_on_pairs and not allow_pairs, name)
    class_by_architecture: dict[str, type[HallmarkDecoder] | type[HallmarkEncoder]] = {
        "decoder": HallmarkDecoder,
        "encoder": HallmarkEncoder,
        "encoder_decoder": HallmarkEncoderDecoder,
    }
    model_class = (
        HallmarkDecoder
        if model.is_trained_on_pairs
        else class_by_architecture[model.config.architecture]
    )
    audited_model = model_class(model, load_checkpoint_tokenizer(folder), name)
    if untrained_seed is not None:
        audited_model.load_with_seed = lambda seed: _load_untrained_model(
            folder, device, seed, is_scaled_down=is_scaled_down
        )
    return audited_model


def _load_untrained_model(
    folder: Path, device: str, seed: int, *, is_scaled_down: bool
) -> Transformer:
    """Build the model of a checkpoint before any training, at its size or scaled down."""
    if not is_scaled_down:
        return load_untrained(folder, device, seed=seed)
    config = read_model_config(folder)
    small_config = scale_down_hallmark_config(config)
    model = load_untrained(folder, device, seed=seed, config=small_config)
    scale = (config.d_model / small_config.d_model) ** 0.5
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(scale)
    return model


class _HallmarkModel(HallmarkTokenizer, AuditedModel):
    load_with_seed: Callable[[int], Transformer] | None = None

    def __init__(self, model: Transformer, tokenizer: Tokenizer, name: str) -> None:
        super().__init__(model.config, model.is_trained_on_pairs, tokenizer, name)
        self.model = model
        self.device = model.embedding.weight.device

    def redraw_untrained_weights(self, seed: int) -> None:
        if self.load_with_seed is None:
            super().redraw_untrained_weights(seed)
        else:
            self.model = self.load_with_seed(seed)

    def compute_attention_by_stack(self, token_ids: Sequence[int]) -> dict[str, list[Float32]]:
        return extract_attention_weights(self.model, token_ids)

    @run_in_model_precision
    def compute_hidden_states(
        self, sequences: Sequence[Sequence[int]], layer: int
    ) -> list[Float32]:
        if layer == 0:
            return look_up_embeddings(self.model.embedding.weight, sequences)
        stack = self.model.encoder or self.model.decoder
        check_layer_exists(self.name, layer, len(stack.blocks) if stack else 0)
        return compute_contextual_embeddings(self.model, sequences, layer=layer)


class HallmarkDecoder(_HallmarkModel):
    @run_in_model_precision
    def compute_log_probs(
        self,
        sequences: Sequence[Sequence[int]],
        prefix_lm_prompt_lengths: Sequence[int] | None = None,
    ) -> list[Float32]:
        log_probs = compute_token_log_probs(
            self.model, sequences, prefix_lm_prompt_lengths=prefix_lm_prompt_lengths
        )
        # A prefix LM gives no log probabilities for its prompt.
        prompt_counts = prefix_lm_prompt_lengths or [1] * len(log_probs)
        check_log_probs(
            p[max(0, count - 1) :] for p, count in zip(log_probs, prompt_counts, strict=True)
        )
        return log_probs

    @run_in_model_precision
    def compute_rank_statistics(
        self, contexts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[TokenStatistics]:
        joined = join_contexts_and_targets(contexts, targets)
        sequence_statistics = compute_token_statistics(
            self.model, joined.sequences, prefix_lm_prompt_lengths=joined.prompt_lengths
        )
        target_statistics = [
            statistics.skip_first(max(0, len(context) - 1))
            for statistics, context in zip(sequence_statistics, contexts, strict=True)
        ]
        check_statistics_are_numbers(target_statistics)
        return target_statistics

    def build_prompt_batch(self, contexts: Sequence[Sequence[int]]) -> Batch:
        """Build the input before the first generated token, for contexts of one length."""
        context_ids = torch.tensor([list(context) for context in contexts], device=self.device)
        return Batch(
            context_ids,
            prefix=make_prefix_lm_lengths(self.model, [context_ids.shape[1]] * len(context_ids)),
        )

    @run_in_model_precision
    @torch.inference_mode()
    def compute_log_probs_after_shared_contexts(
        self, contexts: list[TokenIds], context_indices: list[int], targets: Sequence[Sequence[int]]
    ) -> Float32:
        prompt_batch = self.build_prompt_batch(contexts)
        context_size = prompt_batch.ids.shape[1]
        context_cache = allocate_cache(self.model, len(contexts), context_size)
        context_cache.filled_length, context_cache.slots = context_size, slice(0, context_size)
        hidden = compute_hidden_states_with_cache(self.model, prompt_batch, context_cache)
        # (contexts, V)
        first_log_probs = self.model.compute_logits(hidden[:, -1]).float().log_softmax(-1)
        context_rows = torch.tensor(context_indices, device=self.device)
        target_ids, _ = pad_rows(targets, self.device)  # (B, T)
        log_p = first_log_probs[context_rows].gather(1, target_ids[:, :1])  # (B, 1)
        if target_ids.shape[1] > 1:  # the last token is predicted, never read
            log_p = torch.cat(
                (log_p, self._compute_later_log_probs(context_cache, context_rows, target_ids)), 1
            )  # (B, T)
        log_probs: Float32 = log_p.float().cpu().numpy()
        return log_probs

    def _compute_later_log_probs(
        self, context_cache: KeyValueCache, context_rows: Tensor, target_ids: Tensor
    ) -> Tensor:
        """Compute log probabilities (B, T - 1) of all but the first token of targets (B, T).

        ``context_rows`` gives the row of ``context_cache`` that each target follows.
        """
        begin, end = (
            context_cache.filled_length,
            context_cache.filled_length + target_ids.shape[1] - 1,
        )
        cache = allocate_cache(self.model, len(target_ids), end)
        for layer, context_layer in zip(cache.layers, context_cache.layers, strict=True):
            layer.keys[:, :, :begin] = context_layer.keys[context_rows]
            layer.values[:, :, :begin] = context_layer.values[context_rows]
        cache.source_keys_values = [
            (keys[context_rows], values[context_rows])
            for keys, values in context_cache.source_keys_values
        ]
        cache.slots, cache.filled_length = slice(begin, end), end
        positions = torch.arange(begin, end, device=self.device).unsqueeze(0)
        hidden = compute_hidden_states_with_cache(
            self.model, Batch(target_ids[:, :-1], positions=positions), cache
        )
        logits = self.model.compute_logits(hidden).float()  # (B, T - 1, V)
        return gather_log_probs(logits, target_ids[:, 1:])

    @run_in_model_precision
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
        generated = generate(
            self.model,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            first_temperature=first_temperature,
            top_k=top_k,
            top_p=top_p,
            samples=samples,
            seed=seed,
            **self._build_prompt_arguments(prompts),
        )
        return [
            [_to_scored_continuation(continuation) for continuation in row] for row in generated
        ]

    @run_in_model_precision
    def generate_completions(
        self,
        contexts: Sequence[Sequence[int]],
        suffixes: Sequence[Sequence[int]],
        *,
        completion_count: int,
        max_new_tokens: int,
    ) -> list[list[ScoredContinuation]]:
        truncated_contexts = [
            list(context[-(self.context_length - max_new_tokens) :]) for context in contexts
        ]
        search_options = {
            "normalisation": "mean",
            "stopping": "transformers",
            **self._build_prompt_arguments(truncated_contexts),
        }
        hypotheses = decode_with_beam_search(
            self.model, width=completion_count, max_new_tokens=max_new_tokens, **search_options
        )
        return [
            [hypothesis_to_continuation(hypothesis) for hypothesis in row] for row in hypotheses
        ]

    def _build_prompt_arguments(self, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Build the keyword arguments of ``generate`` and of beam search that give the prompts."""
        return {"prompts": prompts}


def _to_scored_continuation(continuation: Continuation) -> ScoredContinuation:
    token_count = len(continuation.ids) - continuation.stopped
    return ScoredContinuation(
        continuation.ids[:token_count], continuation.log_probs[:token_count], continuation.stopped
    )


class HallmarkEncoderDecoder(HallmarkDecoder):
    """Continue text as in span corruption: the encoder reads the context and a sentinel.

    The decoder writes the text that the sentinel stands for.
    """

    def __init__(self, model: Transformer, tokenizer: Tokenizer, name: str) -> None:
        super().__init__(model, tokenizer, name)
        self.min_saved_tokens = 0  # the encoder reads a context once for all its targets
        self.sentinel_id = self.get_special_token_id("<|sentinel_0|>")
        # The model ends the text of the first sentinel by writing the second.
        self.stop_ids = [END_OF_TEXT_ID, self.get_special_token_id("<|sentinel_1|>")]

    def _build_encoder_input(self, prefix_ids: Sequence[int]) -> TokenIds:
        """Build the encoder's input; a prefix that is too long loses its beginning."""
        text_ids = [token for token in prefix_ids if token != self.bos_id]
        return [*text_ids[max(0, len(text_ids) - self.context_length + 1) :], self.sentinel_id]

    def build_prompt_batch(self, contexts: Sequence[Sequence[int]]) -> Batch:
        source_ids = torch.tensor(
            [self._build_encoder_input(context) for context in contexts], device=self.device
        )
        decoder_ids = torch.tensor(
            [[END_OF_TEXT_ID, self.sentinel_id]] * len(contexts), device=self.device
        )
        return Batch(decoder_ids, source=source_ids)

    @run_in_model_precision
    def compute_log_probs(
        self,
        sequences: Sequence[Sequence[int]],
        prefix_lm_prompt_lengths: Sequence[int] | None = None,
    ) -> list[Float32]:
        """Score half a context at a time, with the preceding tokens in the encoder."""
        window_size = max(1, (self.context_length - 2) // 2)
        windows = [
            (sequence_index, start)
            for sequence_index, sequence in enumerate(sequences)
            for start in range(1, len(sequence), window_size)
        ]
        window_targets = [sequences[i][start : start + window_size] for i, start in windows]
        window_log_probs = compute_target_log_probs(
            self.model,
            [self._build_encoder_input(sequences[i][:start]) for i, start in windows],
            [[END_OF_TEXT_ID, self.sentinel_id, *target_ids] for target_ids in window_targets],
        )
        log_probs = [
            np.empty(max(0, len(target_sequence) - 1), dtype=np.float32)
            for target_sequence in sequences
        ]
        for (sequence_index, start), values in zip(windows, window_log_probs, strict=True):
            log_probs[sequence_index][start - 1 : start - 1 + window_size] = values[1:]
        check_log_probs(log_probs)
        return log_probs

    @run_in_model_precision
    def compute_rank_statistics(
        self, contexts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[TokenStatistics]:
        """Score each target as one piece, as ``generate_continuations`` writes it."""
        sources = [self._build_encoder_input(context) for context in contexts]
        decoder_inputs = [[END_OF_TEXT_ID, self.sentinel_id, *target] for target in targets]
        forbidden_ids = (PAD_ID, self.sentinel_id)
        sequence_statistics = compute_target_statistics(
            self.model, sources, decoder_inputs, unranked_tokens=forbidden_ids
        )
        target_statistics = [statistics.skip_first(1) for statistics in sequence_statistics]
        check_statistics_are_numbers(target_statistics)
        return target_statistics

    def _build_prompt_arguments(self, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
        return {
            "prompts": [[END_OF_TEXT_ID, self.sentinel_id]] * len(prompts),
            "sources": [self._build_encoder_input(prompt) for prompt in prompts],
            "stop": self.stop_ids,
            "forbid": (PAD_ID, self.sentinel_id),
        }


class HallmarkEncoder(_HallmarkModel, MaskedModel):
    def compute_logits_at(
        self, sequences: Sequence[Sequence[int]], positions: Sequence[int]
    ) -> Tensor:
        token_ids, is_real = pad_rows(sequences, self.device)
        hidden = self.model(Batch(token_ids, attention_mask=is_real))  # (B, T, d)
        row_indices = torch.arange(len(sequences), device=self.device)
        column_indices = torch.tensor(positions, device=self.device)
        logits: Tensor = self.model.compute_logits(hidden[row_indices, column_indices]).float()
        return logits
