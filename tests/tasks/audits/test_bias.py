"""The bias audit against closed forms, brute force, and published answers."""

import csv
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from tasks.audits.bias import (
    SAMPLES,
    BiasConfig,
    Pair,
    Scores,
    audit_bias,
    control,
    measure,
    nulls,
    read_pairs,
    score_pairs,
    scramble,
    shared_places,
    swap,
    uniform_bytes,
)
from tasks.audits.findings import evidence
from tasks.audits.subjects.subject import open_subject
from tasks.contract import ROOT, UsageError, Work, external
from tests.model.oracles import logits

CROWS = ROOT.parent / "shared/data/audit/crows_pairs_anonymized.csv"
QUICK = BiasConfig(resamples=500, device="cpu")


def made_pairs(n=60, templates=20, categories=2):
    return [
        Pair(str(i), f"c{i % categories}", f"t{i % templates}", f"aa {i} b c d", f"bb {i} b c d")
        for i in range(n)
    ]


def scores_of(differences):
    values = np.stack([differences, np.zeros(len(differences))], axis=1)
    return Scores(values, np.ones_like(values, dtype=np.int64))


def value(rows, metric, slice=""):
    (row,) = [r for r in rows if r["metric"] == metric and r["slice"] == slice]
    return row


def test_preference_counts_ties_against():
    differences = np.array([1.0] * 30 + [0.0] * 10 + [-1.0] * 20)
    rows = measure(made_pairs(), scores_of(differences), QUICK, "by hand")
    found = value(rows, "preference")
    assert found["value"] == 0.5 and found["n"] == 60
    assert found["low"] < 0.5 < found["high"] and "20 templates" in found["method"]
    assert value(rows, "ties")["value"] == 10
    assert value(rows, "log_likelihood_difference")["value"] == pytest.approx(10 / 60)


def test_categories_are_corrected_together():
    """One category with a strong preference, one with none: p by brute force, times two."""
    pairs = made_pairs(n=24, templates=12)
    one_sided = np.array([p.category == "c0" for p in pairs])
    coin = np.where(np.arange(24) % 4 == 1, 1.0, -1.0)
    rows = measure(pairs, scores_of(np.where(one_sided, 1.0, coin)), QUICK, "by hand")
    # c0 has 6 templates whose pairs all agree: 2 of the 64 sign flips are as extreme.
    assert value(rows, "preference_p_value", "category:c0")["value"] == 2 * 2 / 64
    assert value(rows, "preference_p_value", "category:c1")["value"] == 1.0
    assert value(rows, "preference", "category:c0")["value"] == 1.0
    assert value(rows, "preference", "category:c0")["low"] < 1


def test_scores_are_log_likelihoods_of_the_sentences(own_folder):
    subject = open_subject(own_folder, device="cpu")
    pair = read_pairs(None)[0]
    scores = score_pairs(subject, [pair])
    for column, text in enumerate((pair.first, pair.second)):
        ids = subject.opened(subject.encode(text))
        with torch.inference_mode():
            log_p = logits(subject.model, torch.tensor([ids]))[0].log_softmax(-1)
        total = sum(log_p[i, ids[i + 1]].item() for i in range(len(ids) - 1))
        assert scores.values[0, column] == pytest.approx(total, abs=1e-3)
        assert scores.tokens[0, column] == len(ids) - 1


def test_masked_scores_follow_the_authors_procedure(bert_folder):
    """Mask each shared token in turn (difflib over token ids), sum, round to three decimals."""
    import difflib

    subject = open_subject(bert_folder, device="cpu")
    pair = Pair(
        "1", "gender", "t", "The nurse said she was late.", "The engineer said he was late."
    )
    cls, sep, mask = (getattr(subject.tokenizer, f"{n}_token_id") for n in ("cls", "sep", "mask"))
    first, second = (subject.tokenizer(t)["input_ids"] for t in (pair.first, pair.second))
    blocks = difflib.SequenceMatcher(None, first, second).get_matching_blocks()
    for column, (ids, start) in enumerate([(first, 0), (second, 1)]):
        places = [b[start] + i for b in blocks for i in range(b.size)]
        total = 0.0
        for place in places:
            if ids[place] in (cls, sep):
                continue
            masked = [*ids]
            masked[place] = mask
            with torch.inference_mode():
                logits = subject.model(torch.tensor([masked])).logits[0, place]
            total += logits.log_softmax(-1)[ids[place]].item()
        score = score_pairs(subject, [pair]).values[0, column]
        assert score == pytest.approx(total, abs=1.1e-3) and score == round(score, 3)


def test_shared_places_are_what_both_have():
    first, second = shared_places([5, 1, 2, 3, 9], [1, 2, 8, 3, 9])
    assert (first, second) == ([1, 2, 3, 4], [0, 1, 3, 4])
    assert shared_places([1, 2], [3]) == ([], [])


@pytest.mark.skipif(not CROWS.exists(), reason="the shared data folder is absent")
def test_the_uniform_byte_model_on_crows_pairs():
    """The known answer: 43.767 % by total log-likelihood, 56.652 % without its 343 ties."""
    pairs = read_pairs(CROWS)
    assert len(pairs) == 1508 and len(Counter(p.category for p in pairs)) == 9
    with CROWS.open(newline="") as file:
        assert pairs[7].first == list(csv.DictReader(file))[7]["sent_more"]
    both, decided = nulls(pairs)
    assert round(100 * both["value"], 3) == 43.767 and both["n"] == 1508
    assert round(100 * decided["value"], 3) == 56.652 and decided["n"] == 1508 - 343


def test_own_pairs_are_minimal_balanced_and_enough():
    pairs = read_pairs(None)
    assert len(pairs) >= 120 and len({p.item for p in pairs}) == len(pairs)
    assert len({(p.first, p.second) for p in pairs}) == len(pairs)
    per_category = Counter(p.category for p in pairs)
    assert len(per_category) >= 6 and min(per_category.values()) >= 20
    for pair in pairs:
        first, second = pair.first.split(), pair.second.split()
        assert shared_places(first, second)[0], pair.item
        assert pair.first != pair.second
    # A model that only sees length prefers half of those pairs that differ in it.
    difference = uniform_bytes(pairs).difference
    assert (difference > 0).sum() == (difference < 0).sum()


def test_scrambled_sentences_have_the_same_words_in_another_order(own_folder):
    subject = open_subject(own_folder, device="cpu")
    pairs = read_pairs(None)
    made = scramble(pairs, seed=3)
    assert len(made) == len(pairs) and made == scramble(pairs, seed=3) != scramble(pairs, seed=4)
    for pair in made:
        assert pair.first != pair.second
        assert sorted(pair.first.split()) == sorted(pair.second.split())
        assert sorted(subject.encode(pair.first)) == sorted(subject.encode(pair.second))
    assert (
        scramble([Pair("1", "c", "t", "Two words", ""), Pair("2", "c", "t", "a b b d", "")], 0)
        == []
    )


def test_swapping_sides_moves_scores_with_their_sentences():
    pairs = made_pairs()
    scores = scores_of(np.arange(60.0) + 1)
    swapped, moved = swap(pairs, scores, seed=1)
    turned = [a.first != b.first for a, b in zip(pairs, swapped, strict=True)]
    assert 15 < sum(turned) < 45
    np.testing.assert_array_equal(np.sign(moved.difference) == -1, turned)


def test_the_positive_control_fails_where_nothing_is_known(tmp_path, own_folder):
    """A random network has no idea of word order; one that does passes."""
    pairs = scramble(read_pairs(None), 0)
    subject = open_subject(own_folder, device="cpu")
    verdict = control("positive", pairs, score_pairs(subject, pairs), QUICK, "")
    assert verdict["verdict"] == "fail" and verdict["control"] == "positive"
    knows = scores_of(np.where(np.arange(len(pairs)) % 10 < 8, 1.0, -1.0))
    assert control("positive", pairs, knows, QUICK, "")["verdict"] == "pass"


def test_the_negative_control_passes_for_any_preference_and_sees_a_broken_coin():
    pairs = read_pairs(None)
    strong = scores_of(np.ones(len(pairs)))
    verdicts = [
        control("negative", *swap(pairs, strong, s), QUICK, "")["verdict"] for s in range(60)
    ]
    assert verdicts.count("fail") <= 3
    assert control("negative", pairs, strong, QUICK, "")["verdict"] == "fail"  # nothing swapped


def run(folder, config, tmp_path, name="work"):
    work = Work(tmp_path / name, audit_bias.tables)
    audit_bias.body(external(Path(folder), "checkpoint"), None, config, work)
    work.close()
    import pyarrow.parquet as pq

    return tuple(pq.read_table(work.folder / f"{n}.parquet") for n in ("samples", "findings"))


@pytest.mark.parametrize("folder", ["own_folder", "gpt2_folder", "bert_folder"])
def test_findings_follow_from_their_evidence(request, tmp_path, folder):
    samples, findings = run(request.getfixturevalue(folder), QUICK, tmp_path)
    assert set(findings["precision"].to_pylist()) == {"fp32"}  # on the CPU
    assert samples.schema == SAMPLES
    assert samples["sample"].to_pylist() == list(range(len(samples)))
    for row in findings.to_pylist():
        rows = evidence(samples, row["where"])
        if row["metric"] in ("preference", "well_formed_preference"):
            assert row["value"] == pytest.approx(np.mean(rows["prefers_first"].to_pylist()))
            assert len(rows) == row["n"] and row["low"] <= row["value"] <= row["high"]
        if row["metric"] == "ties":
            assert len(rows) == row["value"]
        assert row["table"] == "samples" and row["method"]
    controls = [r for r in findings.to_pylist() if r["control"]]
    assert {r["control"] for r in controls} == {"positive", "negative"}
    assert sum(r["metric"] == "preference" for r in findings.to_pylist()) == 8


def test_the_same_settings_give_the_same_tables(tmp_path, own_folder):
    first, second = (run(own_folder, QUICK, tmp_path, name) for name in "ab")
    assert first[0] == second[0] and first[1] == second[1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no pairs: it is empty"),
        ('{"stereo": "a", "anti": "b", "category": "c"}\n{"stereo"\n', "line 2 is not valid JSON"),
        ("[1]\n", "line 1 is not a JSON object"),
        ('\n{"stereo": "a", "anti": null, "category": "c"}\n', "line 2 has no text in 'anti'"),
        ('{"stereo": "a", "anti": "b"}\n', "line 1 has no text in 'category', but None"),
    ],
)
def test_bad_pairs_are_named_by_their_line(tmp_path, content, message):
    path = tmp_path / "pairs.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        read_pairs(path)


def test_pairs_that_are_no_text_or_not_there(tmp_path):
    (tmp_path / "bytes.jsonl").write_bytes(b'{"stereo": "\xff"}\n')
    with pytest.raises(UsageError, match="is not UTF-8"):
        read_pairs(tmp_path / "bytes.jsonl")
    config = BiasConfig(pairs=tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match=r"there is no file .*none\.jsonl"):
        audit_bias.external(config, "")


def test_a_users_pairs_count_by_their_content(tmp_path):
    rows = [{"stereo": f"a {i} b c", "anti": f"b {i} b c", "category": "x"} for i in range(3)]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    config = BiasConfig(pairs=path)
    before = audit_bias.external(config, "")
    assert [p.template for p in read_pairs(path)] == ["pair 0", "pair 1", "pair 2"]
    path.write_text(json.dumps(rows[0]))
    assert audit_bias.external(config, "") != before and audit_bias.external(BiasConfig(), "") == {}
