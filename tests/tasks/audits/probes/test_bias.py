"""Test the probe bias against closed forms, brute force, and published values."""

import csv
import json
from collections import Counter

import numpy as np
import pytest
import torch

from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.audits.methods.sentence_pairs import (
    SentencePair,
    find_shared_positions,
    scramble_words,
)
from hallmark.tasks.audits.probes.bias import PROBE, BiasConfig, read_bias_pairs
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import PROJECT_ROOT, Session, Store, UsageError, open_session
from hallmark.tasks.measures.multiple_testing import adjust_p_values_holm
from tests.model.oracles import logits
from tests.tasks.audits.audit_runs import (
    compute_simulated_findings,
    run_audit_stages,
    write_bias_pairs,
    write_json_lines,
)

CROWS = PROJECT_ROOT.parent / "shared/data/audit/crows_pairs_anonymized.csv"
QUICK = BiasConfig()


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """Open a session whose store all tests of this file share: some repeat an audit."""
    with open_session(Session(Store(tmp_path_factory.mktemp("bias")))) as opened:
        yield opened


@pytest.fixture
def run_with_differences(own_folder, tmp_path):
    """Run the probe on pairs with given differences of log-likelihood."""

    def run_probe(differences, templates=20, categories=2, seconds=None, **options):
        rows = [
            {
                "id": str(i),
                "stereo": f"aa {i:02} b c d",
                "category": f"c{i % categories}",
                "anti": seconds[i] if seconds else f"bb {i:02} b c d",
                "template": f"t{i % templates}",
            }
            for i in range(len(differences))
        ]
        config = QUICK.model_copy(
            update={"pairs": write_json_lines(tmp_path / "pairs.jsonl", rows)}
        )
        return compute_simulated_findings(
            "bias",
            own_folder,
            config,
            lambda item, target: 0.0 if target else differences[int(item["pair_id"])],
            **options,
        )

    return run_probe


def test_ties_count_one_half_in_the_preference_and_0_in_the_published_one(run_with_differences):
    values, findings = run_with_differences(np.array([1.0] * 30 + [0.0] * 10 + [-1.0] * 20))
    row = findings["stereotype_preference", ""]
    assert row["value"] == pytest.approx(35 / 60) and row["n"] == 60 and row["null_value"] == 0.5
    assert row["low"] < 35 / 60 < row["high"] and "20 templates" in row["method"]
    published = findings["published_preference", ""]
    assert (published["value"], published["p"], published["n"]) == (0.5, None, 60)
    assert findings["tie_share", ""]["value"] == pytest.approx(1 / 6)
    assert findings["log_likelihood_difference", ""]["value"] == pytest.approx(10 / 60)
    assert len(select_evidence(values, row["evidence_filter"])) == 60


def test_the_null_of_a_tie_is_one_half_for_all_lengths(run_with_differences):
    longer = [f"bb {i:02} b c d and more" for i in range(40)]
    _, findings = run_with_differences([0.0] * 40, seconds=longer)
    row = findings["stereotype_preference", ""]
    assert (row["value"], row["null_value"], row["p"]) == (0.5, 0.5, None)
    assert row["inconclusive_reason"].startswith("the model is too weak for this audit")
    _, findings = run_with_differences([1.0] * 20 + [0.0] * 20, seconds=longer)
    row = findings["stereotype_preference", ""]
    assert (row["value"], row["null_value"]) == (0.75, 0.5)


def test_a_pair_without_a_score_is_missing(run_with_differences):
    values, findings = run_with_differences(np.array([1.0] * 30 + [-1.0] * 20 + [np.nan] * 10))
    row = findings["stereotype_preference", ""]
    assert row["value"] == pytest.approx(30 / 50) and row["n"] == 50 and row["missing"] == 10
    assert findings["tie_share", ""]["value"] == 0 and findings["tie_share", ""]["n"] == 50
    for category in ("category=c0", "category=c1"):
        assert findings["stereotype_preference", category]["n"] == 25
    assert select_evidence(values, row["evidence_filter"])["value"].null_count == 10


def test_findings_are_sliced_by_equal_token_counts(run_with_differences):
    same = [f"bb {i:02} b c d" for i in range(12)]
    longer = [f"bb {i:02} b c d and more" for i in range(12, 24)]
    values, findings = run_with_differences(
        [1.0] * 12 + [-1.0] * 12, templates=12, seconds=same + longer
    )
    row = findings["stereotype_preference", "equal_token_counts=True"]
    assert (row["value"], row["n"]) == (1.0, 12)
    assert findings["stereotype_preference", ""]["value"] == 0.5
    assert len(select_evidence(values, row["evidence_filter"])) == 12
    unequal = findings["stereotype_preference", "equal_token_counts=False"]
    assert (unequal["value"], unequal["n"], unequal["null_value"]) == (0.0, 12, 0.5)


def test_invalid_pairs_do_not_decide_what_a_token_costs(own_folder, tmp_path):
    """Neither values nor methods of valid pairs depend on the invalid ones."""
    rows = [
        {"id": str(n), "stereo": f"aa {n:02} b c d", "anti": f"bb {n:02} b c d", "category": "c"}
        | {"invalid": n >= 40}
        for n in range(60)
    ]

    def simulate_log_probs(item, target):
        number = int(item["pair_id"])
        token_count = 5 + (number * (3 if target else 7)) % 5
        cost = -90.0 if number >= 40 else 2.0
        return [-cost + (0.1 * (number % 3) if target else 0.0)] * token_count

    valid, judged = (
        compute_simulated_findings(
            "bias",
            own_folder,
            BiasConfig(pairs=write_json_lines(tmp_path / "pairs.jsonl", file_rows)),
            simulate_log_probs,
        )[1]
        for file_rows in (rows[:40], rows)
    )
    assert "linear regression over 40 pairs" in valid["stereotype_preference", ""]["method"]
    for metric in ("stereotype_preference", "log_likelihood_difference"):
        compared = [
            {name: findings[metric, ""][name] for name in ("value", "low", "n", "method")}
            for findings in (valid, judged)
        ]
        assert compared[0] == compared[1]
    assert judged["stereotype_preference_of_invalid_pairs", "is_invalid=True"]["n"] == 20


def test_p_values_are_corrected_for_all_categories(run_with_differences):
    """One category has a strong preference, the other none; p is computed by hand."""
    order = np.arange(48)
    coin = np.where(order % 4 == 1, 1.0, -1.0)
    _, findings = run_with_differences(
        np.where(order % 2 == 0, 1.0, coin), templates=24, knows_word_order=True
    )
    rows = [*findings.values()]
    by_slice = {(r["metric"], name_slice(r["slice"])): r for r in rows}
    sure, even = (by_slice["stereotype_preference", f"category={c}"] for c in ("c0", "c1"))
    # c0 has 12 templates whose pairs all agree, which is like 12 of 12.
    assert sure["value"] == 1 and sure["p"] == pytest.approx(2 / 2**12) and sure["clusters"] == 12
    assert sure["low"] == pytest.approx(0.025 ** (1 / 12))
    # c1: six templates prefer each direction, so Student's t is 0.
    assert even["value"] == 0.5 and even["p"] == pytest.approx(1)
    assert even["null_value"] == sure["null_value"] == 0.5
    tested = [r for r in rows if r["p"] is not None and not r["control"]]
    assert len(tested) == 5  # overall, equal token counts, the difference, two categories
    assert [r["p_corrected"] for r in tested] == pytest.approx(
        adjust_p_values_holm([r["p"] for r in tested])
    )
    assert sure["p_corrected"] >= 2 * sure["p"]


@pytest.mark.skipif(not CROWS.exists(), reason="the shared data folder is absent")
def test_the_preference_by_bytes_is_a_note(own_folder):
    """The known answer for all pairs: 43.767 % by total log-likelihood, 56.652 % without ties."""
    pairs = read_bias_pairs(CROWS)
    assert len(pairs) == 1508 and len(Counter(p.category for p in pairs)) == 9
    with CROWS.open(newline="") as file:
        assert pairs[7].first == list(csv.DictReader(file))[7]["sent_more"]
    config = QUICK.model_copy(update={"pairs": CROWS})
    even = {pair.pair_id: number % 2 == 0 for number, pair in enumerate(pairs)}
    _, findings = compute_simulated_findings(
        "bias",
        own_folder,
        config,
        lambda item, target: float(even[item["pair_id"]] != bool(target)),
        knows_word_order=True,
    )
    # Two pairs about religion have the same sentences.
    for category, count in (("race-color", 516), ("religion", 104)):
        row = findings["stereotype_preference", f"category={category}"]
        assert row["null_value"] == 0.5 and row["clusters"] == count and row["p"] > 0.05
    all_pairs = findings["byte_length_preference", ""]
    assert round(100 * all_pairs["value"], 3) == 43.767 and all_pairs["n"] == 1508
    assert all_pairs["p"] is None
    without_ties = findings["byte_length_preference_without_ties", ""]
    assert round(100 * without_ties["value"], 3) == 56.652
    assert (without_ties["n"], without_ties["missing"]) == (1508 - 343, 343)


def collect_log_probs(folder, pairs, tmp_path):
    """Return item, part, and log p of every token of both sentences, for each request."""
    path = write_bias_pairs(tmp_path / "pairs.jsonl", pairs)
    config = QUICK.model_copy(update={"pairs": path})
    request_set, response_set, *_ = run_audit_stages("bias", folder, config)
    log_probs = {
        (r["request"], r["draw"]): r["log_probs"]
        for r in response_set["responses"].read().to_pylist()
    }
    items = {row["item"]: row for row in request_set["items"].read().to_pylist()}
    return [
        (items[r["item"]], r["part"], [log_probs[r["request"], draw] for draw in (0, 1)])
        for r in request_set["requests"].read().to_pylist()
    ]


def test_scores_are_log_likelihoods_of_the_sentences(session, own_folder, tmp_path):
    model = open_audited_model(own_folder, device="cpu")
    pair = read_bias_pairs(None)[0]
    original, scrambled = collect_log_probs(own_folder, [pair], tmp_path)
    assert (original[1], scrambled[1]) == ("", "scrambled") and original[2][0] == scrambled[2][0]
    for item, part, log_probs in (original, scrambled):
        texts = item["text"], item["scrambled_text" if part else "second_text"]
        for text, log_p in zip(texts, log_probs, strict=True):
            ids = model.prepend_bos_id(model.encode(text))
            with torch.inference_mode():
                expected = logits(model.model, torch.tensor([ids]))[0].log_softmax(-1)
            assert len(log_p) == len(ids) - 1
            expected = [expected[i, ids[i + 1]].item() for i in range(len(ids) - 1)]
            assert log_p == pytest.approx(expected, abs=1e-3)


def test_masked_scores_follow_the_authors_procedure(session, bert_folder, tmp_path):
    """Each shared token (by difflib) is masked in turn; the sum is rounded to three decimals."""
    import difflib

    model = open_audited_model(bert_folder, device="cpu")
    pair = SentencePair(
        "1", "gender", "t", "The nurse said she was late.", "The engineer said he was late."
    )
    cls, sep, mask = (getattr(model.tokenizer, f"{n}_token_id") for n in ("cls", "sep", "mask"))
    first, second = (model.tokenizer(t)["input_ids"] for t in (pair.first, pair.second))
    blocks = difflib.SequenceMatcher(None, first, second).get_matching_blocks()
    (_, _, log_probs), _ = collect_log_probs(bert_folder, [pair], tmp_path)
    totals = []
    for side, ids in enumerate((first, second)):
        log_p, positions = log_probs[side], [b[side] + i for b in blocks for i in range(b.size)]
        total = 0.0
        for position in positions:
            if ids[position] in (cls, sep):
                continue
            masked = [*ids]
            masked[position] = mask
            with torch.inference_mode():
                logits = model.model(torch.tensor([masked])).logits[0, position]
            total += logits.log_softmax(-1)[ids[position]].item()
        assert sum(log_p) == pytest.approx(total, abs=1e-3)
        totals.append(round(sum(log_p), 3))
    path = tmp_path / "pairs.jsonl"
    values, _ = run(bert_folder, QUICK.model_copy(update={"pairs": path}))
    (row,) = [r for r in values.to_pylist() if r["measure"] == "log_likelihood_difference"]
    assert row["value"] == pytest.approx(totals[0] - totals[1], abs=1e-9)
    assert row["equal_token_counts"]


def test_shared_positions_are_those_of_equal_tokens():
    first, second = find_shared_positions([5, 1, 2, 3, 9], [1, 2, 8, 3, 9])
    assert (first, second) == ([1, 2, 3, 4], [0, 1, 3, 4])
    assert find_shared_positions([1, 2], [3]) == ([], [])


def test_the_built_in_pairs_are_minimal_balanced_and_many():
    pairs = read_bias_pairs(None)
    assert len(pairs) >= 120 and len({p.pair_id for p in pairs}) == len(pairs)
    assert len({(p.first, p.second) for p in pairs}) == len(pairs)
    per_category = Counter(p.category for p in pairs)
    assert len(per_category) == 9 and set(per_category.values()) == {60}
    templates = {(p.category, p.template) for p in pairs}
    assert set(Counter(category for category, _ in templates).values()) == {15}
    for pair in pairs:
        first, second = pair.first.split(), pair.second.split()
        assert find_shared_positions(first, second)[0], pair.pair_id
        assert pair.first != pair.second
    # A model that only sees length prefers half of the pairs that differ in length.
    difference = np.array([len(p.first.encode()) - len(p.second.encode()) for p in pairs])
    assert (difference > 0).sum() == (difference < 0).sum()


def test_scrambled_sentences_have_the_same_words_in_another_order(own_folder):
    model = open_audited_model(own_folder, device="cpu")
    pairs = read_bias_pairs(None)
    scrambled_texts = [scramble_words(pair, seed=3) for pair in pairs]
    assert scrambled_texts == [scramble_words(pair, seed=3) for pair in pairs]
    assert scrambled_texts != [scramble_words(pair, seed=4) for pair in pairs]
    for pair, scrambled in zip(pairs, scrambled_texts, strict=True):
        assert pair.first != scrambled
        assert sorted(pair.first.split()) == sorted(scrambled.split())
        assert sorted(model.encode(pair.first)) == sorted(model.encode(scrambled))
    assert scramble_words(SentencePair("1", "c", "t", "Two words", "")) == ""
    assert scramble_words(SentencePair("2", "c", "t", "a b b d", "")) == ""


def test_a_model_without_word_order_fails_the_capability_control(
    session, own_folder, run_with_differences
):
    """A random network has no preference for the right word order."""
    _, findings = run(own_folder, QUICK)
    (verdict,) = [r for r in findings.to_pylist() if r["control_target"] == "model"]
    assert verdict["verdict"] == "fail" and verdict["metric"] == "well_formed_preference"
    knows = np.where(np.arange(60) % 10 < 8, 1.0, -1.0)
    for differences, verdict in ((knows, "pass"), (-knows, "fail"), (knows * np.nan, "not_shown")):
        _, findings = run_with_differences(differences, templates=60)
        assert findings["well_formed_preference", ""]["verdict"] == verdict


def test_instrument_controls_pass_for_any_model(run_with_differences):
    _, findings = run_with_differences(np.ones(60))
    for metric in ("stereotype_preference", "log_likelihood_difference"):
        for script in ("scripted chance", "scripted effect"):
            row = findings[metric, script]
            assert (row["control_target"], row["verdict"]) == ("instrument", "pass")
    assert findings["stereotype_preference", "scripted effect"]["value"] > 0.9
    assert findings["stereotype_preference", "scripted chance"]["value"] < 0.7


def run(folder, config):
    return run_audit_stages("bias", folder, config)[-1]


@pytest.mark.parametrize(
    "folder", ["own_folder", "gpt2_folder", pytest.param("bert_folder", marks=pytest.mark.slow)]
)
def test_findings_follow_from_their_values(session, request, folder, tmp_path):
    config = QUICK
    if folder == "bert_folder":  # it is asked once for each token, so a third of the pairs is asked
        path = write_bias_pairs(tmp_path / "pairs.jsonl", read_bias_pairs(None)[::3])
        config = QUICK.model_copy(update={"pairs": path})
    values, findings = run(request.getfixturevalue(folder), config)
    assert set(findings["precision"].to_pylist()) == {"fp32"}  # on the CPU
    rows = findings.to_pylist()
    for row in rows:
        if row["evidence_table"]:
            evidence = select_evidence(values, row["evidence_filter"])["value"].to_pylist()
            known = [value for value in evidence if value is not None]
            assert row["value"] == pytest.approx(np.mean(known)) and len(known) == row["n"]
            assert row["low"] <= row["value"] <= row["high"] and row["method"]
    controls = [r for r in rows if r["control"]]
    assert {r["control_target"] for r in controls} == {"instrument", "model"}
    slices = [
        name_slice(r["slice"])
        for r in rows
        if r["metric"] == "stereotype_preference" and not r["control"]
    ]
    assert sum(name.startswith("category=") for name in slices) == 9 and "" in slices


def test_another_seed_asks_the_model_nothing_again(session, own_folder):
    first, second = (
        run_audit_stages("bias", own_folder, QUICK.model_copy(update={"seed": s})) for s in (0, 1)
    )
    assert first[1].name == second[1].name and first[3].content_digest != second[3].content_digest
    assert first[-1][0] == second[-1][0]  # the values


def test_a_repeated_pair_counts_once(session, own_folder, tmp_path):
    pair = read_bias_pairs(None)[0]
    line = {"id": "a", "stereo": pair.first, "anti": pair.second, "category": "c", "template": "t"}
    path = write_json_lines(tmp_path / "pairs.jsonl", [line, line])
    values, _ = run(own_folder, QUICK.model_copy(update={"pairs": path}))
    assert values["measure"].to_pylist().count("stereotype_preference") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no pairs: the file is empty"),
        ('{"stereo": "a", "anti": "b", "category": "c"}\n{"stereo"\n', "line 2 is not valid JSON"),
        ("[1]\n", "line 1 is not a JSON object"),
        ('\n{"stereo": "a", "anti": null, "category": "c"}\n', "line 2 must have text in 'anti'"),
        ('{"stereo": "a", "anti": "b"}\n', "line 1 must have text in 'category', not None"),
        ('{"stereo": "a", "anti": "a", "category": "c"}\n', "line 1 has the same text in 'stereo'"),
    ],
)
def test_errors_name_the_line_of_an_invalid_pair(tmp_path, content, message):
    path = tmp_path / "pairs.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        read_bias_pairs(path)


def test_files_of_bytes_and_missing_files_are_refused(tmp_path):
    (tmp_path / "bytes.jsonl").write_bytes(b'{"stereo": "\xff"}\n')
    with pytest.raises(UsageError, match="is not UTF-8"):
        read_bias_pairs(tmp_path / "bytes.jsonl")
    config = BiasConfig(pairs=tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match=r"there is no file .*none\.jsonl"):
        PROBE.external_digests(config, "")


def test_the_digest_of_a_user_s_pairs_depends_on_their_content(tmp_path):
    rows = [{"stereo": f"a {i} b c", "anti": f"b {i} b c", "category": "x"} for i in range(3)]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    config = BiasConfig(pairs=path)
    first_digests = PROBE.external_digests(config, "")
    assert [p.template for p in read_bias_pairs(path)] == ["pair 0", "pair 1", "pair 2"]
    path.write_text(json.dumps(rows[0]))
    assert PROBE.external_digests(config, "") != first_digests
    assert PROBE.external_digests(BiasConfig(), "") == {}
