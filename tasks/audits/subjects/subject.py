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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from tasks.audits.subjects.reader import Ids, Reader, place_of, read_config, shared_prefix
from tasks.contract import Artifact, HallmarkError, UsageError, torch_device

if TYPE_CHECKING:
    from torch import Tensor

    from model.config import Precision
    from model.decoding.beam import Hypothesis
    from model.decoding.score import Moments

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]
S = TypeVar("S", bound="Subject")
P = ParamSpec("P")
R = TypeVar("R")

#: Libraries that decide the output of every audit that opens a subject.
AUDIT_LIBRARIES = ("numpy", "scipy", "tokenizers", "torch", "transformers")


def computes(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A method that asks the model: it answers in the subject's precision. HallmarkError where the
    model gives no numbers."""

    @functools.wraps(method)
    def asked(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        from model.decoding.mode import computing
        from model.rows import NotNumbersError

        try:
            with computing(self.model, self.precision):
                return method(self, *args, **kwargs)
        except NotNumbersError as error:
            raise HallmarkError(str(error).rstrip(".")) from error

    return asked


def check_scores(scores: Iterable[Float32]) -> None:
    """HallmarkError where a log-probability is NaN or above any; -inf is that of a token that the
    model never gives."""
    from model.rows import NotNumbersError

    if any(np.isnan(values).any() or np.isposinf(values).any() for values in scores):
        raise HallmarkError(str(NotNumbersError()).rstrip("."))


def check_moments(found: Iterable[Moments]) -> None:
    """As ``check_scores``."""
    check_scores(values for m in found for values in (m.log_probs, m.mean, m.std))


def check_finite(arrays: Iterable[Float32]) -> None:
    """HallmarkError where a state or a weight of attention is no finite number."""
    from model.rows import NotNumbersError

    if not all(np.isfinite(values).all() for values in arrays):
        raise HallmarkError(str(NotNumbersError()).rstrip("."))


@dataclass(frozen=True)
class Written:
    """What a model wrote behind a prompt: the ids without the token that ended them (``stopped``),
    and log p of each under the model itself, temperature 1 and no filter, in nats."""

    ids: Ids
    log_probs: Float32
    stopped: bool


class Subject(Reader, ABC):
    """A causal or masked language model: a reader with weights.

    precision  what scores and texts are computed in; see model/decoding/mode.py
    saving     tokens from which on it is worth reading a context by itself for several targets
    """

    model: Any
    precision: Literal["fp32", "bf16"] = "fp32"
    saving = 32

    @abstractmethod
    def log_probs(
        self, sequences: Sequence[Sequence[int]], given: Sequence[int] | None = None
    ) -> list[Float32]:
        """log p of each token after the first, in nats; longer than the context: in windows.

        ``given``: how many tokens of each sequence are its prompt, by default the first alone; a
        prefix LM reads them in both directions, and what it says of them is NaN.
        Of a masked model: the pseudo-log-likelihood of each token after the first (Salazar et al.
        2020), masked one at a time; there the first token is the one that opens every sequence.
        """

    def attention(self, ids: Sequence[int]) -> dict[str, list[Float32]]:
        """Attention weights while it reads a sequence as it stands: by stack ("decoder",
        "encoder", "cross") one (heads, queries, keys) per layer; see model/decoding/inside.py.

        Raises HallmarkError, one sentence, where the model gives none.
        """
        raise HallmarkError("it gives no attention weights")

    def states(self, sequences: Sequence[Sequence[int]], layer: int) -> list[Float32]:
        """Of each token of each sequence, read as it stands, (length, d): at layer 0 its row of the
        input embeddings, from 1 on what that block makes of it, from -1 backwards what the last
        does. UsageError, one sentence, where there is no such layer."""
        raise HallmarkError(f"{self.name} gives no embeddings")

    def embed(
        self, sequences: Sequence[Sequence[int]], places: Sequence[Sequence[int]], layer: int
    ) -> Float32:
        """Mean over the tokens at ``places`` of each sequence of their ``states``, (n, d)."""
        from model.rows import by_length

        found: list[Float32] = [np.empty(0, np.float32)] * len(sequences)
        for rows in by_length([*map(len, sequences)], TOGETHER):
            states = self.states([sequences[i] for i in rows], layer)
            for i, state in zip(rows, states, strict=True):
                found[i] = state[list(places[i])].mean(0)
            check_finite(found[i] for i in rows)
        return np.stack(found)

    def log_likelihoods(
        self, texts: Sequence[str], contexts: Sequence[str] | None = None
    ) -> tuple[Float64, NDArray[np.int64]]:
        """Total log p of each text, in nats, and the number of tokens it was summed over.

        With contexts: of the tokens of context + text, encoded as one, behind those that it
        shares with the context encoded alone. Without a begin-of-text token the first token of a
        text that has no context is not scored.
        """
        befores = [0] * len(texts)
        if contexts is None:
            encoded = self.encode_batch(texts)
        else:
            pairs = zip(contexts, texts, strict=True)
            encoded = self.encode_batch([context + text for context, text in pairs])
            alone = self.encode_batch(contexts)
            befores = [shared_prefix([a, b]) for a, b in zip(alone, encoded, strict=True)]
        opened = [self.opened(ids) for ids in encoded]
        extra = 0 if self.bos is None else 1  # entry i scores token i + 1 of the opened ids
        starts = [max(0, before + extra - 1) for before in befores]
        given = None
        if contexts is not None:
            given = [min(s + 1, len(ids)) for s, ids in zip(starts, opened, strict=True)]
        scored = [p[s:] for p, s in zip(self.log_probs(opened, given), starts, strict=True)]
        check_scores(scored)
        totals = np.array([p.sum(dtype=np.float64) for p in scored], dtype=np.float64)
        return totals, np.array([len(p) for p in scored], dtype=np.int64)

    def log_probs_behind(
        self, contexts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[Float32]:
        """log p of each token of each target behind its context, in nats; a context of several
        targets is read once. Behind none, the first token of a target is not scored."""
        found = [np.empty(0, np.float32)] * len(targets)
        left = {*range(len(targets))}
        for part in shared(contexts, targets, self.context, self.saving):
            left -= {*part.places}
            behind = self.read_together(part.contexts, part.rows, [targets[i] for i in part.places])
            for place, values in zip(part.places, behind, strict=True):
                found[place] = values[: len(targets[place])].copy()
        rest = sorted(left)
        scored = self.log_probs(*joined([contexts[i] for i in rest], [targets[i] for i in rest]))
        for place, values in zip(rest, scored, strict=True):
            found[place] = values[max(0, len(contexts[place]) - 1) :]
        check_scores(found)
        return found

    def read_together(
        self, contexts: list[Ids], rows: list[int], targets: Sequence[Sequence[int]]
    ) -> Float32:
        """log p (targets, T) of targets, each behind the one of the contexts that ``rows`` says;
        these are of one length and read once. Behind a target's own end numbers mean nothing."""
        raise HallmarkError(f"{self.name} is a masked language model: it sees both sides")

    def moments(
        self, contexts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[Moments]:
        """As ``log_probs_behind``, with ranks, and the moments of log p over the vocabulary; of
        ranks the first, 0, is what a greedy continuation would write."""
        raise HallmarkError(f"{self.name} is a masked language model and ranks no next token")

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
        """``samples`` continuations of each prompt.

        Prompts are given as they stand, with their begin-of-text token. Temperature 0 is greedy;
        it falls from ``first_temperature``, where that is given, as in model/decoding/choice.py.
        A draw depends on seed, prompt, sample number and position, not on the batch.
        """
        raise HallmarkError(f"{self.name} is a masked language model and cannot continue a text")

    def complete(
        self,
        contexts: Sequence[Sequence[int]],
        afters: Sequence[Sequence[int]],
        *,
        count: int,
        max_new_tokens: int,
    ) -> list[list[Written]]:
        """The ``count`` likeliest completions of each context, best first.

        A causal model's by beam search of as many beams, ranked by log p a token, as transformers
        does it. A masked model's are the likeliest single tokens at a mask between the context and
        what stands ``afters`` it, which no other model sees.
        """
        raise HallmarkError(f"{self.name} completes no texts")

    def generate_ids(
        self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, **options: Any
    ) -> list[list[Ids]]:
        """The ids of ``write``."""
        made = self.write(prompts, max_new_tokens=max_new_tokens, **options)
        return [[written.ids for written in row] for row in made]

    def generate(
        self, prompts: Sequence[str], *, max_new_tokens: int, **options: Any
    ) -> list[list[str]]:
        """``write`` for texts. The prompt "" asks for a text from its beginning."""
        opened = [self.opened(ids) for ids in self.encode_batch(prompts)]
        if not all(opened):
            raise HallmarkError(
                f"{self.name} has no begin-of-text token: it cannot write without a prompt"
            )
        made = self.generate_ids(opened, max_new_tokens=max_new_tokens, **options)
        return [[self.decode(ids) for ids in row] for row in made]


def joined(
    contexts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> tuple[list[Ids], list[int]]:
    """Sequences, and how many tokens of each are given: those of its context, at least one."""
    whole = [[*context, *target] for context, target in zip(contexts, targets, strict=True)]
    given = [min(max(1, len(c)), len(s)) for c, s in zip(contexts, whole, strict=True)]
    return whole, given


def check_layer(name: str, layer: int, depth: int) -> None:
    """UsageError unless a model of so many layers has this one."""
    if not -depth <= layer <= depth:
        layers = "1 layer" if depth == 1 else f"{depth} layers"
        raise UsageError(
            f"{name} has {layers}, so it has no layer {layer}; choose one from {-depth} to {depth}"
        )


def rows_of(table: Tensor, sequences: Sequence[Sequence[int]]) -> list[Float32]:
    """The rows (length, d) of a table of embeddings (V, d), for each sequence of token ids."""
    return [table[list(sequence)].detach().float().cpu().numpy() for sequence in sequences]


def beamed(made: Hypothesis) -> Written:
    """A hypothesis of a beam search, without the token that ended it."""
    count = len(made.ids) - made.complete
    log_p = np.array(made.log_probs[:count], np.float32)
    return Written([*made.ids[:count]], log_p, made.complete)


#: Tokens of contexts and targets that are read in one call.
TOGETHER = 1 << 14


@dataclass(frozen=True)
class Shared:
    """Contexts of one length, and the targets that are read behind them.

    rows    the context of each target, (targets,)
    places  where each target was given
    """

    contexts: list[Ids]
    rows: list[int]
    places: list[int]


def shared(
    contexts: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    room: int,
    saving: int,
) -> Iterator[Shared]:
    """The targets whose context, of more than a token, stands before others, by its length: where
    both fit into ``room`` tokens, and so many tokens are not read again."""
    places: dict[tuple[int, ...], list[int]] = {}
    for place, (context, target) in enumerate(zip(contexts, targets, strict=True)):
        if len(context) > 1 and 0 < len(target) <= room - len(context):
            places.setdefault(tuple(context), []).append(place)
    several = [c for c, p in places.items() if len(c) * (len(p) - 1) >= saving]
    several.sort(key=lambda c: (len(c), c))
    for length, group in groupby(several, key=len):
        made, rows, at, cost = list[Ids](), list[int](), list[int](), 0
        for context in group:
            most, whole = max(1, TOGETHER // (2 * length)), places[context]
            for part in (whole[i : i + most] for i in range(0, len(whole), most)):
                more = len(part) * (length + max(len(targets[i]) for i in part))
                if made and cost + more > TOGETHER:
                    yield Shared(made, rows, at)
                    made, rows, at, cost = [], [], [], 0
                rows += [len(made)] * len(part)
                made.append(list(context))
                at += part
                cost += more
        yield Shared(made, rows, at)


def open_subject(
    checkpoint: Artifact | Path | str,
    device: str = "auto",
    *,
    precision: Precision = "auto",
    pairs: bool = False,
    seed: int | None = None,
) -> Subject:
    """The model of a checkpoint folder, on a device ("auto": the GPU where there is one), in a
    precision ("auto": bf16 on a GPU that has it). With a seed: the same model before any training,
    with weights drawn from it; those of the checkpoint are not looked at.

    Raises UsageError, one sentence, where the folder holds no model that can be loaded safely, or
    none of language: of labels, or, unless ``pairs`` asks for it, one that answers sources.
    """
    folder, name = place_of(checkpoint)
    config = read_config(folder)
    device = torch_device(device)
    if config.get("model_type") == "hallmark":
        from tasks.audits.subjects.own_subject import open_own

        subject = open_own(folder, name, device, pairs=pairs, seed=seed)
    else:
        from tasks.audits.subjects.transformers_subject import open_transformers

        subject = open_transformers(folder, config, name, device, seed=seed)
    from model.decoding.mode import computing

    with computing(subject.model, precision) as subject.precision:
        return subject
