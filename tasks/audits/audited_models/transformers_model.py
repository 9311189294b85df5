"""Audit causal and masked language models in Hugging Face folders through transformers.

Weights are read from safetensors only. Probabilities are computed in float32 from logits in the
model's precision. Rows of a batch are padded to the right, unless attention_checks.py finds that
padding changes results; generation batches prompts of equal length. A model whose cache cannot be
used reads whole sequences, see next_token_readers.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hallmark.model.decoding.beam_search import run_beam_search
from hallmark.model.decoding.context_windows import compute_window_start
from hallmark.model.decoding.sampling import TokenSampler, make_draw_keys
from hallmark.model.decoding.token_scores import (
    TokenStatistics,
    compute_log_prob_mean_std_rank,
    gather_log_probs,
    reduce_to_log_probs,
    to_token_statistics,
)
from hallmark.model.interchange.checkpoint import WEIGHTS_FILE, CheckpointError
from hallmark.model.interchange.weight_files import WEIGHTS_INDEX_FILE, list_weight_files
from hallmark.model.padding import check_no_nan, pad_rows
from hallmark.tasks.audits.audited_models.attention_checks import (
    build_check_sequences,
    check_transformers_attention_and_choose_batching,
)
from hallmark.tasks.audits.audited_models.audited_model import (
    MAX_LOGITS,
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
from hallmark.tasks.audits.audited_models.audited_tokenizer import ModelKind, TokenIds
from hallmark.tasks.audits.audited_models.cache_checks import (
    can_read_next_tokens_with_cache,
    can_read_targets_with_cache,
)
from hallmark.tasks.audits.audited_models.masked_model import (
    MaskedModel,
    batch_indices_of_similar_length,
)
from hallmark.tasks.audits.audited_models.next_token_readers import (
    BeamScorer,
    CachedReader,
    NextTokenReader,
    WholeSequenceReader,
    accepts_last_logits_only,
)
from hallmark.tasks.audits.audited_models.small_configs import scale_down_transformers_config
from hallmark.tasks.audits.audited_models.transformers_tokenizer import (
    TransformersTokenizer,
    detect_model_kind,
    get_first_error_line,
    load_transformers_tokenizer,
)
from hallmark.tasks.contract import HallmarkError, UsageError, format_count
from hallmark.tasks.measures.batch_effects import choose_pad_token_id, group_batchable_rows
from hallmark.tasks.measures.folder_tokenizer import LOCAL_ONLY_OPTIONS
from hallmark.tasks.measures.transformers_logging import silence_transformers_output
from hallmark.tasks.measures.weights import detach_weights_from_files

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from transformers.models.auto.auto_factory import _BaseAutoModelClass

#: Maximum number of tokens of prompts and continuations that are generated together.
MAX_GENERATION_TOKENS = 1 << 15

#: The largest number of layers, and its names in the configs of transformers.
MAX_LAYERS = 10_000
LAYER_COUNT_KEYS = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    *("encoder_layers", "decoder_layers", "num_decoder_layers"),
)

PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5", "*.msgpack")


def open_transformers_model(
    folder: Path,
    config: dict[str, Any],
    name: str,
    device: str,
    *,
    weights_dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    untrained_seed: int | None = None,
    is_scaled_down: bool = False,
) -> AuditedModel:
    """Open a causal or masked language model, or the same model before any training.

    An untrained model may be scaled down, see ``small_configs.py``.

    A model whose weights are not in float32 is first opened in float32 on the CPU, because the
    checks on opening must distinguish effects of padding from rounding.

    Raises:
        UsageError: It cannot be loaded safely, or its weights do not fit its config.
    """
    model_kind = detect_model_kind(folder, config)
    _check_layer_count(folder, config)
    if untrained_seed is None:
        _check_weight_files(folder, config)
    tokenizer = load_transformers_tokenizer(folder)
    model_class = TransformersMaskedModel if model_kind == "masked" else TransformersCausalModel
    load_model = partial(_load_model, folder, model_kind, is_scaled_down=is_scaled_down)

    def create_audited_model(model: PreTrainedModel) -> _TransformersModel:
        # Its checks run the model, which fails if its config or tokenizer are damaged.
        try:
            return model_class(model, tokenizer, name, model_kind)
        except HallmarkError:
            raise
        except Exception as error:
            raise UsageError(
                f"the model in {folder} cannot be run: {get_first_error_line(error)}; check its "
                "config.json and its tokenizer"
            ) from error

    model = load_model(torch.float32, untrained_seed)
    if weights_dtype == "float32":
        audited_model = create_audited_model(model.to(device))
        if untrained_seed is not None:
            audited_model.load_with_seed = partial(load_model, torch.float32)
        return audited_model
    audited_model = create_audited_model(model)
    model = audited_model.model = None  # frees the weights in float32
    model = load_model(getattr(torch, weights_dtype), untrained_seed)
    audited_model.model, audited_model.weights_dtype = model.to(device), weights_dtype
    audited_model.device = audited_model.model.device
    return audited_model


class LoadedModel(NamedTuple):
    """Hold a model that transformers loaded.

    Attributes:
        model: The model.
        loading_info: What transformers says of its weights, such as "missing_keys".
    """

    model: PreTrainedModel
    loading_info: Mapping[str, Any]


def _load_model(
    folder: Path,
    model_kind: ModelKind,
    dtype: torch.dtype,
    untrained_seed: int | None,
    *,
    is_scaled_down: bool,
) -> PreTrainedModel:
    """Load the model on the CPU, or create the same model before any training.

    Raises:
        UsageError: It cannot be loaded, or its weights do not fit its config.
    """
    if untrained_seed is not None:
        return _create_untrained_model(
            folder, model_kind, dtype, untrained_seed, is_scaled_down=is_scaled_down
        ).eval()
    model, loading_info = _load_pretrained_model(folder, model_kind, dtype)
    for tensor_name, found_shape, expected_shape in sorted(loading_info["mismatched_keys"]):
        raise UsageError(
            f"the weights in {folder} do not match its config.json: {tensor_name} has shape "
            f"{tuple(found_shape)}, expected {tuple(expected_shape)}"
        )
    missing_tensors = sorted(loading_info["missing_keys"])
    if missing_tensors:
        raise UsageError(
            f"{format_count(len(missing_tensors), 'tensor')} of the model "
            f"{'is' if len(missing_tensors) == 1 else 'are'} missing from the weights in "
            f"{folder}, for example {missing_tensors[0]!r}; provide a complete checkpoint"
        )
    return model.eval()


def _get_auto_class(model_kind: ModelKind) -> type[_BaseAutoModelClass]:
    """Return the class of transformers that loads models of a kind."""
    import transformers

    auto_class: type[_BaseAutoModelClass] = getattr(
        transformers, f"AutoModelFor{'MaskedLM' if model_kind == 'masked' else 'CausalLM'}"
    )
    return auto_class


def _create_untrained_model(
    folder: Path, model_kind: ModelKind, dtype: torch.dtype, seed: int, *, is_scaled_down: bool
) -> PreTrainedModel:
    """Create the model, at its size or scaled down, with weights drawn from a seed."""
    from transformers import AutoConfig

    with silence_transformers_output(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = AutoConfig.from_pretrained(folder, **LOCAL_ONLY_OPTIONS)
        if is_scaled_down:
            config = scale_down_transformers_config(config)
        return _get_auto_class(model_kind).from_config(config, dtype=dtype)


def _load_pretrained_model(folder: Path, model_kind: ModelKind, dtype: torch.dtype) -> LoadedModel:
    """Load the model; the caller checks for missing and mismatched weights."""
    auto_class = _get_auto_class(model_kind)
    try:
        with silence_transformers_output():
            model, loading_info = auto_class.from_pretrained(
                folder,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # the caller reports them with their names
                output_loading_info=True,
                dtype=dtype,
                **LOCAL_ONLY_OPTIONS,
            )
    except Exception as error:
        raise UsageError(
            f"the model in {folder} cannot be loaded: {get_first_error_line(error)}"
        ) from error
    detach_weights_from_files(model)
    return LoadedModel(model, loading_info)


def _check_layer_count(folder: Path, config: dict[str, Any]) -> None:
    """Check the number of layers, which transformers creates before it reads the weights.

    Raises:
        UsageError: There are more than ``MAX_LAYERS``.
    """
    for key in LAYER_COUNT_KEYS:
        if isinstance(config.get(key), int) and config[key] > MAX_LAYERS:
            raise UsageError(
                f"{key} in {folder / 'config.json'} is {config[key]}, but models can have at most "
                f"{MAX_LAYERS:,} layers"
            )


def _check_weight_files(folder: Path, config: dict[str, Any]) -> None:
    """Check that the weights can be read, and are those that ``hallmark generate`` reads.

    Raises:
        UsageError: They are missing, or only in a format that can run code.
    """
    has_safetensors = any((folder / name).is_file() for name in (WEIGHTS_FILE, WEIGHTS_INDEX_FILE))
    if not has_safetensors and config.get("transformers_weights") is None:
        pickle_files = sorted(
            path.name for pattern in PICKLE_PATTERNS for path in folder.glob(pattern)
        )
        if pickle_files:
            raise UsageError(
                f"{folder} has weights only in {pickle_files[0]}, a file that can run code when "
                "loaded; convert the weights to model.safetensors first"
            )
        raise UsageError(f"{folder} has no model.safetensors; provide a complete checkpoint")
    try:
        list_weight_files(folder, config)
    except CheckpointError as error:
        raise UsageError(str(error).rstrip(".")) from error


class _TransformersModel(TransformersTokenizer, AuditedModel):
    load_with_seed: Callable[[int], PreTrainedModel] | None = None

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        name: str,
        model_kind: ModelKind,
    ) -> None:
        # Perceiver has no such table.
        embedding_table = getattr(model.get_input_embeddings(), "weight", None)
        vocab_size = (
            model.config.vocab_size if embedding_table is None else embedding_table.shape[0]
        )
        super().__init__(model.config, tokenizer, name, model_kind, vocab_size)
        self.model, self.device = model, model.device
        self.pad_id = choose_pad_token_id(model.config, tokenizer, vocab_size)
        self.batching = check_transformers_attention_and_choose_batching(
            model, tokenizer, self, self._compute_logits
        )

    def _compute_logits(self, token_ids: torch.Tensor, is_real: torch.Tensor) -> torch.Tensor:
        """Compute logits (B, T, V), float32."""
        logits: torch.Tensor = self.model(
            input_ids=token_ids, attention_mask=is_real.long()
        ).logits.float()
        return logits

    def redraw_untrained_weights(self, seed: int) -> None:
        if self.load_with_seed is None:
            super().redraw_untrained_weights(seed)
        else:
            self.model = self.load_with_seed(seed).to(self.device)

    def iter_batch_indices(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        for group in group_batchable_rows(lengths, self.batching):
            for batch in batch_indices_of_similar_length(
                [lengths[i] for i in group], self.vocab_size, self.batch_size
            ):
                yield [group[index] for index in batch]

    @torch.inference_mode()
    def compute_attention_by_stack(self, token_ids: Sequence[int]) -> dict[str, list[Float32]]:
        error_prefix = f"{self.name} does not return attention weights"
        try:
            self.model.set_attn_implementation("eager")  # fused kernels give no weights
            input_ids = torch.tensor([list(token_ids)], device=self.device)
            attentions = self.model(input_ids=input_ids, output_attentions=True).attentions
        except Exception as error:  # code of many architectures, some without attention
            raise HallmarkError(f"{error_prefix}: {get_first_error_line(error)}") from error
        expected_shape = (1, len(token_ids), len(token_ids))
        layer_weights = [
            layer.float().cpu().numpy()[0] for layer in attentions or () if layer is not None
        ]
        if not layer_weights or any(
            (1, *layer.shape[1:]) != expected_shape for layer in layer_weights
        ):
            raise HallmarkError(f"{error_prefix} for every pair of tokens")
        return {"decoder" if self.model_kind == "causal" else "encoder": layer_weights}

    @run_in_model_precision
    @torch.inference_mode()
    def compute_hidden_states(
        self, sequences: Sequence[Sequence[int]], layer: int
    ) -> list[Float32]:
        if layer == 0:
            return look_up_embeddings(self.model.get_input_embeddings().weight, sequences)
        # Caches of layers without attention have no length.
        forward_options = {"use_cache": False} if self.model_kind == "causal" else {}
        hidden_states: list[Float32] = [np.empty(0, np.float32)] * len(sequences)
        for batch in self.iter_batch_indices([len(sequence) for sequence in sequences]):
            input_ids, is_real = pad_rows([sequences[i] for i in batch], self.device, self.pad_id)
            output = self.model.base_model(
                input_ids=input_ids,
                attention_mask=is_real.long(),
                output_hidden_states=True,
                **forward_options,
            )
            check_layer_exists(self.name, layer, len(output.hidden_states) - 1)
            states = output.hidden_states[layer].float().cpu().numpy()  # (B, T, d)
            for i, state in zip(batch, states, strict=True):
                hidden_states[i] = state[: len(sequences[i])]
        return hidden_states


class TransformersCausalModel(_TransformersModel):
    """A model that reads from left to right."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        name: str,
        model_kind: ModelKind,
    ) -> None:
        super().__init__(model, tokenizer, name, model_kind)
        eos_ids = model.generation_config.eos_token_id if model.generation_config else None
        eos_ids = eos_ids if isinstance(eos_ids, list) else [eos_ids]
        self.stop_ids = {
            token_id for token_id in [*eos_ids, tokenizer.eos_token_id] if token_id is not None
        }
        sequence_pairs = build_check_sequences(model, tokenizer, self)
        self.uses_cache = self.batching != "one row" and can_read_next_tokens_with_cache(
            self._open_reader, sequence_pairs
        )
        # Targets after a shared context are padded. Logits of whole contexts could fill the memory.
        if (
            not self.uses_cache
            or self.batching != "any length"
            or not accepts_last_logits_only(model)
            or not can_read_targets_with_cache(
                self._compute_logits_after_shared_contexts, self._open_reader, sequence_pairs
            )
        ):
            self.min_saved_tokens = sys.maxsize

    @run_in_model_precision
    def compute_log_probs(
        self,
        sequences: Sequence[Sequence[int]],
        prefix_lm_prompt_lengths: Sequence[int] | None = None,
    ) -> list[Float32]:
        log_probs = [
            sequence_columns[0]
            for sequence_columns in self._reduce_target_logits(sequences, reduce_to_log_probs, 1)
        ]
        check_log_probs(log_probs)
        return log_probs

    @run_in_model_precision
    def compute_rank_statistics(
        self, contexts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[TokenStatistics]:
        sequence_statistics = to_token_statistics(
            self._reduce_target_logits(
                join_contexts_and_targets(contexts, targets).sequences,
                compute_log_prob_mean_std_rank,
                4,
            )
        )
        target_statistics = [
            statistics.skip_first(max(0, len(context) - 1))
            for statistics, context in zip(sequence_statistics, contexts, strict=True)
        ]
        check_statistics_are_numbers(target_statistics)
        return target_statistics

    @torch.inference_mode()
    def _reduce_target_logits(
        self,
        sequences: Sequence[Sequence[int]],
        reduce_logits: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        column_count: int,
    ) -> list[Float32]:
        """Reduce the logits of every token after the first of each sequence.

        Args:
            sequences: Token ids.
            reduce_logits: Maps logits (n, V) and targets (n,) to (columns, n).
            column_count: Number of columns.

        Returns:
            An array (columns, length - 1) per sequence.
        """
        reduced_sequences = [
            np.empty((column_count, max(0, len(token_ids) - 1)), dtype=np.float32)
            for token_ids in sequences
        ]
        windows = []  # (sequence, first token read, first token predicted, last token predicted)
        for sequence_index, sequence in enumerate(sequences):
            first_target = 1
            while first_target < len(sequence):
                first_read = compute_window_start(
                    first_target, self.context_length, max(1, self.context_length // 2)
                )
                last_target = min(first_read + self.context_length, len(sequence) - 1)
                windows.append((sequence_index, first_read, first_target, last_target))
                first_target = last_target + 1
        for batch in self.iter_batch_indices(
            [last_target - first_read for _, first_read, _, last_target in windows]
        ):
            batch_windows = [windows[i] for i in batch]
            window_sequences = [
                sequences[i][first_read : last_target + 1]
                for i, first_read, _, last_target in batch_windows
            ]
            input_ids, is_real = pad_rows(window_sequences, self.device, self.pad_id)
            logits = self._compute_logits(input_ids[:, :-1], is_real[:, :-1])  # (B, T, V)
            # (columns, B * T)
            reduced = reduce_logits(logits.flatten(0, 1), input_ids[:, 1:].flatten())
            values = (
                reduced.view(column_count, len(batch_windows), -1).transpose(0, 1).cpu().numpy()
            )
            for (sequence_index, first_read, first_target, last_target), window_values in zip(
                batch_windows, values, strict=True
            ):
                reduced_sequences[sequence_index][:, first_target - 1 : last_target] = (
                    window_values[:, first_target - 1 - first_read : last_target - first_read]
                )
        return reduced_sequences

    def _compute_logits(self, token_ids: torch.Tensor, is_real: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(
            input_ids=token_ids, attention_mask=is_real.long(), use_cache=False
        ).logits.float()
        return logits

    @run_in_model_precision
    @torch.inference_mode()
    def compute_log_probs_after_shared_contexts(
        self, contexts: list[TokenIds], context_indices: list[int], targets: Sequence[Sequence[int]]
    ) -> Float32:
        logits = self._compute_logits_after_shared_contexts(contexts, context_indices, targets)
        target_ids, _ = pad_rows(targets, self.device, self.pad_id)  # (B, T)
        log_probs: Float32 = gather_log_probs(logits, target_ids).cpu().numpy()
        return log_probs

    def _compute_logits_after_shared_contexts(
        self, contexts: list[TokenIds], context_indices: list[int], targets: Sequence[Sequence[int]]
    ) -> torch.Tensor:
        """Compute the logits (B, T, V), float32, of each token of targets, padded to T tokens."""
        reader = CachedReader(self.model, contexts)
        # (B, 1, V)
        logits = reader.read_prompts()[torch.tensor(context_indices, device=self.device), None]
        target_ids, is_real = pad_rows(targets, self.device, self.pad_id)  # (B, T)
        if target_ids.shape[1] == 1:
            return logits
        reader.select_rows(context_indices)
        context_mask = torch.ones(
            len(targets), len(contexts[0]), device=self.device, dtype=torch.long
        )
        later_logits = self.model(
            input_ids=target_ids[:, :-1],
            attention_mask=torch.cat([context_mask, is_real[:, :-1].long()], dim=1),
            past_key_values=reader.cache,
            use_cache=True,
        ).logits.float()
        return torch.cat([logits, later_logits], dim=1)

    def _open_reader(
        self, prompts: Sequence[Sequence[int]], *, uses_cache: bool
    ) -> NextTokenReader:
        """Return a reader of prompts of one length."""
        if uses_cache:
            return CachedReader(self.model, prompts)
        return WholeSequenceReader(
            self._compute_logits, self.iter_batch_indices, self.device, prompts
        )

    @run_in_model_precision
    @torch.inference_mode()
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
        truncated_prompts = self._truncate_prompts(prompts, max_new_tokens)
        token_sampler = TokenSampler(temperature, top_k, top_p, first_temperature=first_temperature)
        continuations: list[list[ScoredContinuation]] = [[] for _ in prompts]
        indices_by_length = sorted(
            range(len(truncated_prompts)), key=lambda i: len(truncated_prompts[i])
        )
        for length, index_group in groupby(
            indices_by_length, key=lambda i: len(truncated_prompts[i])
        ):
            same_length_indices = list(index_group)
            rows_per_batch = self._count_rows_per_batch(length, max_new_tokens)
            prompts_per_batch, draws_per_batch = (
                max(1, rows_per_batch // samples),
                min(rows_per_batch, samples),
            )
            for first_member, first_draw in product(
                range(0, len(same_length_indices), prompts_per_batch),
                range(0, samples, draws_per_batch),
            ):
                batch = same_length_indices[first_member : first_member + prompts_per_batch]
                random_keys = [
                    make_draw_keys(seed, prompts[i], samples)[
                        first_draw : first_draw + draws_per_batch
                    ]
                    for i in batch
                ]
                batch_continuations = self._sample_continuations(
                    [truncated_prompts[i] for i in batch],
                    np.concatenate(random_keys),
                    token_sampler,
                    max_new_tokens,
                )
                for row, prompt_index in enumerate(np.repeat(batch, len(random_keys[0]))):
                    continuations[prompt_index].append(batch_continuations[row])
        return continuations

    @run_in_model_precision
    @torch.inference_mode()
    def generate_completions(
        self,
        contexts: Sequence[Sequence[int]],
        suffixes: Sequence[Sequence[int]],
        *,
        completion_count: int,
        max_new_tokens: int,
    ) -> list[list[ScoredContinuation]]:
        truncated_contexts = self._truncate_prompts(contexts, max_new_tokens)
        completions: list[list[ScoredContinuation]] = [[] for _ in truncated_contexts]
        indices_by_length = sorted(
            range(len(truncated_contexts)), key=lambda i: len(truncated_contexts[i])
        )
        for length, index_group in groupby(
            indices_by_length, key=lambda i: len(truncated_contexts[i])
        ):
            same_length_indices = list(index_group)
            rows_per_batch = self._count_rows_per_batch(length, max_new_tokens)
            contexts_per_batch = max(1, rows_per_batch // completion_count)
            for batch in (
                same_length_indices[i : i + contexts_per_batch]
                for i in range(0, len(same_length_indices), contexts_per_batch)
            ):
                batch_hypotheses = run_beam_search(
                    BeamScorer(
                        self._open_reader(
                            [truncated_contexts[i] for i in batch], uses_cache=self.uses_cache
                        )
                    ),
                    width=completion_count,
                    stop=self.stop_ids,
                    max_new_tokens=max_new_tokens,
                    normalisation="mean",
                    stopping="transformers",
                )
                for i, hypotheses in zip(batch, batch_hypotheses, strict=True):
                    completions[i] = [
                        hypothesis_to_continuation(hypothesis) for hypothesis in hypotheses
                    ]
        return completions

    def _truncate_prompts(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int
    ) -> list[TokenIds]:
        """Remove the beginning of prompts, so that they fit into the context with the new tokens.

        Raises:
            HallmarkError: No token of a prompt would remain.
        """
        if max_new_tokens >= self.context_length:
            raise HallmarkError(
                f"{max_new_tokens} new tokens do not fit into the context of {self.name} "
                f"({self.context_length} tokens) after a prompt; reduce the audit's "
                "max_new_tokens setting, or skip the audit"
            )
        return [list(prompt[-(self.context_length - max_new_tokens) :]) for prompt in prompts]

    def _count_rows_per_batch(self, length: int, max_new_tokens: int) -> int:
        """Count the rows that can be continued together after prompts of a length.

        Each row keeps the states of its tokens, and needs logits for sampling. A model that cannot
        compute logits at the last position only has logits at every position of its prompts.
        """
        positions = 4 if accepts_last_logits_only(self.model) else max(4, length)
        row_count = min(
            MAX_LOGITS // positions // self.vocab_size,
            MAX_GENERATION_TOKENS // (length + max_new_tokens),
        )
        return max(1, min(row_count, self.batch_size or row_count))

    def _sample_continuations(
        self,
        prompts: list[TokenIds],
        random_keys: NDArray[np.uint64],
        token_sampler: TokenSampler,
        max_new_tokens: int,
    ) -> list[ScoredContinuation]:
        """Sample one continuation per key from prompts of one length, in their order."""
        draws_per_prompt = len(random_keys) // len(prompts)
        reader = self._open_reader(prompts, uses_cache=self.uses_cache)
        logits = reader.read_prompts().repeat_interleave(draws_per_prompt, 0)  # (B, V)
        parent_rows = np.repeat(np.arange(len(prompts)), draws_per_prompt).tolist()
        token_ids = np.zeros((len(random_keys), max_new_tokens), np.int64)
        log_probs = np.zeros((len(random_keys), max_new_tokens), np.float32)
        token_counts = np.zeros(len(random_keys), np.int64)
        is_running = np.ones(len(random_keys), dtype=bool)
        for position in range(max_new_tokens):
            next_log_probs = logits.log_softmax(-1)  # (B, V)
            check_no_nan(next_log_probs[torch.from_numpy(is_running).to(next_log_probs.device)])
            chosen_ids = token_sampler.choose_tokens(logits, random_keys, position)  # (B,)
            token_ids[:, position] = chosen_ids.cpu().numpy()
            log_probs[:, position] = (
                next_log_probs.gather(1, chosen_ids[:, None]).squeeze(1).cpu().numpy()
            )
            is_running &= ~np.isin(token_ids[:, position], [*self.stop_ids])
            token_counts += is_running
            if not is_running.any() or position == max_new_tokens - 1:
                break
            logits = reader.read_next_token_logits(parent_rows, token_ids[:, position].tolist())
            parent_rows = [*range(len(random_keys))]
        return [
            ScoredContinuation(
                token_ids[row, :token_count].tolist(),
                log_probs[row, :token_count].copy(),
                not is_running[row],
            )
            for row, token_count in enumerate(token_counts)
        ]


class TransformersMaskedModel(_TransformersModel, MaskedModel):
    def compute_logits_at(
        self, sequences: Sequence[Sequence[int]], positions: Sequence[int]
    ) -> torch.Tensor:
        input_ids, is_real = pad_rows(sequences, self.device, self.pad_id)
        logits = self.model(input_ids=input_ids, attention_mask=is_real.long()).logits
        row_indices = torch.arange(len(sequences), device=self.device)
        position_logits: torch.Tensor = logits[
            row_indices, torch.tensor(positions, device=self.device)
        ].float()
        return position_logits
