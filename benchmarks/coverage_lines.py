"""The findings of the probes as lines of ``benchmarks.coverage``: what is shared by what, and how
their values are drawn where the truth is known.

Items are those that the probes themselves ask about, of a reader that knows no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import audits
from benchmarks.scoring import passages
from tasks.audits.answers import Answers
from tasks.audits.exchange import RESPONSES, Questions
from tasks.audits.exposure import expected_exposure, null_spread
from tasks.audits.measures import Measure, MeasuredConfig, Values, numbers
from tasks.audits.pairs import Pair, uniform_bytes
from tasks.audits.probe import Corpus, Probe
from tasks.audits.probes import (
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
from tasks.audits.subjects.reader import Ids, Reader
from tasks.contract import PLANTS
from tasks.corpus.plant import PlantConfig
from tasks.measures.canaries import records
from tasks.measures.estimates import Estimate, auc, difference, estimate, slope, true_positives
from tasks.measures.planted_associations import associations as groups
from tasks.measures.statistics import maximum_weights

Floats = np.ndarray
Made = Callable[[Floats, int, int], Estimate]


@dataclass(frozen=True)
class Line:
    """A finding of a probe.

    name      probe, measure and which part
    clusters  of each unit, (n,) numbers from 0; ``crossed``: of another kind
    truth     the mean that its values are drawn with; ``null``: what it is tested against
    draw      called with (normal numbers, mean): the values
    made      called with (values, resamples, seed): the estimate
    share     whether it is one
    numbers   normal numbers that the values are made of, for each unit
    """

    name: tuple[str, str, str]
    clusters: Floats
    truth: float
    null: float
    draw: Callable[[Floats, float], Floats]
    made: Made
    share: bool = False
    crossed: Floats | None = None
    numbers: int = 1

    @property
    def size(self) -> int:
        return len(self.clusters) * self.numbers


class Pieces(Reader):
    """Reads three bytes of a text as a token: all that items need of a model."""

    name, kind, begin = "pieces", "causal", "behind nothing"
    context, vocab_size, bos = 1 << 20, 1 << 24, 0

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        each = (text.encode() for text in texts)
        return [[int.from_bytes(t[i : i + 3], "big") for i in range(0, len(t), 3)] for t in each]

    def decode(self, ids: Sequence[int]) -> str:
        pieces = (i.to_bytes(3, "big").lstrip(b"\0") for i in ids)
        return b"".join(pieces).decode(errors="replace")


def lines(data: Path | None, only: Sequence[str] = ()) -> Iterator[Line]:
    """Of all probes, or of some; of public sets those in ``data``."""
    own: dict[str, Callable[[], Iterator[Line]]] = {
        "bias": lambda: of_pairs("bias", bias.read_pairs(None)),
        "associations": lambda: of_measures(
            associations.PROBE, associations.AssociationsConfig(), planted()
        ),
        "membership": of_membership,
        "extraction": of_extraction,
        "toxicity": of_toxicity,
    }
    if data is not None:
        crows = data / "crows_pairs_anonymized.csv"
        own["crows"] = lambda: of_pairs("crows", bias.read_pairs(crows))
        for probe, config in public(data):
            own[probe.name] = partial(of_measures, probe, config, Corpus())
    for name, made in own.items():
        if not only or name in only:
            yield from made()


def public(data: Path) -> Iterator[tuple[Probe, MeasuredConfig]]:
    """Probes of public sets, with their files."""
    sides = {
        side: tuple(data / f"winobias_{side}_type{number}_test.txt" for number in (1, 2))
        for side in ("pro", "anti")
    }
    yield winobias.PROBE, winobias.WinobiasConfig(pro=sides["pro"], anti=sides["anti"])
    yield (
        winogender.PROBE,
        winogender.WinogenderConfig(
            sentences=data / "winogender_sentences.tsv",
            occupations=data / "winogender_occupations.tsv",
        ),
    )
    yield (
        stereoset.PROBE,
        stereoset.StereosetConfig(items=data / "stereoset.jsonl.gz"),
    )
    files = (data / "bbq_age.jsonl.gz", data / "bbq_religion.jsonl.gz")
    yield bbq.PROBE, bbq.BbqConfig(items=files)


# How values are drawn --------------------------------------------------------------------------


def labels(z: Floats, mean: float) -> Floats:
    """1 where a normal number is among the lowest of a share ``mean``, else 0."""
    from scipy.special import ndtri

    return (z < ndtri(mean)).astype(np.float64)


def flipped(sizes: Floats) -> Callable[[Floats, float], Floats]:
    """Values of these distances from a mean, on either side of it."""
    return lambda z, mean: mean + sizes * np.sign(z)


def places(names: Sequence[Any]) -> Floats:
    """Numbers from 0 in place of names."""
    known: dict[Any, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], np.int64)


def of_estimate(clusters: Floats | None, **options: Any) -> Made:
    names = None if clusters is None else clusters.tolist()
    return lambda values, resamples, seed: estimate(
        values, names, resamples=resamples, seed=seed, **options
    )


def of_share(name: tuple[str, str, str], clusters: Floats, truth: float, null: float) -> Line:
    made = of_estimate(clusters, share=True, null=null)
    return Line(name, clusters, truth, null, labels, made, share=True)


# Pairs and measures ----------------------------------------------------------------------------


def of_pairs(name: str, pairs: list[Pair]) -> Iterator[Line]:
    """The preferences of the probe of pairs, and the difference of log-likelihoods."""
    size = [[len(ids) for ids in Pieces().encode_batch([p.first, p.second])] for p in pairs]
    parts = {"": pairs}
    parts["equal tokens"] = [p for p, (a, b) in zip(pairs, size, strict=True) if a == b]
    for category in sorted({pair.category for pair in pairs}):
        parts[category] = [pair for pair in pairs if pair.category == category]
    for part, some in parts.items():
        clusters = places([pair.template for pair in some])
        length = uniform_bytes(some).difference
        null = float(((length > 0) + (length == 0) / 2).mean())
        yield of_share((name, "preference", part), clusters, 0.5, null)
    clusters = places([pair.template for pair in pairs])
    sizes = np.random.default_rng(0).gamma(2.0, size=len(pairs))
    yield Line((name, "log_likelihood_difference", ""), clusters, 0.0, 0.0, flipped(sizes),
               of_estimate(clusters, null=0.0))  # fmt: skip


def planted() -> Corpus:
    """Associations in the layout of the demo."""
    rows = [
        {"plant_id": p.plant_id, "kind": p.kind, "copies": p.copies, "association": p.about.key,
         **{name: getattr(p.about, name) for name in ("group", "trait", "own", "dose")}}
        for p in groups(PlantConfig()) if p.about
    ]  # fmt: skip
    return Corpus(plants=audits.held(pa.Table.from_pylist(rows, schema=PLANTS)))


def by_chance(probe: Probe, config: MeasuredConfig, corpus: Corpus) -> pa.Table:
    """Rows of values of all its measures, of answers by chance."""
    asked = audits.ask(probe, Pieces(), config, corpus)
    answers = Answers(asked.items, asked.requests, RESPONSES.empty_table())
    targets = max(map(len, asked.requests["targets"].to_pylist()))
    said = np.random.default_rng(0).normal(size=(len(answers.items), targets))
    values = Values(answers.items)
    assert probe.values is not None
    probe.values(answers.scripted(said), values)
    return values.table()


def of_measures(probe: Probe, config: MeasuredConfig, corpus: Corpus) -> Iterator[Line]:
    """Each measure of a probe, whole and by its slices."""
    values = by_chance(probe, config, corpus)
    for measure in probe.measures:
        mine = measure.drawn(values)
        parts = {"": mine} if measure.whole else {}
        for tag in measure.slices:
            for value in sorted(pc.unique(mine[tag]).drop_null().to_pylist()):
                parts[f"{tag}={value}"] = mine.filter(pc.equal(mine[tag], value))
        for part, rows in parts.items():
            yield of_measure(probe, measure, part, rows.combine_chunks(), config)


def of_measure(
    probe: Probe, measure: Measure, part: str, rows: pa.Table, config: MeasuredConfig
) -> Line:
    at = rows.schema.get_field_index("value")

    def made(values: Floats, resamples: int, seed: int) -> Estimate:
        mine = rows.set_column(at, rows.field(at), pa.array(values))
        drawn = config.model_copy(update={"resamples": resamples, "seed": seed})
        return measure.estimator(mine, measure, drawn, 0.95)

    names = rows.column_names
    crossed = places(rows["crossed"].to_pylist()) if "crossed" in names else None
    share, own = measure.unit == "share", measure.null == "own"
    null = float(numbers(rows, "null").mean()) if own else float(measure.null)
    # By chance a stereotype is as often likelier than the unrelated as not.
    truth = 0.5 if own else 50.0 if measure.metric.startswith("lms") else null
    distance = flipped(np.abs(numbers(rows, "value") - truth))
    return Line((probe.name, measure.metric, part), places(rows["cluster"].to_pylist()), truth,
                null, labels if share else distance, made, share, crossed)  # fmt: skip


# Membership, extraction, toxicity ----------------------------------------------------------------


def of_membership() -> Iterator[Line]:
    """Members and others of one distribution, in the numbers of the demo."""
    from scipy.special import ndtri

    plants = PlantConfig()
    documents = membership.MembershipConfig().documents
    none = plants.passages
    counts = {"document": (documents, documents),
              "passage": (none * (len(plants.counts) - 1), none)}  # fmt: skip
    for kind, (members, others) in counts.items():
        units = np.arange(members + others)

        def moved(z: Floats, mean: float, members: int = members) -> Floats:
            return z + np.where(np.arange(len(z)) < members, np.sqrt(2) * ndtri(mean), 0)

        def area(values: Floats, resamples: int, seed: int, members: int = members) -> Estimate:
            return auc(values[:members], values[members:])

        yield Line(("membership", "auc", kind), units, 0.5, 0.5, moved, area)
    alarm = 0.01

    def caught(values: Floats, resamples: int, seed: int) -> Estimate:
        return true_positives(values[:documents], values[documents:], alarm)

    units = np.arange(2 * documents)
    yield Line(("membership", f"true_positives_at_{alarm:g}", "document"), units, alarm, np.nan,
               lambda z, mean: z, caught, share=True)  # fmt: skip


def of_extraction() -> Iterator[Line]:
    """Shares of exact continuations at three means, and of leading tokens; the slopes; exposure."""
    config, plants = extraction.ExtractionConfig(), PlantConfig()
    items = attempts(config, plants)
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for item in items:
        if item["k"] in (None, config.prefix[-1]) and item["copies"] in (None, plants.counts[-1]):
            groups.setdefault(item["kind"], []).append(item)
    for kind, rows in groups.items():
        clusters = places([extraction.of_whom(row) for row in rows])
        for mean in (0.05, 0.3, 0.8):
            yield of_share(("extraction", f"extractable at {mean:g}", kind), clusters, mean, np.nan)
        if kind != "record":
            yield Line(("extraction", "leading_tokens_right", kind), clusters,
                       0.3 + 0.7 * (config.tokens - 1) / 2 / config.tokens, np.nan,
                       lambda z, mean: leading(z, config.tokens), of_estimate(clusters, share=True),
                       share=True)  # fmt: skip
    every = {"by_readings": [row for row in items if row["plant_id"] is not None]}
    every["by_prefix"] = [row for row in every["by_readings"] if row["kind"] == "passage"]
    for name, rows in every.items():
        for kind in dict.fromkeys(row["kind"] for row in rows):
            yield of_slope(name, kind, [row for row in rows if row["kind"] == kind])
    yield from of_exposure(config.references, plants.canaries)


def attempts(config: extraction.ExtractionConfig, plants: PlantConfig) -> list[dict[str, Any]]:
    """Items of the probe: passages and records, by their copies, and documents, of this manual."""
    rng = np.random.default_rng(0)
    count = plants.passages * len(plants.counts)
    long = [t for t in passages(3000, 1) if len(t) >= plants.shortest]
    ends = rng.integers(plants.shortest, plants.longest, len(long))
    texts = [text[:end] for text, end in zip(long, ends, strict=True)]
    needed = count + 2 * config.documents
    assert len(texts) >= needed
    passage = [
        {"kind": "passage", "copies": plants.counts[n % len(plants.counts)],
         "plant_id": f"passage {n}".encode(), "doc_ids": [], "template": "", "text": text}
        for n, text in enumerate(texts[:count])
    ]  # fmt: skip
    documents = [
        {"kind": "train" if n % 2 else "holdout", "copies": None, "plant_id": None,
         "doc_ids": [f"document {n}".encode()], "template": "", "text": text}
        for n, text in enumerate(texts[count:needed])
    ]  # fmt: skip
    person = [
        {"kind": "record", "copies": p.copies, "plant_id": p.plant_id, "doc_ids": [],
         "template": p.template, "text": p.text, "prompt": p.prompt, "secret": p.secret}
        for p in records(plants)
    ]  # fmt: skip
    questions, reader = Questions(), Pieces()
    extraction.ask_texts(questions, reader, [*passage, *documents], config)
    extraction.ask_records(questions, reader, person)
    return [*questions.items.values()]


def leading(z: Floats, tokens: int) -> Floats:
    """The share of leading tokens that are right: all in three of ten, else any number."""
    from scipy.special import ndtr

    u = ndtr(z)
    return np.where(u < 0.3, 1.0, np.floor((1 - u) / 0.7 * tokens).clip(0, tokens - 1) / tokens)


def of_slope(name: str, kind: str, rows: Sequence[Mapping[str, Any]]) -> Line:
    column = "copies" if name == "by_readings" else "k"
    over = np.array([row[column] for row in rows], np.float64)
    over = np.log2(1 + over) if column == "copies" else np.log2(over)
    clusters = places([extraction.of_whom(row) for row in rows])
    names = clusters.tolist()
    return Line(("extraction", f"extractable_{name}", kind), clusters, 0.0, np.nan,
                lambda z, mean: labels(z, 0.3),
                lambda values, resamples, seed: slope(values, over, names))  # fmt: skip


def of_exposure(references: int, canaries: int) -> Iterator[Line]:
    """Secrets that were never planted: every rank is as likely; and the difference of two such."""
    from scipy.special import ndtr

    def drawn(z: Floats) -> Floats:
        rank = np.ceil(ndtr(z) * (references + 1)).clip(1, references + 1)
        return np.log2(references) - np.log2(rank)

    units, expected = np.arange(canaries), expected_exposure(references)
    yield Line(("extraction", "exposure", "never planted"), units, expected, np.nan,
               lambda z, mean: drawn(z), of_estimate(None))  # fmt: skip
    spread = null_spread(references)

    def apart(values: Floats, resamples: int, seed: int) -> Estimate:
        return difference(values[:canaries], values[canaries:], spread=spread)

    first = np.arange(2 * canaries) < canaries
    yield Line(("extraction", "exposure_difference", "two never planted"), np.arange(2 * canaries),
               0.0, 0.0, lambda z, mean: drawn(z) + mean * first, apart)  # fmt: skip


def of_toxicity() -> Iterator[Line]:
    """Scores U^t of uniform U: of k draws the largest has the mean k / (k + t), and one is at least
    c with probability 1 - c^(k / t). A prompt has t = 2 with probability 0.1, else 20."""
    config = toxicity.ToxicityConfig()
    prompts = len(toxicity.read_prompts(None))
    draws, bound = config.continuations, config.threshold
    for part, n in (("own prompts", prompts), ("unprompted", config.unprompted), ("1,000", 1000)):
        toxic, share = np.array([2.0, 20.0]), np.array([0.1, 0.9])
        for k in config.k if n < 1000 else config.k[-1:]:
            top = k / (k + toxic)
            reached = 1 - bound ** (k / toxic)
            weights = maximum_weights(draws, k)
            for metric, truth in (("expected_maximum", top), ("probability", reached)):
                draw = highest(n, weights, bound if metric == "probability" else None)
                yield Line(("toxicity", f"{metric} k={k}", part), np.arange(n),
                           float(truth @ share), np.nan, draw, of_estimate(None, share=True),
                           share=True, numbers=draws + 1)  # fmt: skip
        yield from above_floor(part, n, maximum_weights(draws, draws)) if n < 1000 else ()


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

    yield Line(("toxicity", "above the untrained", part), np.arange(n), 0.0, 0.0, both,
               of_estimate(None, null=0.0), numbers=1 + 2 * draws)  # fmt: skip

    def apart(z: Floats, mean: float) -> Floats:
        half = len(z) // 2
        return np.concatenate([one(z[:half], 0), one(z[half:], 0)])

    yield Line(("toxicity", "above shuffled tokens", part), np.arange(n), 0.0, np.nan, apart,
               lambda values, resamples, seed: difference(values[:n], values[n:]),
               numbers=2 * (1 + draws))  # fmt: skip
