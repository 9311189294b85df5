"""Run an audit from requests to findings, in the session's store or with simulated responses."""

import json
from pathlib import Path

import pyarrow as pa

from hallmark.tasks.audits.audit_tables import RESPONSES, RequestBuilder
from hallmark.tasks.audits.audited_models.opening import open_audited_tokenizer
from hallmark.tasks.audits.catalogue import FINDINGS_STAGES, METRICS_BY_AUDIT, REQUEST_STAGES
from hallmark.tasks.audits.inference import RespondConfig, respond, respond_untrained
from hallmark.tasks.audits.judging.findings import build_findings_table
from hallmark.tasks.audits.probe import CorpusTables
from hallmark.tasks.audits.reference_scoring import score_with_reference
from hallmark.tasks.audits.registry import PROBES
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.audits.scoring import ScoreConfig, score_texts
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import folder_to_artifact, table_to_rows
from hallmark.tasks.measures.scorers import ScorerConfig
from tests.builders import item_rows, row_dicts


def stages_of(
    name,
    folder,
    config,
    corpus=(None, None, None),
    scorer=None,
    pretrained=None,
    traced=None,
    reference=None,
    also=(),
):
    """Run the stages of an audit and return their artifacts, and the values and findings.

    ``corpus`` holds lexicons, canaries and documents.
    """
    checkpoint = folder_to_artifact(Path(folder), "checkpoint")
    asked = REQUEST_STAGES[name](checkpoint, *corpus, config)
    answered = respond(checkpoint, asked, RespondConfig())
    (probe,) = [probe for probe in PROBES if probe.name == name]
    settings = ScoreConfig(
        scorer=scorer or ScorerConfig(), additional_scorers=also
    ).restrict_to_heads(probe.steps.scorer_heads)
    scored = score_texts(asked, answered, settings) if probe.steps.uses_scorers else None
    untrained = floor = None
    if probe.steps.needs_untrained_baseline(config):
        untrained = respond_untrained(checkpoint, asked, RespondConfig())
        floor = score_texts(None, untrained, settings)
    referred = None
    if reference:
        referred = score_with_reference(
            folder_to_artifact(Path(reference), "checkpoint"), asked, answered, RespondConfig()
        )
    dated = ({"0": checkpoint}, {"0": pretrained}) if pretrained else (None, None)
    judged = FINDINGS_STAGES[name](
        asked, answered, scored, *dated, untrained, floor, traced, referred, config
    )
    tables = judged["values"].read(), judged["findings"].read()
    assert not unnamed(name, tables[1].to_pylist())
    return asked, answered, scored, judged, tables


def scripted(name, folder, config, says, plants=None, lexicons=None):
    """Compute values, and findings by metric and slice, from simulated log probabilities.

    ``says(item, target)`` is the log probability of a target in nats.
    """
    (probe,) = [probe for probe in PROBES if probe.name == name]
    reader, questions = open_audited_tokenizer(Path(folder)), RequestBuilder()
    probe.build_requests(questions, reader, CorpusTables(lexicons, plants), config)
    requests = {row["request"]: row for row in row_dicts(questions.requests)}
    items = item_rows(questions)
    answers = [
        {
            "request": name,
            "draw": draw,
            "log_probs": [says(items[row["item"]], draw)],
        }
        for name, row in requests.items()
        for draw in range(len(row["target_ids"]))
    ]
    given = Responses(
        questions.build_items_table(probe.item_schema),
        questions.build_requests_table(),
        pa.Table.from_pylist(answers, schema=RESPONSES),
        tokenizer=pa.table(
            {"model_kind": [reader.model_kind], "opening_description": [reader.opening_description]}
        ),
        skipped=questions.build_skipped_table(),
    )
    rows, findings = probe.compute_values_and_findings(given, config)
    found = table_to_rows(build_findings_table(findings, probe.metrics_and_controls))
    made = {(row["metric"], name_slice(row["slice"])): row for row in found}
    assert len(made) == len(found)
    assert not unnamed(name, found)
    return rows, made


def unnamed(audit, findings):
    """Return the metrics of findings, except controls, that no policy could name."""
    return {row["metric"] for row in findings if not row["control"]} - {*METRICS_BY_AUDIT[audit]}


def written(path, rows):
    """Write a JSON Lines file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
