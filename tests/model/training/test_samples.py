"""Sample texts: their sources and their precision."""

from __future__ import annotations

from tokenizers import Tokenizer

from hallmark.model.decoding.generation import generate
from hallmark.model.decoding.inference_mode import autocast_to_precision
from hallmark.model.objectives import build_packed_pairs_batch, build_seq2seq_batch
from hallmark.model.training.samples import generate_sample_rows
from tests.model.oracles import tiny, write_tokenizer


def test_an_encoder_decoder_reads_the_longest_document_of_a_row(tmp_path):
    tokenizer = Tokenizer.from_file(str(write_tokenizer(tmp_path / "tokenizer.json", 61)))
    batch = build_packed_pairs_batch([[([5], []), ([6, 7, 8], [9])], [([4, 4], [2]), ([3], [])]])
    options = {"decoder_sample_count": 2, "max_tokens": 3, "seed": 0, "encoder_sources": batch}
    rows = generate_sample_rows(tiny(architecture="encoder_decoder"), tokenizer, **options)
    assert [row["prompt"] for row in rows] == ["t6 t7 t8", "t4 t4"]


def test_an_encoder_decoder_reads_the_whole_source_of_a_pair(tmp_path):
    tokenizer = Tokenizer.from_file(str(write_tokenizer(tmp_path / "tokenizer.json", 61)))
    batch = build_seq2seq_batch([[6, 7, 8], [5]], [[9], [2, 3]])
    options = {"decoder_sample_count": 2, "max_tokens": 3, "seed": 0, "encoder_sources": batch}
    rows = generate_sample_rows(tiny(architecture="encoder_decoder"), tokenizer, **options)
    assert [row["prompt"] for row in rows] == ["t6 t7 t8", "t5"]


def test_samples_record_their_precision(tmp_path):
    tokenizer = Tokenizer.from_file(str(write_tokenizer(tmp_path / "tokenizer.json", 61)))
    options = {"decoder_sample_count": 8, "max_tokens": 12, "seed": 0, "encoder_sources": None}
    exact = generate_sample_rows(tiny(), tokenizer, **options)
    low_precision = generate_sample_rows(tiny(), tokenizer, precision="bf16", **options)
    assert {row["precision"] for row in exact} == {"fp32"}
    assert {row["precision"] for row in low_precision} == {"bf16"}
    with autocast_to_precision(model := tiny(), "bf16"):
        continuations = generate(model, [[0]], max_new_tokens=12, samples=8)[0]
    ids = [text.ids[:-1] if text.stopped else text.ids for text in continuations]
    assert [row["text"] for row in low_precision] == [" ".join(f"t{i}" for i in row) for row in ids]
    assert [row["text"] for row in low_precision] != [row["text"] for row in exact]
