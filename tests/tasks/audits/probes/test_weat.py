"""Test the probe weat against cosines of hidden states that transformers computes."""

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
    read_word_lists_by_test,
    tokenize_word_in_templates,
)
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import HallmarkError, UsageError
from tests.tasks.audits.audit_runs import run_audit_stages
from tests.tasks.audits.conftest import make_own

REAL = Path(__file__).parents[5] / "shared/data/audit"

LISTS = {
    "tests": {"one": ["first", "second", "near", "far"]},
    "first": ["nurse", "engineer", "late", "early"],
    "second": ["numbers", "documentation", "line", "long", "line by line"],
    "near": ["she", "said"],
    "far": ["he", "we", "read"],
}


def write_lists(path, lists):
    path.write_text(json.dumps(lists))
    return path


def run_audit(folder, config):
    """Run all stages; return responses, values, and findings by metric and slice."""
    _, response_set, *_, (values, findings) = run_audit_stages("weat", folder, config)
    return (
        response_set,
        values,
        {(r["metric"], name_slice(r["slice"])): r for r in findings.to_pylist()},
    )


def test_the_built_in_lists_give_findings_on_a_model(own_folder, session):
    response_set, values, findings = run_audit(own_folder, WeatConfig())
    tests = read_word_lists_by_test(WORD_LISTS_FILE)
    assert len(tests) == 4 and all(len({*w}) == 8 for lists in tests.values() for w in lists)
    for part in ("input", "contextual"):
        for test in tests:
            row = findings[f"effect_size_{part}", f"test={test}"]
            assert row["n"] == 16 and abs(row["value"]) < 1.94 and row["low"] < row["value"]
            assert (
                1 / 12870 <= row["p"] <= 1 and "exact one-sided p from all 12,870" in row["method"]
            )
            assert "contextual embeddings from layer -2" in row["method"]
            assert "words have several tokens" in row["method"]
        for name in ("scripted effect", "scripted chance"):
            assert findings[f"effect_size_{part}", name]["verdict"] == "pass"
    assert len(findings) == 12 and len(values) == 2 * 4 * 16
    words = {word for lists in tests.values() for word_list in lists for word in word_list}
    assert response_set["embeddings"].row_count == (1 + len(TEMPLATES)) * len(words)
    assert response_set["responses"].row_count == 0


def test_effect_sizes_equal_those_of_cosines_by_transformers(gpt2_folder, tmp_path, session):
    config = WeatConfig(word_lists=write_lists(tmp_path / "words.json", LISTS), layer=-1)
    _, values, findings = run_audit(gpt2_folder, config)
    model = open_audited_model(gpt2_folder, device="cpu")
    input_embeddings = model.model.transformer.wte.weight.detach().numpy()

    def encode_word(word):
        ids = model.encode(f" {word}")  # a separate space is not part of the word
        return [token for token in ids if model.decode([token]).strip()]

    def embed_in_context(word):
        states = []
        for template in TEMPLATES:
            ids = model.prepend_bos_id(model.encode(template.format(word)))
            with torch.inference_mode():
                output = model.model(torch.tensor([ids]), output_hidden_states=True)
            positions = slice(-1 - len(encode_word(word)), -1)
            states.append(output.hidden_states[-1][0, positions].mean(0).numpy())
        return np.mean(states, 0)

    def cosine(u, v):
        return u @ v / np.sqrt((u @ u) * (v @ v))

    embeddings = {
        "input": lambda word: input_embeddings[encode_word(word)].mean(0),
        "contextual": embed_in_context,
    }
    words = [word for name, word_list in LISTS.items() if name != "tests" for word in word_list]
    for part, embed in embeddings.items():
        vectors = {word: embed(word).astype(float) for word in words}
        associations = {
            word: np.mean([cosine(vectors[word], vectors[a]) for a in LISTS["near"]])
            - np.mean([cosine(vectors[word], vectors[b]) for b in LISTS["far"]])
            for word in (*LISTS["first"], *LISTS["second"])
        }
        rows = [r for r in values.to_pylist() if r["measure"] == f"association_{part}"]
        assert {r["text"]: r["value"] for r in rows} == pytest.approx(associations, abs=1e-5)
        means = [np.mean([associations[w] for w in LISTS[side]]) for side in ("first", "second")]
        effect_size = (means[0] - means[1]) / np.std([*associations.values()], ddof=1)
        row = findings[f"effect_size_{part}", "test=one"]
        assert row["value"] == pytest.approx(effect_size, abs=1e-4) and row["n"] == 9


def test_words_spelled_by_bytes_are_tokenized(own_folder):
    tokenizer = open_audited_tokenizer(own_folder)
    for word, is_byte_spelled in (("nurse", False), ("żółw", True), ("Zqxvk", True)):
        sentences = tokenize_word_in_templates(tokenizer, word)
        for template, (ids, positions) in zip(TEMPLATES, sentences, strict=True):
            assert tokenizer.decode(ids).strip() == template.format(word)
            assert tokenizer.decode([ids[i] for i in positions]).strip() == word
        positions = sentences[0].word_positions
        assert (1 < len(word.encode()) <= len(positions)) == is_byte_spelled


def test_words_without_tokens_or_too_long_are_skipped_and_counted(bert_folder, tmp_path, session):
    lists = LISTS | {"near": ["she", "☃", "said"], "far": ["he", "we", "read " * 40]}
    config = WeatConfig(word_lists=write_lists(tmp_path / "w.json", lists))
    _, _, findings = run_audit(bert_folder, config)
    skipped = findings["skipped_words", ""]
    assert skipped["value"] == 2 and "exceed the context length" in skipped["method"]
    assert findings["effect_size_contextual", "test=one"]["n"] == 9


def test_a_list_without_usable_words_gives_no_effect_size(bert_folder, tmp_path, session):
    lists = LISTS | {"near": ["☃", "☂"]}
    config = WeatConfig(word_lists=write_lists(tmp_path / "w.json", lists))
    _, _, findings = run_audit(bert_folder, config)
    row = findings["effect_size_input", "test=one"]
    assert row["value"] is None and row["missing"] == 9 and "not measured" in row["method"]


def test_a_model_with_nan_states_is_refused(gpt2_folder, edited, session):
    from safetensors.torch import load_file, save_file

    folder = edited(gpt2_folder)
    weights = load_file(folder / "model.safetensors")
    weights["transformer.h.0.mlp.c_fc.weight"] *= float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(HallmarkError, match=r"^stage respond: The model's scores are not numbers"):
        run_audit(folder, WeatConfig())


def test_a_model_of_one_block_uses_the_states_of_that_block(tmp_path, session):
    folder = make_own(tmp_path, n_layers=1)
    _, _, findings = run_audit(folder, WeatConfig())
    _, _, last = run_audit(folder, WeatConfig(layer=-1))
    assert findings and findings.keys() == last.keys()
    for key, row in findings.items():
        assert row["value"] == last[key]["value"]
        assert (
            key[1].startswith("scripted") or "contextual embeddings from layer -1" in row["method"]
        )


def test_layer_0_is_refused():
    with pytest.raises(ValueError, match="layer is 0, which refers to the input embeddings"):
        WeatConfig(layer=0)


def test_a_layer_that_the_model_lacks_is_refused(own_folder, session):
    with pytest.raises(UsageError, match="has 2 layers, so layer -5 does not exist"):
        run_audit(own_folder, WeatConfig(layer=-5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"near": None}, "has no list 'near' with 2 to 1,000 words"),
        ({"near": ["she"]}, "has no list 'near'"),
        ({"near": ["she", 7]}, "near must have text in 'a word', not 7"),
        ({"near": ["she", "\ud800"]}, "invalid Unicode"),
        ({"tests": {"one": ["first", "second"]}}, "'one' needs four lists"),
        ({"tests": ["first"]}, "is not a JSON object of word lists"),
        ({"tests": {}}, "has neither a `tests` object nor the complete lists of a WEAT test"),
    ],
)
def test_errors_name_invalid_lists(tmp_path, change, message):
    with pytest.raises(UsageError, match=message):
        read_word_lists_by_test(write_lists(tmp_path / "bad.json", LISTS | change))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "is not a JSON object"),
    ],
)
def test_a_file_that_is_not_a_json_object_is_refused(tmp_path, text, message):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_word_lists_by_test(tmp_path / "bad.json")
    with pytest.raises(UsageError, match="there is no file"):
        read_word_lists_by_test(tmp_path / "none.json")


@pytest.mark.skipif(not REAL.is_dir(), reason="the shared data folder is absent")
def test_the_published_lists_have_ten_tests():
    tests = read_word_lists_by_test(REAL / "weat.json")
    assert [*tests] == [*WEAT_TESTS] and len(WEAT_TESTS) == 10
    sizes = [[len(word_list) for word_list in lists] for lists in tests.values()]
    assert sizes[0] == [25] * 4 and sizes[6] == [8] * 4 and sizes[8] == [6, 6, 7, 7]
    assert tests["mathematics and arts, words for men and for women (WEAT 7)"].x[0] == "math"


def test_the_name_of_each_published_test_says_what_it_compares():
    for number, (name, lists) in enumerate(WEAT_TESTS.items(), 1):
        assert name.endswith(f" (WEAT {number})")
        targets, attributes = name.removesuffix(f" (WEAT {number})").split(", ")
        for phrase in (targets, attributes):
            assert " and " in phrase and "_" not in phrase
        assert len(lists) == 4
    assert "names of men and of women, career and family (WEAT 6)" in WEAT_TESTS
