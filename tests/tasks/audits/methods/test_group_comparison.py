"""Test the probes counterfactual and bold, with simulated scores and with a small model."""

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
from hallmark.tasks.audits.responses import (
    IDENTITY_PLACEHOLDER,
    Responses,
    join_texts_with_words_masked,
)
from hallmark.tasks.audits.scoring import ScoreConfig
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import UsageError, hash_texts
from hallmark.tasks.measures.scorers import ScorerConfig
from hallmark.tasks.measures.scorers.sentiment import ClassifierConfig, WordListConfig
from tests.builders import item_rows, row_dicts
from tests.findings import findings_to_rows
from tests.tasks.audits.audit_runs import run_audit_stages
from tests.tasks.measures.classifier_folder import make_classifier

REAL = Path(__file__).parents[5] / "shared/data/audit"

QUICK = CounterfactualConfig(continuations_per_prompt=2, max_new_tokens=5, permutations=999)


def compute_simulated_findings(probe, folder, config, score, heads=("toxicity",), planted=None):
    """Compute values and findings with simulated scores.

    ``score(item, draw)`` gives the score of each text, ``planted(item, draw)`` the number of its
    tokens that occur in a planted document.
    """
    tokenizer, builder = open_audited_tokenizer(folder), RequestBuilder()
    probe.build_requests(builder, tokenizer, CorpusTables(), config)
    responses, scores, planted_tokens = [], {}, []
    for row in row_dicts(builder.requests):
        for draw in range(row["draws"]):
            text = f" text {len(responses)}"
            responses.append({"request": row["request"], "draw": draw, "text": text})
            scores[text] = score(item_rows(builder)[row["item"]], draw)
            planted_tokens.append(planted(item_rows(builder)[row["item"]], draw) if planted else 0)
    texts = pa.array([*scores], pa.large_string())
    score_columns = {
        "text_hash": pa.concat_arrays([hash_texts(texts)] * len(heads)),
        "scorer": ["by hand"] * len(scores) * len(heads),
        "head": np.repeat(heads, len(scores)),
        "score": pa.array([*scores.values()] * len(heads), pa.float32(), from_pandas=True),
    }
    model_responses = Responses(
        builder.build_items_table(probe.item_schema),
        builder.build_requests_table(),
        pa.Table.from_pylist(responses, schema=RESPONSES),
        scores=pa.table(score_columns, schema=SCORES),
        skipped=builder.build_skipped_table(),
        scorers=pa.table({"scorer": ["by hand"], "heads": [[*heads]]}),
        training_overlap=pa.table(dict.fromkeys(OVERLAP_COLUMNS, planted_tokens)).cast(
            pa.schema([TRAINING_OVERLAP.field(name) for name in OVERLAP_COLUMNS])
        )
        if planted
        else None,
    )
    values, found = probe.compute_values_and_findings(model_responses, config)
    rows = findings_to_rows(found)
    findings = {(row["metric"], name_slice(row["slice"])): row for row in rows}
    assert len(findings) == len(rows) and values.schema.equals(
        build_values_schema(probe.item_schema, VALUE_FIELDS)
    )
    for row in findings.values():
        if row["metric"] in ("mean_toxicity", "toxic_share"):
            evidence = select_evidence(values, row["evidence_filter"])
            assert row["value"] == pytest.approx(np.nanmean(evidence["value"].to_numpy()))
            assert row["n"] + row["missing"] == len(evidence) and row["scorer"] == "by hand"
    return values, findings


def test_without_a_group_the_audit_says_that_there_is_nothing_to_compare(session, own_folder):
    """Not that the model wrote nothing: it was asked nothing."""
    config = CounterfactualConfig(builtin_groups=False)
    _, findings = run_audit_stages("counterfactual", own_folder, config)[-1]
    reason = "there are no groups to compare, because audit_counterfactual.builtin_groups is false"
    rows = [row for row in findings.to_pylist() if not row["control"]]
    assert rows and all(row["value"] is None and reason in row["method"] for row in rows)


def test_prompts_of_a_template_differ_only_in_the_group(own_folder):
    words = {(g.lexicon, g.group): g.display_word for g in read_builtin_groups()}
    assert words["race", "Black people"] == "Black people" and words["gender", "men"] == "men"
    builder = RequestBuilder()
    counterfactual.PROBE.build_requests(
        builder, open_audited_tokenizer(own_folder), CorpusTables(), QUICK
    )
    items = [*item_rows(builder).values()]
    templates = {item["cluster"] for item in items}
    assert len(templates) >= 15 and len(items) == len(templates) * len(words)
    for item in items:
        text = item["cluster"].format(group=words[item["domain"], item["group_name"]])
        assert item["text"] == text[0].upper() + text[1:]


def test_a_small_difference_of_one_group_is_significant(own_folder):
    """Templates change the scores much more, but groups are compared within templates."""
    rng = np.random.default_rng(0)
    level = {}

    def score(item, draw):
        base = level.setdefault(item["cluster"], rng.uniform(0.2, 0.6))
        return base + 0.1 * (item["group_name"] == "Muslims") + rng.normal(0, 0.01)

    texts, findings = compute_simulated_findings(counterfactual.PROBE, own_folder, QUICK, score)
    part = "domain=religion, group_name=Muslims"
    row = findings["toxicity_difference", part]
    assert (
        row["value"] == pytest.approx(0.1, abs=0.01)
        and row["p"] == 2 / 2998  # a small p has three times as many relabellings
        and row["null_value"] == 0
    )
    assert row["low"] < 0.1 < row["high"] and row["high"] - row["low"] < 0.03
    assert "relabellings of 80 prompts, within each of 16" in row["method"]
    assert "minus mean for all other groups in the same domain" in row["method"]
    assert row["clusters"] == 16
    evidence = select_evidence(texts, {"measure": "mean_toxicity", "domain": "religion"})
    values = evidence["toxicity"].to_numpy()
    member = np.array(evidence["group_name"].to_pylist()) == "Muslims"
    distance = findings["toxicity_distance", part]
    expected = stats.wasserstein_distance(values[member], values[~member])
    assert distance["value"] == pytest.approx(expected) and distance["low"] is None
    assert distance["p"] < 0.05 and 0 < distance["null_value"] < distance["value"]
    assert "relabellings" in distance["method"] and "no interval" in distance["method"]
    group_texts = select_evidence(texts, findings["mean_toxicity", part]["evidence_filter"])
    assert group_texts == select_evidence(texts, row["evidence_filter"])
    assert findings["mean_toxicity", part]["value"] == pytest.approx(
        group_texts["toxicity"].to_numpy().mean()
    )
    share = (group_texts["toxicity"].to_numpy() >= 0.5).mean()
    assert findings["toxic_share", part]["value"] == pytest.approx(share)
    other_p_values = [
        r["p"] for (m, s), r in findings.items() if m == "toxicity_distance" and "race" in s
    ]
    assert len(other_p_values) == 5 and min(other_p_values) > 0.01
    assert ("toxicity_difference", "domain=gender, group_name=men") in findings
    # With two groups, the second would repeat the first with the opposite sign.
    assert ("toxicity_difference", "domain=gender, group_name=women") not in findings


def test_missing_scores_and_scorers_are_reported(own_folder):
    def score(item, draw):
        return np.nan if item["group_name"] == "men" and draw else 0.25

    _, findings = compute_simulated_findings(counterfactual.PROBE, own_folder, QUICK, score)
    row = findings["mean_toxicity", "domain=gender, group_name=men"]
    assert row["missing"] == row["n"] and row["value"] == 0.25
    for head in ("sentiment", "regard"):
        row = findings[f"mean_{head}", ""]
        assert row["value"] is None and f"no {head} scorer is configured" in row["method"]


def test_the_controls_detect_a_large_effect_and_find_none_without(own_folder):
    _, findings = compute_simulated_findings(
        counterfactual.PROBE, own_folder, QUICK, lambda item, draw: 0.1
    )
    controls = [row for row in findings.values() if row["control"]]
    assert {(row["metric"], name_slice(row["slice"])) for row in controls} == {
        (f"score_{metric}", f"scripted {kind}")
        for metric in ("difference", "distance")
        for kind in ("chance", "effect")
    }
    assert all(
        row["verdict"] == "pass" and row["control_target"] == "instrument" for row in controls
    )


def test_regard_is_scored_with_the_group_masked():
    requests = [
        {"request": b"a" * 16, "prefix_text": "The Tall folk are", "masked_words": ["Tall folk"]},
        {"request": b"b" * 16, "prefix_text": "Untold", "masked_words": []},
        {"request": b"c" * 16, "prefix_text": None, "masked_words": None},
    ]
    request_texts = [
        (b"a", " said of tall FOLK and folk"),
        (b"b", " tall folk"),
        (b"c", " x"),
        (b"a", None),
    ]
    rows = [{"request": r * 16, "draw": 0, "text": text} for r, text in request_texts]
    masked_texts = join_texts_with_words_masked(
        pa.Table.from_pylist(requests, schema=REQUESTS),
        pa.Table.from_pylist(rows, schema=RESPONSES),
    )
    masked = f"The {IDENTITY_PLACEHOLDER} are said of {IDENTITY_PLACEHOLDER} and folk"
    assert masked_texts.to_pylist() == [masked, "Untold tall folk", None, None]


def test_a_model_is_scored_by_all_heads(own_folder, session, tmp_path):
    (tmp_path / "list.tsv").write_text("the\t1.5\nnumbers\t-2\ne\t1\ns\t-1\n")
    additional_scorers = (
        WordListConfig(kind="words", path=tmp_path / "list.tsv"),
        ClassifierConfig(kind="classifier", folder=make_classifier(tmp_path / "c"), head="regard"),
    )
    config = QUICK.model_copy(update={"permutations": 99, "continuations_per_prompt": 1})
    _, _, scored, _, (values, findings) = run_audit_stages(
        "counterfactual", own_folder, config, additional_scorers=additional_scorers
    )
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
        masked_text = (
            prompt[:start]
            + IDENTITY_PLACEHOLDER
            + prompt[start + len(word) :]
            + row["continuation"]
        )
        (name,) = hash_texts(pa.array([masked_text], pa.large_string())).to_pylist()
        assert by_text[name, "regard"] == row["value"]
    findings = {(row["metric"], name_slice(row["slice"])): row for row in findings.to_pylist()}
    for head, scorer_number in (("toxicity", 0), ("sentiment", 1), ("regard", 2)):
        row = findings[f"{head}_difference", "domain=age, group_name=older people"]
        assert row["scorer"] == scorers[scorer_number]["scorer"] and row["p"] is not None


def test_an_encoder_is_not_asked(bert_folder, session):
    *_, (values, findings) = run_audit_stages("counterfactual", bert_folder, QUICK)
    rows = findings.to_pylist()
    assert not len(values) and all(row["value"] is None for row in rows if not row["control"])
    assert {row["control_target"] for row in rows} == {"", "scorer"}
    assert "masked language model" in findings["method"][0].as_py()


def test_a_scorer_must_not_be_named_twice():
    words = WordListConfig(kind="words", path="w.tsv")
    with pytest.raises(ValueError, match="listed twice"):
        ScoreConfig(additional_scorers=(words, words))
    with pytest.raises(ValueError, match="listed twice"):
        ScoreConfig(additional_scorers=(ScorerConfig(),))
    config = ScoreConfig(additional_scorers=(words,))
    assert config.restrict_to_heads(("sentiment",)) == config and config.restrict_to_heads(
        ("toxicity",)
    ) == ScoreConfig(additional_scorers=())


def write_bold_file(folder, content, name="bold_craft.json.gz"):
    """Write a gzip file of JSON, or ``content`` itself as text if the name has no .gz."""
    is_gzip = name.endswith("gz")
    data = gzip.compress(json.dumps(content).encode()) if is_gzip else content.encode()
    (folder / name).write_bytes(data)
    return folder / name


@pytest.fixture
def craft(tmp_path):
    """Write a file of three groups of 14 names with two prompts each."""
    content = {
        group: {
            f"{group}_{n}": [f"The {group} number {n} was ", f"In {1900 + n} {group} {n} "]
            for n in range(14)
        }
        for group in ("bakers", "millers", "smiths")
    }
    content["bakers"]["bakers_0"] += ["The bakers number 1 was ", "   ", "The smiths number 0 was"]
    return write_bold_file(tmp_path, content)


def test_prompts_are_asked_once_without_trailing_space(craft, own_folder):
    config = BoldConfig(prompts=(craft,))
    prompts, skip_counts = select_prompts(config)
    assert skip_counts == {"empty_prompts": 1, "repeated_prompts": 2, "skipped_prompts": 0}
    assert len(prompts) == 3 * 28 + 1 and not any(p.text != p.text.rstrip() for p in prompts)
    builder = RequestBuilder()
    bold.PROBE.build_requests(builder, open_audited_tokenizer(own_folder), CorpusTables(), config)
    assert (
        len(builder.items) == 85 and len({r["request"] for r in row_dicts(builder.requests)}) == 84
    )
    assert {row["metric"]: row["count"] for row in row_dicts(builder.skipped)} == {
        "empty_prompts": 1,
        "repeated_prompts": 2,
    }
    assert {p.domain for p in prompts} == {"craft"}


def test_the_choice_of_prompts_does_not_depend_on_their_order(craft, tmp_path):
    config = BoldConfig(prompts=(craft,), prompts_per_group=9)
    prompts, skip_counts = select_prompts(config)
    assert skip_counts["skipped_prompts"] == 85 - 27
    content = json.loads(gzip.decompress(craft.read_bytes()))
    content = {group: dict(reversed(names.items())) for group, names in reversed(content.items())}
    (tmp_path / "other").mkdir()
    reversed_file = write_bold_file(tmp_path / "other", content)
    reselected = select_prompts(config.model_copy(update={"prompts": (reversed_file,)})).prompts
    assert {p.text for p in prompts} == {p.text for p in reselected} and len(reselected) == 27


def test_findings_are_given_with_and_without_planted_text(craft, own_folder):
    """Here only planted text is toxic, so without it the groups do not differ."""

    def planted(item, draw):
        return 9 if item["group_name"] == "millers" and item["item"][0] % 3 == 0 else 0

    def score(item, draw):
        return (0.9 if planted(item, draw) else 0.1) + item["item"][1] % 7 / 1000

    config = BoldConfig(prompts=(craft,), permutations=199)
    values, findings = compute_simulated_findings(
        bold.PROBE, own_folder, config, score, planted=planted
    )
    rows = values.to_pylist()
    unplanted_values = [
        r["value"]
        for r in rows
        if r["measure"] == "mean_toxicity"
        and r["group_name"] == "millers"
        and not r["planted_run_tokens"]
    ]
    part = "domain=craft, group_name=millers"
    assert findings["mean_toxicity", f"{part}, planted text included"]["value"] > 0.2
    row = findings["mean_toxicity", part]
    assert row["value"] == pytest.approx(np.mean(unplanted_values))
    assert row["n"] == len(unplanted_values)
    assert not any(
        "planted text" in slice_
        for (_, slice_), r in findings.items()
        if "smiths" in slice_ and r["metric"] == "mean_toxicity"
    )
    without_planted, with_planted = (
        findings["toxicity_difference", p] for p in (part, f"{part}, planted text included")
    )
    assert with_planted["value"] > 0.1 and abs(without_planted["value"]) < 0.01
    assert with_planted["is_variant"] and not without_planted["is_variant"]
    assert "planted text are not counted" in without_planted["method"]
    assert "not counted" not in with_planted["method"]


def test_groups_of_different_people_are_not_paired(craft, own_folder):
    rng = np.random.default_rng(1)

    def score(item, draw):
        return (0.3 if item["group_name"] == "millers" else 0.1) + rng.uniform(0, 0.05)

    config = BoldConfig(prompts=(craft,), permutations=1999)
    values, findings = compute_simulated_findings(bold.PROBE, own_folder, config, score)
    row = findings["toxicity_difference", "domain=craft, group_name=millers"]
    assert row["value"] == pytest.approx(0.2, abs=0.01) and row["p"] == 2 / 5998
    assert "5,997 relabellings of 42 names" in row["method"] and row["clusters"] == 42
    distance = findings["toxicity_distance", "domain=craft, group_name=millers"]
    assert distance["p"] == 1 / 5998 and distance["value"] == pytest.approx(0.2, abs=0.01)
    assert "5,997 relabellings of 42 names" in distance["method"]
    assert findings["mean_sentiment", ""]["value"] is None
    assert findings["toxic_share", ""]["value"] == 0
    assert all(row["verdict"] == "pass" for row in findings.values() if row["control"])
    worst = sort_worst_first(select_evidence(values, row["evidence_filter"]), row["evidence_order"])
    assert row["evidence_order"] == "-value" and worst["toxicity"][0].as_py() > 0.3


def test_a_small_model_continues_prompts_of_bold(craft, own_folder, session):
    config = BoldConfig(prompts=(craft,), max_new_tokens=4, permutations=99, prompts_per_group=5)
    request_set, response_set, *_, (values, findings) = run_audit_stages("bold", own_folder, config)
    texts = select_evidence(values, {"measure": "mean_toxicity"})
    assert len(texts) == response_set["responses"].row_count == 15 and len(values) == 30
    assert request_set["requests"].read()["prefix_text"].null_count == 15
    metrics = set(findings["metric"].to_pylist())
    assert {"mean_toxicity", "toxic_share", "toxicity_distance", "skipped_prompts"} <= metrics
    # Five names per group are too few to test the comparison.
    assert {*findings["control_target"].to_pylist()} == {"", "scorer"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "not a JSON object of groups"),
        ("{", "is not a valid UTF-8 JSON file"),
        ('{"a": []}', "object of names"),
        ('{"a": {"b": "c"}}', "'a', 'b' is not a list"),
        ('{"a": {"b": [1]}}', "'b': 1 is not a text"),
        ('{"a": {"b": ["\\ud800"]}}', "is not a text"),
        ('{"": {"b": ["c"]}}', "the name '' is empty"),
        ('{"a": {"b": ["  "]}}', "are empty"),
        ("[" * 100_000, "is not a valid UTF-8 JSON file"),
    ],
)
def test_files_that_are_not_bold_are_refused(tmp_path, content, message):
    path = write_bold_file(tmp_path, content, "bold_x.json")
    with pytest.raises(UsageError, match=message):
        select_prompts(BoldConfig(prompts=(path,)))


def test_a_damaged_file_is_refused(craft):
    craft.write_bytes(craft.read_bytes()[:-20])
    with pytest.raises(UsageError, match="is not a valid UTF-8 JSON file"):
        [*read_bold_prompts(craft)]
    with pytest.raises(UsageError, match="there is no file"):
        [*read_bold_prompts(craft.with_name("none"))]


@pytest.mark.skipif(not REAL.is_dir(), reason="the shared data folder is absent")
def test_the_published_prompts_are_read():
    files = tuple(sorted(REAL.glob("bold_*.json.gz")))
    prompts, skip_counts = select_prompts(BoldConfig(prompts=files, prompts_per_group=1_000_000))
    assert skip_counts["empty_prompts"] == 5 and skip_counts["skipped_prompts"] == 0
    assert skip_counts["repeated_prompts"] + len({p.text for p in prompts}) == 23_674
    assert len({p.domain for p in prompts}) == 5
    assert len({(p.domain, p.group) for p in prompts}) == 43
