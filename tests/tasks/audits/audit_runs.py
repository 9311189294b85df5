"""Run an audit from requests to findings, in the session's store or with simulated responses."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa

from hallmark.tasks.audits.audit_tables import RESPONSES, RequestBuilder
from hallmark.tasks.audits.audited_models.opening import open_audited_tokenizer
from hallmark.tasks.audits.catalogue import FINDINGS_STAGES, METRICS_BY_AUDIT, REQUEST_STAGES
from hallmark.tasks.audits.inference import (
    RespondConfig,
    respond,
    respond_untrained,
    respond_untrained_models,
)
from hallmark.tasks.audits.judging.findings import build_findings_table
from hallmark.tasks.audits.probe import CorpusTables
from hallmark.tasks.audits.probes.bias import SCRAMBLED
from hallmark.tasks.audits.reference_scoring import score_with_reference
from hallmark.tasks.audits.registry import PROBES
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.audits.scoring import ScoreConfig, score_texts
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import folder_to_artifact, table_to_rows
from hallmark.tasks.measures.scorers import ScorerConfig
from tests.builders import item_rows, row_dicts


def run_audit_stages(
    audit,
    checkpoint_folder,
    config,
    corpus=(None, None, None),
    scorer=None,
    training_run=None,
    training_overlap=None,
    reference_folder=None,
    additional_scorers=(),
    answering_folder=None,
):
    """Run the stages of an audit and return their artifacts, and the values and findings.

    ``corpus`` holds lexicons, canaries and documents; ``training_overlap`` is an artifact of the
    stage ``trace``; the models in ``reference_folder`` and ``answering_folder`` read the responses
    and answer the requests.
    """
    checkpoint = folder_to_artifact(Path(checkpoint_folder), "checkpoint")
    request_set = REQUEST_STAGES[audit](checkpoint, *corpus, config)
    response_set = respond(checkpoint, request_set, RespondConfig())
    (probe,) = [probe for probe in PROBES if probe.name == audit]
    score_config = ScoreConfig(
        scorer=scorer or ScorerConfig(), additional_scorers=additional_scorers
    ).restrict_to_heads(probe.steps.scorer_heads)
    score_set = (
        score_texts(request_set, response_set, score_config) if probe.steps.uses_scorers else None
    )
    untrained_responses = untrained_scores = None
    if probe.steps.needs_untrained_baseline(config):
        untrained_responses = respond_untrained(checkpoint, request_set, RespondConfig())
        untrained_scores = score_texts(None, untrained_responses, score_config)
    untrained_models = None
    if probe.compares_with_untrained_models:
        untrained_models = respond_untrained_models(checkpoint, request_set, RespondConfig())
    reference_scores = None
    if reference_folder:
        reference_scores = score_with_reference(
            folder_to_artifact(Path(reference_folder), "checkpoint"),
            request_set,
            response_set,
            RespondConfig(),
        )
    reference_answers = None
    if answering_folder:
        other = folder_to_artifact(Path(answering_folder), "checkpoint")
        other_requests = REQUEST_STAGES[audit](other, corpus[0], None, None, config)
        other_responses = respond(other, other_requests, RespondConfig())
        reference_answers = {
            "requests": other_requests,
            "responses": other_responses,
            "scores": score_texts(None, other_responses, score_config),
        }
    exposure_inputs = ({"0": checkpoint}, {"0": training_run}) if training_run else (None, None)
    findings_artifact = FINDINGS_STAGES[audit](
        request_set,
        response_set,
        score_set,
        *exposure_inputs,
        untrained_responses,
        untrained_scores,
        training_overlap,
        reference_scores,
        untrained_models,
        reference_answers,
        config,
    )
    tables = findings_artifact["values"].read(), findings_artifact["findings"].read()
    assert not find_unlisted_metrics(audit, tables[1].to_pylist())
    return request_set, response_set, score_set, findings_artifact, tables


def compute_simulated_findings(
    audit,
    checkpoint_folder,
    config,
    simulate_log_prob,
    canaries=None,
    lexicons=None,
    knows_word_order=False,
):
    """Compute values, and findings by metric and slice, from simulated log probabilities.

    ``simulate_log_prob(item, target)`` is the log probability in nats of target number ``target``,
    or a list of those of its tokens.
    With ``knows_word_order`` all sentences are likelier than their words in another order.
    """
    (probe,) = [probe for probe in PROBES if probe.name == audit]
    tokenizer, builder = open_audited_tokenizer(Path(checkpoint_folder)), RequestBuilder()
    probe.build_requests(builder, tokenizer, CorpusTables(lexicons, canaries), config)
    requests = {row["request"]: row for row in row_dicts(builder.requests)}
    items = item_rows(builder)
    response_rows = [
        {
            "request": name,
            "draw": draw,
            "log_probs": np.atleast_1d(
                -float(draw)
                if knows_word_order and row["part"] == SCRAMBLED
                else simulate_log_prob(items[row["item"]], draw)
            ).tolist(),
        }
        for name, row in requests.items()
        for draw in range(len(row["target_ids"]))
    ]
    responses = Responses(
        builder.build_items_table(probe.item_schema),
        builder.build_requests_table(),
        pa.Table.from_pylist(response_rows, schema=RESPONSES),
        tokenizer=pa.table(
            {
                "model_kind": [tokenizer.model_kind],
                "opening_description": [tokenizer.opening_description],
            }
        ),
        skipped=builder.build_skipped_table(),
    )
    values, findings = probe.compute_values_and_findings(responses, config)
    finding_rows = table_to_rows(build_findings_table(findings, probe.metric_and_control_titles))
    finding_by_metric_and_slice = {
        (row["metric"], name_slice(row["slice"])): row for row in finding_rows
    }
    assert len(finding_by_metric_and_slice) == len(finding_rows)
    assert not find_unlisted_metrics(audit, finding_rows)
    return values, finding_by_metric_and_slice


def find_unlisted_metrics(audit, findings):
    """Return the metrics of findings, except controls, that no policy could name."""
    return {row["metric"] for row in findings if not row["control"]} - {*METRICS_BY_AUDIT[audit]}


def write_json_lines(path, rows):
    """Write a JSON Lines file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_bias_pairs(path, pairs):
    """Write sentence pairs as a file of the audit bias."""
    lines = [
        {"stereo": p.first, "anti": p.second, "category": p.category, "template": p.template}
        for p in pairs
    ]
    return write_json_lines(path, lines)
