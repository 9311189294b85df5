"""The slices that are possible before a model is asked hold those of its findings."""

import pytest

from tasks.audits.catalogue import PROBES
from tasks.audits.judging.tags import tags_of
from tasks.audits.slices import slices_of
from tests.tasks.audits.asking import stages_of
from tests.tasks.audits.probes import test_equal_logits as invented
from tests.tasks.corpora import given


def with_default_settings(name):
    def build(folder):
        (probe,) = [probe for probe in PROBES if probe.name == name]
        texts = [f"The nurse said that she met the engineer {i}. He was late." for i in range(40)]
        splits = ["train", "holdout", "validation", "train"] * 10
        documents = given(texts, splits=splits, kind="split")["documents"]
        return probe.settings(), {"corpus": (None, None, documents)}

    build.__name__ = name
    return build


AUDITS = [*invented.AUDITS,
          *map(with_default_settings, ("toxicity", "counterfactual", "extraction_attack",
                                       "amplification"))]  # fmt: skip


@pytest.mark.parametrize("build", AUDITS, ids=lambda build: build.__name__)
def test_no_slice_of_a_finding_is_impossible(build, own_folder, tmp_path, session):
    config, more = build(tmp_path)
    name = invented.name_of(build)
    (probe,) = [probe for probe in PROBES if probe.name == name]
    asked, *_, (_, findings) = stages_of(name, own_folder, config, **more)
    items = asked["items"].read()
    skipped = [row | {"tags": tags_of(row)} for row in asked["skipped"].read().to_pylist()
               if row["count"] is None]  # fmt: skip
    found = [row for row in findings.to_pylist() if not row["control"]]
    assert found
    for row in found:
        known = slices_of(probe, row["metric"], config, items, skipped)
        assert known.may_have(row["slice"]), (row["metric"], row["slice"], known)
        early = slices_of(probe, row["metric"], config)
        assert early.may_have(row["slice"]), (row["metric"], row["slice"], early)
