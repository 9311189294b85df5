"""WEAT: associations between words, against cosines by hand from transformers' own states."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from hallmark.tasks.audits.audited_models.opening import open_audited_model, open_audited_tokenizer
from hallmark.tasks.audits.probes.weat import (
    TEMPLATES,
    WEAT_TESTS,
    WORD_LISTS_FILE,
    WeatConfig,
    read_weat_tests,
    tokenize_word_in_templates,
)
from hallmark.tasks.contract import HallmarkError, UsageError
from tests.tasks.audits.asking import stages_of
from tests.tasks.audits.conftest import make_own

REAL = Path(__file__).parents[5] / "shared/data/audit"

LISTS = {
    "tests": {"one": ["first", "second", "near", "far"]},
    "first": ["nurse", "engineer", "late", "early"],
    "second": ["numbers", "documentation", "line", "long", "line by line"],
    "near": ["she", "said"],
    "far": ["he", "we", "read"],
}


def written(path, lists):
    path.write_text(json.dumps(lists))
    return path


def judged(folder, config):
    _, answered, *_, (values, findings) = stages_of("weat", folder, config)
    return answered, values, {(r["metric"], r["slice"]): r for r in findings.to_pylist()}


def test_the_projects_own_lists_on_a_model(own_folder, session):
    answered, values, found = judged(own_folder, WeatConfig())
    tests = read_weat_tests(WORD_LISTS_FILE)
    assert len(tests) == 4 and all(len({*w}) == 8 for lists in tests.values() for w in lists)
    for part in ("input", "contextual"):
        for test in tests:
            row = found[f"effect_size_{part}", f"test={test}"]
            assert row["n"] == 16 and abs(row["value"]) < 1.94 and row["low"] < row["value"]
            assert 1 / 12870 <= row["p"] <= 1 and "exact one-sided p of 12,870" in row["method"]
            assert "contextual: layer -2" in row["method"] and "of several tokens" in row["method"]
        for name in ("scripted effect", "scripted chance"):
            assert found[f"effect_size_{part}", name]["verdict"] == "pass"
    assert len(found) == 12 and len(values) == 2 * 4 * 16
    words = {word for lists in tests.values() for some in lists for word in some}
    assert answered["embeddings"].row_count == (1 + len(TEMPLATES)) * len(words)
    assert answered["responses"].row_count == 0


def test_against_cosines_by_hand(gpt2_folder, tmp_path, session):
    config = WeatConfig(word_lists=written(tmp_path / "words.json", LISTS), layer=-1)
    _, values, found = judged(gpt2_folder, config)
    subject = open_audited_model(gpt2_folder, device="cpu")
    table = subject.model.transformer.wte.weight.detach().numpy()

    def tokens(word):
        ids = subject.encode(f" {word}")  # a space by itself is no part of the word
        return [token for token in ids if subject.decode([token]).strip()]

    def inner(word):
        states = []
        for template in TEMPLATES:
            ids = subject.prepend_bos_id(subject.encode(template.format(word)))
            with torch.inference_mode():
                read = subject.model(torch.tensor([ids]), output_hidden_states=True)
            states.append(read.hidden_states[-1][0, -1 - len(tokens(word)) : -1].mean(0).numpy())
        return np.mean(states, 0)

    def cosine(u, v):
        return u @ v / np.sqrt((u @ u) * (v @ v))

    embedded = {"input": lambda word: table[tokens(word)].mean(0), "contextual": inner}
    for part, embed in embedded.items():
        vectors = {w: embed(w).astype(float) for k, ws in LISTS.items() if k != "tests" for w in ws}
        s = {
            word: np.mean([cosine(vectors[word], vectors[a]) for a in LISTS["near"]])
            - np.mean([cosine(vectors[word], vectors[b]) for b in LISTS["far"]])
            for word in (*LISTS["first"], *LISTS["second"])
        }
        rows = [r for r in values.to_pylist() if r["measure"] == f"association_{part}"]
        assert {r["text"]: r["value"] for r in rows} == pytest.approx(s, abs=1e-5)
        means = [np.mean([s[w] for w in LISTS[side]]) for side in ("first", "second")]
        d = (means[0] - means[1]) / np.std([*s.values()], ddof=1)
        row = found[f"effect_size_{part}", "test=one"]
        assert row["value"] == pytest.approx(d, abs=1e-4) and row["n"] == 9


def test_words_of_bytes_are_words_and_are_counted(own_folder):
    reader = open_audited_tokenizer(own_folder)
    for word, spelled in (("nurse", False), ("żółw", True), ("Zqxvk", True)):
        sentences = tokenize_word_in_templates(reader, word)
        for template, (ids, places) in zip(TEMPLATES, sentences, strict=True):
            assert reader.decode(ids).strip() == template.format(word)
            assert reader.decode([ids[i] for i in places]).strip() == word
        places = sentences[0][1]
        assert (1 < len(word.encode()) <= len(places)) == spelled


def test_words_that_the_model_cannot_read_are_left_out_and_counted(bert_folder, tmp_path, session):
    lists = LISTS | {"near": ["she", "☃", "said"], "far": ["he", "we", "read " * 40]}
    _, _, found = judged(bert_folder, WeatConfig(word_lists=written(tmp_path / "w.json", lists)))
    left = found["skipped_words", ""]
    assert left["value"] == 2 and "more than the model reads" in left["method"]
    assert found["effect_size_contextual", "test=one"]["n"] == 9


def test_a_list_of_which_no_word_is_left_gives_no_figure(bert_folder, tmp_path, session):
    lists = LISTS | {"near": ["☃", "☂"]}
    _, _, found = judged(bert_folder, WeatConfig(word_lists=written(tmp_path / "w.json", lists)))
    row = found["effect_size_input", "test=one"]
    assert row["value"] is None and row["missing"] == 9 and "not measured" in row["method"]


def test_a_model_whose_states_are_not_numbers_is_not_measured(gpt2_folder, edited, session):
    from safetensors.torch import load_file, save_file

    folder = edited(gpt2_folder)
    weights = load_file(folder / "model.safetensors")
    weights["transformer.h.0.mlp.c_fc.weight"] *= float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(HallmarkError, match=r"^stage respond: The model's scores are not numbers"):
        judged(folder, WeatConfig())


def test_a_model_of_one_block_is_asked_for_its_states(tmp_path, session):
    folder = make_own(tmp_path, n_layers=1)
    _, _, found = judged(folder, WeatConfig())
    _, _, last = judged(folder, WeatConfig(layer=-1))
    assert found and found.keys() == last.keys()
    for key, row in found.items():
        assert row["value"] == last[key]["value"]
        assert key[1].startswith("scripted") or "contextual: layer -1" in row["method"]


def test_the_input_embeddings_are_no_layer_to_choose():
    with pytest.raises(ValueError, match="is 0, the input embeddings"):
        WeatConfig(layer=0)


def test_a_layer_that_the_model_lacks_is_refused(own_folder, session):
    with pytest.raises(UsageError, match="has 2 layers, so it has no layer -5"):
        judged(own_folder, WeatConfig(layer=-5))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"near": None}, "has no list 'near' of 2 to 1,000 words"),
        ({"near": ["she"]}, "has no list 'near'"),
        ({"near": ["she", 7]}, "near has no text in 'a word', but 7"),
        ({"near": ["she", "\ud800"]}, "no valid Unicode"),
        ({"tests": {"one": ["first", "second"]}}, "'one' needs four lists"),
        ({"tests": ["first"]}, "is no JSON object of lists"),
        ({"tests": {}}, "names no tests, and has not all lists of any of WEAT"),
    ],
)
def test_bad_lists_are_named(tmp_path, change, said):
    with pytest.raises(UsageError, match=said):
        read_weat_tests(written(tmp_path / "bad.json", LISTS | change))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "is no JSON object"),
    ],
)
def test_a_file_that_is_no_json_object_is_refused(tmp_path, text, said):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(UsageError, match=said):
        read_weat_tests(tmp_path / "bad.json")
    with pytest.raises(UsageError, match="there is no file"):
        read_weat_tests(tmp_path / "none.json")


@pytest.mark.skipif(not REAL.is_dir(), reason="the shared data folder is absent")
def test_the_ten_tests_of_the_real_lists():
    tests = read_weat_tests(REAL / "weat.json")
    assert [*tests] == [*WEAT_TESTS] and len(WEAT_TESTS) == 10
    sizes = [[len(some) for some in lists] for lists in tests.values()]
    assert sizes[0] == [25] * 4 and sizes[6] == [8] * 4 and sizes[8] == [6, 6, 7, 7]
    assert tests["WEAT 7"][0][:2] == ["math", "algebra"]
