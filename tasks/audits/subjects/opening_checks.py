"""Check a Hugging Face model as it is opened: which tokens it sees, and what a batch may hold.

config.json names a causal or a masked model, but the class that loads it can attend otherwise: a
BERT whose LM head is not a decoder sees both sides. So the model itself is asked, in a few forward
passes of short sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from model.rows import padded
from tasks.audits.subjects.masked import LOGITS
from tasks.audits.subjects.transformers_reader import special_ids
from tasks.contract import UsageError
from tasks.measures.batch_effects import (
    LENGTH,
    ROUNDING,
    Batching,
    Sample,
    choose_batching,
    choose_pad,
    relative_difference,
)

if TYPE_CHECKING:
    from torch import Tensor

    from tasks.audits.subjects.reader import Reader
    from tasks.measures.batch_effects import Forward

#: The smallest difference of logits, relative to the largest logit, that shows attention to another
#: token, where the sequences have one length. Rounding is below it: it is 0 where rows are
#: multiplied alike, and at most 3e-6 where experts take sums in another order. Attention is above
#: it: 1e-3 and more, also at initial weights with a standard deviation of 0.02.
VISIBLE = 3e-5


#: Parameters times tokens of a sequence that costs little to read, about a second on two cores.
CHEAP = 20_000_000_000


def check_model(
    model: Any, tokenizer: Any, reader: Reader, logits: Callable[[Tensor, Tensor], Tensor]
) -> Batching:
    """Check a model of transformers as ``check_opening`` does.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        reader: what is known of it without its weights.
        logits: computes logits (B, T, V), float32, of ids (B, T), of which some are real, bool.
    """
    size = reader.vocab_size
    pad = choose_pad(model.config, tokenizer, size)

    @torch.inference_mode()
    def forward(rows: list[list[int]]) -> list[Tensor]:
        found = logits(*padded(rows, model.device, pad))
        return [line[: len(row)] for line, row in zip(found, rows, strict=True)]

    ordinary = {*tokenizer.get_vocab().values()} - special_ids(tokenizer)
    return check_opening(
        forward,
        reader.kind,
        reader.name,
        sorted(token for token in ordinary if token < size),
        config=model.config,
        context=reader.context,
        longest=min(1100, LOGITS // (2 * size), CHEAP // model.num_parameters()),
    )


def check_opening(
    forward: Forward,
    kind: Literal["causal", "masked"],
    name: str,
    token_ids: Sequence[int],
    *,
    config: Any,
    context: int,
    longest: int,
) -> Batching:
    """Check that a model sees the tokens that its kind should see.

    Args:
        forward: computes its logits.
        kind: how it will be scored.
        name: how messages call it.
        token_ids: ids of ordinary tokens.
        config: its config, for the windows of its attention.
        context: the longest sequence that it reads, in tokens.
        longest: the longest sequence that costs little, in tokens.

    Returns:
        Which rows it can read in one batch. Weights that are not numbers are not found here.

    Raises:
        UsageError: if it is to be scored as causal and sees the tokens after a token, or as masked
            and sees only those before it.
    """
    length = _choose_length(config, context, longest)
    if length < 4 or not token_ids:
        return "equal length"
    # Experts are chosen by small differences: only what two samples agree on is an effect.
    samples = [Sample(token_ids, length, seed) for seed in range(2)]
    try:
        sees_after = all(_depends_on_end(forward, sample) for sample in samples)
        sees_before = sees_after or kind == "causal" or _depends_on_beginning(forward, samples[0])
        needs_length = kind == "causal" and all(_depends_on_length(forward, s) for s in samples)
    except Exception:  # code of many architectures; what cannot be read at all fails in its audit
        return "equal length"
    if kind == "causal" and (sees_after or needs_length):
        raise UsageError(
            f"{name} cannot be audited as a causal model, which its config.json says it is: when "
            f"it scores a token, it also sees the text after the token; audit another model, or, "
            f"if config.json is wrong, correct is_decoder, is_causal or use_bidirectional_attention"
        )
    if kind == "masked" and sees_before and not sees_after:
        raise UsageError(
            f"{name} cannot be audited as a masked model, which its config.json says it is: when "
            f"it scores a token, it sees only the text before the token; audit another model, or, "
            f"if config.json is wrong, correct is_decoder or is_causal"
        )
    return choose_batching(forward, samples[0])


def _choose_length(config: Any, context: int, longest: int) -> int:
    """Choose a length beyond the windows of attention, as far as that costs little."""
    settings = vars(config.get_text_config())
    names = [name for name in settings if "window" in name or name == "attention_chunk_size"]
    lengths = [2 * settings[name] + 9 for name in names if type(settings[name]) is int]
    return min(context, max([LENGTH, *(length for length in lengths if length <= longest)]))


def _depends_on_end(forward: Forward, sample: Sample) -> bool:
    """Whether logits differ before the place from which two sequences differ.

    Both are rows of one batch, so that the multiplications are the same.
    """
    length = len(sample.shared)
    left, right = forward([sample.whole, sample.other])
    return relative_difference(left[:length], right[:length]) > VISIBLE


def _depends_on_beginning(forward: Forward, sample: Sample) -> bool:
    """Whether logits at the end of a sequence differ if its beginning differs."""
    length = len(sample.whole) - len(sample.shared)
    same = sample.shared[-length:]
    left, right = forward([[*sample.whole[-length:], *same], [*sample.other[-length:], *same]])
    return relative_difference(left[length:], right[length:]) > VISIBLE


def _depends_on_length(forward: Forward, sample: Sample) -> bool:
    """Whether logits differ if a sequence goes on."""
    alone, longer = forward([sample.shared])[0], forward([sample.whole])[0]
    return relative_difference(alone, longer[: len(alone)]) > ROUNDING
