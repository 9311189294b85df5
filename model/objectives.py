"""Build batches: one pure function for each training objective, from token rows to a ``Batch``.

The trainer does not know which objective it trains. Random draws depend only on a ``key``, the
row's number (counted from ``first_row``) and a document's place in the row: a batch can be built in
parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hallmark.model.batch import Batch
from hallmark.model.config import CORRUPTION_RATE, Objective, count_corrupted_spans
from hallmark.model.keyed_randomness import make_generator
from hallmark.model.special_tokens import END_OF_TEXT_ID, PAD_ID

FIRST_TEXT_ID = PAD_ID + 1  # objectives treat ids from here on as text
TokenRows = NDArray[np.int64]


class SourceTarget(NamedTuple):
    """A pair for an encoder-decoder.

    Attributes:
        source: tokens that the encoder reads.
        target: tokens that the decoder predicts.
    """

    source: Sequence[int]
    target: Sequence[int]


class DocumentSegments(NamedTuple):
    """The documents of packed rows.

    Attributes:
        segments: number of each token's document in its row, (B, T).
        positions: position of each token in its document, (B, T).
    """

    segments: Tensor
    positions: Tensor


def build_causal_batch(token_rows: TokenRows, *, document_mask: bool = False) -> Batch:
    """Build a batch for next-token prediction with teacher forcing.

    The targets are the row shifted by one. The last position and every position that is, or would
    predict, padding have weight 0. With ``document_mask`` attention does not cross the start of a
    document and positions count from there: a document's logits are the same as if it were alone.
    """
    ids = torch.from_numpy(token_rows)
    targets = torch.full_like(ids, PAD_ID)
    targets[:, :-1] = ids[:, 1:]
    weights = ((targets != PAD_ID) & (ids != PAD_ID)).float()
    batch = Batch(ids, targets=targets, weights=weights)
    if not document_mask:
        return batch
    segments, positions = segment_documents(ids == END_OF_TEXT_ID)
    return replace(batch, segments=segments, positions=positions)


def segment_documents(is_document_start: Tensor) -> DocumentSegments:
    """Number the documents of each row, and the tokens of each document.

    A row that continues the previous row's document begins with segment 0, at position 0.

    Args:
        is_document_start: (B, T) bool, True at the first token of a document.
    """
    segments = is_document_start.cumsum(1)
    index = torch.arange(is_document_start.shape[1], device=is_document_start.device)
    index = index.expand_as(is_document_start)
    document_begin = torch.where(is_document_start, index, 0).cummax(1).values
    return DocumentSegments(segments, index - document_begin)


def build_prefix_batch(token_rows: TokenRows, prefix_lengths: NDArray[np.int64]) -> Batch:
    """Build a prefix-LM batch: attend fully to each row's prefix, and predict the rest.

    Args:
        token_rows: (B, T) token ids.
        prefix_lengths: (B,) tokens in each prefix.

    Raises:
        ValueError: A prefix is longer than its row.
    """
    is_out_of_range = (prefix_lengths < 0) | (prefix_lengths > token_rows.shape[1])
    if is_out_of_range.any():
        i = is_out_of_range.argmax()
        raise ValueError(
            f"The prefix of row {i} must have 0 to {token_rows.shape[1]} tokens (the row length), "
            f"not {prefix_lengths[i]}."
        )
    batch = build_causal_batch(token_rows)
    prefix_tensor = torch.from_numpy(prefix_lengths)
    target_positions = torch.arange(token_rows.shape[1]) + 1  # position t predicts token t + 1
    weights = batch.require_targets_and_weights()[1] * (target_positions >= prefix_tensor[:, None])
    return replace(batch, weights=weights, prefix=prefix_tensor)


def build_random_prefix_batch(token_rows: TokenRows, key: int, first_row: int = 0) -> Batch:
    """Build a prefix-LM batch with a prefix length drawn for each row, uniform over 1 ... T-1."""
    length_limit = max(2, token_rows.shape[1])
    lengths = [
        make_generator(key, first_row + i).integers(1, length_limit) for i in range(len(token_rows))
    ]
    return build_prefix_batch(token_rows, np.array(lengths))


def build_mlm_batch(
    token_rows: TokenRows,
    key: int,
    first_row: int = 0,
    *,
    mask_id: int,
    vocab_size: int,
    mask_rate: float = 0.15,
) -> Batch:
    """Build a batch for masked LM (Devlin et al. 2019): predict 15 % of each row's positions.

    80 % of the selected tokens become ``mask_id``, 10 % a random token, 10 % stay. Begin-of-text
    and padding have weight 0, so a row of few tokens may predict none. Attention does not cross the
    start of a document, and positions count from there, as in the texts that the model scores
    later. Those texts begin with begin-of-text, so every row does, too: it replaces the first token
    of a row that continues a document.
    """
    token_rows, width = token_rows.copy(), token_rows.shape[1]
    token_rows[:, 0] = END_OF_TEXT_ID
    uniforms = [
        make_generator(key, first_row + i).random((3, width)) for i in range(len(token_rows))
    ]
    selection_draws, replacement_draws, token_draws = np.stack(uniforms, 1)  # (B, T) each
    selection_draws[:, 0] = 1.0  # never select the begin-of-text token
    last_index = max(1, round(mask_rate * width)) - 1  # the same number of positions in each row
    is_selected = (
        selection_draws <= np.partition(selection_draws, last_index, axis=1)[:, last_index, None]
    )
    is_selected &= (token_rows >= FIRST_TEXT_ID) & (token_rows != mask_id)
    random_ids = FIRST_TEXT_ID + (token_draws * (vocab_size - FIRST_TEXT_ID)).astype(np.int64)
    ids = np.where(is_selected & (replacement_draws < 0.8), mask_id, token_rows)
    ids = np.where(
        is_selected & (replacement_draws >= 0.8) & (replacement_draws < 0.9), random_ids, ids
    )
    targets = torch.from_numpy(token_rows)
    segments, positions = segment_documents(targets == END_OF_TEXT_ID)
    return Batch(
        torch.from_numpy(ids),
        targets=targets,
        weights=torch.from_numpy(is_selected).float(),
        segments=segments,
        positions=positions,
        attention_mask=targets != PAD_ID,
    )


def build_span_corruption_batch(
    token_rows: TokenRows, key: int, first_row: int = 0, *, sentinels: Sequence[int]
) -> Batch:
    """Build a batch for span corruption (Raffel et al. 2020): predict spans replaced by sentinels.

    Source: "I took <x> to <y> his walk."; target: "<x> my dog, Fido, <y> the park for". In each
    document 15 % of the tokens are in spans of 3 on average, which are never adjacent. Each
    document of a row is a pair, without its begin-of-text token; a row without text has weight 0.

    Raises:
        ValueError: A document has more spans than there are sentinels.
    """
    pairs: list[list[SourceTarget]] = []
    for i, token_row in enumerate(token_rows):
        document_begins = [0, *np.flatnonzero(token_row == END_OF_TEXT_ID)]
        row_pairs: list[SourceTarget] = []
        parts = np.split(token_row, document_begins[1:])
        for begin, part in zip(document_begins, parts, strict=True):
            text = part[part >= FIRST_TEXT_ID].tolist()
            if text:
                spans = _draw_corrupted_spans(len(text), make_generator(key, first_row + i, begin))
                row_pairs.append(corrupt_spans(text, spans, sentinels))
        pairs.append(row_pairs or [SourceTarget([], [])])
    # Few shapes for a training: sources are as long as a row, targets a multiple of an eighth.
    batch = build_packed_pairs_batch(pairs, token_rows.shape[1], max(1, token_rows.shape[1] // 8))
    has_text = torch.from_numpy(token_rows >= FIRST_TEXT_ID).any(1, keepdim=True)
    return replace(batch, weights=batch.require_targets_and_weights()[1] * has_text)


def corrupt_spans(
    tokens: Sequence[int] | TokenRows, spans: Sequence[tuple[int, int]], sentinels: Sequence[int]
) -> SourceTarget:
    """Replace each of the ``spans`` [begin, end), in order, by a sentinel.

    Returns:
        As source the tokens with sentinels; as target each sentinel, followed by the tokens of its
        span.

    Raises:
        ValueError: There are more spans than sentinels.
    """
    if len(spans) > len(sentinels):
        raise ValueError(
            f"Each span needs its own sentinel token, but there are {len(spans)} spans and only "
            f"{len(sentinels)} sentinel tokens."
        )
    source: list[int] = []
    target: list[int] = []
    copied_until = 0
    for (begin, end), sentinel in zip(spans, sentinels, strict=False):
        source += [*map(int, tokens[copied_until:begin]), sentinel]
        target += [sentinel, *map(int, tokens[begin:end])]
        copied_until = end
    return SourceTarget(source + list(map(int, tokens[copied_until:])), target)


def build_seq2seq_batch(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> Batch:
    """Build a batch of source-target pairs for an encoder-decoder.

    The target ends with an end symbol; the decoder's input is the target shifted right by a start
    symbol. Both symbols are <|endoftext|>, as at the two ends of a packed document. Each side is
    padded to its longest sequence. An empty source becomes one start symbol, so that there is a
    key.

    Raises:
        ValueError: The numbers of sources and targets differ.
    """
    if len(sources) != len(targets):
        raise ValueError(
            f"Expected one target per source, but got {len(targets)} for {len(sources)} sources."
        )
    batch = build_packed_pairs_batch(
        [[SourceTarget(*pair)] for pair in zip(sources, targets, strict=True)]
    )
    return replace(
        batch, segments=None, positions=None, source_segments=None, source_positions=None
    )


def build_packed_pairs_batch(
    pair_rows: Sequence[Sequence[SourceTarget]], source_multiple: int = 1, target_multiple: int = 1
) -> Batch:
    """Build a batch like ``build_seq2seq_batch``, with several pairs in each row.

    Each pair is predicted as if it were alone: attention stays within a pair, and positions count
    from its start. The widths of source and target are multiples of ``source_multiple`` and
    ``target_multiple``.
    """
    source = _pack_sequences(
        [
            [list(source_ids) or [END_OF_TEXT_ID] for source_ids, _ in pair_row]
            for pair_row in pair_rows
        ],
        source_multiple,
    )
    target = _pack_sequences(
        [[[END_OF_TEXT_ID, *target_ids] for _, target_ids in pair_row] for pair_row in pair_rows],
        target_multiple,
    )
    shifted_target = _pack_sequences(
        [[[*target_ids, END_OF_TEXT_ID] for _, target_ids in pair_row] for pair_row in pair_rows],
        target_multiple,
    )
    assert target.attention_mask is not None
    return Batch(
        target.ids,
        targets=shifted_target.ids,
        weights=target.attention_mask.float(),
        segments=target.segments,
        positions=target.positions,
        source=source.ids,
        source_attention_mask=source.attention_mask,
        source_segments=source.segments,
        source_positions=source.positions,
    )


def make_objective_function(
    objective: Objective,
    *,
    document_mask: bool,
    context: int,
    vocab_size: int,
    find_token_id: Callable[[str], int | None],
) -> Callable[[TokenRows, int, int], Batch]:
    """Return the function (token_rows, key, first_row) -> Batch of an objective.

    Args:
        objective: name of the objective.
        document_mask: whether the causal objective separates documents.
        context: tokens in a row.
        vocab_size: tokens in the vocabulary.
        find_token_id: looks up a special token, None if absent: masked LM needs <|mask|>, span
            corruption <|sentinel_0|> and so on, one for each span of a row.

    Raises:
        ValueError: The tokenizer lacks the special tokens, or the settings contradict each other.
    """
    if objective == "causal":
        return lambda token_rows, key, first_row: build_causal_batch(
            token_rows, document_mask=document_mask
        )
    if document_mask:
        raise ValueError(
            f"document_mask is supported only with the objective 'causal', not with {objective!r}: "
            "set document_mask to false."
        )
    if objective == "prefix":
        return build_random_prefix_batch
    if objective == "mlm":
        mask_id = find_token_id("<|mask|>")
        if mask_id is None:
            raise ValueError(
                "The objective 'mlm' needs the special token <|mask|>, which this tokenizer lacks: "
                "use a tokenizer that was trained for 'mlm'."
            )
        return partial(build_mlm_batch, mask_id=mask_id, vocab_size=vocab_size)
    if objective == "seq2seq":
        raise ValueError(
            "With the 'seq2seq' objective, a model learns from source-target pairs, not from "
            "packed text: set examples to true and data to example files."
        )
    sentinel_count = count_corrupted_spans(context)
    sentinel_lookups = [find_token_id(f"<|sentinel_{i}|>") for i in range(sentinel_count)]
    sentinels = [token for token in sentinel_lookups if token is not None]
    if len(sentinels) < sentinel_count:
        max_context = max(
            length
            for length in range(context + 1)
            if count_corrupted_spans(length) <= max(1, len(sentinels))
        )
        raise ValueError(
            f"Span corruption with a context of {context} tokens needs {sentinel_count} sentinel "
            f"tokens (<|sentinel_0|> and so on), but this tokenizer has {len(sentinels)}: use "
            "another tokenizer, or reduce the context. For a context of "
            f"{max_context} tokens, {count_corrupted_spans(max_context)} would be enough."
        )
    return partial(build_span_corruption_batch, sentinels=sentinels)


def _draw_corrupted_spans(length: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Draw random disjoint spans, with at least one token before, between and after them."""
    corrupted_count = max(1, round(length * CORRUPTION_RATE))
    span_total = min(count_corrupted_spans(length), corrupted_count, length - corrupted_count - 1)
    if span_total < 1:
        return []
    span_lengths = _draw_composition(corrupted_count, span_total, rng)
    gap_lengths = _draw_composition(length - corrupted_count, span_total + 1, rng)
    edges = np.cumsum(np.stack((gap_lengths[:-1], span_lengths), 1).ravel()).reshape(-1, 2)
    return [(int(begin), int(end)) for begin, end in edges]


def _draw_composition(total: int, part_count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Write ``total`` as a sum of ``part_count`` positive integers, every way equally likely."""
    cuts = np.sort(rng.choice(max(1, total - 1), part_count - 1, replace=False)) + 1
    return np.diff(np.concatenate(([0], cuts, [total]))).astype(np.int64)


def _pack_sequences(sequence_rows: Sequence[Sequence[Sequence[int]]], width_multiple: int) -> Batch:
    """Concatenate the non-empty sequences of each row, with segments, positions and padding mask.

    The width is that of the longest row, rounded up to a multiple of ``width_multiple``. Padding
    belongs to a row's last segment, because a token that attends to nothing has no state.
    """
    lengths = [[len(sequence) for sequence in sequence_row] for sequence_row in sequence_rows]
    shape = len(sequence_rows), -(-max(map(sum, lengths)) // width_multiple) * width_multiple
    ids, (is_start, attention_mask) = np.full(shape, PAD_ID), np.zeros((2, *shape), bool)
    for i, sequence_row in enumerate(sequence_rows):
        ids[i, : sum(lengths[i])] = np.concatenate(sequence_row)
        attention_mask[i, : sum(lengths[i])] = True
        is_start[i, np.cumsum([0, *lengths[i][:-1]])] = True
    segments, positions = segment_documents(torch.from_numpy(is_start))
    layout = {
        "segments": segments,
        "positions": positions,
        "attention_mask": torch.from_numpy(attention_mask),
    }
    return Batch(torch.from_numpy(ids), **layout)
