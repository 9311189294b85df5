"""The floor of toxic continuations: what those write who mean nothing by it."""

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
    build_shuffled_baseline,
)
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
from tests.tasks.audits.asking import stages_of
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


def table(values, nulls=(), writer=MODEL_WRITER):
    """Values of so many prompts, for one k."""
    nulls = [*nulls] or [None] * len(values)
    columns = {
        "value": pa.array(values, pa.float64(), from_pandas=True),
        "null_value": pa.array(nulls, pa.float64(), from_pandas=True),
        "writer": pa.array([writer] * len(values), pa.string()),
        "draw_count": pa.array([4] * len(values), pa.int32()),
    }
    return pa.table(columns)


def beside(values, nulls=(), shuffled=()):
    """The estimate of values, told apart from what untrained weights and shuffled tokens give."""
    mine = table(values, nulls)
    every = pa.concat_tables([mine, table(np.array(shuffled, float), writer=SHUFFLED_WRITER)])
    return use_baseline_as_null(estimate_mean_or_share(values, is_share=True), mine, every)


def test_prompts_are_compared_with_the_same_prompts_of_untrained_weights():
    rng = np.random.default_rng(0)
    low = rng.uniform(0.1, 0.3, 60)
    high = low + rng.normal(0.05, 0.02, 60)
    made = beside(high, low)
    assert made.null_value == pytest.approx(low.mean())
    assert made.p == pytest.approx(stats.ttest_rel(high, low).pvalue)
    assert made.method.endswith("; null: the floor, untrained weights")
    assert stats.ttest_ind(high, low).pvalue > 100 * made.p  # else pairing would have no point


@pytest.mark.parametrize("units", [2, 4, 10, 40])
def test_of_few_prompts_chance_is_not_taken_for_the_models(units):
    """Both write as rarely what is toxic; of the few none does, which says nothing of their
    spread."""
    rng = np.random.default_rng(units)
    found = [
        beside(rng.binomial(25, 0.015, units) / 25, shuffled=rng.binomial(25, 0.015, 40) / 25)
        for _ in range(500)
    ]
    assert np.mean([made.p < 0.05 for made in found]) < 0.09
    assert all(
        np.isnan(made.minimum_detectable_effect)
        or made.null_value + made.minimum_detectable_effect <= 1
        for made in found
    )


def test_where_all_prompts_agree_the_model_is_told_apart():
    """Toxic behind each, where untrained weights and shuffled tokens are behind none."""
    for floor in ({"nulls": np.zeros(100)}, {"shuffled": np.zeros(100)}):
        made = beside(np.ones(100), **floor)
        assert made.p < 1e-20 and made.null_value == 0
        alike = beside(np.zeros(100), **floor)
        assert alike.p == 1 and alike.null_value == 0


def test_a_score_at_the_threshold_reaches_it():
    """Scores are float32: of 0.7 none is as large as the number 0.7."""
    texts = pa.table(
        {
            "unit": [0, 0, 1],
            "is_empty": [False] * 3,
            "toxicity": pa.array([0.7, 0.1, 0.69], pa.float32()),
        }
    )
    config = ToxicityConfig(toxicity_threshold=0.7)
    found = PromptValueWriter(None, None, texts, "", config).compute_maxima(2)
    assert found.values[TOXICITY_PROBABILITY].tolist() == [1.0, 0.0]


def test_the_floor_is_that_of_prompts_that_have_a_value():
    rng = np.random.default_rng(0)
    mine, floor = rng.uniform(0.28, 0.32, 40), np.full(40, 0.2)
    mine[:20], floor[:20] = np.nan, 0.9  # the model wrote nothing where untrained weights are toxic
    made = beside(mine, floor)
    assert made.null_value == pytest.approx(0.2) and made.p < 1e-6


def test_the_higher_floor_counts():
    rng = np.random.default_rng(1)
    values, low, high = (rng.uniform(0, top, 40) for top in (0.5, 0.1, 0.45))
    made = beside(values, low, high)
    assert made.null_value == pytest.approx(high.mean())
    expected = stats.ttest_ind(values, high).pvalue
    assert made.p == pytest.approx(expected) and expected > 0.05
    assert made.method.endswith("null: the floor, shuffled tokens")
    below = beside(low, low, high)
    # A p that is small because it lies below.
    assert below.p < 0.05 and below.method.endswith("null: the floor, shuffled tokens")
    alone = beside(values)
    assert np.isnan(alone.null_value) and "floor" not in alone.method
    silent = beside(values, [np.nan] * 40)
    assert np.isnan(silent.null_value) and silent.method == alone.method


def drawn(documents, folder, **changes):
    questions, reader = RequestBuilder(), open_audited_model(folder, device="cpu")
    build_shuffled_baseline(questions, reader, documents, QUICK.model_copy(update=changes))
    return questions, reader


def test_shuffled_texts_are_of_held_out_tokens_alone(documents, own_folder):
    questions, reader = drawn(documents, own_folder, baseline_groups=2)
    items = [*questions.items.values()]
    assert [(i["kind"], i["cluster"], i["topic"]) for i in items] == [
        ("shuffled", f"shuffled {group}", str(draw)) for group in range(2) for draw in range(4)
    ]
    held = [n for n in range(24) if n % 3 == 1 and n % 8 != 1]
    ids = [i for n in held for i in reader.encode(f"{TEXTS[n % 4]} Number {n}.")]
    shown, there = "".join(i["text"] for i in items), "".join(reader.decode([i]) for i in ids)
    for letter in set(shown):  # drawn without putting back
        assert shown.count(letter) <= there.count(letter)
    again, _ = drawn(documents, own_folder, baseline_groups=2)
    other, _ = drawn(documents, own_folder, baseline_groups=2, seed=1)
    assert again.items == questions.items != other.items
    many, _ = drawn(
        documents, own_folder, baseline_groups=900
    )  # more than there are: some come again
    assert len(many.items) == 3600
    none, _ = drawn(None, own_folder)
    assert none.skipped[0]["tags"] == '{"prompt_subset": "shuffled tokens"}' and not none.items
    assert not drawn(documents, own_folder, baseline_groups=0)[0].items


@pytest.mark.parametrize("folder", ["own_folder", "gpt2_folder"])
def test_both_floors_stand_beside_the_figures(documents, request, folder):
    folder = request.getfixturevalue(folder)
    values, findings = stages_of("toxicity", folder, QUICK, corpus=(None, None, documents))[-1]
    rows = select_evidence(values, {"measure": "toxicity"}).to_pylist()
    prompts = {r["text"] for r in rows if r["kind"] == "prompted"}
    by = {
        w: [r for r in rows if r["writer"] == w]
        for w in (MODEL_WRITER, UNTRAINED_WRITER, SHUFFLED_WRITER)
    }
    assert len(by[SHUFFLED_WRITER]) == 9 * 4
    assert {(r["cluster"], r["draw"]) for r in by[SHUFFLED_WRITER]} == {
        (f"shuffled {group}", draw) for group in range(9) for draw in range(4)
    }
    assert len(by[UNTRAINED_WRITER]) == 4 * (len(prompts) + 5)
    assert {r["kind"] for r in by[UNTRAINED_WRITER]} == {"prompted", "unprompted"}
    own, floor = (
        [r for r in by[w] if r["kind"] == "prompted"] for w in (MODEL_WRITER, UNTRAINED_WRITER)
    )
    for name in ("text", "draw", "prompt_subset"):
        assert [r[name] for r in own] == [r[name] for r in floor]
    assert [r["continuation"] for r in own] != [r["continuation"] for r in floor]
    made = {(r["metric"], r["slice"]): r for r in findings.to_pylist()}
    for metric in (EXPECTED_MAXIMUM, TOXICITY_PROBABILITY):
        for k in (1, 4):
            figure = made[metric, f"prompted, draw_count={k}"]
            floors = [
                made[metric, f"{w}, draw_count={k}"]["value"]
                for w in (UNTRAINED_WRITER, SHUFFLED_WRITER)
            ]
            assert (
                figure["null_value"] == pytest.approx(max(floors))
                and "; null: the floor, " in (figure["method"])
            )
            assert (
                figure["worse_when"] == "up"
                and made[metric, f"{UNTRAINED_WRITER}, draw_count={k}"]["worse_when"] == ""
            )
    scores: dict[tuple[str, bytes], list[float]] = {}
    for row in rows:
        group = row["cluster"] if row["writer"] == SHUFFLED_WRITER else row["item"]
        scores.setdefault((row["writer"], group), []).append(row["toxicity"])
    for row in made.values():
        if row["metric"] == EXPECTED_MAXIMUM and row["slice"].endswith("draw_count=1"):
            means = []
            for unit in select_evidence(values, row["evidence_filter"]).to_pylist():
                group = unit["cluster"] if unit["writer"] == SHUFFLED_WRITER else unit["item"]
                known = [score for score in scores[unit["writer"], group] if score is not None]
                means.append(np.mean(known) if known else None)
                assert unit["value"] == pytest.approx(means[-1])
            assert row["value"] == pytest.approx(np.mean([m for m in means if m is not None]))


def test_an_untrained_model_is_not_told_apart_from_its_floor(documents, own_folder, tmp_path):
    """In any of ten: not with those weights, with others of their kind."""
    apart = 0
    for seed in range(1, 11):
        folder = tmp_path / str(seed)
        save_checkpoint(
            load_untrained(own_folder, seed=seed),
            folder,
            tokenizer_path=own_folder / "tokenizer.json",
        )
        _, found = stages_of("toxicity", folder, QUICK, corpus=(None, None, documents))[-1]
        (row,) = [
            r
            for r in found.to_pylist()
            if (r["metric"], r["slice"]) == (EXPECTED_MAXIMUM, "prompted, draw_count=4")
        ]
        apart += row["p"] is not None and row["p"] < 0.05 and row["value"] > row["null_value"]
    assert apart <= 2


def toxicity_findings(values, untrained, shuffled):
    """The findings of a model with these values, as the audit's table has them, by slice."""
    nobody = [None] * len(shuffled)
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
        for writer, part, kind, known, nulls in (
            (MODEL_WRITER, "prompted", "prompted", values, untrained),
            (SHUFFLED_WRITER, SHUFFLED_WRITER, "shuffled", shuffled, nobody),
        )
        for n, (value, null) in enumerate(zip(known, nulls, strict=True))
    ]
    table = pa.Table.from_pylist(
        rows, schema=build_values_schema(PROBE.item_schema, PROBE.value_fields)
    )
    found = build_findings_table(
        compute_measure_findings("toxicity", table, MEASURES, QUICK)
    ).to_pylist()
    return {(row["metric"], row["slice"]): row for row in found}


def test_a_toxic_model_is_told_apart():
    rng = np.random.default_rng(0)
    values, untrained, shuffled = (rng.uniform(0, top, 60).tolist() for top in (1.0, 0.3, 0.4))
    found = toxicity_findings(values, untrained, shuffled)
    figure = found[EXPECTED_MAXIMUM, "prompted, draw_count=4"]
    assert figure["p"] < 1e-6
    assert "; null: the floor, shuffled tokens; higher than the floor (p " in figure["method"]
    assert figure["null_value"] == pytest.approx(
        found[EXPECTED_MAXIMUM, f"{SHUFFLED_WRITER}, draw_count=4"]["value"]
    )


shares = st.lists(st.floats(0, 1, width=32), min_size=2, max_size=12)


@given(values=shares, shift=st.floats(-1, 1), data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_method_says_which_side_of_the_floor_by_the_p_that_the_table_shows(values, shift, data):
    """In whatever direction the model differs, and where there is nothing to test."""
    pairs = [float(np.clip(value + shift, 0, 1)) for value in values]
    untrained = [data.draw(st.sampled_from([None, value])) for value in pairs]
    shuffled = data.draw(shares)
    row = toxicity_findings(values, untrained, shuffled)[EXPECTED_MAXIMUM, "prompted, draw_count=4"]
    said, p = row["method"].rpartition("; ")[2], row["p_corrected"]
    sides = {side: said.startswith(f"{side} than the floor") for side in ("higher", "lower")}
    is_found = p is not None and p < 0.05
    assert sides["higher"] == (is_found and row["value"] > row["null_value"])
    assert sides["lower"] == (is_found and row["value"] < row["null_value"])
    no_difference = said.startswith("no difference from the floor was found")
    assert no_difference == (p is not None and p >= 0.05)
    assert (said == "the difference from the floor was not tested") == (p is None)


def test_a_model_that_is_less_toxic_than_its_floor_is_called_lower():
    """With a two-sided p of 1e-12 there is a difference, if not a harmful one."""
    rng = np.random.default_rng(5)
    shuffled = rng.uniform(0.6, 0.9, 60).tolist()
    row = toxicity_findings(rng.uniform(0, 0.3, 60).tolist(), [None] * 60, shuffled)
    figure = row[EXPECTED_MAXIMUM, "prompted, draw_count=4"]
    assert figure["p"] < 1e-12
    assert "; lower than the floor (p = " in figure["method"]
    assert "noise" not in figure["method"] and "no difference" not in figure["method"]


def test_where_pairs_and_means_differ_in_direction_nothing_is_tested():
    """Prompts without a value of untrained weights raise the mean, but are in no pair."""
    values, untrained = [0.1] * 9 + [0.95] * 9, [0.3, 0.31, 0.32] * 3 + [None] * 9
    row = toxicity_findings(values, untrained, [0.01, 0.02])[
        EXPECTED_MAXIMUM, "prompted, draw_count=4"
    ]
    assert row["value"] > row["null_value"] == pytest.approx(0.31)
    assert row["p"] is None and row["method"].endswith("from the floor was not tested")


def test_checkpoints_of_one_training_share_the_untrained_answers(session, own_folder, tmp_path):
    """The weights of a checkpoint are not looked at: nor need there be any."""
    import torch

    from hallmark.model.interchange.checkpoint import load_checkpoint
    from hallmark.tasks.audits.catalogue import REQUEST_STAGES

    model = load_checkpoint(own_folder)
    with torch.no_grad():
        model.embedding.weight.mul_(1.5)
    save_checkpoint(model, tmp_path / "later", tokenizer_path=own_folder / "tokenizer.json")
    (tmp_path / "later/model.safetensors").write_bytes(b"no weights")
    config = QUICK.model_copy(update={"baseline_groups": 1})
    made = [
        respond_untrained(
            folder_to_artifact(folder, "checkpoint"),
            REQUEST_STAGES["toxicity"](
                folder_to_artifact(folder, "checkpoint"), None, None, None, config
            ),
            RespondConfig(),
        )
        for folder in (own_folder, tmp_path / "later")
    ]
    assert made[0].name == made[1].name and made[0]["responses"].row_count > 0
