"""Audit the capability of a model: bits per byte, cloze accuracy and long-distance dependencies.

Bits per byte are the bits that held-out documents cost, each from its beginning, divided by their
UTF-8 bytes; this compares models with different tokens. Baselines are gzip -9 over the same text,
and the models of ``capability_baselines`` over the same tokens. Cloze accuracy is the accuracy on
last words of held-out sentences, see ``cloze.py``; for dependencies see ``dependencies.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from hallmark.tasks.audits.ability.baselines import estimate_gzip_bits_per_byte
from hallmark.tasks.audits.ability.capability_baselines import (
    BASELINE_BITS,
    NGRAM_ORDERS,
    RECURRENT,
    TRAINING_SIZES,
    BaselinesConfig,
)
from hallmark.tasks.audits.ability.capability_texts import (
    PRINTABLE_CHARACTERS,
    RANDOM_TEXT,
    TRAINING_TEXT,
    generate_random_texts,
    sample_split_documents,
)
from hallmark.tasks.audits.ability.cloze import (
    build_cloze_sample_rows,
    compute_cloze_findings,
    find_cloze_passages,
)
from hallmark.tasks.audits.ability.dependencies import compute_dependency_findings
from hallmark.tasks.audits.ability.minimal_pairs import (
    MODEL,
    PAIRS,
    build_minimal_pair_rows,
    generate_agreement_pairs,
    generate_garden_path_pairs,
)
from hallmark.tasks.audits.audit_descriptions import CAPABILITY_METRICS
from hallmark.tasks.audits.audit_tables import HELD_OUT_TEXT
from hallmark.tasks.audits.audit_tables import MODEL as MODEL_TABLE
from hallmark.tasks.audits.audited_models.audited_model import (
    AUDIT_LIBRARIES,
    AuditedModel,
    ModelDtype,
)
from hallmark.tasks.audits.audited_models.opening import DTYPE_DESCRIPTION, open_audited_model
from hallmark.tasks.audits.judging.findings import (
    FINDINGS,
    Finding,
    build_finding,
    build_findings_table,
)
from hallmark.tasks.contract import (
    ID_TYPE,
    Artifact,
    DeviceName,
    HallmarkError,
    Row,
    StageContext,
    Table,
    column,
    format_count,
    stage,
    table_schema,
)
from hallmark.tasks.measures.estimates import Estimate, estimate_mean_or_share
from hallmark.tasks.measures.statistics import t_half_width_and_p

Float64 = NDArray[np.float64]

AUDIT = "capability"

#: Confidence level of the intervals.
CONFIDENCE_LEVEL = 0.95


class CapabilityConfig(BaselinesConfig):
    """Settings of the capability audit and its baselines."""

    max_passages: int = Field(200, ge=2, description="maximum number of passages in the cloze test")
    min_passage_words: int = Field(
        20, ge=1, description="minimum number of words in a passage before its last word"
    )
    max_passage_characters: int = Field(
        1_000, ge=50, description="maximum length of a passage in characters"
    )
    device: DeviceName = Field("auto", description="device on which the audited model runs")
    dtype: ModelDtype = Field("auto", description=DTYPE_DESCRIPTION)

    @property
    def baselines_config(self) -> BaselinesConfig:
        """The settings that the baselines depend on."""
        return BaselinesConfig(
            **{name: getattr(self, name) for name in BaselinesConfig.model_fields}
        )


SAMPLES = table_schema(
    "Measured texts, one row per document, passage or control text. Columns that do not apply to "
    "a text are null.",
    column("sample_id", pa.int32(), "id", "row number"),
    column(
        "text_kind",
        pa.string(),
        "label",
        "measurement or control that uses the text",
    ),
    column("doc_id", ID_TYPE, "id", "the document"),
    column("source", pa.string(), "label", "document source"),
    column("bytes", pa.int64(), "figure", "text length in UTF-8 bytes", unit="bytes"),
    column("tokens", pa.int64(), "figure", "number of scored tokens", unit="tokens"),
    column(
        "model_bits",
        pa.float64(),
        "figure",
        "number of bits needed by the audited model to encode the text",
        unit="bits",
    ),
    *BASELINE_BITS,
    column("prompt", pa.large_string(), "corpus text", "the passage without its last word"),
    column("answer", pa.string(), "corpus text", "the last word"),
    column("continuation", pa.large_string(), "model text", "continuation written by the model"),
    column(
        "is_correct",
        pa.bool_(),
        "figure",
        "whether the model correctly predicted the passage's last word",
    ),
)


@dataclass(frozen=True)
class MeasuredTexts:
    """Hold the texts of one kind and their bits.

    Attributes:
        text_kind: The kind.
        texts: The texts.
        text_bits_rows: Rows of TEXT_BITS, the bits in the baselines.
        model_bits: The bits in the model; None if they were not, or cannot be, measured.
    """

    text_kind: str
    texts: list[str]
    text_bits_rows: pa.Table
    model_bits: Float64 | None

    @property
    def byte_counts(self) -> NDArray[np.int64]:
        """UTF-8 bytes of each text."""
        byte_counts: NDArray[np.int64] = self.text_bits_rows["bytes"].to_numpy()
        return byte_counts

    @property
    def bits_by_baseline(self) -> dict[str, Float64]:
        """Bits of each text, (n,), by available baseline."""
        bit_columns = {
            name: self.text_bits_rows[f"{name}_bits"] for name in (*NGRAM_ORDERS, RECURRENT)
        }
        return {
            name: bit_column.to_numpy()
            for name, bit_column in bit_columns.items()
            if not bit_column.null_count
        }


def compute_text_bits(model: AuditedModel, texts: Sequence[str]) -> Float64 | None:
    """Compute the bits of each text; None for a masked model, which gives no p(text)."""
    if model.model_kind != "causal":
        return None
    log_probs = model.compute_log_probs(
        [model.prepend_bos_id(sequence) for sequence in model.encode_batch(texts)]
    )
    return np.array([-sequence.sum(dtype=np.float64) / np.log(2) for sequence in log_probs])


def estimate_bits_per_byte(bits: Float64, byte_counts: NDArray[np.int64]) -> Estimate:
    """Estimate the sum of bits per sum of bytes; documents are weighted by their bytes."""
    return estimate_mean_or_share(
        bits / byte_counts, weights=byte_counts, unit="documents", confidence_level=CONFIDENCE_LEVEL
    )


def compute_bits_per_byte_findings(
    held_out: MeasuredTexts,
    random_characters: MeasuredTexts,
    training_texts: MeasuredTexts,
    model: AuditedModel,
    config: CapabilityConfig,
    ngram_description: str,
    recurrent_description: str,
) -> list[Finding]:
    """Compute the findings bits_per_byte: model by source, baselines, differences and controls."""
    scoring_method = (
        "log probability of each token given the preceding tokens in the document, "
        f"{model.opening_description}"
    )
    ngram_method = (
        "interpolated modified Kneser-Ney n-gram model over the same tokens as the audited "
        f"model, {ngram_description}"
    )
    baseline_methods = dict.fromkeys(NGRAM_ORDERS, ngram_method) | {
        RECURRENT: recurrent_description
    }

    def build_rate_finding(
        slice_name: str,
        measured_texts: MeasuredTexts,
        bits: Float64,
        row_filter: slice | NDArray[np.bool_],
        method: str,
        **options: Any,
    ) -> Finding:
        bits_per_byte = estimate_bits_per_byte(
            bits[row_filter], measured_texts.byte_counts[row_filter]
        )
        evidence_filter = options.pop("evidence_filter", {"text_kind": measured_texts.text_kind})
        metric = options.pop("metric", "bits_per_byte")
        return build_finding(
            AUDIT,
            metric,
            bits_per_byte.value,
            part=slice_name,
            low=bits_per_byte.low,
            high=bits_per_byte.high,
            unit="bits",
            n=bits_per_byte.n,
            method=f"{method}; {bits_per_byte.method}",
            evidence_filter=evidence_filter,
            evidence_table="samples",
            **options,
        )

    all_rows = slice(None)
    findings = []
    if held_out.model_bits is None:
        reason = (
            f"not measured: {model.name} is a masked language model, which does not assign a "
            "probability to a whole text"
        )
        findings.append(
            build_finding(
                AUDIT,
                "bits_per_byte",
                None,
                part="model",
                unit="bits",
                n=0,
                method=reason,
                evidence_table="samples",
            )
        )
    else:
        findings.append(
            build_rate_finding(
                "model", held_out, held_out.model_bits, all_rows, scoring_method, worse_when="up"
            )
        )
    for baseline, bits in held_out.bits_by_baseline.items():
        findings.append(
            build_rate_finding(baseline, held_out, bits, all_rows, baseline_methods[baseline])
        )
    findings.append(_build_gzip_finding(held_out.texts))
    if held_out.model_bits is not None:
        for baseline, bits in held_out.bits_by_baseline.items():
            findings.append(
                build_rate_finding(
                    "",
                    held_out,
                    held_out.model_bits - bits,
                    all_rows,
                    "paired difference",
                    metric="bits_per_byte_difference",
                    tags={"baseline": baseline},
                    worse_when="up",
                    null_value=0.0,
                )
            )
        sources = np.array(held_out.text_bits_rows["source"].to_pylist())
        for source in sorted({*sources.tolist()}):
            findings.append(
                build_rate_finding(
                    "model",
                    held_out,
                    held_out.model_bits,
                    sources == source,
                    scoring_method,
                    tags={"source": source},
                    worse_when="up",
                    evidence_filter={"text_kind": HELD_OUT_TEXT, "source": source},
                )
            )
    findings.append(_build_random_text_control(random_characters, build_rate_finding))
    fivegram_high = next(
        finding for finding in findings if finding.slice == {"part": "fivegram"}
    ).high
    training_rate = estimate_bits_per_byte(
        training_texts.bits_by_baseline["fivegram"], training_texts.byte_counts
    ).value
    findings.append(
        build_rate_finding(
            TRAINING_TEXT,
            training_texts,
            training_texts.bits_by_baseline["fivegram"],
            all_rows,
            control="positive",
            passed=training_rate < (fivegram_high if fivegram_high is not None else np.inf),
            control_target="baseline",
            method="5-gram model, evaluated on its own training documents; the control passes if "
            "the model needs fewer bits per byte for these documents than for held-out documents",
        )
    )
    return findings


def _build_random_text_control(
    random_characters: MeasuredTexts, build_rate_finding: Callable[..., Finding]
) -> Finding:
    uniform_entropy = float(np.log2(len(PRINTABLE_CHARACTERS)))
    bits = (
        random_characters.bits_by_baseline["fivegram"]
        if random_characters.model_bits is None
        else random_characters.model_bits
    )
    scored_system = (
        "the 5-gram model" if random_characters.model_bits is None else "the audited model"
    )
    method = (
        f"{scored_system}, evaluated on uniformly random characters, which cost any model at "
        f"least {uniform_entropy:.3f} bits per character on average; the control fails if the "
        "whole interval is below this value"
    )
    control_finding = build_rate_finding(
        RANDOM_TEXT,
        random_characters,
        bits,
        slice(None),
        method,
        control="negative",
        passed=True,
        control_target="baseline" if random_characters.model_bits is None else "instrument",
    )
    upper_end = control_finding.value if control_finding.high is None else control_finding.high
    assert upper_end is not None
    return replace(control_finding, verdict="pass" if upper_end >= uniform_entropy else "fail")


def _build_gzip_finding(texts: Sequence[str]) -> Finding:
    rate = estimate_gzip_bits_per_byte([text.encode() for text in texts])
    half_width, _ = t_half_width_and_p(
        rate.standard_error, rate.group_count - 1, 0.0, CONFIDENCE_LEVEL
    )
    method = (
        "gzip -9, applied to the documents concatenated in hash order; Student's t interval with "
        f"standard errors from a delete-a-group jackknife ({rate.group_count} document groups)"
    )
    return build_finding(
        AUDIT,
        "bits_per_byte",
        rate.bits_per_byte,
        part="gzip",
        low=rate.bits_per_byte - half_width,
        high=rate.bits_per_byte + half_width,
        unit="bits",
        n=len(texts),
        method=method,
        evidence_filter={"text_kind": HELD_OUT_TEXT},
        evidence_table="samples",
    )


def build_sample_rows(measured_texts: MeasuredTexts) -> list[Row]:
    """Build rows of SAMPLES."""
    model_bits = (
        [None] * len(measured_texts.text_bits_rows)
        if measured_texts.model_bits is None
        else measured_texts.model_bits.tolist()
    )
    shown_texts = (
        measured_texts.texts
        if measured_texts.text_kind == RANDOM_TEXT
        else [None] * len(measured_texts.text_bits_rows)
    )
    row_values = zip(
        measured_texts.text_bits_rows.to_pylist(), model_bits, shown_texts, strict=True
    )
    return [
        {**row, "model_bits": text_bits, "prompt": shown_text}
        for row, text_bits, shown_text in row_values
    ]


@stage(
    name="audit_capability",
    tables={
        "samples": SAMPLES,
        "pairs": PAIRS,
        "training_sizes": TRAINING_SIZES,
        "findings": FINDINGS,
        "model": MODEL_TABLE,
    },
    libraries=AUDIT_LIBRARIES,
    determinism="machine",
)
def audit_capability(
    checkpoint: Artifact,
    documents: Table,
    baselines: Artifact,
    config: CapabilityConfig,
    context: StageContext,
) -> None:
    """Audit the capability of a checkpoint.

    Args:
        checkpoint: The checkpoint.
        documents: Documents of the corpus.
        baselines: Artifact of ``capability_baselines`` for the same tokenizer, corpus and settings.
        config: Settings.
        context: Context of the stage.
    """
    model = open_audited_model(checkpoint, config.device, dtype=config.dtype)
    held_out = sample_split_documents(
        documents, "validation", config.validation_bytes, config.seed
    ).documents
    baseline_costs = baselines["text_bits"].read()
    held_out_costs = baseline_costs.filter(pc.equal(baseline_costs["text_kind"], HELD_OUT_TEXT))
    baseline_settings = baselines.manifest["parts"]["config"]
    has_same_settings = baseline_settings == config.baselines_config.model_dump(mode="json")
    if (
        not has_same_settings
        or held_out_costs["doc_id"].to_pylist() != held_out["doc_id"].to_pylist()
    ):
        raise HallmarkError(
            f"{baselines.name} was computed from a different corpus or with different settings; "
            "run capability_baselines for this corpus and these settings"
        )
    training_sizes = baselines["training_sizes"].read()
    training_size = training_sizes.to_pylist()[0]  # the baselines learn from the same documents
    training_text = (
        f"{format_count(training_size['documents'], 'document')} from the train split "
        f"({training_size['bytes']:,} of its {training_size['split_bytes']:,} bytes)"
    )
    ngram_description = f"trained on {training_text}"
    recurrent_description = (
        "LSTM model over the same tokens as the audited model, trained on "
        f"{config.recurrent_tokens:,} tokens from {training_text}"
    )
    context.report_progress(0, 3, "bits per byte")

    def measure_texts(text_kind: str, texts: list[str]) -> MeasuredTexts:
        part_costs = baseline_costs.filter(pc.equal(baseline_costs["text_kind"], text_kind))
        return MeasuredTexts(
            text_kind, texts, part_costs, compute_text_bits(model, texts) if texts else None
        )

    held_out_texts = measure_texts(HELD_OUT_TEXT, held_out["text"].to_pylist())
    random_characters = measure_texts(
        RANDOM_TEXT, generate_random_texts(config.seed)["text"].to_pylist()
    )
    training_texts = measure_texts(TRAINING_TEXT, [])
    sample_rows = [
        row
        for measured_texts in (held_out_texts, random_characters, training_texts)
        for row in build_sample_rows(measured_texts)
    ]
    findings = compute_bits_per_byte_findings(
        held_out_texts,
        random_characters,
        training_texts,
        model,
        config,
        ngram_description,
        recurrent_description,
    )
    context.report_progress(1, 3, "dependencies")
    scorers = {MODEL: lambda texts, contexts: model.compute_log_likelihoods(texts, contexts)[0]}
    pair_rows = build_minimal_pair_rows(
        [*generate_agreement_pairs(), *generate_garden_path_pairs()], scorers
    )
    pair_rows += baselines["pairs"].read().to_pylist()
    findings += compute_dependency_findings(pair_rows, AUDIT)
    context.report_progress(2, 3, "cloze")
    passages = find_cloze_passages(
        held_out, config.max_passages, config.min_passage_words, config.max_passage_characters
    )
    if model.model_kind == "masked" or len(passages) < 2:
        reason = (
            f"{model.name} is a masked language model"
            if model.model_kind == "masked"
            else "the held-out text has fewer than two passages with a complete sentence"
        )
        findings.append(
            build_finding(
                AUDIT,
                "cloze_accuracy",
                None,
                n=0,
                unit="share",
                evidence_table="samples",
                method=f"not measured: {reason}",
            )
        )
    else:
        answer_rows = build_cloze_sample_rows(model, passages)
        sample_rows += answer_rows
        findings += compute_cloze_findings(answer_rows)
    null_row = dict.fromkeys(SAMPLES.names)
    numbered_rows = [
        {**null_row, **row, "sample_id": sample_id} for sample_id, row in enumerate(sample_rows)
    ]
    context.get_table_writer("pairs").write(pa.Table.from_pylist(pair_rows, schema=PAIRS))
    context.get_table_writer("samples").write(pa.Table.from_pylist(numbered_rows, schema=SAMPLES))
    context.get_table_writer("training_sizes").write(training_sizes)
    context.get_table_writer("model").write(
        pa.Table.from_pylist([model.build_inference_settings_row()], schema=MODEL_TABLE)
    )
    context.get_table_writer("findings").write(
        build_findings_table(findings, CAPABILITY_METRICS, model.precision)
    )
