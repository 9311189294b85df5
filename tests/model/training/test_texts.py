from __future__ import annotations

from tokenizers import Tokenizer

from model.decoding.generate import generate
from model.decoding.mode import computing
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


def test_it_says_in_which_precision_it_wrote(tmp_path):
    tokenizer = Tokenizer.from_file(str(write_tokenizer(tmp_path / "tokenizer.json", 61)))
    how = {"count": 8, "tokens": 12, "seed": 0, "batch": None}
    exact = write_samples(tiny(), tokenizer, **how)
    near = write_samples(tiny(), tokenizer, precision="bf16", **how)
    assert {row["precision"] for row in exact} == {"fp32"}
    assert {row["precision"] for row in near} == {"bf16"}
    with computing(model := tiny(), "bf16"):
        made = generate(model, [[0]], max_new_tokens=12, samples=8)[0]
    ids = [text.ids[:-1] if text.stopped else text.ids for text in made]
    assert [row["text"] for row in near] == [" ".join(f"t{i}" for i in row) for row in ids]
    assert [row["text"] for row in near] != [row["text"] for row in exact]
