"""StereoSet against its ideal and its fully stereotyped models."""

import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from hallmark.tasks.audits.probes.stereoset import StereosetConfig, read_stereoset_items
from hallmark.tasks.contract import UsageError
from tests.tasks.audits.asking import scripted, stages_of, written

REAL = Path(__file__).parents[5] / "shared/data/audit"

STEREOTYPE, OPPOSITE, UNRELATED = 0, 1, 2


def rows(terms=12, each=2):
    return [
        {
            "type": kind,
            "target": f"term {t}",
            "bias_type": "trade" if t % 2 else "place",
            "context": f"Here {t} is {n}."
            if kind == "intersentence"
            else f"Term {t} is BLANK {n}.",
            "stereotype": f"Term {t} is late {n}.",
            "anti-stereotype": f"Term {t} is early {n}.",
            "unrelated": f"Term {t} is blue {n}.",
        }
        for t in range(terms)
        for n in range(each + t % 3 * 2)
        for kind in ("intrasentence", "intersentence")
    ]


@pytest.fixture
def config(tmp_path):
    return StereosetConfig(items=written(tmp_path / "s.jsonl", rows()))


def test_the_ideal_model(config, own_folder):
    """It knows what is unrelated, and of each term prefers the stereotype half of the time."""

    def says(item, target):
        number = int(item["text"].split()[-1].strip("."))
        first = STEREOTYPE if number % 2 else OPPOSITE
        return -1.0 if target == first else -3.0 if target == UNRELATED else -2.0

    _, found = scripted("stereoset", own_folder, config, says)
    for kind in ("intrasentence", "intersentence"):
        scores = [
            found[f"{m}_{kind}", ""]["value"]
            for m in ("language_modelling_score", "stereotype_score", "icat_score")
        ]
        assert scores == [100, 50, 100]
        assert (
            found[f"stereotype_score_{kind}", ""]["clusters"] == 12
            and found[f"stereotype_score_{kind}", ""]["null_value"] == 50
        )
        assert found[f"icat_score_{kind}", ""]["low"] is None


def test_the_fully_stereotyped_model_and_one_that_knows_nothing(config, own_folder):
    _, found = scripted("stereoset", own_folder, config, lambda item, target: -float(target))
    assert found["stereotype_score_intrasentence", ""]["value"] == 100
    assert (
        found["icat_score_intrasentence", ""]["value"]
        == 0
        == found["icat_score_intersentence", ""]["value"]
    )
    _, found = scripted("stereoset", own_folder, config, lambda item, target: -1.0)
    assert found["stereotype_score_intrasentence", ""]["value"] == 50  # ties count one half
    assert found["stereotype_score_intrasentence", ""]["p"] == 1
    assert found["tie_share_intrasentence", ""]["value"] == 100
    assert found["language_modelling_score_intrasentence", ""]["value"] == 50


def test_means_are_over_terms_whatever_their_sentences(config, own_folder):
    chosen = {}

    def says(item, target):
        rng = np.random.default_rng([*item["item"]])
        return float(chosen.setdefault((item["item"], target), rng.normal(size=3)[target]))

    _, found = scripted("stereoset", own_folder, config, says)
    by_term = defaultdict(list)
    ids = {item: None for item, _ in chosen}
    items = {item["item"]: item for item in asked_of(config, own_folder)}
    assert ids.keys() == items.keys()
    for item in ids:
        score = [chosen[item, t] for t in range(3)]
        by_term[items[item]["item_type"], items[item]["cluster"]].append(score)
    for kind in ("intrasentence", "intersentence"):
        terms = [np.array(s) for (k, _), s in by_term.items() if k == kind]
        ss = np.mean([100 * np.mean(s[:, 0] > s[:, 1]) for s in terms])
        related = [(s[:, :2] > s[:, 2:]).sum() / len(s) for s in terms]
        assert found[f"stereotype_score_{kind}", ""]["value"] == pytest.approx(ss)
        lms = found[f"language_modelling_score_{kind}", ""]["value"]
        assert lms == pytest.approx(50 * np.mean(related))
        assert found[f"icat_score_{kind}", ""]["value"] == pytest.approx(
            lms * min(ss, 100 - ss) / 50
        )


def asked_of(config, folder):
    from hallmark.tasks.audits.audit_tables import RequestBuilder
    from hallmark.tasks.audits.audited_models.audited_tokenizer import open_audited_tokenizer
    from hallmark.tasks.audits.probe import CorpusTables
    from hallmark.tasks.audits.probes.stereoset import build_requests

    questions = RequestBuilder()
    build_requests(questions, open_audited_tokenizer(folder), CorpusTables(), config)
    return [*questions.items.values()]


def test_scores_are_per_token_behind_the_context_or_from_the_beginning(config, own_folder, session):
    asked, answered, *_, (values, _) = stages_of("stereoset", own_folder, config)
    kinds = {row["item"]: row["item_type"] for row in asked["items"].read().to_pylist()}
    for row in asked["requests"].read().to_pylist():
        assert (len(row["context_ids"]) > 1) == (kinds[row["item"]] == "intersentence")
    assert answered["responses"].row_count == 3 * len(kinds) and len(values) == 12 * 2 * 4


def test_what_has_no_number_is_missing(config, own_folder):
    def says(item, target):
        return math.nan if item["cluster"] == "term 3" else -float(target)

    _, found = scripted("stereoset", own_folder, config, says)
    assert found["stereotype_score_intrasentence", ""]["missing"] == 1
    assert found["stereotype_score_intrasentence", ""]["n"] == 11


def test_bad_items_are_named_by_their_line(tmp_path):
    row = rows()[0]
    for change, said in (({"type": "word"}, "type must be one of"), ({"target": ""}, "no text in")):
        with pytest.raises(UsageError, match=f"line 2.*{said}"):
            read_stereoset_items(written(tmp_path / "bad.jsonl", [row, row | change]))


@pytest.mark.skipif(not REAL.is_dir(), reason="the shared data folder is absent")
def test_the_real_items_are_all_understood():
    items = read_stereoset_items(REAL / "stereoset.jsonl.gz")
    kinds = [item["item_type"] for item in items]
    assert len(items) == 4229 and kinds.count("intersentence") == 2123
    assert len({item["target"] for item in items}) == 79
