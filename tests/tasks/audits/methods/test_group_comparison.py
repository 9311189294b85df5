"""Texts about groups: counterfactual prompts and BOLD, with scores of known answers and a model."""

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from hallmark.tasks.audits.audit_tables import (
    OVERLAP_COLUMNS,
    REQUESTS,
    RESPONSES,
    SCORES,
    SKIPPED,
    TRAINING_OVERLAP,
    RequestBuilder,
)
from hallmark.tasks.audits.audited_models.opening import open_audited_tokenizer
from hallmark.tasks.audits.judging.evidence_filters import sort_worst_first
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.audits.judging.measures import build_values_schema
from hallmark.tasks.audits.methods.group_comparison import VALUE_FIELDS
from hallmark.tasks.audits.probe import CorpusTables
from hallmark.tasks.audits.probes import bold, counterfactual
from hallmark.tasks.audits.probes.bold import BoldConfig, read_bold_prompts, select_prompts
from hallmark.tasks.audits.probes.counterfactual import CounterfactualConfig, read_builtin_groups
from hallmark.tasks.audits.responses import IDENTITY_PLACEHOLDER, Responses, build_masked_texts
from hallmark.tasks.audits.scoring import ScoreConfig
from hallmark.tasks.contract import UsageError, hash_texts
from hallmark.tasks.measures.scorers import ClassifierConfig, ScorerConfig, WordListConfig
from tests.tasks.audits.asking import stages_of
from tests.tasks.measures.classifier_folder import make_classifier

REAL = Path(__file__).parents[5] / "shared/data/audit"

QUICK = CounterfactualConfig(continuations_per_prompt=2, max_new_tokens=5, permutations=999)


def judged(probe, folder, config, score, heads=("toxicity",), planted=None):
    """Values and findings where ``score(item, draw)`` is what a scorer says of each text, and
    ``planted(item, draw)`` how many of its tokens stand in a planted document."""
    reader, questions = open_audited_tokenizer(folder), RequestBuilder()
    probe.build_requests(questions, reader, CorpusTables(), config)
    responses, scores, held = [], {}, []
    for row in questions.requests:
        for draw in range(row["draws"]):
            text = f" text {len(responses)}"
            responses.append({"request": row["request"], "draw": draw, "text": text})
            scores[text] = score(questions.items[row["item"]], draw)
            held.append(planted(questions.items[row["item"]], draw) if planted else 0)
    texts = pa.array([*scores], pa.large_string())
    known = {
        "text_hash": pa.concat_arrays([hash_texts(texts)] * len(heads)),
        "scorer": ["by hand"] * len(scores) * len(heads),
        "head": np.repeat(heads, len(scores)),
        "score": pa.array([*scores.values()] * len(heads), pa.float32(), from_pandas=True),
    }
    answers = Responses(
        pa.Table.from_pylist([*questions.items.values()], schema=probe.item_schema),
        pa.Table.from_pylist(questions.requests, schema=REQUESTS),
        pa.Table.from_pylist(responses, schema=RESPONSES),
        pa.table(known, schema=SCORES),
        skipped=pa.Table.from_pylist(questions.skipped, schema=SKIPPED),
        scorers=pa.table({"scorer": ["by hand"], "heads": [[*heads]]}),
        training_overlap=pa.table(dict.fromkeys(OVERLAP_COLUMNS, held)).cast(
            pa.schema([TRAINING_OVERLAP.field(name) for name in OVERLAP_COLUMNS])
        )
        if planted
        else None,
    )
    values, rows = probe.compute_values_and_findings(answers, config)
    found = {(row["metric"], row["slice"]): row for row in rows}
    assert len(found) == len(rows) and values.schema.equals(
        build_values_schema(probe.item_schema, VALUE_FIELDS)
    )
    for row in found.values():
        if row["metric"] in ("mean_toxicity", "toxic_share"):
            behind = select_evidence(values, row["evidence_filter"])
            assert row["value"] == pytest.approx(np.nanmean(behind["value"].to_numpy()))
            assert row["n"] + row["missing"] == len(behind) and row["scorer"] == "by hand"
    return values, found


# Counterfactual prompts --------------------------------------------------------------------------


def test_prompts_of_a_template_differ_in_the_group_alone(own_folder):
    words = {(g.lexicon, g.group): g.display_word for g in read_builtin_groups()}
    assert words["race", "Black people"] == "Black people" and words["gender", "men"] == "men"
    questions = RequestBuilder()
    counterfactual.PROBE.build_requests(
        questions, open_audited_tokenizer(own_folder), CorpusTables(), QUICK
    )
    items = [*questions.items.values()]
    templates = {item["cluster"] for item in items}
    assert len(templates) >= 15 and len(items) == len(templates) * len(words)
    for item in items:
        said = item["cluster"].format(group=words[item["domain"], item["group_name"]])
        assert item["text"] == said[0].upper() + said[1:]


def test_a_model_that_is_worse_for_one_group_by_a_tenth(own_folder):
    """Whatever the template does to the score: the pairs are told apart from chance."""
    rng = np.random.default_rng(0)
    level = {}

    def score(item, draw):
        base = level.setdefault(item["cluster"], rng.uniform(0.2, 0.6))
        return base + 0.1 * (item["group_name"] == "Muslims") + rng.normal(0, 0.01)

    texts, found = judged(counterfactual.PROBE, own_folder, QUICK, score)
    part = "domain=religion, group_name=Muslims"
    row = found["toxicity_difference", part]
    assert (
        row["value"] == pytest.approx(0.1, abs=0.01)
        and row["p"] == 2 / 1000
        and row["null_value"] == 0
    )
    assert row["low"] < 0.1 < row["high"] and row["high"] - row["low"] < 0.03
    assert "relabellings of 80 prompts, within each of 16" in row["method"]
    assert row["clusters"] == 16
    behind = select_evidence(texts, {"measure": "mean_toxicity", "domain": "religion"})
    values = behind["toxicity"].to_numpy()
    member = np.array(behind["group_name"].to_pylist()) == "Muslims"
    distance = found["toxicity_distance", part]
    expected = stats.wasserstein_distance(values[member], values[~member])
    assert distance["value"] == pytest.approx(expected) and distance["low"] is None
    assert distance["p"] < 0.05 and 0 < distance["null_value"] < distance["value"]
    assert "relabellings" in distance["method"] and "no interval" in distance["method"]
    inside = select_evidence(texts, found["mean_toxicity", part]["evidence_filter"])
    assert inside == select_evidence(
        texts, row["evidence_filter"]
    )  # what stands behind a difference, too
    assert found["mean_toxicity", part]["value"] == pytest.approx(
        inside["toxicity"].to_numpy().mean()
    )
    share = (inside["toxicity"].to_numpy() >= 0.5).mean()
    assert found["toxic_share", part]["value"] == pytest.approx(share)
    others = [r["p"] for (m, s), r in found.items() if m == "toxicity_distance" and "race" in s]
    assert len(others) == 5 and min(others) > 0.01
    assert ("toxicity_difference", "domain=gender, group_name=men") in found
    assert ("toxicity_difference", "domain=gender, group_name=women") not in found  # the same again


def test_what_was_not_scored_is_missing_and_said(own_folder):
    def score(item, draw):
        return np.nan if item["group_name"] == "men" and draw else 0.25

    _, found = judged(counterfactual.PROBE, own_folder, QUICK, score)
    row = found["mean_toxicity", "domain=gender, group_name=men"]
    assert row["missing"] == row["n"] and row["value"] == 0.25
    for head in ("sentiment", "regard"):
        row = found[f"mean_{head}", ""]
        assert row["value"] is None and f"no scorer of {head} is named" in row["method"]


def test_the_instrument_finds_a_large_effect_and_none(own_folder):
    _, found = judged(counterfactual.PROBE, own_folder, QUICK, lambda item, draw: 0.1)
    controls = [row for row in found.values() if row["control"]]
    assert {(row["metric"], row["slice"]) for row in controls} == {
        (f"score_{metric}", f"scripted {kind}")
        for metric in ("difference", "distance")
        for kind in ("chance", "effect")
    }
    assert all(
        row["verdict"] == "pass" and row["control_target"] == "instrument" for row in controls
    )


def test_regard_is_read_with_the_group_masked():
    requests = [
        {"request": b"a" * 16, "prefix_text": "The Tall folk are", "masked_words": ["Tall folk"]},
        {"request": b"b" * 16, "prefix_text": "Untold", "masked_words": []},
        {"request": b"c" * 16, "prefix_text": None, "masked_words": None},
    ]
    answered = [
        (b"a", " said of tall FOLK and folk"),
        (b"b", " tall folk"),
        (b"c", " x"),
        (b"a", None),
    ]
    rows = [{"request": r * 16, "draw": 0, "text": text} for r, text in answered]
    found = build_masked_texts(
        pa.Table.from_pylist(requests, schema=REQUESTS),
        pa.Table.from_pylist(rows, schema=RESPONSES),
    )
    masked = f"The {IDENTITY_PLACEHOLDER} are said of {IDENTITY_PLACEHOLDER} and folk"
    assert found.to_pylist() == [masked, "Untold tall folk", None, None]


def test_a_model_is_asked_and_scored_by_all_heads(own_folder, session, tmp_path):
    (tmp_path / "list.tsv").write_text("the\t1.5\nnumbers\t-2\ne\t1\ns\t-1\n")
    also = (
        WordListConfig(kind="words", path=tmp_path / "list.tsv"),
        ClassifierConfig(kind="classifier", folder=make_classifier(tmp_path / "c"), head="regard"),
    )
    config = QUICK.model_copy(update={"permutations": 99, "continuations_per_prompt": 1})
    _, _, scored, _, (values, findings) = stages_of("counterfactual", own_folder, config, also=also)
    scorers = scored["scorers"].read().to_pylist()
    assert [row["heads"] for row in scorers] == [["toxicity"], ["sentiment"], ["regard"]]
    regard = select_evidence(values, {"measure": "mean_regard"})
    assert len(set(regard["value"].to_pylist())) > 100
    scores = scored["scores"].read().to_pylist()
    by_text = {(row["text_hash"], row["head"]): row["score"] for row in scores}
    words = {g.group: g.display_word for g in read_builtin_groups()}
    for row in [row for row in regard.to_pylist() if not row["is_empty"]][::50]:
        prompt, word = row["text"], words[row["group_name"]]
        start = prompt.lower().index(word.lower())
        whole = (
            prompt[:start]
            + IDENTITY_PLACEHOLDER
            + prompt[start + len(word) :]
            + row["continuation"]
        )
        (name,) = hash_texts(pa.array([whole], pa.large_string())).to_pylist()
        assert by_text[name, "regard"] == row["value"]
    found = {(row["metric"], row["slice"]): row for row in findings.to_pylist()}
    for head, who in (("toxicity", 0), ("sentiment", 1), ("regard", 2)):
        row = found[f"{head}_difference", "domain=age, group_name=older people"]
        assert row["scorer"] == scorers[who]["scorer"] and row["p"] is not None


def test_an_encoder_is_not_asked(bert_folder, session):
    *_, (values, findings) = stages_of("counterfactual", bert_folder, QUICK)
    assert not len(values) and all(row["value"] is None for row in findings.to_pylist())
    assert "masked language model" in findings["method"][0].as_py()


def test_a_scorer_is_named_once():
    words = WordListConfig(kind="words", path="w.tsv")
    with pytest.raises(ValueError, match="named twice"):
        ScoreConfig(additional_scorers=(words, words))
    with pytest.raises(ValueError, match="named twice"):
        ScoreConfig(additional_scorers=(ScorerConfig(),))
    config = ScoreConfig(additional_scorers=(words,))
    assert (
        config.restrict_to_heads(("sentiment",)) == config
        and config.restrict_to_heads(("toxicity",)) == ScoreConfig()
    )


# BOLD --------------------------------------------------------------------------------------------


def bold_file(folder, said, name="bold_craft.json.gz"):
    packed = gzip.compress(json.dumps(said).encode()) if name.endswith("gz") else said.encode()
    (folder / name).write_bytes(packed)
    return folder / name


@pytest.fixture
def craft(tmp_path):
    """Three groups of 14 names with two prompts each."""
    said = {
        group: {
            f"{group}_{n}": [f"The {group} number {n} was ", f"In {1900 + n} {group} {n} "]
            for n in range(14)
        }
        for group in ("bakers", "millers", "smiths")
    }
    said["bakers"]["bakers_0"] += ["The bakers number 1 was ", "   ", "The smiths number 0 was"]
    return bold_file(tmp_path, said)


def test_prompts_are_asked_once_without_their_trailing_space(craft, own_folder):
    config = BoldConfig(prompts=(craft,))
    prompts, left = select_prompts(config)
    assert left == {"empty_prompts": 1, "repeated_prompts": 2, "skipped_prompts": 0}
    assert len(prompts) == 3 * 28 + 1 and not any(p.text != p.text.rstrip() for p in prompts)
    questions = RequestBuilder()
    bold.PROBE.build_requests(questions, open_audited_tokenizer(own_folder), CorpusTables(), config)
    assert len(questions.items) == 85 and len({r["request"] for r in questions.requests}) == 84
    assert {row["metric"]: row["count"] for row in questions.skipped} == {
        "empty_prompts": 1,
        "repeated_prompts": 2,
    }
    assert {p.domain for p in prompts} == {"craft"}


def test_the_choice_of_prompts_hangs_on_their_text_alone(craft, tmp_path):
    config = BoldConfig(prompts=(craft,), prompts_per_group=9)
    prompts, left = select_prompts(config)
    assert left["skipped_prompts"] == 85 - 27
    said = json.loads(gzip.decompress(craft.read_bytes()))
    said = {group: dict(reversed(names.items())) for group, names in reversed(said.items())}
    (tmp_path / "other").mkdir()
    turned = bold_file(tmp_path / "other", said)
    again, _ = select_prompts(config.model_copy(update={"prompts": (turned,)}))
    assert {p.text for p in prompts} == {p.text for p in again} and len(again) == 27


def test_figures_stand_with_texts_that_hold_what_was_planted_and_without(craft, own_folder):
    """Planted text is toxic here: without it nobody is written of otherwise."""

    def planted(item, draw):
        return 9 if item["group_name"] == "millers" and item["item"][0] % 3 == 0 else 0

    def score(item, draw):
        return (0.9 if planted(item, draw) else 0.1) + item["item"][1] % 7 / 1000

    config = BoldConfig(prompts=(craft,), permutations=199)
    values, found = judged(bold.PROBE, own_folder, config, score, planted=planted)
    rows = values.to_pylist()
    without = [
        r["value"]
        for r in rows
        if r["measure"] == "mean_toxicity"
        and r["group_name"] == "millers"
        and not r["planted_run_tokens"]
    ]
    part = "domain=craft, group_name=millers"
    assert found["mean_toxicity", part]["value"] > 0.2
    row = found["mean_toxicity", f"{part}, without planted text"]
    assert row["value"] == pytest.approx(np.mean(without)) and row["n"] == len(without)
    assert not any(
        "planted text" in slice_
        for (_, slice_), r in found.items()
        if "smiths" in slice_ and r["metric"] == "mean_toxicity"
    )
    apart = [
        found["toxicity_difference", p]["value"] for p in (part, f"{part}, without planted text")
    ]
    assert apart[0] > 0.1 and abs(apart[1]) < 0.01


def test_groups_of_other_people_are_no_pairs(craft, own_folder):
    rng = np.random.default_rng(1)

    def score(item, draw):
        return (0.3 if item["group_name"] == "millers" else 0.1) + rng.uniform(0, 0.05)

    config = BoldConfig(prompts=(craft,), permutations=1999)
    values, found = judged(bold.PROBE, own_folder, config, score)
    row = found["toxicity_difference", "domain=craft, group_name=millers"]
    assert row["value"] == pytest.approx(0.2, abs=0.01) and row["p"] == 2 / 2000
    assert "1,999 relabellings of 42 names" in row["method"] and row["clusters"] == 42
    distance = found["toxicity_distance", "domain=craft, group_name=millers"]
    assert distance["p"] == 1 / 2000 and distance["value"] == pytest.approx(0.2, abs=0.01)
    assert "1,999 relabellings of 42 names" in distance["method"]
    assert found["mean_sentiment", ""]["value"] is None
    assert found["toxic_share", ""]["value"] == 0
    assert all(row["verdict"] == "pass" for row in found.values() if row["control"])
    worst = sort_worst_first(select_evidence(values, row["evidence_filter"]), row["evidence_order"])
    assert row["evidence_order"] == "-value" and worst["toxicity"][0].as_py() > 0.3


def test_a_small_model_goes_on_from_bold(craft, own_folder, session):
    config = BoldConfig(prompts=(craft,), max_new_tokens=4, permutations=99, prompts_per_group=5)
    asked, answered, *_, (values, findings) = stages_of("bold", own_folder, config)
    texts = select_evidence(values, {"measure": "mean_toxicity"})
    assert len(texts) == answered["responses"].row_count == 15 and len(values) == 30
    assert asked["requests"].read()["prefix_text"].null_count == 15
    metrics = set(findings["metric"].to_pylist())
    assert {"mean_toxicity", "toxic_share", "toxicity_distance", "skipped_prompts"} <= metrics
    assert not any(findings["control"].to_pylist())  # five names of a group are too few


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("[]", "no JSON object of groups"),
        ("{", "is no JSON"),
        ('{"a": []}', "object of names"),
        ('{"a": {"b": "c"}}', "'a', 'b' has no list"),
        ('{"a": {"b": [1]}}', "'b': 1 is no text"),
        ('{"a": {"b": ["\\ud800"]}}', "is no text"),
        ('{"": {"b": ["c"]}}', "is no name"),
        ('{"a": {"b": ["  "]}}', "hold no prompt"),
        ("[" * 100_000, "is no JSON"),
    ],
)
def test_files_that_are_not_bold_are_refused(tmp_path, said, why):
    path = bold_file(tmp_path, said, "bold_x.json")
    with pytest.raises(UsageError, match=why):
        select_prompts(BoldConfig(prompts=(path,)))


def test_a_damaged_file_is_refused(craft):
    craft.write_bytes(craft.read_bytes()[:-20])
    with pytest.raises(UsageError, match="is no JSON in UTF-8"):
        [*read_bold_prompts(craft)]
    with pytest.raises(UsageError, match="there is no file"):
        [*read_bold_prompts(craft.with_name("none"))]


@pytest.mark.skipif(not REAL.is_dir(), reason="the shared data folder is absent")
def test_the_real_prompts():
    files = tuple(sorted(REAL.glob("bold_*.json.gz")))
    prompts, left = select_prompts(BoldConfig(prompts=files, prompts_per_group=1_000_000))
    assert left["empty_prompts"] == 5 and left["skipped_prompts"] == 0
    assert left["repeated_prompts"] + len({p.text for p in prompts}) == 23_674
    assert len({p.domain for p in prompts}) == 5
    assert len({(p.domain, p.group) for p in prompts}) == 43
