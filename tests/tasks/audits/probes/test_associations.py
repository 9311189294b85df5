"""Planted associations: the audit finds the dose, and nothing where there is none."""

import json

import numpy as np
import pyarrow as pa
import pytest

from hallmark.tasks.audits.audit_tables import REQUESTS, RESPONSES, RequestBuilder
from hallmark.tasks.audits.audited_models.opening import open_audited_tokenizer
from hallmark.tasks.audits.judging.training_exposure import TrainingExposure
from hallmark.tasks.audits.probe import CorpusTables
from hallmark.tasks.audits.probes.associations import (
    PROBE,
    AssociationsConfig,
    compute_trained_trait_share,
    derive_findings,
    pair_association_groups,
    select_trait_share,
)
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
from hallmark.tasks.measures.association_canaries import PLANTED_FRAMES
from hallmark.tasks.measures.sentence_frames import SENTENCE_FRAMES as GRAMMAR
from hallmark.tasks.measures.sentence_frames import sample_sentence_frames
from tests.tasks.audits.asking import scripted, stages_of
from tests.tasks.corpora import given

CONFIG = AssociationsConfig()
FRAMES = len(PLANTED_FRAMES) + CONFIG.unplanted_sentences


@pytest.fixture
def plants(session):
    config = PlantCanariesConfig(
        enabled=True,
        secrets_per_count=0,
        passages_per_count=0,
        records_per_count=0,
        sentences_per_group=40,
    )
    return plant_canaries(given([f"text {i}" for i in range(50)], kind="split"), config)["canaries"]


def test_both_traits_are_asked_about_each_group_in_each_sentence(plants, own_folder):
    asked, *_, (rows, findings) = stages_of(
        "associations", own_folder, CONFIG, corpus=(None, plants, None)
    )
    items = asked["items"].read().to_pylist()
    assert len(items) == 20 * 2 * FRAMES and len(rows) == 2 * 20 * FRAMES
    requests = asked["requests"].read().to_pylist()
    assert all(len(r["target_ids"]) == 2 for r in requests)
    for first, second in zip(items[::2], items[1::2], strict=True):
        assert (first["cluster"], first["assigned_trait"]) == (
            second["cluster"],
            second["other_trait"],
        )
        assert first["text"].replace(first["group_name"], second["group_name"]) == second["text"]
    doses = {
        row["slice"]: row for row in findings.to_pylist() if row["metric"] == "association_strength"
    }
    assert {
        "",
        "assigned_trait_share=0.5",
        "assigned_trait_share=1.0",
        "sentence_kind=planted",
        "sentence_kind=other",
    } <= {*doses}
    assert doses["assigned_trait_share=0.75"]["clusters"] == 4 and doses[""]["clusters"] == 20
    controls = [row for row in findings.to_pylist() if row["control"]]
    assert {row["verdict"] for row in controls} == {"pass"} and len(controls) == 7


@pytest.mark.parametrize(("count", "scripts"), [(10, 0), (11, 6)])
def test_instruments_run_where_a_large_effect_cannot_be_overlooked(
    count, scripts, session, own_folder
):
    doses = tuple(float(dose) for dose in np.linspace(0.5, 1, count))
    config = PlantCanariesConfig(
        enabled=True,
        secrets_per_count=0,
        passages_per_count=0,
        records_per_count=0,
        sentences_per_group=40,
        associations_per_share=1,
        trait_shares=doses,
    )
    few = plant_canaries(given([f"text {i}" for i in range(50)], kind="split"), config)["canaries"]
    _, findings = stages_of("associations", own_folder, CONFIG, corpus=(None, few, None))[-1]
    verdicts = [row["verdict"] for row in findings.to_pylist() if "script" in row["slice"]]
    assert verdicts == ["pass"] * scripts


def says(strength):
    """A model that finds own traits the likelier by ``strength(dose)``, and some traits likelier of
    everybody."""

    def answer(item, target):
        trait = item["other_trait"] if target else item["assigned_trait"]
        everybody = sum(map(ord, trait)) % 7
        noise = (sum(map(ord, item["text"])) * 31 % 101 / 101 - 0.5) / 50
        return everybody + (0.0 if target else strength(item["assigned_trait_share"])) + noise

    return answer


def test_the_dose_is_that_of_the_sentences_that_were_read(plants, own_folder):
    """By counting, where of the planted sentences some were read, and one of them twice."""
    rows = plants.read().to_pylist()
    ids = sorted(i for row in rows for i in row["doc_ids"])
    passes = {doc_id: 1 + (number % 9 == 0) for number, doc_id in enumerate(ids) if number % 3}
    questions = RequestBuilder()
    reader = open_audited_tokenizer(own_folder)
    PROBE.build_requests(questions, reader, CorpusTables(canaries=plants), CONFIG)
    items = pa.Table.from_pylist([*questions.items.values()], schema=PROBE.item_schema)
    empty = REQUESTS.empty_table(), RESPONSES.empty_table()
    found = compute_trained_trait_share(
        Responses(items, *empty, training_exposure=TrainingExposure(passes))
    )
    said = {}
    for row in rows:
        many = sum(passes.get(i, 0) for i in row["doc_ids"])
        own, every = said.get(row["association"], (0, 0))
        said[row["association"]] = own + many * row["is_assigned_trait"], every + many
    expected = [said[name][0] / said[name][1] for name in items["cluster"].to_pylist()[::2]]
    np.testing.assert_allclose(found, expected)
    planted = items["assigned_trait_share"].to_numpy()[::2]
    assert np.abs(found - planted).max() > 0.01 and np.corrcoef(found, planted)[0, 1] > 0.9
    assert np.isnan(compute_trained_trait_share(Responses(items, *empty))).all()
    assert np.isnan(
        compute_trained_trait_share(
            Responses(items, *empty, training_exposure=TrainingExposure({}))
        )
    ).all()
    values = pa.table({"assigned_trait_share": [0.5, 1.0], "trained_trait_share": [None, 0.75]})
    assert select_trait_share(values)[1] == 0.75 and np.isnan(select_trait_share(values)[0])
    values = pa.table(
        {"assigned_trait_share": [0.5, 1.0], "trained_trait_share": pa.nulls(2, pa.float64())}
    )
    assert select_trait_share(values).tolist() == [0.5, 1.0]


def test_the_dose_is_found_and_its_smallest(plants, own_folder):
    step = says(lambda dose: 2.0 if dose > 0.7 else 0.0)
    _, found = scripted("associations", own_folder, CONFIG, step, plants=plants)
    for dose, value in ((0.5, 0.0), (0.6, 0.0), (0.75, 2.0), (0.9, 2.0), (1.0, 2.0)):
        assert found["association_strength", f"assigned_trait_share={dose}"][
            "value"
        ] == pytest.approx(value, abs=0.02)
    assert found["association_preference", "assigned_trait_share=1.0"]["value"] == 1.0
    smallest = found["smallest_detected_trait_share", ""]
    assert smallest["value"] == 0.75 and smallest["n"] == 5
    line = says(lambda dose: 4 * (dose - 0.5))
    _, found = scripted("associations", own_folder, CONFIG, line, plants=plants)
    slope = found["strength_by_trait_share", ""]
    assert slope["value"] == pytest.approx(4, abs=0.05) and slope["low"] > 3.5 and slope["p"] < 1e-6


def test_a_model_that_learned_nothing_has_no_smallest_dose(plants, own_folder):
    _, found = scripted("associations", own_folder, CONFIG, says(lambda dose: 0.0), plants=plants)
    assert found["smallest_detected_trait_share", ""]["value"] is None
    assert "not measured: none has" in found["smallest_detected_trait_share", ""]["method"]
    slope = found["strength_by_trait_share", ""]
    assert slope["value"] == pytest.approx(0, abs=1e-6)  # answers are of single precision
    assert found["association_strength", "planted chance"]["verdict"] == "pass"


def test_a_preference_where_nothing_was_planted_breaks_the_instrument(plants, own_folder):
    leaked = says(lambda dose: 3.0)
    _, found = scripted("associations", own_folder, CONFIG, leaked, plants=plants)
    assert found["association_strength", "planted chance"]["verdict"] == "fail"


def test_a_gap_below_a_dose_ends_what_is_seen():
    lows = {0.5: 0.1, 0.6: 0.2, 0.75: -0.1, 0.9: 0.1, 1.0: 0.2}
    told = {"metric": "association_strength", "high": 1.0, "value": 0.5, "n": 9, "p": 0.5}
    rows = [
        told | {"tags": json.dumps({"assigned_trait_share": dose}), "low": low}
        for dose, low in lows.items()
    ]
    assert derive_findings(rows, None, None)[0]["value"] == 0.9
    # The largest is not seen, but a smaller one: then not "none".
    rows[-1]["low"] = -0.1
    seen = derive_findings(rows, None, None)[0]
    assert seen["value"] is None
    assert seen["method"].endswith(
        "not measured: that of the largest dose, 1, does not lie above 0"
    )
    chance = [row for row in rows if json.loads(row["tags"]) == {"assigned_trait_share": 0.5}]
    assert derive_findings(chance, None, None)[0]["method"].endswith(
        "no dose above one half was planted"
    )
    assert derive_findings([], None, None) == []


def test_without_planted_associations_nothing_is_measured(own_folder, session):
    rows, findings = stages_of("associations", own_folder, CONFIG)[-1]
    assert not len(rows) and {row["value"] for row in findings.to_pylist()} == {None}
    assert all("no associations were planted" in r["method"] for r in findings.to_pylist())
    other = dict.fromkeys(
        ("association", "is_assigned_trait", "group_name", "trait", "assigned_trait_share")
    )
    other |= {"doc_ids": []}
    half = [
        other | {"association": "a", "is_assigned_trait": True, "group_name": "x", "trait": "t"},
        other,
    ]
    assert [*pair_association_groups(half)] == []  # of whom no own trait is known


def test_sentences_of_the_grammar_are_drawn_without_repeats():
    assert len({*GRAMMAR}) == len(GRAMMAR) and {*sample_sentence_frames(len(GRAMMAR), 3)} == {
        *GRAMMAR
    }
    assert (
        sample_sentence_frames(9, 3)
        == sample_sentence_frames(20, 3)[:9]
        != sample_sentence_frames(9, 4)
    )
    assert not {*GRAMMAR} & {*PLANTED_FRAMES} and all(
        frame.count("{group}") == 1 for frame in GRAMMAR
    )


def test_groups_have_the_traits_that_were_said_of_them():
    rows = [
        {
            "association": "a",
            "is_assigned_trait": own,
            "group_name": group,
            "trait": trait,
            "assigned_trait_share": 0.9,
            "doc_ids": [bytes([number])],
        }
        for number, (own, group, trait) in enumerate(
            ((True, "x", "t"), (False, "x", "u"), (True, "y", "u"))
        )
    ]
    ((x, y),) = pair_association_groups(rows)
    assert (x["group_name"], x["assigned_trait"], x["other_trait"]) == ("x", "t", "u")
    assert (y["group_name"], y["assigned_trait"], y["other_trait"]) == ("y", "u", "t")
    assert np.isclose(x["assigned_trait_share"], 0.9) and (
        x["assigned_trait_doc_ids"],
        y["assigned_trait_doc_ids"],
    ) == ([b"\0"], [b"\2"])
    assert x["doc_ids"] == [b"\0", b"\1"] and y["doc_ids"] == [b"\2"]
