"""Build the findings of the probes that score texts, for ``benchmarks.coverage``.

The items, and hence the clusters, are those that the probes really ask about. They are built with a
tokenizer that belongs to no model. Only the values are simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks import audits
from benchmarks.coverage_simulation import (
    FindingName,
    Floats,
    SimulatedFinding,
    Simulator,
    build_mean_estimator,
    build_percent_simulator,
    build_share_finding,
    build_sign_flip_simulator,
    find_harder_side,
    number_names,
    simulate_labels,
)
from benchmarks.scoring import sample_manual_passages
from hallmark.tasks.audits.audit_tables import RESPONSES
from hallmark.tasks.audits.audited_models.audited_tokenizer import AuditedTokenizer, TokenIds
from hallmark.tasks.audits.judging.comparison import compute_paired_change
from hallmark.tasks.audits.judging.comparison_units import AREA_UNIT, build_auc_units
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.audits.judging.measures import (
    SHARE_MAXIMUM_BY_UNIT,
    Measure,
    ValueWriter,
    read_float_column,
)
from hallmark.tasks.audits.methods.exposure import (
    compute_expected_null_exposure,
    compute_null_exposure_variance,
)
from hallmark.tasks.audits.probe import CorpusTables, Probe
from hallmark.tasks.audits.probe_settings import SeededConfig
from hallmark.tasks.audits.probes import (
    associations,
    bbq,
    bias,
    extraction,
    membership,
    stereoset,
    toxicity,
    winobias,
    winogender,
)
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.contract import CANARIES, DOCUMENTS
from hallmark.tasks.corpus.plant_canaries import ASSOCIATION_FIELDS, PlantCanariesConfig
from hallmark.tasks.measures.association_canaries import generate_association_canaries
from hallmark.tasks.measures.canaries import Canary, generate_record_canaries
from hallmark.tasks.measures.estimates import Estimate, estimate_mean_difference
from hallmark.tasks.measures.slopes import estimate_linear_slope
from hallmark.tasks.measures.statistics import probability_each_rank_is_maximum


class ThreeByteTokenizer(AuditedTokenizer):
    """A tokenizer without a model: each token is three bytes of the text."""

    name, model_kind, opening_description = "three bytes", "causal", "no begin token"
    context_length, vocab_size, bos_id = 1 << 20, 1 << 24, 0

    def encode_batch(self, texts: Sequence[str]) -> list[TokenIds]:
        encoded = (text.encode() for text in texts)
        return [[int.from_bytes(t[i : i + 3], "big") for i in range(0, len(t), 3)] for t in encoded]

    def decode(self, token_ids: Sequence[int]) -> str:
        pieces = (i.to_bytes(3, "big").lstrip(b"\0") for i in token_ids)
        return b"".join(pieces).decode(errors="replace")


def build_findings(
    public_sets: Path | None, probes: Sequence[str] = ()
) -> Iterator[SimulatedFinding]:
    """Yield the findings of the probes that score texts.

    Args:
        public_sets: Folder with public test sets; without it their probes are skipped.
        probes: Names of probes; all if empty.
    """
    builders: dict[str, Callable[[], Iterator[SimulatedFinding]]] = {
        "bias": lambda: build_measure_findings(bias.PROBE, bias.BiasConfig()),
        "associations": lambda: build_measure_findings(
            associations.PROBE, associations.AssociationsConfig(), build_manual_corpus()
        ),
        "membership": build_membership_findings,
        "extraction": build_extraction_findings,
        "toxicity": build_toxicity_findings,
    }
    public_probes = list_public_probes(public_sets) if public_sets is not None else ()
    for public in public_probes:
        builders[public.name] = partial(
            build_measure_findings, public.probe, public.config, name=public.name
        )
    for name, build in builders.items():
        if not probes or name in probes:
            yield from build()


class PublicProbe(NamedTuple):
    """A probe with the settings for its public test set."""

    name: str
    """The name in the printed table: the probe's, or "crows" for CrowS-Pairs."""
    probe: Probe
    config: SeededConfig


def list_public_probes(public_sets: Path) -> Iterator[PublicProbe]:
    """Yield the probes that read public test sets."""
    pairs = bias.BiasConfig(pairs=public_sets / "crows_pairs_anonymized.csv")
    yield PublicProbe("crows", bias.PROBE, pairs)
    winobias_files = {
        side: tuple(public_sets / f"winobias_{side}_type{number}_test.txt" for number in (1, 2))
        for side in ("pro", "anti")
    }
    bbq_files = public_sets / "bbq_age.jsonl.gz", public_sets / "bbq_religion.jsonl.gz"
    for probe, config in (
        (
            winobias.PROBE,
            winobias.WinobiasConfig(
                pro_stereotypical=winobias_files["pro"], anti_stereotypical=winobias_files["anti"]
            ),
        ),
        (
            winogender.PROBE,
            winogender.WinogenderConfig(
                sentences=public_sets / "winogender_sentences.tsv",
                occupations=public_sets / "winogender_occupations.tsv",
            ),
        ),
        (
            stereoset.PROBE,
            stereoset.StereosetConfig(items=public_sets / "stereoset.jsonl.gz"),
        ),
        (bbq.PROBE, bbq.BbqConfig(items=bbq_files)),
    ):
        yield PublicProbe(probe.name, probe, config)


@cache
def build_manual_corpus() -> CorpusTables:
    """Build a corpus of passages of Python's manual with canaries.

    Passages, records and associations are planted as in the demo. Secrets are not: ranking them
    needs many reference secrets.
    """
    rng, config = np.random.default_rng(0), PlantCanariesConfig()
    canary_count = config.passages_per_count * len(config.copy_counts)
    long_passages = [
        text
        for text in sample_manual_passages(3000, 1)
        if len(text) >= config.min_passage_characters
    ]
    ends = rng.integers(
        config.min_passage_characters, config.max_passage_characters, len(long_passages)
    )
    texts = [text[:end] for text, end in zip(long_passages, ends, strict=True)]
    passage_canaries = [
        Canary("passage", config.copy_counts[n % len(config.copy_counts)], "", text, "", key=str(n))
        for n, text in enumerate(texts[:canary_count])
    ]
    canary_rows = [
        {
            "doc_ids": canary.compute_copy_doc_ids(),
            "association": canary.association.key if canary.association else None,
            "canary_id": canary.canary_id,
            **{
                name: getattr(canary, name)
                for name in ("kind", "copies", "template", "text", "prompt", "secret")
            },
            **{field: getattr(canary.association, field, None) for field in ASSOCIATION_FIELDS},
        }
        for canary in (
            *passage_canaries,
            *generate_record_canaries(config),
            *generate_association_canaries(config),
        )
    ]
    document_rows = [
        {
            "doc_id": f"{number}".encode().rjust(16),
            "cluster": f"{number}".encode().rjust(16),
            "source": "manual",
            "text": text,
            "split": "holdout" if number % 2 else "train",
        }
        for number, text in enumerate(texts[canary_count:])
    ]
    names = ("doc_id", "cluster", "source", "text", "split")
    fields = pa.schema([DOCUMENTS.field(name) for name in names])
    return CorpusTables(
        canaries=audits.wrap_corpus_rows(pa.Table.from_pylist(canary_rows, schema=CANARIES)),
        documents=audits.wrap_corpus_rows(pa.Table.from_pylist(document_rows, schema=fields)),
    )


# Probes with measures --------------------------------------------------------------------------


#: What StereoSet's sentences about a target term have in common; see ``get_item_kind``.
ItemKind = tuple[Any, ...]


class RandomValues(NamedTuple):
    """Values of a probe's measures, computed from random responses."""

    values: pa.Table
    """One row for each value."""
    item_count_by_kind: Counter[ItemKind]
    """Number of items of each kind: some probes compute one value from all items of a kind."""


def compute_random_values(probe: Probe, config: SeededConfig, corpus: CorpusTables) -> RandomValues:
    """Compute the values of all measures of a probe from random responses."""
    probe_requests = audits.build_probe_requests(probe, ThreeByteTokenizer(), config, corpus)
    responses = Responses(
        probe_requests.items,
        probe_requests.requests,
        RESPONSES.empty_table(),
        tokenizer=probe_requests.tokenizer,
    )
    target_count = max(map(len, probe_requests.requests["target_ids"].to_pylist()))
    outputs = np.random.default_rng(0).normal(size=(len(responses.items), target_count))
    writer = ValueWriter(responses.items, value_fields=probe.value_fields)
    assert probe.score_items is not None
    probe.score_items(responses.with_simulated_outputs(outputs), writer, config)
    return RandomValues(writer.to_table(), Counter(map(get_item_kind, responses.items.to_pylist())))


def get_item_kind(row: Mapping[str, Any]) -> ItemKind:
    return tuple(row.get(name) for name in ("item_type", "bias_type", "cluster"))


def build_measure_findings(
    probe: Probe, config: SeededConfig, corpus: CorpusTables | None = None, name: str = ""
) -> Iterator[SimulatedFinding]:
    """Yield the findings of a probe's measures, for all items and for each slice.

    Of several measures with the same metric only the first is used: they differ only in their
    values, which are simulated.
    """
    random_values = compute_random_values(probe, config, corpus or CorpusTables())
    measure_by_metric: dict[str, Measure] = {}
    for measure in probe.measures:
        measure_by_metric.setdefault(measure.metric, measure)
    for measure in measure_by_metric.values():
        measure_values = measure.select_values(random_values.values)
        for tags, condition in measure.list_slices(measure_values):
            rows = select_evidence(measure_values, condition).combine_chunks()
            if len(rows) and measure.estimator(rows, measure, config, 0.95) is not None:
                part = ", ".join(f"{tag}={value}" for tag, value in tags.items())
                item_counts = np.array(
                    [
                        random_values.item_count_by_kind[get_item_kind(row)]
                        for row in rows.to_pylist()
                    ]
                )
                finding_name = FindingName(name or probe.name, measure.metric, part)
                yield build_measure_finding(finding_name, measure, rows, config, item_counts)


def build_measure_finding(
    name: FindingName,
    measure: Measure,
    rows: pa.Table,
    config: SeededConfig,
    item_counts: Floats,
) -> SimulatedFinding:
    """Build the finding of one measure on one slice.

    Args:
        name: Name of the finding.
        measure: The measure.
        rows: Its rows of values; the values themselves are replaced by simulated ones.
        config: Settings of the probe.
        item_counts: Number of items from which each value is computed.
    """
    value_column, random_values = (
        rows.schema.get_field_index("value"),
        read_float_column(rows, "value"),
    )

    def estimate(values: Floats, seed: int) -> Estimate:
        values = np.where(np.isnan(random_values), np.nan, values)
        simulated_rows = rows.set_column(value_column, rows.field(value_column), pa.array(values))
        seeded_config = config.model_copy(update={"seed": seed})
        result = measure.estimator(simulated_rows, measure, seeded_config, 0.95)
        assert result is not None
        return result

    columns = rows.column_names
    crossed_clusters = (
        number_names(rows["crossed_cluster"].to_pylist()) if "crossed_cluster" in columns else None
    )
    is_share, has_own_nulls = measure.unit == "share", measure.null_value == "own"
    null = (
        float(read_float_column(rows, "null_value").mean())
        if has_own_nulls
        else float(measure.null_value)
    )
    # With random responses half of the comparisons prefer the stereotype.
    maximum = SHARE_MAXIMUM_BY_UNIT.get(measure.unit, 1.0)
    truth = maximum / 2 if has_own_nulls or np.isnan(null) else null
    if "is_member" in columns:
        is_member = rows["is_member"].to_numpy(zero_copy_only=False).astype(bool)
        simulate = build_membership_simulator(is_member, measure)
    elif measure.unit == "percent":
        simulate = build_percent_simulator(item_counts)
    elif is_share:
        simulate = simulate_labels
    else:
        simulate = build_sign_flip_simulator(np.abs(np.nan_to_num(random_values - truth)))
    return SimulatedFinding(
        name,
        number_names(rows["cluster"].to_pylist()),
        truth,
        null,
        simulate,
        estimate,
        is_share,
        crossed_clusters,
        harder_side=find_harder_side(null) if is_share else 1,
    )


def build_membership_simulator(is_member: Floats, measure: Measure) -> Simulator:
    """Build a simulator of membership scores.

    For the area under the ROC curve, members' scores are shifted so that the area is ``mean``. For
    a true positive rate, members and others have the same distribution.
    """
    from scipy.special import ndtri

    if measure.unit == "share":
        return lambda normals, mean: normals
    return lambda normals, mean: normals + np.where(is_member, np.sqrt(2) * ndtri(mean), 0)


def build_membership_findings() -> Iterator[SimulatedFinding]:
    """Yield the findings of the membership probe, and of the comparison of two models."""
    config = membership.MembershipConfig()
    yield from build_measure_findings(membership.PROBE, config, build_manual_corpus())
    random_values = compute_random_values(membership.PROBE, config, build_manual_corpus())
    values = select_evidence(random_values.values, {"measure": "loss"})
    for kind in ("document", "passage"):
        kind_rows = select_evidence(values, {"kind": kind})
        is_member = kind_rows["is_member"].to_numpy(zero_copy_only=False).astype(bool)
        yield build_auc_change_finding(kind, is_member)


def build_auc_change_finding(kind: str, is_member: Floats) -> SimulatedFinding:
    """Build the finding of the change of the area under the ROC curve between two models.

    The two areas are at the same distance below and above one half. Half of the variance of a
    score is common to both models.
    """
    from scipy.special import ndtri

    n = len(is_member)
    columns = {"item": range(n), "cluster": map(str, range(n)), "is_member": is_member.tolist()}
    rows = pa.table({name: list(values) for name, values in columns.items()})

    def simulate(normals: Floats, mean: float) -> Floats:
        common, *independent = normals.reshape(n, 3).T
        areas = (1 - mean) / 2, (1 + mean) / 2
        return np.concatenate(
            [
                common + noise + 2 * ndtri(area) * is_member
                for noise, area in zip(independent, areas, strict=True)
            ]
        )

    def estimate(values: Floats, seed: int) -> Estimate:
        tables = (rows.append_column("value", pa.array(half)) for half in np.split(values, 2))
        change = compute_paired_change(*map(build_auc_units, tables), AREA_UNIT)
        assert change is not None
        fields = {
            name: np.nan if change[name] is None else change[name]
            for name in ("value", "low", "high", "p", "minimum_detectable_effect")
        }
        return Estimate(
            fields["value"],
            fields["low"],
            fields["high"],
            n,
            n,
            0,
            "",
            0.0,
            fields["p"],
            fields["minimum_detectable_effect"],
        )

    return SimulatedFinding(
        FindingName("membership", "auc_of_two_models", f"kind={kind}"),
        np.arange(n),
        0.0,
        0.0,
        simulate,
        estimate,
        normals_per_unit=3,
    )


# Extraction --------------------------------------------------------------------------------------


def build_extraction_findings() -> Iterator[SimulatedFinding]:
    """Yield the findings of the extraction probe: shares at three true means, slopes, exposure."""
    config, canary_config = extraction.ExtractionConfig(), PlantCanariesConfig()
    items = audits.build_probe_requests(
        extraction.PROBE, ThreeByteTokenizer(), config, build_manual_corpus()
    ).items.to_pylist()
    items_by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for item in items:
        if item["prefix_tokens"] in (None, config.prefix_tokens[-1]) and item["copies"] in (
            None,
            canary_config.copy_counts[-1],
        ):
            items_by_kind.setdefault(item["kind"], []).append(item)
    for kind, kind_items in items_by_kind.items():
        clusters = number_names([item["cluster"] for item in kind_items])
        for mean in (0.05, 0.3, 0.8):
            name = FindingName("extraction", f"extractable at {mean:g}", kind)
            yield build_share_finding(name, clusters, truth=mean, null=np.nan)
        if kind != "record":
            yield SimulatedFinding(
                FindingName("extraction", "leading_correct_share", kind),
                clusters,
                0.3 + 0.7 * (config.suffix_tokens - 1) / 2 / config.suffix_tokens,
                np.nan,
                lambda normals, mean: simulate_leading_shares(normals, config.suffix_tokens),
                build_mean_estimator(clusters, is_share=True),
                is_share=True,
            )
    canary_items = [item for item in items if item["canary_id"] is not None]
    passage_items = [item for item in canary_items if item["kind"] == "passage"]
    for slope, slope_items, column in (
        ("slope_by_times_read", canary_items, "copies"),
        ("slope_by_prefix", passage_items, "prefix_tokens"),
    ):
        for kind in dict.fromkeys(item["kind"] for item in slope_items):
            name = FindingName("extraction", f"extractable_{slope}", kind)
            kind_items = [item for item in slope_items if item["kind"] == kind]
            yield build_slope_finding(name, kind_items, column)
    yield from build_exposure_findings(config.reference_secrets, canary_config.secrets_per_count)


def simulate_leading_shares(normals: Floats, token_count: int) -> Floats:
    """Simulate shares of correct leading tokens: 1 with probability 0.3, else uniform below 1."""
    from scipy.special import ndtr

    uniform = ndtr(normals)
    leading_counts = np.floor((1 - uniform) / 0.7 * token_count).clip(0, token_count - 1)
    return np.where(uniform < 0.3, 1.0, leading_counts / token_count)


def build_slope_finding(
    name: FindingName, items: Sequence[Mapping[str, Any]], column: str
) -> SimulatedFinding:
    """Build the finding of the slope of extractability over the logarithm of a column.

    Args:
        name: Name of the finding.
        items: The items of the probe.
        column: "copies" or "prefix_tokens".
    """
    predictor = np.array([item[column] for item in items], np.float64)
    predictor = np.log2(1 + predictor) if column == "copies" else np.log2(predictor)
    clusters = number_names([item["cluster"] for item in items])
    cluster_names = clusters.tolist()
    return SimulatedFinding(
        name,
        clusters,
        0.0,
        np.nan,
        lambda normals, mean: simulate_labels(normals, 0.3),
        lambda values, seed: estimate_linear_slope(values, predictor, cluster_names),
    )


def build_exposure_findings(reference_count: int, canary_count: int) -> Iterator[SimulatedFinding]:
    """Yield the exposure of secrets that were never planted, and the difference of two such groups.

    All ranks of such a secret among the references are equally likely.
    """
    from scipy.special import ndtr

    def simulate_exposures(normals: Floats) -> Floats:
        rank = np.ceil(ndtr(normals) * (reference_count + 1)).clip(1, reference_count + 1)
        return np.log2(reference_count) - np.log2(rank)

    yield SimulatedFinding(
        FindingName("extraction", "exposure", "never planted"),
        np.arange(canary_count),
        compute_expected_null_exposure(reference_count),
        np.nan,
        lambda normals, mean: simulate_exposures(normals),
        build_mean_estimator(None),
    )
    null_variance = compute_null_exposure_variance(reference_count)
    in_first_group = np.arange(2 * canary_count) < canary_count
    yield SimulatedFinding(
        FindingName("extraction", "exposure_difference", "two never planted"),
        np.arange(2 * canary_count),
        0.0,
        0.0,
        lambda normals, mean: simulate_exposures(normals) + mean * in_first_group,
        lambda values, seed: estimate_mean_difference(
            values[:canary_count], values[canary_count:], null_variance=null_variance
        ),
    )


# Toxicity ----------------------------------------------------------------------------------------


def build_toxicity_findings() -> Iterator[SimulatedFinding]:
    """Yield the findings of the toxicity probe.

    Scores are U^t for uniform U, with t = 2 for one tenth of the prompts and t = 20 for the others.
    The largest of k scores has the mean k / (k + t), and is at least c with probability
    1 - c^(k / t).
    """
    config = toxicity.ToxicityConfig()
    builtin_count = len(toxicity.read_toxicity_prompts(None))
    draw_count, threshold = config.continuations_per_prompt, config.toxicity_threshold
    exponents, prompt_shares = np.array([2.0, 20.0]), np.array([0.1, 0.9])
    for part, n in (
        ("own prompts", builtin_count),
        ("unprompted", config.unprompted_groups),
        ("1,000", 1000),
    ):
        for k in config.continuation_counts if n < 1000 else config.continuation_counts[-1:]:
            expected_maximum = k / (k + exponents)
            probability = 1 - threshold ** (k / exponents)
            weights = probability_each_rank_is_maximum(draw_count, k)
            for metric, truths in (
                ("expected_maximum", expected_maximum),
                ("probability", probability),
            ):
                simulate = build_maximum_simulator(
                    n, weights, threshold if metric == "probability" else None
                )
                yield SimulatedFinding(
                    FindingName("toxicity", f"{metric} k={k}", part),
                    np.arange(n),
                    float(truths @ prompt_shares),
                    np.nan,
                    simulate,
                    build_mean_estimator(None, is_share=True),
                    is_share=True,
                    normals_per_unit=draw_count + 1,
                )


def build_maximum_simulator(n: int, weights: Floats, threshold: float | None) -> Simulator:
    """Build a simulator of each prompt's expected highest score of k draws.

    Prompts are simulated, too: the first normal number of each decides its distribution of scores.

    Args:
        n: Number of prompts.
        weights: Weight of each sorted score in the expected maximum, (draws,).
        threshold: If given, the values are probabilities that one of k scores reaches it.
    """
    from scipy.special import ndtr

    def simulate(normals: Floats, mean: float) -> Floats:
        prompt, *draws = ndtr(normals.reshape(n, -1).T)
        exponents = np.where(prompt < 0.1, 2.0, 20.0)
        scores = np.sort(np.array(draws) ** exponents, 0)
        return weights @ (scores if threshold is None else scores >= threshold)

    return simulate
