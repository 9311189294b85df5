from __future__ import annotations

from tokenizers import Tokenizer

from model.objectives import packed_pairs, seq2seq
from model.training.texts import write_samples
from tests.model.oracles import tiny, write_tokenizer


def test_an_encoder_decoder_is_asked_about_the_longest_document_of_a_row(tmp_path):
    tokenizer = Tokenizer.from_file(str(write_tokenizer(tmp_path / "tokenizer.json", 61)))
    batch = packed_pairs([[([5], []), ([6, 7, 8], [9])], [([4, 4], [2]), ([3], [])]])
    how = {"count": 2, "tokens": 3, "seed": 0, "batch": batch}
    rows = write_samples(tiny(architecture="encoder_decoder"), tokenizer, **how)
    assert [row["prompt"] for row in rows] == ["t6 t7 t8", "t4 t4"]


def test_it_is_asked_about_the_whole_source_of_a_pair(tmp_path):
    tokenizer = Tokenizer.from_file(str(write_tokenizer(tmp_path / "tokenizer.json", 61)))
    batch = seq2seq([[6, 7, 8], [5]], [[9], [2, 3]])
    how = {"count": 2, "tokens": 3, "seed": 0, "batch": batch}
    rows = write_samples(tiny(architecture="encoder_decoder"), tokenizer, **how)
    assert [row["prompt"] for row in rows] == ["t6 t7 t8", "t5"]
