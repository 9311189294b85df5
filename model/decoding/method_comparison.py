"""Continue one prompt with every decoding method, for comparison."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hallmark.model.architecture import Transformer
from hallmark.model.decoding.beam_search import decode_with_beam_search
from hallmark.model.decoding.generation import generate
from hallmark.model.decoding.sampling import TokenSampler
from hallmark.model.special_tokens import END_OF_TEXT_ID, PAD_ID


@dataclass(frozen=True)
class DecodingMethods:
    """Settings of the methods; ValueError if a value is out of range."""

    width: int = 5
    temperature: float = 0.7
    top_k: int = 40
    top_p: float = 0.9
    min_p: float = 0.05
    repetition_penalty: float = 1.3
    first_temperature: float = 10.0

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"width must be at least 1, not {self.width}.")
        for settings in self.build_sampler_settings_by_method().values():
            TokenSampler(**settings)

    def build_sampler_settings_by_method(self) -> dict[str, dict[str, Any]]:
        """Return the settings of ``TokenSampler`` by method, for all methods except beam search."""
        return {
            "greedy": {"temperature": 0.0},
            "greedy, repetition penalised": {
                "temperature": 0.0,
                "repetition_penalty": self.repetition_penalty,
            },
            "sampling": {"temperature": 1.0},
            "temperature": {"temperature": self.temperature},
            "falling temperature": {
                "first_temperature": self.first_temperature,
                "temperature": 1.0,
                "decay_tokens": 20,
            },
            "top-k": {"top_k": self.top_k},
            "nucleus": {"top_p": self.top_p},
            "min-p": {"min_p": self.min_p},
        }


@dataclass(frozen=True)
class MethodOutput:
    """The text of one method.

    Attributes:
        method: name of the method.
        settings: its settings.
        ids: generated tokens, with the token that ended the text, if any.
        log_probs: log-probability of each id under the model itself (temperature 1, no filter), in
            nats.
        stopped: whether a token ended the text.
        score: the score by which beam search ranks, else None.
    """

    method: str
    settings: dict[str, Any]
    ids: list[int]
    log_probs: NDArray[np.float32]
    stopped: bool
    score: float | None = None


def decode_with_every_method(
    model: Transformer,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    methods: DecodingMethods | None = None,
    seed: int = 0,
    stop: Collection[int] = (END_OF_TEXT_ID,),
    forbid: Collection[int] = (PAD_ID,),
    source: Sequence[int] | None = None,
) -> list[MethodOutput]:
    """Continue the prompt with beam search and with each of ``build_sampler_settings_by_method``.

    Beams are ranked by the mean of their log-probabilities, and the best is returned. Methods that
    draw use the same random numbers at each position, so that their texts differ only because of
    the methods.

    Raises:
        ValueError: As in ``generate`` and ``decode_with_beam_search``: prompt and text must fit the
            context.
    """
    methods = methods or DecodingMethods()
    sources = None if source is None else [source]
    shared_options: dict[str, Any] = {"stop": stop, "forbid": forbid, "sources": sources}
    shared_options["max_new_tokens"] = max_new_tokens
    width = methods.width
    ((best_hypothesis, *_),) = decode_with_beam_search(
        model, [prompt], width=width, normalisation="mean", **shared_options
    )
    best_log_probs = np.array(best_hypothesis.log_probs, dtype=np.float32)
    outputs = {}
    for name, settings in methods.build_sampler_settings_by_method().items():
        ((continuation,),) = generate(model, [prompt], seed=seed, **settings, **shared_options)
        outputs[name] = MethodOutput(
            name, settings, continuation.ids, continuation.log_probs, continuation.stopped
        )
    beam_output = MethodOutput(
        "beam search",
        {"width": width, "normalisation": "mean"},
        list(best_hypothesis.ids),
        best_log_probs,
        best_hypothesis.complete,
        best_hypothesis.score,
    )
    greedy = outputs.pop("greedy")
    return [greedy, beam_output, *outputs.values()]
