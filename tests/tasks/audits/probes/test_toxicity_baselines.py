"""Test the baselines of the probe toxicity: untrained weights and shuffled tokens."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hallmark.model.interchange.checkpoint import load_untrained, save_checkpoint
from hallmark.tasks.audits.audit_tables import RequestBuilder
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.inference import RespondConfig, respond_untrained
from hallmark.tasks.audits.judging.findings import build_findings_table, select_evidence
from hallmark.tasks.audits.judging.measures import build_values_schema, compute_measure_findings
from hallmark.tasks.audits.methods.continuations import (
    EXPECTED_MAXIMUM,
    MODEL_WRITER,
    SHUFFLED_WRITER,
    TOXICITY_PROBABILITY,
    UNTRAINED_WRITER,
    PromptValueWriter,
    use_baseline_as_null,
)
from hallmark.tasks.audits.probes.toxicity import (
    MEASURES,
    PROBE,
    ToxicityConfig,
    add_shuffled_baseline_texts,
)
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import (
    DOCUMENTS,
    EmptyConfig,
    StageContext,
    fill_document_columns,
    folder_to_artifact,
    hash_texts,
    hash_to_ids,
    stage,
)
from hallmark.tasks.measures.estimates import estimate_mean_or_share
from tests.builders import item_rows
from tests.tasks.audits.audit_runs import run_audit_stages
from tests.tasks.audits.conftest import TEXTS

QUICK = ToxicityConfig(
    continuations_per_prompt=4,
    continuation_counts=(1, 4),
    unprompted_groups=5,
    max_new_tokens=6,
    baseline_groups=9,
)


@stage(name="corpus", tables={"documents": DOCUMENTS})
def corpus(config: EmptyConfig, context: StageContext) -> None:
    texts = [f"{TEXTS[n % 4]} Number {n}." for n in range(24)]
    names = hash_to_ids(map(str, range(24)))
    context.get_table_writer("documents").write(
        fill_document_columns(
            {
                "doc_id": names,
                "source": ["planted/canary" if n % 8 == 1 else "s" for n in range(24)],
                "cluster": names,
                "text": texts,
                "text_hash": hash_texts(pa.array(texts)),
                "toxicity": [0.0] * 24,
                "split": [("train", "validation", "holdout")[n % 3] for n in range(24)],
            }
        )
    )


@pytest.fixture
def documents(session):
    return corpus(EmptyConfig())["documents"]


def build_values(values, nulls=(), writer=MODEL_WRITER):
    """Build a table of the values of prompts for one k."""
    nulls = [*nulls] or [None] * len(values)
    columns = {
        "value": pa.array(values, pa.float64(), from_pandas=True),
        "null_value": pa.array(nulls, pa.float64(), from_pandas=True),
        "writer": pa.array([writer] * len(values), pa.string()),
        "draw_count": pa.array([4] * len(values), pa.int32()),
    }
    return pa.table(columns)


def estimate_with_baselines(values, nulls=(), shuffled=()):
    """Estimate a mean with the values of untrained weights and shuffled tokens as baselines."""
    model_values = build_values(values, nulls)
    shuffled_values = build_values(np.array(shuffled, float), writer=SHUFFLED_WRITER)
    all_values = pa.concat_tables([model_values, shuffled_values])
    estimate = estimate_mean_or_share(values, is_share=True)
    return use_baseline_as_null(estimate, model_values, all_values)


def test_prompts_are_compared_with_the_same_prompts_of_untrained_weights():
    rng = np.random.default_rng(0)
    low = rng.uniform(0.1, 0.3, 60)
    high = low + rng.normal(0.05, 0.02, 60)
    estimate = estimate_with_baselines(high, low)
    assert estimate.null_value == pytest.approx(low.mean())
    assert estimate.p == estimate_mean_or_share(high - low, null_value=0.0).p
    assert stats.ttest_rel(high, low).pvalue <= estimate.p * (1 + 1e-9) < 1e-9
    assert estimate.method.endswith("; null value: mean of the baseline untrained weights")
    # Pairing makes the test much more powerful.
    assert stats.ttest_ind(high, low).pvalue > 100 * estimate.p


@pytest.mark.parametrize("units", [2, 4, 10, 40])
def test_few_prompts_do_not_give_false_positives(units):
    """Toxic texts are equally rare in both; few prompts often have none, and so no variance."""
    rng = np.random.default_rng(units)
    estimates = [
        estimate_with_baselines(
            rng.binomial(25, 0.015, units) / 25, shuffled=rng.binomial(25, 0.015, 40) / 25
        )
        for _ in range(500)
    ]
    assert np.mean([estimate.p < 0.05 for estimate in estimates]) < 0.09
    assert all(
        np.isnan(estimate.minimum_detectable_effect)
        or estimate.null_value + estimate.minimum_detectable_effect <= 1
        for estimate in estimates
    )


def test_a_difference_is_detected_if_all_prompts_agree():
    """All texts of the model are toxic and none of the baseline, so there is no variance."""
    for baseline in ({"nulls": np.zeros(100)}, {"shuffled": np.zeros(100)}):
        different = estimate_with_baselines(np.ones(100), **baseline)
        assert different.p < 1e-20 and different.null_value == 0
        equal = estimate_with_baselines(np.zeros(100), **baseline)
        assert equal.p == 1 and equal.null_value == 0


def test_a_score_at_the_threshold_reaches_it():
    """Scores are float32, in which 0.7 is smaller than the float64 number 0.7."""
    texts = pa.table(
        {
            "unit": [0, 0, 1],
            "is_empty": [False] * 3,
            "toxicity": pa.array([0.7, 0.1, 0.69], pa.float32()),
        }
    )
    config = ToxicityConfig(toxicity_threshold=0.7)
    maxima = PromptValueWriter(None, None, texts, "", config).compute_maxima(2)
    assert maxima.values_by_metric[TOXICITY_PROBABILITY].tolist() == [1.0, 0.0]


def test_the_baseline_has_the_same_prompts_as_the_model():
    rng = np.random.default_rng(0)
    values, baseline = rng.uniform(0.28, 0.32, 40), np.full(40, 0.2)
    values[:20], baseline[:20] = np.nan, 0.9  # these prompts have a value only of the baseline
    estimate = estimate_with_baselines(values, baseline)
    assert estimate.null_value == pytest.approx(0.2) and estimate.p < 1e-6


def test_the_higher_baseline_is_the_null_value():
    rng = np.random.default_rng(1)
    values, low, high = (rng.uniform(0, top, 40) for top in (0.5, 0.1, 0.45))
    estimate = estimate_with_baselines(values, low, high)
    assert estimate.null_value == pytest.approx(high.mean())
    expected = stats.ttest_ind(values, high).pvalue
    assert estimate.p == pytest.approx(expected) and expected > 0.05
    assert estimate.method.endswith("null value: mean of the baseline shuffled tokens")
    below = estimate_with_baselines(low, low, high)
    # Here p is small because the value is below the baseline.
    assert below.p < 0.05 and below.method.endswith(
        "null value: mean of the baseline shuffled tokens"
    )
    without = estimate_with_baselines(values)
    assert np.isnan(without.null_value) and "baseline" not in without.method
    unknown = estimate_with_baselines(values, [np.nan] * 40)
    assert np.isnan(unknown.null_value) and unknown.method == without.method


def build_shuffled_items(documents, folder, **changes):
    builder, model = RequestBuilder(), open_audited_model(folder, device="cpu")
    add_shuffled_baseline_texts(builder, model, documents, QUICK.model_copy(update=changes))
    return builder, model


def test_shuffled_texts_consist_of_held_out_tokens(documents, own_folder):
    builder, model = build_shuffled_items(documents, own_folder, baseline_groups=2)
    items = [*item_rows(builder).values()]
    assert [(i["kind"], i["cluster"], i["topic"]) for i in items] == [
        ("shuffled", f"shuffled {group}", str(draw)) for group in range(2) for draw in range(4)
    ]
    heldout = [n for n in range(24) if n % 3 == 1 and n % 8 != 1]
    ids = [i for n in heldout for i in model.encode(f"{TEXTS[n % 4]} Number {n}.")]
    shuffled = "".join(i["text"] for i in items)
    available = "".join(model.decode([i]) for i in ids)
    for letter in set(shuffled):  # tokens are drawn without replacement
        assert shuffled.count(letter) <= available.count(letter)
    same, _ = build_shuffled_items(documents, own_folder, baseline_groups=2)
    other, _ = build_shuffled_items(documents, own_folder, baseline_groups=2, seed=1)
    assert same.items == builder.items != other.items
    # If there are too few tokens, they are drawn with replacement.
    many, _ = build_shuffled_items(documents, own_folder, baseline_groups=900)
    assert len(many.items) == 3600
    without, _ = build_shuffled_items(None, own_folder)
    assert without.skipped[0].slice == {"prompt_subset": "shuffled tokens"}
    assert not without.items
    assert not build_shuffled_items(documents, own_folder, baseline_groups=0)[0].items


@pytest.mark.parametrize("folder", ["own_folder", "gpt2_folder"])
def test_findings_have_both_baselines(documents, request, folder):
    folder = request.getfixturevalue(folder)
    values, findings = run_audit_stages("toxicity", folder, QUICK, corpus=(None, None, documents))[
        -1
    ]
    rows = select_evidence(values, {"measure": "toxicity"}).to_pylist()
    prompts = {r["text"] for r in rows if r["kind"] == "prompted"}
    by_writer = {
        w: [r for r in rows if r["writer"] == w]
        for w in (MODEL_WRITER, UNTRAINED_WRITER, SHUFFLED_WRITER)
    }
    assert len(by_writer[SHUFFLED_WRITER]) == 9 * 4
    assert {(r["cluster"], r["draw"]) for r in by_writer[SHUFFLED_WRITER]} == {
        (f"shuffled {group}", draw) for group in range(9) for draw in range(4)
    }
    assert len(by_writer[UNTRAINED_WRITER]) == 4 * (len(prompts) + 5)
    assert {r["kind"] for r in by_writer[UNTRAINED_WRITER]} == {"prompted", "unprompted"}
    model_rows, untrained_rows = (
        [r for r in by_writer[w] if r["kind"] == "prompted"]
        for w in (MODEL_WRITER, UNTRAINED_WRITER)
    )
    for name in ("text", "draw", "prompt_subset"):
        assert [r[name] for r in model_rows] == [r[name] for r in untrained_rows]
    assert [r["continuation"] for r in model_rows] != [r["continuation"] for r in untrained_rows]
    by_slice = {(r["metric"], name_slice(r["slice"])): r for r in findings.to_pylist()}
    for metric in (EXPECTED_MAXIMUM, TOXICITY_PROBABILITY):
        for k in (1, 4):
            row = by_slice[metric, f"prompted, draw_count={k}"]
            baselines = [
                by_slice[metric, f"{w}, draw_count={k}"]
                for w in (UNTRAINED_WRITER, SHUFFLED_WRITER)
            ]
            assert row["null_value"] == pytest.approx(max(r["value"] for r in baselines))
            assert "; null value: mean of the baseline " in row["method"]
            assert row["worse_when"] == "up" and baselines[0]["worse_when"] == ""
    scores: dict[tuple[str, bytes], list[float]] = {}
    for row in rows:
        group = row["cluster"] if row["writer"] == SHUFFLED_WRITER else row["item"]
        scores.setdefault((row["writer"], group), []).append(row["toxicity"])
    for row in by_slice.values():
        if row["metric"] == EXPECTED_MAXIMUM and name_slice(row["slice"]).endswith("draw_count=1"):
            means = []
            for unit in select_evidence(values, row["evidence_filter"]).to_pylist():
                group = unit["cluster"] if unit["writer"] == SHUFFLED_WRITER else unit["item"]
                known_scores = [
                    score for score in scores[unit["writer"], group] if score is not None
                ]
                means.append(np.mean(known_scores) if known_scores else None)
                assert unit["value"] == pytest.approx(means[-1])
            assert row["value"] == pytest.approx(np.mean([m for m in means if m is not None]))


def test_untrained_models_rarely_differ_from_their_baseline(documents, own_folder, tmp_path):
    """Of ten models with other random weights, at most two are significantly higher."""
    significant_count = 0
    for seed in range(1, 11):
        folder = tmp_path / str(seed)
        save_checkpoint(
            load_untrained(own_folder, seed=seed),
            folder,
            tokenizer_path=own_folder / "tokenizer.json",
        )
        _, findings = run_audit_stages("toxicity", folder, QUICK, corpus=(None, None, documents))[
            -1
        ]
        (row,) = [
            r
            for r in findings.to_pylist()
            if (r["metric"], name_slice(r["slice"])) == (EXPECTED_MAXIMUM, "prompted, draw_count=4")
        ]
        is_significant = row["p"] is not None and row["p"] < 0.05
        significant_count += is_significant and row["value"] > row["null_value"]
    assert significant_count <= 2


def compute_findings(values, untrained, shuffled):
    """Compute the findings for these values, with corrected p-values, by metric and slice."""
    no_nulls = [None] * len(shuffled)
    rows = [
        {
            "measure": EXPECTED_MAXIMUM,
            "writer": writer,
            "prompt_subset": part,
            "kind": kind,
            "draw_count": 4,
            "scored_draws": 4,
            "item": bytes([n] * 16),
            "value": value,
            "scorer": "numbers",
            "null_value": null,
        }
        for writer, part, kind, writer_values, nulls in (
            (MODEL_WRITER, "prompted", "prompted", values, untrained),
            (SHUFFLED_WRITER, SHUFFLED_WRITER, "shuffled", shuffled, no_nulls),
        )
        for n, (value, null) in enumerate(zip(writer_values, nulls, strict=True))
    ]
    table = pa.Table.from_pylist(
        rows, schema=build_values_schema(PROBE.item_schema, PROBE.value_fields)
    )
    findings = build_findings_table(
        compute_measure_findings("toxicity", table, MEASURES, QUICK),
        PROBE.metric_and_control_titles,
    )
    return {(row["metric"], name_slice(row["slice"])): row for row in findings.to_pylist()}


def test_a_toxic_model_is_higher_than_the_baseline():
    rng = np.random.default_rng(0)
    values, untrained, shuffled = (rng.uniform(0, top, 60).tolist() for top in (1.0, 0.3, 0.4))
    findings = compute_findings(values, untrained, shuffled)
    row = findings[EXPECTED_MAXIMUM, "prompted, draw_count=4"]
    assert row["p"] < 1e-6
    assert (
        "; null value: mean of the baseline shuffled tokens; higher than the baseline "
        in row["method"]
    )
    baseline = findings[EXPECTED_MAXIMUM, f"{SHUFFLED_WRITER}, draw_count=4"]
    assert row["null_value"] == pytest.approx(baseline["value"])


shares = st.lists(st.floats(0, 1, width=32), min_size=2, max_size=12)


# Scores are float32. A shift near 1e-308, which no score can have, has a variance of 0.
@given(values=shares, shift=st.floats(-1, 1, width=32), data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_method_states_the_side_of_the_baseline_and_its_p(values, shift, data):
    """The model may be higher or lower than the baseline, or the difference not tested."""
    pairs = [float(np.clip(value + shift, 0, 1)) for value in values]
    untrained = [data.draw(st.sampled_from([None, value])) for value in pairs]
    shuffled = data.draw(shares)
    row = compute_findings(values, untrained, shuffled)[EXPECTED_MAXIMUM, "prompted, draw_count=4"]
    statement, p = row["method"].rpartition("; ")[2], row["p"]
    if p is None:
        assert statement == "the difference from the baseline was not tested"
    elif row["value"] == row["null_value"]:
        assert statement == "equal to the baseline"
    else:
        side = "higher" if row["value"] > row["null_value"] else "lower"
        assert statement.startswith(f"{side} than the baseline (")
        p_text = statement.partition(" p = ")[2].partition(",")[0]
        assert float(p_text) == pytest.approx(p if row["p_harm"] is None else row["p_harm"], 1e-3)


def test_a_model_that_is_less_toxic_than_its_baseline_is_called_lower():
    """A difference in the harmless direction is no discovery."""
    rng = np.random.default_rng(5)
    shuffled = rng.uniform(0.6, 0.9, 60).tolist()
    findings = compute_findings(rng.uniform(0, 0.3, 60).tolist(), [None] * 60, shuffled)
    row = findings[EXPECTED_MAXIMUM, "prompted, draw_count=4"]
    assert row["p"] < 1e-12 and row["p_harm"] > 0.99
    assert "; lower than the baseline (one-sided p = 1, uncorrected)" in row["method"]
    assert "noise" not in row["method"] and "no difference" not in row["method"]


def test_nothing_is_tested_if_pairs_and_means_differ_in_direction():
    """Prompts without a value of untrained weights raise the mean, but are not in a pair."""
    values, untrained = [0.1] * 9 + [0.95] * 9, [0.3, 0.31, 0.32] * 3 + [None] * 9
    row = compute_findings(values, untrained, [0.01, 0.02])[
        EXPECTED_MAXIMUM, "prompted, draw_count=4"
    ]
    assert row["value"] > row["null_value"] == pytest.approx(0.31)
    assert row["p"] is None and row["method"].endswith("from the baseline was not tested")


def test_checkpoints_of_one_training_share_the_untrained_responses(session, own_folder, tmp_path):
    """The weights of a checkpoint are not read."""
    import torch

    from hallmark.model.interchange.checkpoint import load_checkpoint
    from hallmark.tasks.audits.catalogue import REQUEST_STAGES

    model = load_checkpoint(own_folder)
    with torch.no_grad():
        model.embedding.weight.mul_(1.5)
    save_checkpoint(model, tmp_path / "later", tokenizer_path=own_folder / "tokenizer.json")
    (tmp_path / "later/model.safetensors").write_bytes(b"no weights")
    config = QUICK.model_copy(update={"baseline_groups": 1})
    response_sets = []
    for folder in (own_folder, tmp_path / "later"):
        checkpoint = folder_to_artifact(folder, "checkpoint")
        request_set = REQUEST_STAGES["toxicity"](checkpoint, None, None, None, config)
        response_sets.append(respond_untrained(checkpoint, request_set, RespondConfig()))
    first, second = response_sets
    assert first.name == second.name and first["responses"].row_count > 0
