"""Hugging Face folders as subjects: causal and masked language models through transformers.

Weights are read from safetensors only. Probabilities are computed in float32, of logits in the
subject's precision. Rows of one batch are padded to the right, unless opening_checks.py finds that
they then have an effect on each other; generation batches prompts of equal length.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from model.decoding.beam import beam_search
from model.decoding.choice import Choice, draw_keys
from model.decoding.score import (
    Moments,
    as_moments,
    chosen_log_probs,
    log_probs_of,
    moments_of,
)
from model.decoding.windows import window_start
from model.interchange.checkpoint import WEIGHTS, CheckpointError
from model.interchange.weights import INDEX, list_weight_files
from model.rows import check_numbers, padded
from tasks.audits.subjects.masked import LOGITS, Masked, like_lengths
from tasks.audits.subjects.opening_checks import check_model
from tasks.audits.subjects.reader import Ids
from tasks.audits.subjects.subject import (
    Float32,
    Subject,
    Written,
    beamed,
    check_layer,
    check_moments,
    check_scores,
    computes,
    joined,
    rows_of,
)
from tasks.audits.subjects.transformers_reader import (
    TransformersReader,
    kind_of,
    load_tokenizer,
    said,
)
from tasks.contract import HallmarkError, UsageError
from tasks.measures.batch_effects import choose_pad, group_rows
from tasks.measures.folder_tokenizer import LOCAL
from tasks.measures.quiet import quiet_transformers
from tasks.measures.weights import copy_weights

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5", "*.msgpack")


def open_transformers(
    folder: Path, config: dict[str, Any], name: str, device: str, *, seed: int | None = None
) -> Subject:
    """A causal or masked LM folder, or the same before any training. Raises UsageError, one
    sentence."""
    kind = kind_of(folder, config)
    if seed is None:
        _check_weights(folder, config)
    tokenizer = load_tokenizer(folder)
    model, info = _load(folder, kind) if seed is None else (_blank(folder, kind, seed), _WHOLE)
    for key, found, expected in sorted(info["mismatched_keys"]):
        raise UsageError(
            f"the weights in {folder} do not fit its config.json: {key} has shape {tuple(found)}, "
            f"expected {tuple(expected)}"
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise UsageError(
            f"the weights in {folder} lack {len(missing)} tensors of the model, the first "
            f"{missing[0]!r}: the folder is not a whole checkpoint"
        )
    made = TransformersMasked if kind == "masked" else TransformersCausal
    return made(model.eval().to(device), tokenizer, name, kind)


#: What ``_load`` says of weights of which none is missing.
_WHOLE: dict[str, Any] = {"mismatched_keys": (), "missing_keys": ()}


def _auto(kind: str) -> Any:
    import transformers

    return getattr(transformers, f"AutoModelFor{'MaskedLM' if kind == 'masked' else 'CausalLM'}")


def _blank(folder: Path, kind: str, seed: int) -> Any:
    """The model with weights drawn from a seed, as transformers draws them."""
    from transformers import AutoConfig

    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = AutoConfig.from_pretrained(folder, **LOCAL)
        return _auto(kind).from_config(config, dtype=torch.float32)  # as the trained model


def _load(folder: Path, kind: str) -> tuple[Any, dict[str, Any]]:
    """The model, and what transformers found missing in the weights."""
    auto = _auto(kind)
    try:
        with quiet_transformers():
            model, info = auto.from_pretrained(
                folder,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # they are told from info, with the place
                output_loading_info=True,
                dtype=torch.float32,
                **LOCAL,
            )
    except Exception as error:
        raise UsageError(f"{folder} holds no model that can be loaded: {said(error)}") from error
    return copy_weights(model), info


def _check_weights(folder: Path, config: dict[str, Any]) -> None:
    """UsageError where the weights cannot be read, or are others than ``generate`` would read."""
    whole = any((folder / name).is_file() for name in (WEIGHTS, INDEX))
    if not whole and config.get("transformers_weights") is None:
        pickles = sorted(p.name for pattern in PICKLES for p in folder.glob(pattern))
        if pickles:
            raise UsageError(
                f"{folder} has its weights only in {pickles[0]}, a format that can run code when "
                f"it is read; convert them to model.safetensors first"
            )
        raise UsageError(f"{folder} has no model.safetensors: it is not a whole checkpoint")
    try:
        list_weight_files(folder, config)
    except CheckpointError as error:
        raise UsageError(str(error).rstrip(".")) from error


class _Transformers(TransformersReader, Subject):
    def __init__(self, model: Any, tokenizer: Any, name: str, kind: str) -> None:
        table = getattr(model.get_input_embeddings(), "weight", None)  # Perceiver has none
        size = model.config.vocab_size if table is None else table.shape[0]
        super().__init__(model.config, tokenizer, name, kind, size)
        self.model, self.device = model, model.device
        self.pad = choose_pad(model.config, tokenizer, size)
        self.batching = check_model(model, tokenizer, self, self._logits)
        if self.batching != "any length":
            self.saving = sys.maxsize  # targets after a shared context are padded

    def _logits(self, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """Logits (B, T, V), float32."""
        logits: torch.Tensor = self.model(input_ids=ids, attention_mask=real.long()).logits.float()
        return logits

    def group_rows(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        for group in group_rows(lengths, self.batching):
            for batch in like_lengths([lengths[i] for i in group], self.vocab_size):
                yield [group[place] for place in batch]

    @torch.inference_mode()
    def attention(self, ids: Sequence[int]) -> dict[str, list[Float32]]:
        why = f"{self.name} gives no attention weights"
        try:
            self.model.set_attn_implementation("eager")  # the fused kernels never hold them
            tokens = torch.tensor([list(ids)], device=self.device)
            given = self.model(input_ids=tokens, output_attentions=True).attentions
        except Exception as error:  # code of many architectures, some without attention
            raise HallmarkError(f"{why}: {said(error)}") from error
        square = (1, len(ids), len(ids))
        layers = [layer.float().cpu().numpy()[0] for layer in given or () if layer is not None]
        if not layers or any((1, *layer.shape[1:]) != square for layer in layers):
            raise HallmarkError(f"{why} of every token to every other")
        return {"decoder" if self.kind == "causal" else "encoder": layers}

    @computes
    @torch.inference_mode()
    def states(self, sequences: Sequence[Sequence[int]], layer: int) -> list[Float32]:
        if layer == 0:
            return rows_of(self.model.get_input_embeddings().weight, sequences)
        # The caches of layers without attention cannot say how long they are.
        options = {"use_cache": False} if self.kind == "causal" else {}
        found: list[Float32] = [np.empty(0, np.float32)] * len(sequences)
        for batch in self.group_rows([len(sequence) for sequence in sequences]):
            ids, real = padded([sequences[i] for i in batch], self.device, self.pad)
            read = self.model.base_model(
                input_ids=ids, attention_mask=real.long(), output_hidden_states=True, **options
            )
            check_layer(self.name, layer, len(read.hidden_states) - 1)
            states = read.hidden_states[layer].float().cpu().numpy()  # (B, T, d)
            for i, state in zip(batch, states, strict=True):
                found[i] = state[: len(sequences[i])]
        return found


class TransformersCausal(_Transformers):
    """Left to right."""

    def __init__(self, model: Any, tokenizer: Any, name: str, kind: str) -> None:
        super().__init__(model, tokenizer, name, kind)
        ends = model.generation_config.eos_token_id if model.generation_config else None
        ends = ends if isinstance(ends, list) else [ends]
        self.ends = {token for token in [*ends, tokenizer.eos_token_id] if token is not None}

    @computes
    def log_probs(
        self, sequences: Sequence[Sequence[int]], given: Sequence[int] | None = None
    ) -> list[Float32]:
        found = [cells[0] for cells in self._scan(sequences, log_probs_of, 1)]
        check_scores(found)
        return found

    @computes
    def moments(
        self, contexts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[Moments]:
        found = as_moments(self._scan(joined(contexts, targets)[0], moments_of, 4))
        made = [m.behind(max(0, len(c) - 1)) for m, c in zip(found, contexts, strict=True)]
        check_moments(made)
        return made

    @torch.inference_mode()
    def _scan(
        self,
        sequences: Sequence[Sequence[int]],
        reduce: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        columns: int,
    ) -> list[Float32]:
        """``reduce`` (logits (n, V), targets (n,)) -> (columns, n) for every token of each sequence
        after its first: an array (columns, length - 1) a sequence."""
        found = [np.empty((columns, max(0, len(s) - 1)), dtype=np.float32) for s in sequences]
        windows = []  # (sequence, first token read, first token predicted, last token predicted)
        for index, sequence in enumerate(sequences):
            first = 1
            while first < len(sequence):
                start = window_start(first, self.context, max(1, self.context // 2))
                last = min(start + self.context, len(sequence) - 1)
                windows.append((index, start, first, last))
                first = last + 1
        for batch in self.group_rows([last - start for _, start, _, last in windows]):
            rows = [windows[i] for i in batch]
            lines = [sequences[i][start : last + 1] for i, start, _, last in rows]
            ids, real = padded(lines, self.device, self.pad)
            logits = self._logits(ids[:, :-1], real[:, :-1])  # (B, T, V)
            cells = reduce(logits.flatten(0, 1), ids[:, 1:].flatten())  # (columns, B * T)
            values = cells.view(columns, len(rows), -1).transpose(0, 1).cpu().numpy()
            for (index, start, first, last), line in zip(rows, values, strict=True):
                found[index][:, first - 1 : last] = line[:, first - 1 - start : last - start]
        return found

    def _logits(self, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, attention_mask=real.long(), use_cache=False).logits.float()

    @computes
    @torch.inference_mode()
    def read_together(
        self, contexts: list[Ids], rows: list[int], targets: Sequence[Sequence[int]]
    ) -> Float32:
        ids = torch.tensor(contexts, device=self.device)
        at = torch.tensor(rows, device=self.device)
        start = self.model(input_ids=ids, use_cache=True)
        tokens, real = padded(targets, self.device, self.pad)  # (B, T)
        logits = start.logits[at, -1:].float()  # (B, 1, V)
        if tokens.shape[1] > 1:
            start.past_key_values.batch_select_indices(at)
            seen = torch.ones(len(at), ids.shape[1], device=self.device, dtype=torch.long)
            mask = torch.cat([seen, real[:, :-1].long()], dim=1)
            rest = self.model(
                input_ids=tokens[:, :-1],
                attention_mask=mask,
                past_key_values=start.past_key_values,
            ).logits.float()
            logits = torch.cat([logits, rest], dim=1)  # (B, T, V)
        values: Float32 = chosen_log_probs(logits, tokens).cpu().numpy()
        return values

    @computes
    @torch.inference_mode()
    def write(
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
    ) -> list[list[Written]]:
        if max_new_tokens >= self.context:
            raise UsageError(
                f"{max_new_tokens} new tokens do not fit the context of {self.context} tokens of "
                f"{self.name}; ask for fewer"
            )
        # A longer prompt loses its beginning: what is read and written must fit the context.
        kept = [list(p[-(self.context - max_new_tokens) :]) for p in prompts]
        choice = Choice(temperature, top_k, top_p, first_temperature=first_temperature)
        made: list[list[Written]] = [[] for _ in prompts]
        order = sorted(range(len(kept)), key=lambda i: len(kept[i]))
        for length, group in groupby(order, key=lambda i: len(kept[i])):
            members = list(group)
            together = max(1, min(LOGITS // 4 // self.vocab_size, (1 << 17) // length))
            together = 1 if self.batching == "one row" else together
            many, draws = max(1, together // samples), min(together, samples)
            for begin, first in product(range(0, len(members), many), range(0, samples, draws)):
                batch = members[begin : begin + many]
                keys = [draw_keys(seed, prompts[i], samples)[first : first + draws] for i in batch]
                rows = self._continue(
                    [kept[i] for i in batch], np.concatenate(keys), choice, max_new_tokens
                )
                for row, index in enumerate(np.repeat(batch, len(keys[0]))):
                    made[index].append(rows[row])
        return made

    @computes
    @torch.inference_mode()
    def complete(
        self,
        contexts: Sequence[Sequence[int]],
        afters: Sequence[Sequence[int]],
        *,
        count: int,
        max_new_tokens: int,
    ) -> list[list[Written]]:
        kept = [list(c[-(self.context - max_new_tokens) :]) for c in contexts]
        made: list[list[Written]] = [[] for _ in kept]
        order = sorted(range(len(kept)), key=lambda i: len(kept[i]))
        many = max(1, LOGITS // 4 // self.vocab_size // count)
        many = 1 if self.batching == "one row" else many
        for _, group in groupby(order, key=lambda i: len(kept[i])):
            members = list(group)
            for batch in (members[i : i + many] for i in range(0, len(members), many)):
                found = beam_search(
                    Beams(self.model, [kept[i] for i in batch]), width=count, stop=self.ends,
                    max_new_tokens=max_new_tokens, normalisation="mean", stopping="transformers",
                )  # fmt: skip
                for i, hypotheses in zip(batch, found, strict=True):
                    made[i] = [beamed(hypothesis) for hypothesis in hypotheses]
        return made

    def _continue(
        self,
        prompts: list[Ids],
        keys: NDArray[np.uint64],
        choice: Choice,
        max_new_tokens: int,
    ) -> list[Written]:
        """Continuations of prompts of one length, one a key, in the order of the prompts."""
        samples = len(keys) // len(prompts)
        out = self.model(input_ids=torch.tensor(prompts, device=self.device), use_cache=True)
        cache = out.past_key_values
        logits = out.logits[:, -1].float().repeat_interleave(samples, 0)  # (B, V)
        if samples > 1:
            cache.batch_repeat_interleave(samples)
        tokens = np.zeros((len(keys), max_new_tokens), np.int64)
        log_probs = np.zeros((len(keys), max_new_tokens), np.float32)
        counts = np.zeros(len(keys), np.int64)
        alive = np.ones(len(keys), dtype=bool)
        for position in range(max_new_tokens):
            log_p = logits.log_softmax(-1)  # (B, V)
            check_numbers(log_p[torch.from_numpy(alive).to(log_p.device)])
            chosen = choice.choose(logits, keys, position)  # (B,)
            tokens[:, position] = chosen.cpu().numpy()
            log_probs[:, position] = log_p.gather(1, chosen[:, None]).squeeze(1).cpu().numpy()
            alive &= ~np.isin(tokens[:, position], [*self.ends])
            counts += alive
            if not alive.any() or position == max_new_tokens - 1:
                break
            out = self.model(input_ids=chosen[:, None], past_key_values=cache, use_cache=True)
            cache, logits = out.past_key_values, out.logits[:, -1].float()
        return [
            Written(tokens[row, :count].tolist(), log_probs[row, :count].copy(), not alive[row])
            for row, count in enumerate(counts)
        ]


class Beams:
    """Log-probabilities for ``beam_search`` behind prompts of one length."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]]) -> None:
        self.model, self.prompts = model, prompts

    def start(self) -> torch.Tensor:
        return self._read(torch.tensor(self.prompts, device=self.model.device), None)

    def advance(self, parents: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        self.cache.batch_select_indices(torch.tensor(parents, device=self.model.device))
        return self._read(torch.tensor(tokens, device=self.model.device)[:, None], self.cache)

    def _read(self, ids: torch.Tensor, cache: Any) -> torch.Tensor:
        out = self.model(input_ids=ids, past_key_values=cache, use_cache=True)
        self.cache = out.past_key_values
        return check_numbers(out.logits[:, -1].float().log_softmax(-1))  # (B, V)


class TransformersMasked(_Transformers, Masked):
    def logits_at(self, rows: Sequence[Sequence[int]], columns: Sequence[int]) -> torch.Tensor:
        ids, real = padded(rows, self.device, self.pad)
        logits = self.model(input_ids=ids, attention_mask=real.long()).logits
        lines = torch.arange(len(rows), device=self.device)
        return logits[lines, torch.tensor(columns, device=self.device)].float()
