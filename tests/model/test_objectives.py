"""Objectives: what is predicted, and independence of documents and rows from each other."""

from __future__ import annotations

from itertools import groupby, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hallmark.model.batch import Batch
from hallmark.model.objectives import (
    build_causal_batch,
    build_mlm_batch,
    build_prefix_batch,
    build_seq2seq_batch,
    build_span_corruption_batch,
    corrupt_spans,
    make_objective_function,
)
from hallmark.model.special_tokens import END_OF_TEXT_ID, PAD_ID
from tests.model.oracles import tiny, toy_rows

WORDS = ["<s>", "<pad>", "I", "took", "my", "dog", ",", "Fido", "to", "the", "park", "for", "his"]
WORDS += ["walk", ".", "<x>", "<y>"]


def word_ids(text):
    return [WORDS.index(word) for word in text.split()]


def join_words(tokens):
    return " ".join(WORDS[t] for t in tokens)


SENTENCE = "I took my dog , Fido , to the park for his walk ."


def predicted_words(batch, row=0):
    return join_words(batch.targets[row][batch.weights[row] > 0].tolist())


def test_causal_batch_predicts_every_next_word():
    batch = build_causal_batch(np.array([[0, *word_ids(SENTENCE), PAD_ID, PAD_ID]]))
    assert predicted_words(batch) == SENTENCE
    assert batch.ids[0, 1:].tolist() == batch.targets[0, :-1].tolist()
    assert batch.weights[0, -3:].tolist() == [0, 0, 0]


def test_padding_inside_a_row_has_weight_zero():
    batch = build_causal_batch(np.array([[0, 5, 6, 7, PAD_ID, PAD_ID, PAD_ID, 0, 11, 12]]))
    assert batch.weights[0].tolist() == [1, 1, 1, 0, 0, 0, 0, 1, 1, 0]


@pytest.mark.parametrize("key", range(5))
@pytest.mark.parametrize("name", ["causal", "prefix", "mlm"])
def test_removing_a_document_changes_nothing_else_in_the_batch(name, key):
    """Except at its own tokens, and at the token before it, which predicted its first token."""
    rows = np.random.default_rng(0).integers(2, 50, (4, 64))
    rows[:, [0, 20, 40]] = END_OF_TEXT_ID
    remaining_rows = rows.copy()
    remaining_rows[1, 20:40] = remaining_rows[2, :20] = remaining_rows[3] = PAD_ID
    before, after = (make_objective(name, 64)(r, key, 0) for r in (rows, remaining_rows))
    same = remaining_rows != PAD_ID
    assert not after.weights[torch.from_numpy(~same)].any()
    same[:, 0] |= name == "mlm"  # every row begins with begin-of-text
    same[1, 19] &= name == "mlm"
    for field in ("ids", "targets", "weights"):
        a, b = (getattr(batch, field)[torch.from_numpy(same)] for batch in (before, after))
        assert torch.equal(a, b), field


@pytest.mark.parametrize("key", range(5))
def test_removing_a_document_keeps_the_spans_of_the_others(key):
    rows = np.random.default_rng(0).integers(2, 50, (4, 64))
    rows[:, [0, 20, 40]] = END_OF_TEXT_ID
    remaining_rows = rows.copy()
    remaining_rows[1, 20:40] = remaining_rows[2, :20] = remaining_rows[3] = PAD_ID
    before, after = (make_objective("span_corruption", 64)(r, key) for r in (rows, remaining_rows))
    pairs = [
        [
            [
                (batch.source[i][source].tolist(), batch.targets[i][target].tolist())
                for source, target in iter_pairs(batch, i)
            ]
            for i in range(3)
        ]
        for batch in (before, after)
    ]
    first, second, third = pairs[0]
    assert pairs[1] == [first, [second[0], second[2]], third[1:]]
    assert after.weights[3].sum() == 0
    assert len({str(pair) for row in pairs[0] for pair in row}) == sum(map(len, pairs[0]))


def make_objective(name, context):
    special_tokens = {"<|mask|>": 99} | {f"<|sentinel_{i}|>": 50 + i for i in range(20)}
    options = {"document_mask": False, "context": context, "vocab_size": 50}
    return make_objective_function(name, find_token_id=special_tokens.get, **options)


def test_document_masking_counts_positions_from_each_document():
    batch = build_causal_batch(np.array([[7, 8, 0, 5, 6, 0, 9]]), document_mask=True)
    assert batch.segments.tolist() == [[0, 0, 1, 1, 1, 2, 2]]
    assert batch.positions.tolist() == [[0, 1, 0, 1, 2, 0, 1]]


def test_prefix_batch_predicts_the_textbook_suffix():
    prefix_ids = word_ids("I took my dog , Fido , to the")
    batch = build_prefix_batch(np.array([word_ids(SENTENCE)]), np.array([len(prefix_ids)]))
    assert predicted_words(batch) == "park for his walk ."
    assert batch.prefix.tolist() == [len(prefix_ids)]


@pytest.mark.parametrize("length", [-1, 7])
def test_a_prefix_longer_than_its_row_is_refused(length):
    with pytest.raises(
        ValueError, match=f"prefix of row 1 must have 0 to 6 tokens .* not {length}"
    ):
        build_prefix_batch(np.full((2, 6), 5), np.array([6, length]))
    assert build_prefix_batch(np.full((2, 6), 5), np.array([0, 6])).weights.sum(1).tolist() == [
        5,
        0,
    ]


def test_the_prefix_is_bidirectional_and_the_suffix_is_causal():
    model = tiny()
    rows = np.array([[2, 3, 4, 5, 6, 7]])
    lengths = np.array([3])

    def run(row):
        batch = build_prefix_batch(np.array([row]), lengths)
        return model(batch)[0]

    base = run([2, 3, 4, 5, 6, 7])
    in_prefix, in_suffix = run([2, 3, 9, 5, 6, 7]), run([2, 3, 4, 5, 9, 7])
    assert not torch.allclose(base[0], in_prefix[0], atol=1e-3)
    assert torch.allclose(base[:4], in_suffix[:4], atol=1e-6)
    assert rows.shape == (1, 6)


def test_corrupted_spans_equal_the_textbook():
    sentence = word_ids("I took my dog , Fido , to the park for his walk .")
    source, target = corrupt_spans(sentence, [(2, 7), (8, 11)], word_ids("<x> <y>"))
    assert join_words(source) == "I took <x> to <y> his walk ."
    assert join_words(target) == "<x> my dog , Fido , <y> the park for"


@pytest.mark.parametrize(("sources", "targets"), [([[5], [6]], [[7]]), ([], [[7]])])
def test_unequal_numbers_of_sources_and_targets_are_refused(sources, targets):
    with pytest.raises(ValueError, match=f"one target per source, but got 1 for {len(sources)}"):
        build_seq2seq_batch(sources, targets)


def test_seq2seq_targets_are_shifted_by_a_start_symbol_and_padded():
    batch = build_seq2seq_batch(
        [word_ids("my dog"), word_ids("the park for his walk")],
        [word_ids("Fido"), word_ids("to the park")],
    )
    assert join_words(batch.ids[0].tolist()) == "<s> Fido <pad> <pad>"
    assert join_words(batch.targets[0].tolist()) == "Fido <s> <pad> <pad>"
    assert batch.weights.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert batch.source_attention_mask.tolist() == [[True] * 2 + [False] * 3, [True] * 5]
    assert join_words(batch.source[0].tolist()) == "my dog <pad> <pad> <pad>"


@given(
    rows=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    key=st.integers(0, 2**64 - 1),
    sentinels=st.integers(3, 8),
)
@settings(max_examples=80, deadline=None)
def test_span_corruption_can_be_undone(rows, key, sentinels):
    table = np.full((len(rows), 60), PAD_ID)
    for i, n in enumerate(rows):
        table[i, :n] = np.arange(2, 2 + n)
    marks = list(range(100, 100 + sentinels))
    batch = build_span_corruption_batch(table, key, sentinels=marks)
    for i, n in enumerate(rows):
        source = batch.source[i][batch.source_attention_mask[i]].tolist()
        target = batch.targets[i][batch.weights[i] > 0].tolist()
        assert target.pop() == END_OF_TEXT_ID
        spans = {}
        for is_mark, group in groupby(target, lambda t: t >= 100):
            if is_mark:
                (mark,) = group
            else:
                spans[mark] = list(group)
        restored = [t for s in source for t in (spans.pop(s) if s >= 100 else [s])]
        assert restored == list(range(2, 2 + n)) and not spans
        assert not any(a >= 100 and b >= 100 for a, b in pairwise(source))


def split_documents(row):
    """Return the texts of a packed row, without begin-of-text tokens and padding."""
    texts = [list(group) for end, group in groupby(row, lambda t: t == END_OF_TEXT_ID) if not end]
    return [[t for t in text if t != PAD_ID] for text in texts if text[0] != PAD_ID]


def iter_pairs(batch, row):
    """Yield the masks of source and target of each document in a row."""
    for segment in range(1, int(batch.segments[row].max()) + 1):
        source = batch.source_attention_mask[row] & (batch.source_segments[row] == segment)
        target = (batch.weights[row] > 0) & (batch.segments[row] == segment)
        yield source, target


def test_spans_stay_inside_their_document():
    rows = toy_rows(20, 64, 40).astype(np.int64)
    rows[-1, 50:] = PAD_ID
    batch, documents = build_span_corruption_batch(rows, 1, sentinels=range(100, 110)), 0
    for i, row in enumerate(rows):
        texts = split_documents(row)
        pairs = list(iter_pairs(batch, i))
        assert len(pairs) == len(texts)
        documents += len(texts)
        for text, (source, target) in zip(texts, pairs, strict=True):
            *hidden, end = batch.targets[i][target].tolist()
            assert end == END_OF_TEXT_ID == batch.ids[i][target].tolist()[0]
            assert batch.ids[i][target].tolist()[1:] == hidden
            spans = {}
            for token in hidden:
                if token >= 100:
                    mark = token
                else:
                    spans.setdefault(mark, []).append(token)
            assert list(spans) == list(range(100, 100 + len(spans)))
            restored = [t for s in batch.source[i][source].tolist() for t in spans.get(s, [s])]
            assert restored == text
    assert documents > 60


@pytest.mark.parametrize("positions", ["learned", "rope"])
def test_span_corruption_predicts_each_document_as_if_alone(positions):
    model = tiny(architecture="encoder_decoder", positions=positions, context=32)
    rows = toy_rows(3, 32, 50).astype(np.int64)
    rows[-1, 20:] = PAD_ID
    batch = build_span_corruption_batch(rows, 2, sentinels=range(55, 60))
    together, documents = model.compute_token_losses(batch), 0
    for i in range(3):
        for source, target in iter_pairs(batch, i):
            pair = batch.source[i][source].tolist(), batch.ids[i][target].tolist()[1:]
            alone = build_seq2seq_batch([pair[0]], [pair[1]])
            losses = model.compute_token_losses(alone)[0]
            torch.testing.assert_close(together[i][target], losses, atol=1e-4, rtol=0)
            documents += 1
    assert documents > 6 and together.isfinite().all()


def test_a_row_without_text_has_a_source_token():
    rows = np.array(
        [[END_OF_TEXT_ID, PAD_ID, PAD_ID, PAD_ID], [END_OF_TEXT_ID, 5, 6, END_OF_TEXT_ID]]
    )
    batch = build_span_corruption_batch(rows, 1, sentinels=[50])
    assert batch.source.tolist() == [
        [END_OF_TEXT_ID, PAD_ID, PAD_ID, PAD_ID],
        [5, 6, PAD_ID, PAD_ID],
    ]
    assert batch.source_attention_mask.sum(1).tolist() == [1, 2]
    assert batch.targets[0, 0] == END_OF_TEXT_ID and batch.weights.sum(1).tolist() == [0, 1]


def test_span_corruption_of_three_tokens_hides_the_middle_one():
    rows = np.array([[END_OF_TEXT_ID, 5, 6, 7]])
    for key in range(20):
        batch = build_span_corruption_batch(rows, key, sentinels=[50])
        assert batch.source.tolist() == [[5, 50, 7, PAD_ID]]
        assert batch.targets[batch.weights > 0].tolist() == [50, 6, END_OF_TEXT_ID]
    four = np.array([[END_OF_TEXT_ID, 5, 6, 7, 8]])
    hidden = [
        int(build_span_corruption_batch(four, key, sentinels=[50]).targets[0, 1])
        for key in range(200)
    ]
    hidden_ids, counts = np.unique(hidden, return_counts=True)
    assert hidden_ids.tolist() == [6, 7] and counts.min() > 70  # equally likely


def test_span_corruption_batches_have_few_shapes():
    """Training is compiled for each shape, and the source's width must suit blocks of attention."""
    rows = toy_rows(400, 64, 50).astype(np.int64).reshape(100, 4, 64)
    batches = [
        build_span_corruption_batch(r, i, sentinels=range(100, 110)) for i, r in enumerate(rows)
    ]
    assert {tuple(batch.source.shape) for batch in batches} == {(4, 64)}
    widths = {batch.ids.shape[1] for batch in batches}
    assert len(widths) <= 4 and not any(width % 8 for width in widths)
    for batch in batches:
        assert (batch.weights > 0).sum(1).max() > batch.ids.shape[1] - 8
        assert batch.targets.shape == batch.ids.shape == batch.segments.shape


def test_span_corruption_hides_15_percent_in_spans_of_three():
    rows = np.tile(np.arange(2, 402), (20, 1))
    batch = build_span_corruption_batch(rows, 1, sentinels=range(1000, 1100))
    hidden = [
        int((t[w > 0] < 1000).sum()) - 1 for t, w in zip(batch.targets, batch.weights, strict=True)
    ]
    assert hidden == [60] * 20
    marks = (batch.source >= 1000).sum(1).tolist()
    assert marks == [20] * 20


@pytest.mark.parametrize(("context", "sentinels"), [(8, 1), (256, 13), (649, 32), (1024, 51)])
def test_each_context_needs_a_number_of_sentinels(context, sentinels):
    rows = np.tile(np.arange(2, 2 + context), (4, 1))

    def make_with_sentinels(count):
        marks = {f"<|sentinel_{i}|>": 5000 + i for i in range(count)}
        options = {"document_mask": False, "vocab_size": 6000, "find_token_id": marks.get}
        return make_objective_function("span_corruption", context=context, **options)

    batch = make_with_sentinels(sentinels)(rows, 3)
    hidden = ((batch.targets < 5000) & (batch.targets > PAD_ID)).sum(1)
    spans = (batch.targets >= 5000).sum(1)
    assert spans.tolist() == [sentinels] * 4 and hidden.tolist() == [round(0.15 * context)] * 4
    assert make_with_sentinels(100)(rows, 3).ids.equal(batch.ids)
    with pytest.raises(ValueError, match=rf"{context} tokens needs {sentinels} sentinel"):
        make_with_sentinels(sentinels - 1)


def test_too_few_sentinels_are_refused_with_the_context_that_they_suffice_for():
    marks = {f"<|sentinel_{i}|>": 50 + i for i in range(32)}
    options = {"document_mask": False, "context": 1024, "vocab_size": 90}
    with pytest.raises(ValueError, match=r"has 32: .* 649 tokens, 32 would be enough"):
        make_objective_function("span_corruption", find_token_id=marks.get, **options)
    with pytest.raises(ValueError, match=r"has 0: .* 30 tokens, 1 would be enough"):
        make_objective_function("span_corruption", find_token_id={}.get, **options)
    with pytest.raises(ValueError, match="20 tokens, 1 would be enough"):
        make_objective_function(
            "span_corruption", find_token_id={}.get, **options | {"context": 20}
        )
    with pytest.raises(ValueError, match="there are 2 spans and only 1 sentinel"):
        corrupt_spans(range(2, 12), [(1, 3), (5, 7)], [50])


def test_masked_lm_follows_80_10_10_and_keeps_special_tokens():
    vocab_size, mask = 500, 499
    rows = np.random.default_rng(0).integers(2, 499, (400, 256))
    rows[:, ::50] = END_OF_TEXT_ID
    rows[:, -10:] = PAD_ID
    batch = build_mlm_batch(rows, 7, mask_id=mask, vocab_size=vocab_size)
    is_selected = batch.weights.numpy() > 0
    input_ids = batch.ids.numpy()
    text = rows >= 2
    n = int(is_selected.sum())
    assert not (is_selected & ~text).any() and (input_ids == rows)[~is_selected].all()
    assert (batch.targets.numpy() == rows).all()
    masked = (input_ids == mask)[is_selected].mean()
    kept = (input_ids == rows)[is_selected].mean()
    deviations = 4 / np.sqrt(n)  # at most four standard errors
    assert abs(n / text.sum() - 0.15) < 0.15 * deviations
    shares = is_selected[:, text[0]].mean(0)  # every position of a row is equally likely
    assert abs(shares - 0.15).max() < 4.5 * np.sqrt(0.15 * 0.85 / 400)
    assert abs(masked - 0.8) < deviations
    assert abs(kept - 0.1 * (1 + 1 / 498)) < deviations
    replaced = input_ids[is_selected & (input_ids != mask) & (input_ids != rows)]
    assert replaced.min() == 2 and replaced.max() == 498  # all text tokens and no others
    assert (batch.attention_mask.numpy() == (rows != PAD_ID)).all()


def test_masked_lm_selects_the_same_number_of_positions_in_each_row():
    rows = toy_rows(6, 32, 40).astype(np.int64)
    rows[-1, 4:] = PAD_ID
    batch = build_mlm_batch(rows, 2, mask_id=60, vocab_size=61)
    chosen = batch.weights.sum(1).tolist()
    assert max(chosen) <= 5  # 15 % of 32, minus those at begin-of-text or padding
    assert min(chosen[:-1]) > 0
    assert (
        build_mlm_batch(np.full((1, 8), PAD_ID + 1), 2, mask_id=60, vocab_size=61).weights.sum()
        == 1
    )


def test_every_masked_lm_row_begins_with_begin_of_text():
    rows = np.array(
        [[7, 8, 9, END_OF_TEXT_ID, 5, 6], [END_OF_TEXT_ID, 4, END_OF_TEXT_ID, 7, PAD_ID, PAD_ID]]
    )
    batch = build_mlm_batch(rows, 1, mask_id=60, vocab_size=61, mask_rate=0.9)
    assert rows[0, 0] == 7  # the input is unchanged
    assert batch.ids[:, 0].tolist() == [END_OF_TEXT_ID] * 2 and not batch.weights[:, 0].any()
    assert batch.targets[0].tolist() == [END_OF_TEXT_ID, 8, 9, END_OF_TEXT_ID, 5, 6]
    assert batch.segments.tolist() == [[1, 1, 1, 2, 2, 2], [1, 1, 2, 2, 2, 2]]
    assert batch.positions[0].tolist() == [0, 1, 2, 0, 1, 2]
    assert batch.attention_mask[1].tolist() == [True] * 4 + [False] * 2


@pytest.mark.parametrize("positions", ["learned", "rope"])
def test_masked_lm_encodes_packed_documents_as_if_alone(positions):
    model = tiny(architecture="encoder", positions=positions)
    batch = build_mlm_batch(
        toy_rows(6, 16, 50).astype(np.int64), 5, mask_id=60, vocab_size=61, mask_rate=0.3
    )
    together = model(batch)
    lengths = []
    for row, row_ids in enumerate(batch.ids):
        begins = [*torch.nonzero(batch.targets[row] == END_OF_TEXT_ID).flatten().tolist(), 16]
        assert begins[0] == 0
        for begin, end in pairwise(begins):
            alone = model(Batch(row_ids[None, begin:end]))[0]
            torch.testing.assert_close(together[row, begin:end], alone, atol=1e-5, rtol=0)
            lengths.append(end - begin)
    assert len(lengths) > 8  # more documents than rows


@pytest.mark.parametrize("name", ["causal", "prefix", "mlm", "span_corruption"])
def test_a_batch_depends_only_on_rows_and_key(name):
    objective = make_objective_function(
        name,
        document_mask=False,
        context=32,
        vocab_size=50,
        find_token_id={"<|mask|>": 47, "<|sentinel_0|>": 48, "<|sentinel_1|>": 49}.get,
    )
    rows = toy_rows(8, 32, 40).astype(np.int64)
    one, again, other = (objective(rows.copy(), key, 0) for key in (3, 3, 4))

    def same(a, b):
        return all(
            x is y is None or (x.shape == y.shape and torch.equal(x, y))
            for x, y in zip(vars(a).values(), vars(b).values(), strict=True)
        )

    assert same(one, again)
    assert same(one, other) == (name == "causal")
    part = objective(rows[5:].copy(), 3, 5)  # part of a batch; its targets may be narrower
    for name, tensor in vars(part).items():
        assert tensor is None or are_equal_up_to_padding(tensor, getattr(one, name)[5:])


def are_equal_up_to_padding(a, b):
    if a.ndim > 1:
        a, b = a[:, : min(a.shape[1], b.shape[1])], b[:, : min(a.shape[1], b.shape[1])]
    return torch.equal(a, b)
