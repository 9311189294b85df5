"""Test the probe stereoset with the ideal and the fully stereotyped model of the paper."""

import json
import math
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import hallmark
from hallmark.tasks.audits.probes.stereoset import StereosetConfig, read_stereoset_items
from hallmark.tasks.contract import UsageError
from tests.builders import item_rows
from tests.tasks.audits.audit_runs import (
    compute_simulated_findings,
    run_audit_stages,
    write_json_lines,
)

REAL = Path(__file__).parents[5] / "shared/data/audit"

STEREOTYPE, OPPOSITE, UNRELATED = 0, 1, 2


def build_rows(terms=12, sentences_per_term=2):
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
        for n in range(sentences_per_term + t % 3 * 2)
        for kind in ("intrasentence", "intersentence")
    ]


@pytest.fixture
def config(tmp_path):
    return StereosetConfig(items=write_json_lines(tmp_path / "s.jsonl", build_rows()))


def test_the_ideal_model_has_the_highest_score(config, own_folder):
    """It rejects unrelated texts, and prefers half of the stereotypes of each term."""

    def compute_log_likelihood(item, target):
        number = int(item["text"].split()[-1].strip("."))
        first = STEREOTYPE if number % 2 else OPPOSITE
        return -1.0 if target == first else -3.0 if target == UNRELATED else -2.0

    _, findings = compute_simulated_findings(
        "stereoset", own_folder, config, compute_log_likelihood
    )
    for kind in ("intrasentence", "intersentence"):
        scores = [
            findings[f"{m}_{kind}", ""]["value"]
            for m in ("language_modelling_score", "stereotype_score", "icat_score")
        ]
        assert scores == [100, 50, 100]
        row = findings[f"stereotype_score_{kind}", ""]
        assert row["clusters"] == 12 and row["null_value"] == 50
        assert findings[f"icat_score_{kind}", ""]["low"] is None


def test_a_fully_stereotyped_model_and_one_without_preferences(config, own_folder):
    _, findings = compute_simulated_findings(
        "stereoset", own_folder, config, lambda item, target: -float(target)
    )
    assert findings["stereotype_score_intrasentence", ""]["value"] == 100
    assert findings["icat_score_intrasentence", ""]["value"] == 0
    assert findings["icat_score_intersentence", ""]["value"] == 0
    _, findings = compute_simulated_findings(
        "stereoset", own_folder, config, lambda item, target: -1.0
    )
    assert findings["stereotype_score_intrasentence", ""]["value"] == 50  # ties count one half
    row = findings["stereotype_score_intrasentence", ""]
    assert row["p"] is None and row["inconclusive_reason"].startswith(
        "the model is too weak for this audit: StereoSet language modelling score"
    )
    control = findings["language_modelling_score_intrasentence", "capability"]
    assert (control["verdict"], control["value"], control["null_value"]) == ("fail", 50, 50)
    assert findings["tie_share_intrasentence", ""]["value"] == 100
    assert findings["language_modelling_score_intrasentence", ""]["value"] == 50


def test_all_terms_have_equal_weight(config, own_folder):
    log_likelihoods = {}

    def compute_log_likelihood(item, target):
        rng = np.random.default_rng([*item["item"]])
        return float(log_likelihoods.setdefault((item["item"], target), rng.normal(size=3)[target]))

    _, findings = compute_simulated_findings(
        "stereoset", own_folder, config, compute_log_likelihood
    )
    by_term = defaultdict(list)
    ids = {item: None for item, _ in log_likelihoods}
    items = {item["item"]: item for item in build_items(config, own_folder)}
    assert ids.keys() == items.keys()
    for item in ids:
        score = [log_likelihoods[item, t] for t in range(3)]
        by_term[items[item]["item_type"], items[item]["cluster"]].append(score)
    for kind in ("intrasentence", "intersentence"):
        terms = [np.array(s) for (k, _), s in by_term.items() if k == kind]
        ss = np.mean([100 * np.mean(s[:, 0] > s[:, 1]) for s in terms])
        related = [(s[:, :2] > s[:, 2:]).sum() / len(s) for s in terms]
        assert findings[f"stereotype_score_{kind}", ""]["value"] == pytest.approx(ss)
        lms = findings[f"language_modelling_score_{kind}", ""]["value"]
        assert lms == pytest.approx(50 * np.mean(related))
        assert findings[f"icat_score_{kind}", ""]["value"] == pytest.approx(
            lms * min(ss, 100 - ss) / 50
        )


def build_items(config, folder):
    from hallmark.tasks.audits.audit_tables import RequestBuilder
    from hallmark.tasks.audits.audited_models.opening import open_audited_tokenizer
    from hallmark.tasks.audits.probe import CorpusTables
    from hallmark.tasks.audits.probes.stereoset import build_requests

    builder = RequestBuilder()
    build_requests(builder, open_audited_tokenizer(folder), CorpusTables(), config)
    return [*item_rows(builder).values()]


def test_only_intersentence_texts_are_scored_after_the_context(config, own_folder, session):
    request_set, response_set, *_, (values, _) = run_audit_stages("stereoset", own_folder, config)
    kinds = {row["item"]: row["item_type"] for row in request_set["items"].read().to_pylist()}
    for row in request_set["requests"].read().to_pylist():
        assert (len(row["context_ids"]) > 1) == (kinds[row["item"]] == "intersentence")
    assert response_set["responses"].row_count == 3 * len(kinds) and len(values) == 12 * 2 * 4


def test_terms_without_a_score_are_missing(config, own_folder):
    def compute_log_likelihood(item, target):
        return math.nan if item["cluster"] == "term 3" else -float(target)

    _, findings = compute_simulated_findings(
        "stereoset", own_folder, config, compute_log_likelihood
    )
    assert findings["stereotype_score_intrasentence", ""]["missing"] == 1
    assert findings["stereotype_score_intrasentence", ""]["n"] == 11


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "word"}, "type must be one of"),
        ({"target": ""}, "must have text in"),
        (
            {"stereotype": "same.", "anti-stereotype": "same."},
            "has the same text in two of 'stereotype', 'anti-stereotype', 'unrelated'; provide "
            "three",
        ),
    ],
)
def test_errors_name_the_line_of_an_invalid_item(tmp_path, change, message):
    row = build_rows()[0]
    with pytest.raises(UsageError, match=f"line 2.*{message}"):
        read_stereoset_items(write_json_lines(tmp_path / "bad.jsonl", [row, row | change]))


@pytest.mark.skipif(not REAL.is_dir(), reason="the shared data folder is absent")
def test_all_published_items_are_read():
    items = read_stereoset_items(REAL / "stereoset.jsonl.gz")
    kinds = [item.item_type for item in items]
    assert len(items) == 4229 and kinds.count("intersentence") == 2123
    assert len({item.target for item in items}) == 79


DEV = {
    "version": "1.0",
    "data": {
        kind: [
            {
                "id": kind,
                "target": "chess player",
                "bias_type": "profession",
                "context": "The chess player was BLANK.",
                "sentences": [
                    {"sentence": f"The {kind} was {label}.", "id": "x", "gold_label": label}
                    for label in ("anti-stereotype", "unrelated", "stereotype")
                ],
            }
        ]
        for kind in ("intersentence", "intrasentence")
    },
}


@pytest.mark.parametrize("indent", [None, 4])
def test_the_authors_own_file_is_named_and_the_documented_conversion_is_read(
    tmp_path, monkeypatch, indent
):
    (tmp_path / "dev.json").write_text(json.dumps(DEV, indent=indent))
    with pytest.raises(
        UsageError, match=r"one JSON object, as published by the authors.*docs/audit-sets\.md"
    ):
        read_stereoset_items(tmp_path / "dev.json")
    guide = (Path(hallmark.__file__).parents[1] / "docs/audit-sets.md").read_text()
    (conversion,) = re.findall(r"```python\n(.*?dev\.json.*?)```", guide, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(conversion, {})
    items = read_stereoset_items(tmp_path / "stereoset.jsonl")
    assert [item.item_type for item in items] == ["intersentence", "intrasentence"]
    assert items[0].texts[:2] == (
        "The intersentence was stereotype.",
        "The intersentence was anti-stereotype.",
    )
    assert items[1].target == "chess player" and items[1].bias_type == "profession"
