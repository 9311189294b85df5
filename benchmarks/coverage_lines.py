"""The findings of the probes as lines of ``benchmarks.coverage``: what is shared by what, and how
their values are drawn where the truth is known.

Items are those that the probes themselves ask about, of a reader that knows no model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import audits
from benchmarks.coverage_draws import (
    Floats,
    Line,
    flipped,
    harder_side,
    labels,
    of_estimate,
    of_share,
    places,
    shares_of,
)
from benchmarks.scoring import passages
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
from hallmark.tasks.measures.association_canaries import generate_association_canaries as groups
from hallmark.tasks.measures.canaries import Canary, generate_record_canaries
from hallmark.tasks.measures.estimates import (
    Estimate,
    estimate_linear_slope,
    estimate_mean_difference,
)
from hallmark.tasks.measures.statistics import probability_each_rank_is_maximum


class Pieces(AuditedTokenizer):
    """Reads three bytes of a text as a token: all that items need of a model."""

    name, model_kind, opening_description = "pieces", "causal", "behind nothing"
    context_length, vocab_size, bos_id = 1 << 20, 1 << 24, 0

    def encode_batch(self, texts: Sequence[str]) -> list[TokenIds]:
        each = (text.encode() for text in texts)
        return [[int.from_bytes(t[i : i + 3], "big") for i in range(0, len(t), 3)] for t in each]

    def decode(self, token_ids: Sequence[int]) -> str:
        pieces = (i.to_bytes(3, "big").lstrip(b"\0") for i in token_ids)
        return b"".join(pieces).decode(errors="replace")


def lines(data: Path | None, only: Sequence[str] = ()) -> Iterator[Line]:
    """Of all probes, or of some; of public sets those in ``data``."""
    own: dict[str, Callable[[], Iterator[Line]]] = {
        "bias": lambda: of_measures(bias.PROBE, bias.BiasConfig()),
        "associations": lambda: of_measures(
            associations.PROBE, associations.AssociationsConfig(), manual()
        ),
        "membership": of_membership,
        "extraction": of_extraction,
        "toxicity": of_toxicity,
    }
    for name, probe, config in public(data) if data is not None else ():
        own[name] = partial(of_measures, probe, config, name=name)
    for name, made in own.items():
        if not only or name in only:
            yield from made()


def public(data: Path) -> Iterator[tuple[str, Probe, SeededConfig]]:
    """Probes of public sets, with their files; called as they are, but CrowS-Pairs."""
    pairs = bias.BiasConfig(pairs=data / "crows_pairs_anonymized.csv")
    yield "crows", bias.PROBE, pairs
    sides = {
        side: tuple(data / f"winobias_{side}_type{number}_test.txt" for number in (1, 2))
        for side in ("pro", "anti")
    }
    pronouns = winobias.WinobiasConfig(
        pro_stereotypical=sides["pro"], anti_stereotypical=sides["anti"]
    )
    people = winogender.WinogenderConfig(
        sentences=data / "winogender_sentences.tsv",
        occupations=data / "winogender_occupations.tsv",
    )
    terms = stereoset.StereosetConfig(items=data / "stereoset.jsonl.gz")
    asked = bbq.BbqConfig(items=(data / "bbq_age.jsonl.gz", data / "bbq_religion.jsonl.gz"))
    for probe, config in (
        (winobias.PROBE, pronouns),
        (winogender.PROBE, people),
        (stereoset.PROBE, terms),
        (bbq.PROBE, asked),
    ):
        yield probe.name, probe, config


@cache
def manual() -> CorpusTables:
    """A corpus of passages of Python's manual: documents, and plants as the demo has them but for
    canaries, which are ranked among too many."""
    rng, config = np.random.default_rng(0), PlantCanariesConfig()
    count = config.passages_per_count * len(config.copy_counts)
    long = [t for t in passages(3000, 1) if len(t) >= config.min_passage_characters]
    ends = rng.integers(config.min_passage_characters, config.max_passage_characters, len(long))
    texts = [text[:end] for text, end in zip(long, ends, strict=True)]
    plants = [
        Canary("passage", config.copy_counts[n % len(config.copy_counts)], "", text, "", key=str(n))
        for n, text in enumerate(texts[:count])
    ]
    planted = [
        {
            "doc_ids": plant.compute_copy_doc_ids(),
            "association": plant.association.key if plant.association else None,
            "canary_id": plant.canary_id,
            **{
                name: getattr(plant, name)
                for name in ("kind", "copies", "template", "text", "prompt", "secret")
            },
            **{field: getattr(plant.association, field, None) for field in ASSOCIATION_FIELDS},
        }
        for plant in (*plants, *generate_record_canaries(config), *groups(config))
    ]
    documents = [
        {
            "doc_id": f"{number}".encode().rjust(16),
            "source": "manual",
            "text": text,
            "split": "holdout" if number % 2 else "train",
        }
        for number, text in enumerate(texts[count:])
    ]
    fields = pa.schema([DOCUMENTS.field(name) for name in ("doc_id", "source", "text", "split")])
    return CorpusTables(
        canaries=audits.held(pa.Table.from_pylist(planted, schema=CANARIES)),
        documents=audits.held(pa.Table.from_pylist(documents, schema=fields)),
    )


# Probes of measures ----------------------------------------------------------------------------


def by_chance(
    probe: Probe, config: SeededConfig, corpus: CorpusTables
) -> tuple[pa.Table, Counter[tuple[Any, ...]]]:
    """Rows of values of all its measures, of answers by chance; and how many items are alike in all
    but their text, of which some probes make one value."""
    asked = audits.ask(probe, Pieces(), config, corpus)
    answers = Responses(
        asked.items, asked.requests, RESPONSES.empty_table(), tokenizer=asked.reader
    )
    targets = max(map(len, asked.requests["target_ids"].to_pylist()))
    said = np.random.default_rng(0).normal(size=(len(answers.items), targets))
    values = ValueWriter(answers.items, value_fields=probe.value_fields)
    assert probe.score_items is not None
    probe.score_items(answers.with_simulated_outputs(said), values, config)
    return values.to_table(), Counter(map(kind_of, answers.items.to_pylist()))


def kind_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What StereoSet's sentences about a term share."""
    return tuple(row.get(name) for name in ("item_type", "bias_type", "cluster"))


def of_measures(
    probe: Probe, config: SeededConfig, corpus: CorpusTables | None = None, name: str = ""
) -> Iterator[Line]:
    """Each measure of a probe, whole and by its slices. Of several of one metric the first: they
    differ in their values alone, and those are drawn."""
    values, alike = by_chance(probe, config, corpus or CorpusTables())
    first: dict[str, Measure] = {}
    for measure in probe.measures:
        first.setdefault(measure.metric, measure)
    for measure in first.values():
        mine = measure.select_values(values)
        for tags, where in measure.list_slices(mine):
            rows = select_evidence(mine, where).combine_chunks()
            if len(rows) and measure.estimator(rows, measure, config, 0.95) is not None:
                part = ", ".join(f"{tag}={value}" for tag, value in tags.items())
                behind = np.array([alike[kind_of(row)] for row in rows.to_pylist()])
                yield of_measure(
                    (name or probe.name, measure.metric, part), measure, rows, config, behind
                )


def of_measure(
    name: tuple[str, str, str],
    measure: Measure,
    rows: pa.Table,
    config: SeededConfig,
    behind: Floats,
) -> Line:
    """``behind``: items that each value is of."""
    at, known = rows.schema.get_field_index("value"), read_float_column(rows, "value")

    def made(values: Floats, seed: int) -> Estimate:
        values = np.where(np.isnan(known), np.nan, values)
        mine = rows.set_column(at, rows.field(at), pa.array(values))
        drawn = config.model_copy(update={"seed": seed})
        found = measure.estimator(mine, measure, drawn, 0.95)
        assert found is not None
        return found

    names = rows.column_names
    crossed = places(rows["crossed_cluster"].to_pylist()) if "crossed_cluster" in names else None
    share, own = measure.unit == "share", measure.null_value == "own"
    null = float(read_float_column(rows, "null_value").mean()) if own else float(measure.null_value)
    # By chance a stereotype is as often likelier than the unrelated as not.
    truth = SHARE_MAXIMUM_BY_UNIT.get(measure.unit, 1.0) / 2 if own or np.isnan(null) else null
    if "is_member" in names:
        draw = scores(rows["is_member"].to_numpy(zero_copy_only=False).astype(bool), measure)
    elif measure.unit == "percent":
        draw = shares_of(behind)
    else:
        draw = labels if share else flipped(np.abs(np.nan_to_num(known - truth)))
    clusters = places(rows["cluster"].to_pylist())
    return Line(
        name,
        clusters,
        truth,
        null,
        draw,
        made,
        share,
        crossed,
        side=harder_side(null) if share else 1,
    )


def scores(member: Floats, measure: Measure) -> Callable[[Floats, float], Floats]:
    """Normal numbers; where the area under the curve is measured, those of members lie above the
    others by what makes it ``mean``."""
    from scipy.special import ndtri

    if measure.unit == "share":
        return lambda z, mean: z
    return lambda z, mean: z + np.where(member, np.sqrt(2) * ndtri(mean), 0)


def of_membership() -> Iterator[Line]:
    """Its measures; and its areas under the curves of two models, compared."""
    config = membership.MembershipConfig()
    yield from of_measures(membership.PROBE, config, manual())
    values = select_evidence(by_chance(membership.PROBE, config, manual())[0], {"measure": "loss"})
    for kind in ("document", "passage"):
        member = select_evidence(values, {"kind": kind})["is_member"].to_numpy(zero_copy_only=False)
        yield of_areas(kind, member.astype(bool))


def of_areas(kind: str, member: Floats) -> Line:
    """Areas as far below and above one half, by scores that hang together by one half."""
    from scipy.special import ndtri

    n = len(member)
    about = {"item": range(n), "cluster": map(str, range(n)), "is_member": member.tolist()}
    rows = pa.table({name: list(each) for name, each in about.items()})

    def both(z: Floats, mean: float) -> Floats:
        shared, *own = z.reshape(n, 3).T
        areas = (1 - mean) / 2, (1 + mean) / 2
        return np.concatenate(
            [
                shared + mine + 2 * ndtri(area) * member
                for mine, area in zip(own, areas, strict=True)
            ]
        )

    def apart(values: Floats, seed: int) -> Estimate:
        sides = (rows.append_column("value", pa.array(side)) for side in np.split(values, 2))
        found = compute_paired_change(*map(build_auc_units, sides), AREA_UNIT)
        assert found is not None
        known = {
            name: np.nan if found[name] is None else found[name]
            for name in ("value", "low", "high", "p", "minimum_detectable_effect")
        }
        return Estimate(
            known["value"],
            known["low"],
            known["high"],
            n,
            n,
            0,
            "",
            0.0,
            known["p"],
            known["minimum_detectable_effect"],
        )

    return Line(
        ("membership", "auc_of_two_models", f"kind={kind}"),
        np.arange(n),
        0.0,
        0.0,
        both,
        apart,
        numbers=3,
    )


# Extraction, toxicity ----------------------------------------------------------------------------


def of_extraction() -> Iterator[Line]:
    """Shares of exact continuations at three means, and of leading tokens; the slopes; exposure."""
    config, plants = extraction.ExtractionConfig(), PlantCanariesConfig()
    items = audits.ask(extraction.PROBE, Pieces(), config, manual()).items.to_pylist()
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for item in items:
        if item["prefix_tokens"] in (None, config.prefix_tokens[-1]) and item["copies"] in (
            None,
            plants.copy_counts[-1],
        ):
            groups.setdefault(item["kind"], []).append(item)
    for kind, rows in groups.items():
        clusters = places([row["cluster"] for row in rows])
        for mean in (0.05, 0.3, 0.8):
            yield of_share(("extraction", f"extractable at {mean:g}", kind), clusters, mean, np.nan)
        if kind != "record":
            yield Line(
                ("extraction", "leading_correct_share", kind),
                clusters,
                0.3 + 0.7 * (config.suffix_tokens - 1) / 2 / config.suffix_tokens,
                np.nan,
                lambda z, mean: leading(z, config.suffix_tokens),
                of_estimate(clusters, is_share=True),
                share=True,
            )
    every = {"slope_by_times_read": [row for row in items if row["canary_id"] is not None]}
    every["slope_by_prefix"] = [
        row for row in every["slope_by_times_read"] if row["kind"] == "passage"
    ]
    for name, rows in every.items():
        for kind in dict.fromkeys(row["kind"] for row in rows):
            yield of_slope(name, kind, [row for row in rows if row["kind"] == kind])
    yield from of_exposure(config.reference_secrets, plants.secrets_per_count)


def leading(z: Floats, tokens: int) -> Floats:
    """The share of leading tokens that are right: all in three of ten, else any number."""
    from scipy.special import ndtr

    u = ndtr(z)
    return np.where(u < 0.3, 1.0, np.floor((1 - u) / 0.7 * tokens).clip(0, tokens - 1) / tokens)


def of_slope(name: str, kind: str, rows: Sequence[Mapping[str, Any]]) -> Line:
    column = "copies" if name == "slope_by_times_read" else "prefix_tokens"
    over = np.array([row[column] for row in rows], np.float64)
    over = np.log2(1 + over) if column == "copies" else np.log2(over)
    clusters = places([row["cluster"] for row in rows])
    names = clusters.tolist()
    return Line(
        ("extraction", f"extractable_{name}", kind),
        clusters,
        0.0,
        np.nan,
        lambda z, mean: labels(z, 0.3),
        lambda values, seed: estimate_linear_slope(values, over, names),
    )


def of_exposure(references: int, canaries: int) -> Iterator[Line]:
    """Secrets that were never planted: every rank is as likely; and the difference of two such."""
    from scipy.special import ndtr

    def drawn(z: Floats) -> Floats:
        rank = np.ceil(ndtr(z) * (references + 1)).clip(1, references + 1)
        return np.log2(references) - np.log2(rank)

    units, expected = np.arange(canaries), compute_expected_null_exposure(references)
    yield Line(
        ("extraction", "exposure", "never planted"),
        units,
        expected,
        np.nan,
        lambda z, mean: drawn(z),
        of_estimate(None),
    )
    spread = compute_null_exposure_variance(references)

    def apart(values: Floats, seed: int) -> Estimate:
        return estimate_mean_difference(values[:canaries], values[canaries:], null_variance=spread)

    first = np.arange(2 * canaries) < canaries
    yield Line(
        ("extraction", "exposure_difference", "two never planted"),
        np.arange(2 * canaries),
        0.0,
        0.0,
        lambda z, mean: drawn(z) + mean * first,
        apart,
    )


def of_toxicity() -> Iterator[Line]:
    """Scores U^t of uniform U: of k draws the largest has the mean k / (k + t), and one is at least
    c with probability 1 - c^(k / t). A prompt has t = 2 with probability 0.1, else 20."""
    config = toxicity.ToxicityConfig()
    prompts = len(toxicity.read_toxicity_prompts(None))
    draws, bound = config.continuations_per_prompt, config.toxicity_threshold
    for part, n in (
        ("own prompts", prompts),
        ("unprompted", config.unprompted_groups),
        ("1,000", 1000),
    ):
        toxic, share = np.array([2.0, 20.0]), np.array([0.1, 0.9])
        for k in config.continuation_counts if n < 1000 else config.continuation_counts[-1:]:
            top = k / (k + toxic)
            reached = 1 - bound ** (k / toxic)
            weights = probability_each_rank_is_maximum(draws, k)
            for metric, truth in (("expected_maximum", top), ("probability", reached)):
                draw = highest(n, weights, bound if metric == "probability" else None)
                yield Line(
                    ("toxicity", f"{metric} k={k}", part),
                    np.arange(n),
                    float(truth @ share),
                    np.nan,
                    draw,
                    of_estimate(None, is_share=True),
                    share=True,
                    numbers=draws + 1,
                )
        yield from (
            above_floor(part, n, probability_each_rank_is_maximum(draws, draws)) if n < 1000 else ()
        )


def highest(n: int, weights: Floats, bound: float | None) -> Callable[[Floats, float], Floats]:
    """Of each prompt the expected highest score of k draws, or how likely one is at the bound or
    above. Prompts are drawn, too: the first number of each says which it is."""
    from scipy.special import ndtr

    def draw(z: Floats, mean: float) -> Floats:
        prompt, *draws = ndtr(z.reshape(n, -1).T)
        toxic = np.where(prompt < 0.1, 2.0, 20.0)
        scores = np.sort(np.array(draws) ** toxic, 0)
        return weights @ (scores if bound is None else scores >= bound)

    return draw


def above_floor(part: str, n: int, weights: Floats) -> Iterator[Line]:
    """The same prompts answered by two who are alike, as the model and untrained weights would be;
    and other texts, as shuffled tokens are."""
    one, draws = highest(n, weights, None), len(weights)

    def both(z: Floats, mean: float) -> Floats:
        prompt, rest = z.reshape(n, -1)[:, :1], z.reshape(n, -1)[:, 1:]
        sides = np.split(rest, 2, axis=1)
        first, second = (one(np.hstack([prompt, side]).ravel(), 0) for side in sides)
        return first - second + mean

    yield Line(
        ("toxicity", "above the untrained", part),
        np.arange(n),
        0.0,
        0.0,
        both,
        of_estimate(None, null_value=0.0),
        numbers=1 + 2 * draws,
    )

    def apart(z: Floats, mean: float) -> Floats:
        half = len(z) // 2
        return np.concatenate([one(z[:half], 0), one(z[half:], 0)])

    yield Line(
        ("toxicity", "above shuffled tokens", part),
        np.arange(n),
        0.0,
        np.nan,
        apart,
        lambda values, seed: estimate_mean_difference(values[:n], values[n:]),
        numbers=2 * (1 + draws),
    )
