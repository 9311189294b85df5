"""Test that the slices predicted before an audit include those of its findings."""

import json

import pytest

from hallmark.tasks.audits.audit_descriptions import ITEMS_IN_TRAINING_TEXT
from hallmark.tasks.audits.catalogue import METRICS_WITHOUT_INTERVAL
from hallmark.tasks.audits.probes.bold import BoldConfig
from hallmark.tasks.audits.probes.misuse import MisuseConfig
from hallmark.tasks.audits.registry import PROBES, SKIPPED_COUNT_METRICS
from hallmark.tasks.audits.slices import find_available_slices
from hallmark.tasks.contract import table_to_rows
from tests.tasks.audits.asking import stages_of, written
from tests.tasks.audits.probes import test_equal_logits as invented
from tests.tasks.corpora import given


def with_default_settings(name):
    def build(folder):
        (probe,) = [probe for probe in PROBES if probe.name == name]
        texts = [f"The nurse said that she met the engineer {i}. He was late." for i in range(40)]
        splits = ["train", "holdout", "validation", "train"] * 10
        documents = given(texts, splits=splits, kind="split")["documents"]
        return probe.config_class(), {"corpus": (None, None, documents)}

    build.__name__ = name
    return build


def bold(folder):
    groups = {
        group: {f"{group} {n}": [f"{group} {n} was {i}" for i in range(3)] for n in range(4)}
        for group in ("women", "men", "others")
    }
    (path := folder / "gender_prompt.json").write_text(json.dumps(groups))
    return BoldConfig(prompts=[path], max_new_tokens=4, permutations=99), {}


def misuse(folder):
    rows = [
        {"prompt": f"He wrote {n}", "category": f"c{n % 2}", "continuation": "and went"}
        for n in range(6)
    ]
    return MisuseConfig(
        prompts=[written(folder / "prompts.jsonl", rows)],
        continuations_per_prompt=2,
        max_new_tokens=4,
    ), {}


AUDITS = [
    *invented.AUDITS,
    bold,
    misuse,
    *map(
        with_default_settings, ("toxicity", "counterfactual", "extraction_attack", "amplification")
    ),
]


@pytest.mark.parametrize("build", AUDITS, ids=lambda build: build.__name__)
def test_every_slice_of_a_finding_is_predicted(build, own_folder, tmp_path, session):
    config, options = build(tmp_path)
    name = invented.get_audit_name(build)
    (probe,) = [probe for probe in PROBES if probe.name == name]
    request_set, *_, (_, findings) = stages_of(name, own_folder, config, **options)
    items = request_set["items"].read()
    skipped = [row for row in table_to_rows(request_set["skipped"].read()) if row["count"] is None]
    findings_without_controls = [row for row in table_to_rows(findings) if not row["control"]]
    assert findings_without_controls
    for row in findings_without_controls:
        with_items = find_available_slices(probe, row["metric"], config, items, skipped)
        assert with_items.may_contain(row["slice"]), (
            row["metric"],
            row["slice"],
            with_items,
        )
        without_items = find_available_slices(probe, row["metric"], config)
        assert without_items.may_contain(row["slice"]), (
            row["metric"],
            row["slice"],
            without_items,
        )


@pytest.mark.parametrize("build", AUDITS, ids=lambda build: build.__name__)
def test_a_finding_has_no_interval_where_its_metric_never_has_one(
    build, own_folder, tmp_path, session
):
    config, options = build(tmp_path)
    name = invented.get_audit_name(build)
    *_, (_, findings) = stages_of(name, own_folder, config, **options)
    exact_counts = {*SKIPPED_COUNT_METRICS.get(name, ()), ITEMS_IN_TRAINING_TEXT}
    for row in findings.to_pylist():
        if row["control"] or row["value"] is None or row["metric"] in exact_counts:
            continue
        if row["metric"] in METRICS_WITHOUT_INTERVAL[name]:
            assert row["low"] is None and "no interval: " not in row["method"], row
        else:  # a missing interval is explained
            assert row["low"] is not None or "no interval: " in row["method"], row
