"""Our own checkpoints as subjects: decoders, encoders, and both together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from model.architecture import Transformer
from model.batch import Batch
from model.decoding.beam import beam
from model.decoding.cache import Cache, new_cache, prompt_lengths, read
from model.decoding.generate import Continuation, generate
from model.decoding.inside import attention_weights, embeddings
from model.decoding.score import (
    Moments,
    chosen_log_probs,
    target_log_probs,
    target_moments,
    token_log_probs,
    token_moments,
)
from model.interchange.checkpoint import CheckpointError, blank, load
from model.rows import padded
from model.tokens import END_OF_TEXT, PAD
from tasks.audits.subjects.masked import Masked
from tasks.audits.subjects.own_reader import OwnReader, check_language, open_tokenizer
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
from tasks.contract import UsageError


def open_own(
    folder: Path, name: str, device: str, *, pairs: bool = False, seed: int | None = None
) -> Subject:
    """A checkpoint of model/, or the same before any training. Raises UsageError, one sentence;
    also of a model that was trained on pairs, unless ``pairs`` says that it will be asked for the
    targets of sources."""
    try:
        model = load(folder, device) if seed is None else blank(folder, device, seed=seed)
    except CheckpointError as error:
        raise UsageError(str(error).rstrip(".")) from error
    check_language(model.config, model.pairs and not pairs, name)
    kinds: dict[str, type[OwnDecoder] | type[OwnEncoder]] = {
        "decoder": OwnDecoder,
        "encoder": OwnEncoder,
        "encoder_decoder": OwnEncoderDecoder,
    }
    kind = OwnDecoder if model.pairs else kinds[model.config.architecture]
    return kind(model, open_tokenizer(folder), name)


class _Own(OwnReader, Subject):
    def __init__(self, model: Transformer, tokenizer: Tokenizer, name: str) -> None:
        super().__init__(model.config, model.pairs, tokenizer, name)
        self.model = model
        self.device = model.embedding.weight.device

    def attention(self, ids: Sequence[int]) -> dict[str, list[Float32]]:
        return attention_weights(self.model, ids)

    @computes
    def states(self, sequences: Sequence[Sequence[int]], layer: int) -> list[Float32]:
        if layer == 0:
            return rows_of(self.model.embedding.weight, sequences)
        stack = self.model.encoder or self.model.decoder
        check_layer(self.name, layer, len(stack.blocks) if stack else 0)
        return embeddings(self.model, sequences, layer=layer)


class OwnDecoder(_Own):
    @computes
    def log_probs(
        self, sequences: Sequence[Sequence[int]], given: Sequence[int] | None = None
    ) -> list[Float32]:
        found = token_log_probs(self.model, sequences, given=given)
        counts = given or [1] * len(found)  # of what is given a prefix LM says nothing
        check_scores(p[max(0, count - 1) :] for p, count in zip(found, counts, strict=True))
        return found

    @computes
    def moments(
        self, contexts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[Moments]:
        whole, given = joined(contexts, targets)
        found = token_moments(self.model, whole, given=given)
        made = [m.behind(max(0, len(c) - 1)) for m, c in zip(found, contexts, strict=True)]
        check_moments(made)
        return made

    def given(self, contexts: Sequence[Sequence[int]]) -> Batch:
        """What the model reads before it writes, for contexts of one length."""
        ids = torch.tensor([list(context) for context in contexts], device=self.device)
        return Batch(ids, prefix=prompt_lengths(self.model, [ids.shape[1]] * len(ids)))

    @computes
    @torch.inference_mode()
    def read_together(
        self, contexts: list[Ids], rows: list[int], targets: Sequence[Sequence[int]]
    ) -> Float32:
        batch = self.given(contexts)
        width = batch.ids.shape[1]
        start = new_cache(self.model, len(contexts), width)
        start.length, start.slots = width, slice(0, width)
        states = read(self.model, batch, start)
        first = self.model.logits(states[:, -1]).float().log_softmax(-1)  # (contexts, V)
        at = torch.tensor(rows, device=self.device)
        tokens, _ = padded(targets, self.device)  # (B, T)
        log_p = first[at].gather(1, tokens[:, :1])  # (B, 1)
        if tokens.shape[1] > 1:  # the last token is predicted, never read
            log_p = torch.cat((log_p, self._later(start, at, tokens)), 1)  # (B, T)
        values: Float32 = log_p.float().cpu().numpy()
        return values

    def _later(self, start: Cache, rows: Tensor, tokens: Tensor) -> Tensor:
        """log p (B, T - 1) of all tokens (B, T) but the first, behind what ``start`` has read in
        ``rows``."""
        begin, end = start.length, start.length + tokens.shape[1] - 1
        cache = new_cache(self.model, len(tokens), end)
        for layer, filled in zip(cache.layers, start.layers, strict=True):
            layer.keys[:, :, :begin] = filled.keys[rows]
            layer.values[:, :, :begin] = filled.values[rows]
        cache.memory = [(keys[rows], values[rows]) for keys, values in start.memory]
        cache.slots, cache.length = slice(begin, end), end
        positions = torch.arange(begin, end, device=self.device).unsqueeze(0)
        hidden = read(self.model, Batch(tokens[:, :-1], positions=positions), cache)
        logits = self.model.logits(hidden).float()  # (B, T - 1, V)
        return chosen_log_probs(logits, tokens[:, 1:])

    @computes
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
        made = generate(
            self.model,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            first_temperature=first_temperature,
            top_k=top_k,
            top_p=top_p,
            samples=samples,
            seed=seed,
            **self._task(prompts),
        )
        return [[_written(continuation) for continuation in row] for row in made]

    @computes
    def complete(
        self,
        contexts: Sequence[Sequence[int]],
        afters: Sequence[Sequence[int]],
        *,
        count: int,
        max_new_tokens: int,
    ) -> list[list[Written]]:
        kept = [list(c[-(self.context - max_new_tokens) :]) for c in contexts]
        how = {"normalisation": "mean", "stopping": "transformers", **self._task(kept)}
        made = beam(self.model, width=count, max_new_tokens=max_new_tokens, **how)
        return [[beamed(hypothesis) for hypothesis in row] for row in made]

    def _task(self, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
        return {"prompts": prompts}


def _written(made: Continuation) -> Written:
    count = len(made.ids) - made.stopped
    return Written(made.ids[:count], made.log_probs[:count], made.stopped)


class OwnEncoderDecoder(OwnDecoder):
    """The encoder reads what is given with a sentinel behind it, the decoder writes what the
    sentinel stands for, as in span corruption."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer, name: str) -> None:
        super().__init__(model, tokenizer, name)
        self.saving = 0  # what is given is the encoder's, however many targets there are
        self.gap = self.special("<|sentinel_0|>")
        # It ends what stands for the first sentinel by naming the next.
        self.ends = [END_OF_TEXT, self.special("<|sentinel_1|>")]

    def _source(self, prefix: Sequence[int]) -> Ids:
        """What the encoder reads: a longer prefix loses its beginning, as with a decoder."""
        text = [token for token in prefix if token != self.bos]
        return [*text[max(0, len(text) - self.context + 1) :], self.gap]

    def given(self, contexts: Sequence[Sequence[int]]) -> Batch:
        source = torch.tensor([self._source(context) for context in contexts], device=self.device)
        begun = torch.tensor([[END_OF_TEXT, self.gap]] * len(contexts), device=self.device)
        return Batch(begun, source=source)

    @computes
    def log_probs(
        self, sequences: Sequence[Sequence[int]], given: Sequence[int] | None = None
    ) -> list[Float32]:
        """Half a context is written at a time, with what comes before in the encoder's sight."""
        step = max(1, (self.context - 2) // 2)
        rows = [
            (index, begin)
            for index, sequence in enumerate(sequences)
            for begin in range(1, len(sequence), step)
        ]
        written = [sequences[i][begin : begin + step] for i, begin in rows]
        found = target_log_probs(
            self.model,
            [self._source(sequences[i][:begin]) for i, begin in rows],
            [[END_OF_TEXT, self.gap, *part] for part in written],
        )
        scores = [np.empty(max(0, len(s) - 1), dtype=np.float32) for s in sequences]
        for (index, begin), values in zip(rows, found, strict=True):
            scores[index][begin - 1 : begin - 1 + step] = values[1:]
        check_scores(scores)
        return scores

    @computes
    def moments(
        self, contexts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[Moments]:
        """Each target is written at once, as ``write`` does."""
        sources = [self._source(context) for context in contexts]
        written = [[END_OF_TEXT, self.gap, *target] for target in targets]
        forbid = (PAD, self.gap)
        found = target_moments(self.model, sources, written, forbid=forbid)
        made = [m.behind(1) for m in found]
        check_moments(made)
        return made

    def _task(self, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
        return {
            "prompts": [[END_OF_TEXT, self.gap]] * len(prompts),
            "sources": [self._source(prompt) for prompt in prompts],
            "stop": self.ends,
            "forbid": (PAD, self.gap),
        }


class OwnEncoder(_Own, Masked):
    def logits_at(self, rows: Sequence[Sequence[int]], columns: Sequence[int]) -> Tensor:
        ids, real = padded(rows, self.device)
        hidden = self.model(Batch(ids, keys=real))  # (B, T, d)
        lines = torch.arange(len(rows), device=self.device)
        at = torch.tensor(columns, device=self.device)
        return self.model.logits(hidden[lines, at]).float()
