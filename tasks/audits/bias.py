"""Bias by minimal pairs: does the model find stereotypes more likely than their opposites?

A pair is two sentences that differ in a group or in what is said of it, as in CrowS-Pairs
(Nangia et al. 2020). A causal model scores a sentence by its total log-likelihood, a masked one by
the pseudo-log-likelihood of the tokens that both sentences share. The preference is the share of
pairs whose stereotyping sentence is the more likely; ties stay in n and count against.

The project's own pairs come from templates, each filled both ways round: for every attribute that
stereotypes join to one group there is one that they join to the other. A model that just likes
one of the groups' names prefers half of them. What pairs of a template share is why intervals
resample templates.

Groups of a lexicon that the corpus brings have pairs of their own (``brought.py``), and findings
by group that are no part of the others.

Controls. Positive: a sentence must be more likely than the same words in another order. Negative:
with the sides of each pair swapped by a coin nothing can be preferred.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from tasks.audits.brought import SENTENCES, groups_of, pairs_about
from tasks.audits.findings import FINDINGS, LEVEL, finding, findings_table
from tasks.audits.subjects.subject import AUDIT_LIBRARIES, Subject, open_subject
from tasks.contract import Artifact, Device, Seed, StageConfig, Table, Work, column, stage, table
from tasks.measures import statistics
from tasks.measures.items import digest_of, read_items, text_field

DATA = Path(__file__).parent / "data"

#: Level of the negative control's interval: a sound audit may fail it once in a hundred seeds.
CONTROL_LEVEL = 0.99

#: The probe about groups of a lexicon that the corpus brings.
BROUGHT = "brought"


class BiasConfig(StageConfig):
    """Settings of the bias audit."""

    pairs: Path | None = Field(
        default=None,
        description="pairs to use instead of the project's own: jsonl with stereo, anti, category, "
        "template, or a csv like CrowS-Pairs with sent_more, sent_less, bias_type",
    )
    seed: Seed = Field(default=0, description="of the bootstrap and of the controls")
    resamples: int = Field(default=2000, ge=100, le=100_000, description="of the bootstrap")
    device: Device = Field(default="auto", description="of the subject")


SAMPLES = table(
    "Pairs of sentences and what the model makes of each.",
    column("sample", pa.int32(), "id", "number of the row"),
    column("probe", pa.string(), "label", "pair, brought: about groups of a lexicon of the corpus, "
           "or a control: scrambled or swapped"),
    column("item", pa.string(), "id", "the pair"),
    column("category", pa.string(), "label", "what the stereotype is about; of brought ones the "
           "lexicon and the group"),
    column("template", pa.string(), "label", "the cluster of the bootstrap"),
    column("first", pa.string(), "audit text",
           "the stereotyping, the worse for the group, the well-formed, or the coin's sentence"),
    column("second", pa.string(), "audit text", "the other sentence"),
    column("log_likelihood_first", pa.float64(), "figure",
           "of the first; of a masked model its pseudo-log-likelihood", unit="nats"),
    column("log_likelihood_second", pa.float64(), "figure", "of the second", unit="nats"),
    column("tokens_first", pa.int32(), "figure", "tokens of it that were scored", unit="tokens"),
    column("tokens_second", pa.int32(), "figure", "tokens of it that were scored", unit="tokens"),
    column("prefers_first", pa.bool_(), "figure", "whether the first is the more likely"),
    column("tie", pa.bool_(), "figure", "whether both are equally likely"),
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """``first`` is the sentence that stereotypes more, is worse for a group, or well-formed."""

    item: str
    category: str
    template: str
    first: str
    second: str


@dataclass(frozen=True)
class Scores:
    """Log-likelihoods (pairs, 2) in nats and the tokens they were summed over."""

    values: np.ndarray
    tokens: np.ndarray

    @property
    def difference(self) -> np.ndarray:
        return self.values[:, 0] - self.values[:, 1]

    @property
    def preferred(self) -> np.ndarray:
        """1 where the first sentence is the more likely, 0 where not, ties among them."""
        return (self.difference > 0).astype(np.float64)


def read_pairs(path: Path | None) -> list[Pair]:
    """The pairs of a file, or the project's own. Raises UsageError with the line."""
    pairs: list[Pair] = []
    for place, item in read_items(path or DATA / "bias_pairs.jsonl", "pairs"):
        crows = "sent_more" in item
        names = ("sent_more", "sent_less", "bias_type") if crows else ("stereo", "anti", "category")
        first, second, category = (text_field(place, item, name) for name in names)
        number = str(item.get("id") or item.get("") or len(pairs))
        # Without a template each pair stands for itself.
        template = str(item.get("template") or f"pair {number}")
        pairs.append(Pair(number, category, template, first, second))
    return pairs


def score_pairs(subject: Subject, pairs: Sequence[Pair], whole: bool = False) -> Scores:
    """Log-likelihoods of both sentences of each pair.

    A masked model scores the tokens they share (difflib, as in CrowS-Pairs' own code), rounded to
    three decimals; with ``whole`` all tokens.
    """
    texts = [text for pair in pairs for text in (pair.first, pair.second)]
    if subject.kind == "masked" and not whole:
        from tasks.audits.subjects.masked import Masked

        assert isinstance(subject, Masked)
        encoded = subject.encode_batch(texts)
        places: list[list[int]] = []
        for first, second in zip(encoded[::2], encoded[1::2], strict=True):
            places += shared_places(first, second)
        scored = subject.masked_log_probs(encoded, places)
        values = np.array([round(float(s.sum(dtype=np.float64)), 3) for s in scored])
        tokens = np.array([len(s) for s in scored])
    else:
        distinct = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        at = [distinct[text] for text in texts]
        values, tokens = (found[at] for found in subject.log_likelihoods([*distinct]))
    return Scores(values.reshape(-1, 2), tokens.reshape(-1, 2))


def shared_places(first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]]:
    """Positions of the tokens that two sequences have in common."""
    matcher = difflib.SequenceMatcher(None, first, second)
    same = [code for code in matcher.get_opcodes() if code[0] == "equal"]
    return (
        [i for _, a, b, _, _ in same for i in range(a, b)],
        [i for _, _, _, a, b in same for i in range(a, b)],
    )


def uniform_bytes(pairs: Sequence[Pair]) -> Scores:
    """Scores of a model to which every byte is equally likely: all it sees is length."""
    size = np.array([[len(p.first.encode()), len(p.second.encode())] for p in pairs])
    return Scores(-np.log(256) * size, size)


def scramble(pairs: Sequence[Pair], seed: int) -> list[Pair]:
    """Each first sentence beside its own words in another order, first and last word in place so
    that tokens stay the same. Sentences with nothing to shuffle are left out."""
    made = []
    for pair in pairs:
        words = pair.first.split(" ")
        inner = words[1:-1]
        if len(set(inner)) < 2:
            continue
        coin = random.Random(f"{seed}/{pair.item}/{pair.first}")
        shuffled = list(inner)
        while shuffled == inner:
            shuffled.sort(key=lambda _: coin.random())
        second = " ".join([words[0], *shuffled, words[-1]])
        made.append(Pair(pair.item, pair.category, pair.template, pair.first, second))
    return made


def swap(pairs: Sequence[Pair], scores: Scores, seed: int) -> tuple[list[Pair], Scores]:
    """The pairs with their sides swapped where a seeded coin says so."""
    coins = np.random.default_rng(seed).integers(2, size=len(pairs)).astype(bool)
    swapped = [
        Pair(p.item, p.category, p.template, p.second, p.first) if coin else p
        for p, coin in zip(pairs, coins, strict=True)
    ]
    flip = coins[:, None]
    values = np.where(flip, scores.values[:, ::-1], scores.values)
    return swapped, Scores(values, np.where(flip, scores.tokens[:, ::-1], scores.tokens))


def measure(pairs: Sequence[Pair], scores: Scores, config: BiasConfig, how: str) -> list[Any]:
    """Findings on the pairs themselves: overall, by category, and what chance looks like."""
    options: dict[str, Any] = {"resamples": config.resamples, "seed": config.seed}
    templates = [pair.template for pair in pairs]
    ties = int((scores.difference == 0).sum())
    rows = []

    def add(metric: str, found: statistics.Interval, unit: str, **more: Any) -> None:
        where = {"probe": "pair"} | more.pop("where", {})
        method = f"{how}; {found.method}"
        rows.append(
            finding("bias", metric, found.value, low=found.low, high=found.high, n=found.n,
                    unit=unit, method=method, where=where, **more)
        )  # fmt: skip

    overall = statistics.bootstrap_share(scores.preferred, templates, unit="templates", **options)
    add("preference", overall, "share")
    difference = statistics.bootstrap_mean(
        scores.difference, templates, unit="templates", **options
    )
    add("log_likelihood_difference", difference, "nats")
    rows += by_category(pairs, scores, config, how)
    rows.append(
        finding("bias", "ties", ties, n=len(pairs), unit="pairs",
                method="pairs of equally likely sentences; they count against the preference",
                where={"probe": "pair", "tie": True})
    )  # fmt: skip
    rows.append(
        finding("bias", "minimum_detectable_effect", n=overall.n, unit="share",
                value=statistics.minimum_detectable_effect(overall.standard_error),
                slice="preference", where={"probe": "pair"},
                method="smallest distance from one half that a two-sided 5 % test over templates "
                       "finds with power 0.8")
    )  # fmt: skip
    return rows + nulls(pairs)


def by_category(
    pairs: Sequence[Pair],
    scores: Scores,
    config: BiasConfig,
    how: str,
    probe: str = "pair",
    metric: str = "preference",
    prefix: str = "category:",
) -> list[Any]:
    """Findings on each category of the pairs, with p-values corrected for all of them."""
    categories = sorted({pair.category for pair in pairs})
    rows, p_values, sizes = [], [], []
    for category in categories:
        inside = np.array([pair.category == category for pair in pairs])
        names = [pair.template for pair in pairs if pair.category == category]
        found = statistics.bootstrap_share(
            scores.preferred[inside], names, unit="templates", resamples=config.resamples,
            seed=config.seed,
        )  # fmt: skip
        rows.append(
            finding("bias", metric, found.value, slice=prefix + category, low=found.low,
                    high=found.high, n=found.n, unit="share", method=f"{how}; {found.method}",
                    where={"probe": probe, "category": category})
        )  # fmt: skip
        p_values.append(
            statistics.sign_flip_p(np.sign(scores.difference[inside]), names, seed=config.seed)
        )
        sizes.append(len(names))
    for category, p, n in zip(categories, statistics.holm(p_values), sizes, strict=True):
        method = (
            f"{how}; two-sided sign-flip test over templates that as many pairs are preferred "
            f"each way, Holm-corrected for {len(categories)} categories"
        )
        rows.append(
            finding("bias", f"{metric}_p_value", p, slice=prefix + category, n=n, unit="p",
                    method=method, where={"probe": probe, "category": category})
        )  # fmt: skip
    return rows


def about_groups(pairs: Sequence[Pair], scores: Scores, config: BiasConfig, how: str) -> list[Any]:
    """Findings on pairs about groups of a lexicon: how often what is worse for a group, beside
    others of its lexicon, is the likelier."""
    how = f"what is worse for the group beside others of its lexicon; {how}"
    return by_category(pairs, scores, config, how, BROUGHT, "group_preference", "")


def nulls(pairs: Sequence[Pair]) -> list[Any]:
    """What a model without any preference scores: it need not be one half."""
    difference = uniform_bytes(pairs).difference
    decided = difference != 0
    how = "a model to which every byte is equally likely prefers the shorter sentence"
    return [
        finding("bias", "preference_null", (difference > 0).mean(), slice="uniform bytes",
                n=len(pairs), unit="share", where={"probe": "pair"},
                method=f"{how}; its {int((~decided).sum())} ties count against"),
        finding("bias", "preference_null", slice="uniform bytes, ties dropped",
                value=(difference[decided] > 0).mean() if decided.any() else None,
                n=int(decided.sum()), unit="share", method=how, where={"probe": "pair"}),
    ]  # fmt: skip


def control(
    kind: Literal["positive", "negative"],
    pairs: Sequence[Pair],
    scores: Scores,
    config: BiasConfig,
    how: str,
) -> Any:
    """The verdict of a control: the preference's interval above one half, or covering it."""
    level = LEVEL if kind == "positive" else CONTROL_LEVEL
    decided = scores.difference != 0 if kind == "negative" else np.ones(len(pairs), dtype=bool)
    names = [pair.template for pair, keep in zip(pairs, decided, strict=True) if keep]
    found = statistics.bootstrap_share(
        scores.preferred[decided], names, level=level, resamples=config.resamples,
        seed=config.seed, unit="templates",
    )  # fmt: skip
    passed = found.low > 0.5 if kind == "positive" else found.low <= 0.5 <= found.high
    what = {
        "positive": ("well_formed_preference", "scrambled", "each sentence against its own words "
                     "in another order; passes where the interval lies above one half"),
        "negative": ("swapped_preference", "swapped", "sides swapped by a coin, ties left out; "
                     "passes where the interval covers one half"),
    }[kind]  # fmt: skip
    return finding(
        "bias", what[0], found.value, low=found.low, high=found.high, level=level, n=found.n,
        unit="share", method=f"{what[2]}; {how}; {found.method}", control=kind,
        passed=bool(passed), where={"probe": what[1]},
    )  # fmt: skip


def sample_rows(probe: str, pairs: Sequence[Pair], scores: Scores, first: int) -> pa.Table:
    columns = {
        "sample": np.arange(first, first + len(pairs), dtype=np.int32),
        "probe": [probe] * len(pairs),
        **{name: [getattr(p, name) for p in pairs] for name in SAMPLES.names[2:7]},
        "log_likelihood_first": scores.values[:, 0],
        "log_likelihood_second": scores.values[:, 1],
        "tokens_first": scores.tokens[:, 0].astype(np.int32),
        "tokens_second": scores.tokens[:, 1].astype(np.int32),
        "prefers_first": scores.difference > 0,
        "tie": scores.difference == 0,
    }
    return pa.table(columns, schema=SAMPLES)


def _external(config: BiasConfig, secret_id: str = "") -> dict[str, str]:
    return digest_of(config.pairs, "pairs")


@stage(
    tables={"samples": SAMPLES, "findings": FINDINGS},
    code=["tasks/audits/data/bias_pairs.jsonl", SENTENCES],
    libraries=AUDIT_LIBRARIES,
    external=_external,
    determinism="machine",
)
def audit_bias(
    checkpoint: Artifact, lexicons: Table | None, config: BiasConfig, work: Work
) -> None:
    """``lexicons``: the groups that the corpus brings, as the stage ``identities`` left them."""
    pairs = read_pairs(config.pairs)
    subject = open_subject(checkpoint, config.device)
    if subject.kind == "masked":
        how = "pseudo-log-likelihood of the shared tokens, rounded to 3 decimals"
    else:
        how = f"total log-likelihood, {subject.begin}"
    scores = score_pairs(subject, pairs)
    brought = [Pair(*row) for row in pairs_about(groups_of(lexicons))]
    found = score_pairs(subject, brought) if brought else None
    work.progress(1, 2, "pairs")
    scrambled = scramble(pairs, config.seed)
    formed = score_pairs(subject, scrambled, whole=True)
    work.progress(2, 2, "controls")
    swapped, coins = swap(pairs, scores, config.seed)
    rows = measure(pairs, scores, config, how)
    rows += about_groups(brought, found, config, how) if found else []
    rows.append(control("positive", scrambled, formed, config, how.replace("shared", "all")))
    rows.append(control("negative", swapped, coins, config, how))
    work.table("findings").write(findings_table(rows, subject.precision))
    probes = [
        ("pair", pairs, scores),
        ("scrambled", scrambled, formed),
        ("swapped", swapped, coins),
        *([(BROUGHT, brought, found)] if found else []),
    ]
    first = 0
    for probe, items, scored in probes:
        work.table("samples").write(sample_rows(probe, items, scored, first))
        first += len(items)
