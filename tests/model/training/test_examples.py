"""Task examples: what the model reads and predicts of a pair or a labelled text."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
import torch

from hallmark.model.batch import Batch
from hallmark.model.special_tokens import END_OF_TEXT_ID
from hallmark.model.training.example_batches import (
    build_label_batch,
    build_pair_batch,
    make_example_objective,
)
from hallmark.model.training.examples import (
    EXAMPLES_SCHEMA,
    NO_LABEL,
    Example,
    ExampleRows,
    truncate_pair,
    write_examples,
)
from hallmark.model.training.packed_rows import select_batch_rows
from tests.model.oracles import tiny

PAIRS = [Example([5, 6, 7], [8, 9]), Example([10], [11, 12, 13, 14])]
LABELS = {"labels": ("a", "b", "c"), "tie_embeddings": False}


def score_naively(model, source, target):
    """Compute log p of the target and the end, token by token, after a bidirectional prompt."""
    prompt, total = [END_OF_TEXT_ID, *source, END_OF_TEXT_ID], 0.0
    for i, token in enumerate([*target, END_OF_TEXT_ID]):
        ids = torch.tensor([[*prompt, *target[:i]]])
        prefix = torch.tensor([len(prompt)])
        hidden = model(Batch(ids, prefix=prefix))[0, -1]
        total += float(model.compute_logits(hidden).log_softmax(-1)[token])
    return total


@torch.no_grad()
def test_a_prefix_lm_attends_to_the_source_and_predicts_the_target_and_its_end():
    model = tiny()
    batch = build_pair_batch(PAIRS, "decoder")
    assert batch.source is None and batch.prefix.tolist() == [5, 3]
    assert batch.require_targets_and_weights()[1].sum() == 3 + 5  # the targets and an end each
    expected = -sum(score_naively(model, list(e.ids), list(e.targets)) for e in PAIRS)
    assert float(model.compute_loss_sum(batch)) == pytest.approx(expected, rel=1e-5)
    # 3 + 5, rounded up: no logits are computed for the prompts.
    assert len(batch.with_predicted_positions().predicted_positions) == 9


@torch.no_grad()
def test_an_encoder_decoder_reads_the_source_and_predicts_the_target_and_its_end():
    model = tiny(architecture="encoder_decoder")
    batch = make_example_objective(model.config, "seq2seq")(PAIRS, 7, 0)
    expected = 0.0
    for source, target, _ in PAIRS:
        alone = Batch(torch.tensor([[0, *target]]), source=torch.tensor([source]))
        log_p = model.compute_logits(model(alone))[0].log_softmax(-1)
        expected -= sum(float(log_p[i, token]) for i, token in enumerate([*target, 0]))
    assert float(model.compute_loss_sum(batch)) == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("architecture", ["encoder", "decoder", "prefix"])
def test_only_the_given_labels_are_learned(architecture):
    objective = {"encoder": "mlm", "decoder": "causal", "prefix": "prefix"}[architecture]
    stack = "encoder" if architecture == "encoder" else "decoder"
    model = tiny(architecture=stack, **LABELS)
    examples = [Example([0, 5, 6, 7], [NO_LABEL, 2, NO_LABEL, 0]), Example([0, 9], [1, NO_LABEL])]
    batch = make_example_objective(model.config, objective)(examples, 0, 0)
    expected = 0.0
    for ids, labels, _ in examples:
        prefix = torch.tensor([len(ids)]) if architecture == "prefix" else None
        logits = model.compute_logits(model(Batch(torch.tensor([ids]), prefix=prefix)))
        log_p = logits[0].log_softmax(-1)
        assert log_p.shape == (len(ids), 3)
        expected -= sum(float(log_p[i, a]) for i, a in enumerate(labels) if a != NO_LABEL)
    assert float(model.compute_loss_sum(batch)) == pytest.approx(expected, rel=1e-5)


def test_two_sentences_have_different_types():
    model = tiny(architecture="encoder", token_types=2, **LABELS)
    batch = build_label_batch([Example([0, 5, 0, 7], [0] + [NO_LABEL] * 3, 2)], model.config, False)
    assert batch.token_types.tolist() == [[0, 0, 1, 1]]
    with torch.no_grad():
        as_one = Batch(batch.ids, attention_mask=batch.attention_mask)
        assert not torch.equal(model(batch), model(as_one))
        model.type_embedding.weight[1] = model.type_embedding.weight[0]
        assert torch.equal(model(batch), model(as_one))


def test_long_pairs_are_truncated_at_their_ends():
    pair_config = tiny(architecture="encoder_decoder").config  # a context of 16 tokens
    source, target = list(range(2, 32)), list(range(2, 22))
    assert truncate_pair(source, target, pair_config) == (source[:16], target[:15])
    row_config = tiny().config
    kept = truncate_pair(source, target, row_config)
    assert kept == (source[:9], target[:4])  # 13, plus the three begin and end tokens
    assert truncate_pair(source[:3], target, row_config) == (source[:3], target[:10])
    assert truncate_pair(source[:3], target[:2], row_config) == (source[:3], target[:2])
    assert build_pair_batch([Example(*kept)], "decoder").ids.shape == (1, 16)
    with pytest.raises(ValueError, match="4 tokens is too short for a source and its target"):
        truncate_pair(source, target, tiny(context=4).config)


def test_examples_are_read_back_and_tokens_of_steps_counted(tmp_path):
    config = tiny().config
    examples = [Example([5] * (1 + i % 4), [6] * (1 + i % 3)) for i in range(10)]
    write_examples(tmp_path / "e.arrow", examples)
    rows = ExampleRows(tmp_path / "e.arrow", config)
    assert rows.read_rows(np.arange(10)) == [Example(e.ids, e.targets, 0) for e in examples]
    assert rows.count_tokens(np.array([0, 1])) == 2 + 4
    read = 0
    for step in range(1, 8):  # more than two epochs
        read += rows.count_tokens(select_batch_rows(3, step, 4, 10))
        assert rows.count_tokens_read(3, step, 4) == read
    assert rows.count_tokens_read(3, 2, 4) == sum(
        rows.count_tokens(select_batch_rows(3, s, 4, 10)) for s in (1, 2)
    )


@pytest.mark.parametrize(
    ("changes", "example", "words"),
    [
        (
            {},
            Example([61], [5]),
            "ids from 61 to 61, but this model's ids range from 0 to 60",
        ),
        ({}, Example([5], [61]), "ids range from -1 to 60"),
        (
            {},
            Example([5] * 10, [6] * 4),
            "has 10 tokens and 4 target tokens, but an example can have at most 13 source and "
            "target tokens in total",
        ),
        (
            {"architecture": "encoder_decoder"},
            Example([5], [6] * 16),
            "at most 16 source tokens and 15 target tokens",
        ),
        (LABELS, Example([0, 5], [3, 0]), "ids range from -1 to 2"),
        (
            LABELS,
            Example([0, 5], [1]),
            "has 2 tokens and 1 labels, but .* one label for each token",
        ),
        (LABELS, Example([0] * 17, [1] * 17), "needs 1 to 16 tokens"),
    ],
)
def test_examples_for_another_model_are_refused(tmp_path, changes, example, words):
    write_examples(tmp_path / "e.arrow", [example])
    with pytest.raises(ValueError, match=words):
        ExampleRows(tmp_path / "e.arrow", tiny(**changes).config)


def test_files_without_examples_are_refused(tmp_path):
    config = tiny().config
    path = tmp_path / "e.arrow"
    write_examples(path, [])
    with pytest.raises(ValueError, match="has no examples"):
        ExampleRows(path, config)
    path.write_bytes(b"x")
    with pytest.raises(ValueError, match="is not an example file"):
        ExampleRows(path, config)
    with pa.ipc.new_file(str(path), EXAMPLES_SCHEMA) as writer:
        columns = [pa.array([None], f.type) for f in EXAMPLES_SCHEMA]
        writer.write_table(pa.table(columns, schema=EXAMPLES_SCHEMA))
    with pytest.raises(ValueError, match="is not an example file"):
        ExampleRows(path, config)


@torch.no_grad()
def test_the_initial_loss_of_labels_equals_a_guess():
    torch.manual_seed(0)
    from hallmark.model.architecture import Transformer

    model = Transformer(tiny(architecture="encoder", **LABELS).config).eval()
    batch = build_label_batch([Example([0, 5, 6], [1, 1, 1])], model.config, False)
    assert float(model.compute_loss_sum(batch)) / 3 == pytest.approx(math.log(3), abs=0.1)
