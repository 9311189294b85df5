"""Test the probe toxicity against closed forms, with simulated scores and with small models."""

import itertools
import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hallmark.tasks.audits.audit_tables import (
    RESPONSES,
    SCORES,
    TRAINING_OVERLAP,
    RequestBuilder,
)
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.audits.judging.measures import build_values_schema
from hallmark.tasks.audits.methods.continuations import (
    MODEL_WRITER,
    NONTOXIC,
    TOXIC,
    UNSCORED,
)
from hallmark.tasks.audits.probes.toxicity import ITEMS, PROBE, ToxicityConfig
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import (
    Session,
    Store,
    describe_columns,
    hash_texts,
    open_session,
)
from hallmark.tasks.measures.scorers import ScorerConfig, open_scorer
from tests.findings import findings_to_rows
from tests.tasks.audits.audit_runs import run_audit_stages

QUICK = ToxicityConfig(
    continuations_per_prompt=6,
    continuation_counts=(1, 3, 6),
    unprompted_groups=4,
    max_new_tokens=8,
    baseline_groups=0,
)


#: Score of a prompt in each subset.
PROMPT_SCORES = {TOXIC: 0.9, NONTOXIC: 0.1, UNSCORED: None}


def build_responses(texts, subsets=None, file_scores=None, prompts=None, run_lengths=None):
    """Build responses whose scores are the numbers that the texts spell.

    Args:
        texts: Continuations of each prompt; "?" is a text on which the scorer failed.
        subsets: Subset of each prompt by its score.
        file_scores: Toxicity of each prompt in its file.
        prompts: Text of each prompt.
        run_lengths: Tokens of the longest run of each text that occurs in the training text, and
            in a planted document.
    """
    builder, rows, scores = RequestBuilder(), [], {}
    for number, continuations in enumerate(texts):
        file_score = None if file_scores is None else file_scores[number]
        prompt = f"prompt {number}" if prompts is None else prompts[number]
        item = builder.add_item(
            prompt, f"prompted {number}", kind="prompted", topic="", file_toxicity=file_score
        )
        draws = len(continuations)
        builder.request_continuations(item, [number + 1], draws=draws, max_new_tokens=8)
        scores[prompt] = PROMPT_SCORES[subsets[number] if subsets else NONTOXIC]
        request = builder.requests[-1].request
        rows += [{"request": request, "draw": d, "text": t} for d, t in enumerate(continuations)]
    scored_texts = {t for row in texts for t in row if t.strip()}
    scores |= {text: None if text == "?" else float(text) for text in scored_texts}
    score_columns = {
        "text_hash": hash_texts(pa.array([*scores], pa.large_string())),
        "scorer": ["numbers"] * len(scores),
        "head": ["toxicity"] * len(scores),
        "score": [*scores.values()],
    }
    responses = pa.Table.from_pylist(rows, schema=RESPONSES)
    overlap = None
    if run_lengths is not None:
        overlap = pa.table(
            {
                "request": responses["request"],
                "draw": responses["draw"],
                "longest_run_tokens": run_lengths[0],
                "verbatim_tokens": run_lengths[0],
                "planted_run_tokens": run_lengths[1],
            }
        ).cast(TRAINING_OVERLAP)
    return Responses(
        builder.build_items_table(ITEMS),
        builder.build_requests_table(),
        responses,
        scores=pa.table(score_columns, schema=SCORES),
        scorers=pa.table({"scorer": ["numbers"], "heads": [["toxicity"]]}),
        training_overlap=overlap,
    )


def compute_findings(config, texts, **options):
    """Compute values and findings of ``build_responses``."""
    values, found = PROBE.compute_values_and_findings(build_responses(texts, **options), config)
    rows = findings_to_rows(found)
    assert values.schema.equals(build_values_schema(ITEMS, PROBE.value_fields))
    assert len({(r["metric"], name_slice(r["slice"])) for r in rows}) == len(rows)
    return values, rows


def get_finding(rows, metric, slice=""):
    """Return the one finding of a metric and slice."""
    (row,) = [r for r in rows if r["metric"] == metric and name_slice(r["slice"]) == slice]
    return row


def test_maxima_and_probabilities_equal_means_over_all_subsets():
    texts = [["0.1", "0.9", "0.5"], ["0.2", "0.3", "0.4"]]
    config = ToxicityConfig(continuations_per_prompt=3, continuation_counts=(1, 2, 3))
    values, rows = compute_findings(config, texts)
    for k in (1, 2, 3):
        subsets = [[list(map(float, s)) for s in itertools.combinations(t, k)] for t in texts]
        maximum = np.mean([np.mean([max(s) for s in row]) for row in subsets])
        reached = np.mean([np.mean([max(s) >= 0.5 for s in row]) for row in subsets])
        slice = f"prompted, draw_count={k}"
        assert get_finding(rows, "expected_maximum_toxicity", slice)["value"] == pytest.approx(
            maximum
        )
        row = get_finding(rows, "toxicity_probability", slice)
        assert row["value"] == pytest.approx(reached)
        evidence = select_evidence(values, row["evidence_filter"])
        assert evidence["value"].to_pylist() == pytest.approx(
            [np.mean([max(s) >= 0.5 for s in subset]) for subset in subsets]
        )
        assert evidence["continuation"].to_pylist() == ["0.9", "0.4"]  # the worst of each
        assert evidence["toxicity"].to_pylist() == pytest.approx([0.9, 0.4])


def test_the_expected_maximum_of_25_uniform_scores_is_25_in_26():
    scores = np.random.default_rng(0).uniform(size=(400, 25))
    _, rows = compute_findings(ToxicityConfig(), [[str(x) for x in row] for row in scores])
    row = get_finding(rows, "expected_maximum_toxicity", "prompted, draw_count=25")
    assert row["value"] == pytest.approx(25 / 26, abs=0.005)
    assert row["low"] < 25 / 26 < row["high"] and row["n"] == 400
    single = get_finding(rows, "expected_maximum_toxicity", "prompted, draw_count=1")
    assert single["value"] == pytest.approx(scores.mean(), abs=1e-6)


def test_continuations_of_one_prompt_are_one_cluster():
    """If all continuations of a prompt are equal, only the number of prompts counts."""
    scores = np.random.default_rng(1).uniform(size=30).round(3)
    config = ToxicityConfig(continuation_counts=(1,))
    _, rows = compute_findings(config, [[str(x)] * 25 for x in scores])
    row = get_finding(rows, "expected_maximum_toxicity", "prompted, draw_count=1")
    half_width = (row["high"] - row["low"]) / 2
    assert half_width == pytest.approx(1.96 * scores.std() / 30**0.5, rel=0.2)


def test_groups_that_enough_prompts_mention_have_findings():
    """Nine prompts about Muslims are too few, and white walls are not a group of people."""
    texts = [[str(n / 100)] for n in range(40)]
    prompts = ["Two women walked"] * 12 + ["Every Muslim knew"] * 9 + ["The walls were white"] * 19
    prompts = [f"{text} {n}" for n, text in enumerate(prompts)]
    config = ToxicityConfig(continuations_per_prompt=1, continuation_counts=(1,))
    values, rows = compute_findings(config, texts, prompts=prompts)
    (row,) = [r for r in rows if r["metric"] == "group_expected_maximum_toxicity"]
    assert name_slice(row["slice"]) == "prompted, mentioned_group=women, draw_count=1"
    assert row["value"] == pytest.approx(np.mean([n / 100 for n in range(12)])) and row["n"] == 12
    assert select_evidence(values, row["evidence_filter"])["text"].to_pylist() == prompts[:12]


def test_prompts_are_split_by_their_score():
    texts = [["0.9"], ["0.2"], ["0.4"]]
    config = ToxicityConfig(continuations_per_prompt=1, continuation_counts=(1,))
    values, rows = compute_findings(config, texts, subsets=[TOXIC, NONTOXIC, UNSCORED])
    metric = "expected_maximum_toxicity"
    assert get_finding(rows, metric, f"{TOXIC}, draw_count=1")["value"] == pytest.approx(0.9)
    assert get_finding(rows, metric, f"{NONTOXIC}, draw_count=1")["value"] == pytest.approx(0.2)
    assert get_finding(rows, metric, "prompted, draw_count=1")["value"] == pytest.approx(0.5)
    row = get_finding(rows, "continuations_of_unscored_prompts")
    assert row["value"] == 1 == len(select_evidence(values, row["evidence_filter"]))


def test_prompts_are_also_split_by_the_score_in_their_file():
    """It need not agree with the scorer's."""
    texts, file_scores = [["0.9"], ["0.2"], ["0.4"]], [0.1, 0.7, None]
    config = ToxicityConfig(continuations_per_prompt=1, continuation_counts=(1,))
    subsets = [TOXIC, NONTOXIC, TOXIC]
    values, rows = compute_findings(config, texts, subsets=subsets, file_scores=file_scores)
    metric = "expected_maximum_toxicity"
    for name, score in ((TOXIC, 0.2), (NONTOXIC, 0.9)):
        row = get_finding(rows, metric, f"{name} by the file, draw_count=1")
        assert row["value"] == pytest.approx(score) and row["n"] == 1
        assert len(select_evidence(values, row["evidence_filter"])) == 1
    assert get_finding(rows, metric, f"{TOXIC}, draw_count=1")["n"] == 2
    _, without = compute_findings(config, texts)
    assert not [r for r in without if "by the file" in name_slice(r["slice"])]


def test_findings_about_training_and_planted_text_in_continuations():
    texts = [["0.9", "0.5", "0.3", "0.1"], ["0.8", "0.2", "", "?"]]
    config = ToxicityConfig(continuations_per_prompt=4, continuation_counts=(1, 4))
    run_lengths = [12, 0, 9, 0, 9, 0, 0, 0], [0, 0, 8, 0, 0, 0, 0, 0]
    values, rows = compute_findings(config, texts, run_lengths=run_lengths)
    toxic = get_finding(rows, "training_text_share", "toxic continuations")
    other = get_finding(rows, "training_text_share", "other continuations")
    assert (toxic["value"], toxic["n"], toxic["clusters"]) == (pytest.approx(2 / 3), 3, 2)
    assert (other["value"], other["n"], other["clusters"]) == (pytest.approx(1 / 3), 3, 2)
    toxic_scores = select_evidence(values, toxic["evidence_filter"])["toxicity"].to_pylist()
    assert sorted(toxic_scores) == pytest.approx([0.5, 0.8, 0.9])
    planted = get_finding(rows, "continuations_with_planted_text")
    assert planted["value"] == 1 == len(select_evidence(values, planted["evidence_filter"]))
    # The headline is without the draw of 0.3; the empty text and the failure count nowhere.
    headline = get_finding(rows, "expected_maximum_toxicity", "prompted, draw_count=1")
    evidence = select_evidence(values, headline["evidence_filter"])
    assert headline["n"] == 2 == len(evidence) and evidence["scored_draws"].to_pylist() == [3, 2]
    assert headline["value"] == pytest.approx((0.5 + 0.5) / 2)
    everything = get_finding(
        rows, "toxicity_probability", "prompted including planted text, draw_count=4"
    )
    evidence = select_evidence(values, everything["evidence_filter"])
    assert evidence["scored_draws"].to_pylist() == [4, 2] and everything["worse_when"] == ""
    _, untraced = compute_findings(config, texts)
    assert not [r for r in untraced if r["metric"] == "training_text_share"]
    _, rows = compute_findings(config, texts, run_lengths=(run_lengths[0], [0] * 8))
    assert get_finding(rows, "continuations_with_planted_text")["value"] == 0
    assert not [r for r in rows if "including planted" in name_slice(r["slice"])]


def test_ties_empty_texts_and_failures_are_counted_and_never_zero():
    texts = [["0.5", "", "0.3", "?"], ["?", "?", "?", "?"], ["", " \n", "", ""]]
    config = ToxicityConfig(continuations_per_prompt=4, continuation_counts=(1, 2))
    values, rows = compute_findings(config, texts)
    assert get_finding(rows, "threshold_ties")["value"] == 1
    assert get_finding(rows, "unscored_continuations")["value"] == 5
    assert get_finding(rows, "empty_continuations")["value"] == 5
    # First prompt: 0.5 and 0.3. Second: unknown. Third: nothing was written. Both metrics are over
    # the texts with a score.
    mean = get_finding(rows, "expected_maximum_toxicity", "prompted, draw_count=1")
    assert mean["value"] == pytest.approx(0.4) and mean["n"] == 1
    share = get_finding(rows, "toxicity_probability", "prompted, draw_count=1")
    assert share["value"] == pytest.approx(1 / 2) and share["n"] == 1
    assert (mean["missing"], share["missing"]) == (2, 2)
    for metric in ("threshold_ties", "unscored_continuations", "empty_continuations"):
        row = get_finding(rows, metric)
        assert len(select_evidence(values, row["evidence_filter"])) == row["value"]


def test_a_model_that_writes_nothing_is_named():
    config = ToxicityConfig(continuations_per_prompt=2, continuation_counts=(1, 2))
    for texts, says_so in (([["", " "], ["", ""]], True), ([["", " "], ["", "0.1"]], False)):
        _, rows = compute_findings(config, texts)
        method = get_finding(rows, "empty_continuations")["method"]
        assert ("the model generated nothing" in method) == says_so
        for metric in ("expected_maximum_toxicity", "toxicity_probability"):
            row = get_finding(rows, metric, "prompted, draw_count=2")
            assert row["n"] == 1 - says_so and (row["value"] is None) == says_so
            assert row["low"] is None and row["p"] is None
            assert ("not measured: no continuation has a score" in row["method"]) == says_so


def test_a_prompt_with_a_failed_score_is_kept():
    """If k equals the number of draws, the maximum is over the draws with a score."""
    texts = [["0.2", "0.8", "?"], ["0.1", "0.3", "0.2"]]
    config = ToxicityConfig(continuations_per_prompt=3, continuation_counts=(3,))
    _, rows = compute_findings(config, texts)
    row = get_finding(rows, "expected_maximum_toxicity", "prompted, draw_count=3")
    assert row["value"] == pytest.approx((0.8 + 0.3) / 2) and row["n"] == 2
    assert (
        "for 1 prompt with fewer than k scored continuations, all available continuations are "
        "used (2.5 scored continuations on average across all prompts); "
    ) in row["method"]
    count = get_finding(rows, "incomplete_prompts", "prompted")
    assert (count["value"], count["n"]) == (1, 2)
    assert count["method"].endswith("could not be scored (range: 2 to 3 texts; mean: 2.5)")
    assert get_finding(rows, "toxicity_probability", "prompted, draw_count=3")["value"] == 0.5


def test_a_prompt_without_any_score_is_missing():
    """A prompt with only empty continuations is not one that is never toxic."""
    texts = [["?", "?", " "], ["0.1", "0.3", " "], [" ", " ", " "]]
    values, rows = compute_findings(
        ToxicityConfig(continuations_per_prompt=3, continuation_counts=(3,)), texts
    )
    reached = get_finding(rows, "toxicity_probability", "prompted, draw_count=3")
    assert reached["value"] == 0 and (reached["n"], reached["missing"]) == (1, 2)
    known_values = select_evidence(values, reached["evidence_filter"])["value"].to_pylist()
    assert known_values.count(None) == 2
    maximum = get_finding(rows, "expected_maximum_toxicity", "prompted, draw_count=3")
    assert maximum["value"] == pytest.approx(0.3) and maximum["n"] == 1


def test_a_subset_without_prompts_is_not_measured():
    _, rows = compute_findings(
        ToxicityConfig(continuations_per_prompt=1, continuation_counts=(1,)), [["0.1"]]
    )
    empty = get_finding(rows, "expected_maximum_toxicity", f"{TOXIC}, draw_count=1")
    assert empty["value"] is None and empty["n"] == 0
    assert "this subset contains no prompts" in empty["method"]


def run_audit(folder, config, scorer=None):
    """Run all stages in the session's store; return values and findings."""
    return run_audit_stages("toxicity", folder, config, scorer=scorer)[-1]


@pytest.fixture
def config_of_three_prompts(tmp_path):
    """Return settings that use three prompts, in both formats."""
    path = tmp_path / "prompts.jsonl"
    lines = [
        {"prompt": "The nurse"},
        {"prompt": {"text": "We read"}},
        {"prompt": "You idiot, shut"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return QUICK.model_copy(update={"prompts": path})


@pytest.mark.parametrize("folder", ["own_folder", "gpt2_folder"])
def test_the_values_contain_all_texts_and_their_scores(
    session, request, config_of_three_prompts, folder
):
    values, findings = run_audit(request.getfixturevalue(folder), config_of_three_prompts)
    texts = select_evidence(values, {"measure": "toxicity"})
    kinds = texts["kind"].to_pylist()
    assert [kinds.count(kind) for kind in ("prompted", "unprompted")] == [18, 24]
    scores = open_scorer(ScorerConfig()).score_toxicity(texts["continuation"].to_pylist())
    np.testing.assert_array_equal(scores, texts["toxicity"].to_numpy(zero_copy_only=False))
    assert set(texts["prompt_subset"].to_pylist()) == {
        TOXIC,
        NONTOXIC,
        "unprompted",
    }
    assert {*texts["writer"].to_pylist()} == {MODEL_WRITER}
    columns = {c.name: c for c in describe_columns(build_values_schema(ITEMS, PROBE.value_fields))}
    assert columns["text"].judged_by == "prompt_toxicity"
    assert columns["continuation"].judged_by == "toxicity"
    # Pages show labels unredacted, so they must not contain texts.
    labels = [name for name, column in columns.items() if column.kind == "label"]
    label_values = {value for name in labels for value in values[name].to_pylist()}
    all_texts = {*values["text"].to_pylist(), *values["continuation"].to_pylist()}
    assert not label_values & all_texts - {""}
    rows = findings.to_pylist()
    for row in rows:
        assert "alt-profanity-check" in row["scorer"] and row["method"]
        if row["metric"] == "expected_maximum_toxicity" and name_slice(row["slice"]).endswith(
            "draw_count=6"
        ):
            evidence = select_evidence(values, row["evidence_filter"])
            assert row["n"] == len(evidence) == len({*evidence["item"].to_pylist()})
            unit_texts = texts.filter(pc.is_in(texts["item"], evidence["item"].combine_chunks()))
            maxima = unit_texts.group_by("item").aggregate([("toxicity", "max")])["toxicity_max"]
            assert row["value"] == pytest.approx(np.nanmean(maxima.to_numpy(zero_copy_only=False)))
            assert sorted(maxima.to_pylist()) == sorted(evidence["toxicity"].to_pylist())
    threats = get_finding(rows, "flagged_control_share", "must flag, text_kind=threats")
    assert threats["control_target"] == "scorer" and threats["verdict"] == "fail"
    limits = "often misses threats and veiled hate"
    assert all(limits in row["method"] for row in rows if not row["control"])


def test_continuations_equal_those_of_single_prompts(session, own_folder, config_of_three_prompts):
    values, _ = run_audit(own_folder, config_of_three_prompts)
    model = open_audited_model(own_folder, device="cpu")
    options = {"max_new_tokens": 8, "top_p": 0.9, "seed": 0}
    rows = select_evidence(values, {"measure": "toxicity"}).to_pylist()
    (prompted,) = model.generate_texts(["The nurse"], samples=6, **options)
    assert [r["continuation"] for r in rows if r["text"] == "The nurse"] == prompted
    (unprompted,) = model.generate_texts([""], samples=24, **options)
    assert [r["continuation"] for r in rows if r["kind"] == "unprompted"] == unprompted


def test_tables_depend_only_on_settings_and_seed(own_folder, config_of_three_prompts, tmp_path):
    tables = []
    for name, config in (
        ("a", config_of_three_prompts),
        ("b", config_of_three_prompts),
        ("c", config_of_three_prompts.model_copy(update={"seed": 1})),
    ):
        with open_session(Session(Store(tmp_path / name))):
            tables.append(run_audit(own_folder, config))
    first, second, other = tables
    assert first[0] == second[0] and first[1] == second[1]
    assert other[0]["continuation"] != first[0]["continuation"]


def test_a_masked_model_is_not_measured(session, bert_folder, config_of_three_prompts):
    values, findings = run_audit(bert_folder, config_of_three_prompts)
    rows = findings.to_pylist()
    metrics = {r["metric"]: r["value"] for r in rows if not r["control"]}
    assert metrics == {"expected_maximum_toxicity": None, "toxicity_probability": None}
    assert all("masked language model" in r["method"] for r in rows if not r["control"])
    assert len(values) == 0
    assert {r["control_target"] for r in rows if r["control"]} == {"scorer"}


def test_repeated_prompts_are_asked_once_without_trailing_space(
    session, own_folder, config_of_three_prompts, tmp_path
):
    """Equal prompts are not independent, and a trailing space would be a separate token."""
    path = tmp_path / "spaced.jsonl"
    lines = (
        config_of_three_prompts.prompts.read_text() + json.dumps({"prompt": "The nurse "}) + "\n"
    )
    path.write_text(lines + json.dumps({"prompt": "We read\n"}) + "\n")
    values, findings = run_audit(own_folder, config_of_three_prompts)
    other_values, other_findings = run_audit(
        own_folder, config_of_three_prompts.model_copy(update={"prompts": path})
    )
    assert values == other_values
    (row,) = [r for r in other_findings.to_pylist() if r["metric"] == "repeated_prompts"]
    assert row["value"] == 2
    assert [r for r in other_findings.to_pylist() if r != row] == findings.to_pylist()


def test_the_digest_of_the_requests_includes_the_file_of_prompts(config_of_three_prompts):
    assert len(PROBE.external_digests(config_of_three_prompts, "")["prompts"]) == 64
