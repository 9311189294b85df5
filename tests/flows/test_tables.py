"""`hallmark tables` and the page of the site list all tables."""

import json

import pytest

from hallmark.flows.cli import main
from hallmark.flows.commands.tables import render_tables
from hallmark.flows.config import Config
from hallmark.flows.table_listing import EVERY_STAGE, list_tables
from hallmark.tasks.contract import UsageError
from hallmark.tasks.training.pack import build_sequences_schema


def test_every_table_of_an_artifact_is_listed_as_in_its_manifest(session):
    from tests.reports import artifacts

    listed = {(row["stage"], row["table"]): row for row in list_tables()}
    for artifact in artifacts.history(20).values():
        for name, table in artifact.tables.items():
            if artifact.stage in {stage for stage, _ in listed}:
                row = listed[artifact.stage, name]
                assert row["columns"] == [vars(column) for column in table.columns.values()]
                assert row["meaning"] == table.manifest_entries[0]["meaning"]
    assert ("redact_spans", "accounts") in listed and (EVERY_STAGE, "telemetry") in listed
    assert (
        listed["pretrain", "speed"]["is_telemetry"]
        and not listed["pretrain", "log"]["is_telemetry"]
    )
    assert [c["name"] for c in listed["pack", "train"]["columns"]] == build_sequences_schema(
        8
    ).names


def test_stages_are_listed_in_the_order_of_the_pipeline():
    order = list(dict.fromkeys(row["stage"] for row in list_tables()))
    assert order[:3] == ["ingest", "deduplicate", "language"] and order[-1] == EVERY_STAGE
    assert order.index("plant_canaries") < order.index("pretrain") < order.index("model_card")
    without = [name for name in order[:-1] if name not in Config.model_fields]
    assert without == sorted(without) and "capability_baselines" in without  # whoever imports first


def test_one_stage_can_be_listed(capsys):
    main(["tables", "score_toxicity", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [(row["stage"], row["table"]) for row in rows] == [
        ("score_toxicity", "windows"),
        ("score_toxicity", "signals"),
        ("score_toxicity", "cascade"),
        ("score_toxicity", "sample"),
        (EVERY_STAGE, "telemetry"),
    ]
    text = " ".join(render_tables(rows).split())
    assert "score_toxicity: windows" in text
    assert "threat figure, float how threatening the text is: score of the window; " in text
    assert list_tables("deduplicate_redacted") == list_tables("deduplicate")
    assert list_tables("toxicity_build_requests") == list_tables("build_requests_toxicity")
    assert list_tables("bbq_respond_untrained") == list_tables("respond_untrained")
    output = (
        r"no stage 'redact_span' \(did you mean redact_spans\?\); "
        r"choose one of: ingest, .*cut_repeats"
    )
    with pytest.raises(UsageError, match=output) as error:
        list_tables("redact_span")
    assert ", ," not in str(error.value)
    with pytest.raises(UsageError, match="there is no stage ''"):
        list_tables("")


def test_tables_of_a_study_are_listed_too():
    listed = {(row["stage"], row["table"]) for row in list_tables()}
    assert {
        ("synthetic_corpus", "canaries"),
        ("seal_answer_key", "answer_key"),
        ("judge_candidates", "verdicts"),
        ("attribute_texts", "attributions"),
        ("error_rates", "false_alarm_rates"),
    } <= listed
