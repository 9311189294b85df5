"""`hallmark audit` on checkpoints of the smoke run."""

from dataclasses import replace

import pytest

from hallmark.flows.config_files import CONFIG_FOLDER
from tests.flows.test_pipeline import made
from tests.reports import pages

pytestmark = pytest.mark.slow


def test_an_earlier_checkpoint_is_audited_without_rebuilding_the_corpus(smoke):
    report = smoke.json("audit", "latest@0", "--only", "bias,extraction")
    behind = [
        "bias_respond",
        "extraction_respond",
        "bias_trace",
        "extraction_trace",
        "audit_bias",
        "audit_extraction",
        "attention_maps",
        "missing_audits",
        "model_card",
    ]
    assert made(report) == behind
    head, newest, *_ = pages.read(smoke.store / "site" / "index.html").tables[0]
    cell = dict(zip(head, newest, strict=True))
    assert report["run"] in cell["run"] and (cell["step"], cell["status"]) == (
        "0",
        "completed. Not judged. No acceptance policy is configured; 15 of 17 audits produced no "
        "result; 2 of 17 produced no conclusion. 9 of 13 stages computed",
    )
    assert report["checkpoint"].endswith("@0") and not report["checkpoint"].startswith("latest")
    assert smoke.json("status", report["checkpoint"].removesuffix("@0"))["flow"] == "pipeline"
    output = smoke("status").stdout
    assert f"audit of {report['checkpoint']}" in output and "all stages are up to date" in output
    # With a setting on the command line; all others come from the run of the checkpoint.
    report = smoke.json("audit", "latest@0", "--only", "bias", "--set", "audit_bias.seed=11")
    assert report["request"]["audits"] == ["bias"] and not any(
        stage["stale_reasons"] for stage in report["stages"]
    )
    again = smoke.json("audit", report["checkpoint"], "--only", "bias")
    assert not any(stage["stale_reasons"] for stage in again["stages"])
    again = smoke.json("audit", "latest@0", "--only", "bias,extraction")
    assert made(again) == []
    smoke("audit", "latest@3", code=2)


def test_commands_reach_the_store_that_a_config_names(smoke, tmp_path):
    elsewhere = replace(smoke, store=tmp_path / "elsewhere")
    mine = tmp_path / "my.toml"
    mine.write_text(f'store = "{smoke.store}"\n' + (CONFIG_FOLDER / "smoke.toml").read_text())
    audited = ("audit", f"{smoke.first}@0", "--only", "bias")
    report = elsewhere.json(*audited, "--config", str(mine))
    assert report["store"] == str(smoke.store) and not report["store_must_be_named"]
    named = ("--store", str(smoke.store))
    again = elsewhere.json(*audited, *named)
    assert again["store"] == str(smoke.store) and made(again) == []
    by_config = elsewhere.json("status", report["run"], "--store", str(mine))
    assert by_config["run"] == report["run"]
    assert elsewhere.json("batch", smoke.first, "--step", "1", *named)["run"] == smoke.first
    assert smoke.first in elsewhere.json("export-site", smoke.first, *named)["run"]
    assert not elsewhere.store.exists()
