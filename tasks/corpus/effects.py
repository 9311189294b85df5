"""Effects: what curation did to people.

For every rule and stage that takes documents out: how often it took those that mention a group,
hold a dialect's marker, are of a language, a length or a source, beside all others; the same along
the range of a rule's threshold; which clusters of copies were lost whole because the one that was
kept left later; and what the scorer makes of a sentence when only the group in it changes. Of what
ingest itself took out nothing but the source is known: its reasons are compared by source alone.

A ratio is no verdict: documents that mention a group may well differ. That a filter takes them more
often is for somebody to look at, and ``examples`` names the documents to look at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from tasks.contract import (
    ID,
    Artifact,
    Table,
    Work,
    aligned,
    column,
    stage,
    table,
    together,
)
from tasks.corpus.identities import WORD_LISTS, brought_of
from tasks.corpus.people.fates import (
    DIMENSIONS,
    STAYED,
    Fates,
    fates,
    signal,
    signal_table,
)
from tasks.corpus.people.swaps import (
    DRAWN,
    SWAPS,
    SwapConfig,
    count,
    draw_part,
    label,
    number,
    swap_tables,
)
from tasks.corpus.people.taken import taken_clusters
from tasks.corpus.rules import rules_of
from tasks.measures.faults import tell
from tasks.measures.labelled import labelled_sentences, measured
from tasks.measures.ratios import LEVEL, METHOD, Ratios, rate_ratios
from tasks.measures.scorers import scorer_digest

Bool = NDArray[np.bool_]

#: A corrected p below this is called a difference.
SIGNIFICANT = 0.05

#: What stands in place of a stage and a reason where documents left for whatever reason; for any
#: but that they were copies; and where they were copies, and what was kept of them left later.
ANY, STRUCK, LOST = ("", ""), ("", "struck out"), ("", "lost with the kept copy")


class EffectsConfig(SwapConfig):
    least: int = Field(
        20, ge=2, description="groups with fewer documents are compared with nobody: too few to say"
    )
    shares: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(
        (0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
        description="thresholds of a numeric rule are tried that would take these shares of all "
        "documents, beside its own",
    )
    examples: int = Field(
        3, ge=0, le=100, description="documents named of each rule, source and language"
    )


_CAUSE = (
    label("stage", "label of the stage in the run; empty: all together"),
    label("reason", "why they left, as the ledger says; of all stages together: empty: for any "
           "reason; struck out: for any but that they were copies; lost with the kept copy: as "
           "copies, and what was kept of them left later"),
)  # fmt: skip

_WHOM = (
    label("dimension", "identity, dialect, language, length or source; empty: all documents"),
    label("slice", "the group, variety, language, class of length or source"),
)

_RATES = (
    count("n", "documents of the group that the rule could take"),
    count("removed", "of these, the rule took or would have taken, by itself; of a rule that tags, "
           "those that it tagged, and n counts those that its stage kept"),
    count("clusters", "clusters of near copies that they are in", "clusters"),
    count("other_n", "all other documents that it could take; beside identities and dialects "
           "those that are English, or of undetermined language"),
    count("other_removed", "of these, taken"),
    number("rate", "share of the group that was taken", "share"),
    number("other_rate", "share of all others", "share"),
    number("ratio", "rate by other rate; null where neither lost any, or only the group did",
            "times"),
    number("low", f"lower end of its interval at {LEVEL:.0%}: {METHOD}", "times"),
    number("high", "upper end; null where it has none", "times"),
    number("within", "the same ratio within sources (Mantel & Haenszel 1959), an estimate without "
           "interval: where it is near 1, the sources differ, not the groups", "times"),
    number("p", "two-sided p-value that the ratio is 1", "p"),
    number("corrected", "the same, corrected for all groups of the rule (Holm 1979)", "p"),
    number("least", "the smallest ratio that n would have shown in four of five such corpora, an "
            "estimate; null where none could", "times"),
    label("verdict", "more: taken more often than others, beyond chance; less; or not shown"),
)  # fmt: skip

TABLES = {
    "rates": table("How often each rule took documents by group, as ratios to all others.",
                   *_CAUSE, *_WHOM, *_RATES),
    "thresholds": table(
        "The same along the range of a numeric rule, whatever its own threshold.",
        *_CAUSE, label("signal", "the signal that the rule looks at"),
        label("bound", "ge, gt, le or lt: how it compares"),
        number("threshold", "where it would cut"),
        column("own", pa.bool_(), "figure", "it is the rule's own threshold"),
        *_WHOM, *_RATES,
    ),
    "lost": table(
        "Copies whose kept twin left later: with them clusters are lost whole.",
        *_CAUSE, *_WHOM,
        count("copies", "documents removed as copies, whose kept copy left for this"),
        count("clusters", "clusters thereby lost, no document of which stayed", "clusters"),
    ),
    "examples": table(
        "Documents that were taken, some of each rule, source and language, highest ratio first.",
        *_CAUSE, *_WHOM,
        number("ratio", "see rates", "times"),
        column("alone", pa.bool_(), "figure", "of all others the rule took none: no ratio, and "
               "before all ratios"),
        column("doc_id", ID, "id", "the document"),
    ),
    **SWAPS,
    "lexicon": table(
        "How well mentions of groups are found, on the project's labelled sentences. They flatter: "
        "lexicon and sentences have one author.",
        label("group", "identity group; empty: all"),
        count("mentions", "sentences that mention it", "sentences"),
        count("found", "sentences in which the lexicon finds it", "sentences"),
        count("hits", "sentences in both", "sentences"),
        *(number(f"{measure}{end}", f"{measure}{words}", "share")
          for measure in ("recall", "precision")
          for end, words in (("", ""), ("_low", ", lower end (Wilson)"), ("_high", ", upper end"))),
    ),
}  # fmt: skip

# Rates -----------------------------------------------------------------------------------------


def outcomes(found: Fates) -> Iterator[tuple[str, str, Bool, Bool]]:
    """(stage, reason, who was taken, who was at risk)."""
    gone = found.left < STAYED
    yield (*ANY, gone, np.ones(len(gone), bool))
    yield (*STRUCK, gone & ~found.copy, ~found.copy)
    if found.copy.any():
        yield (*LOST, found.lost, found.copy)
    for cause in found.causes:
        # What a stage tags, it keeps: a document that left there has no tags of it.
        risk = found.left > cause.order if cause.tags else found.left >= cause.order
        yield cause.stage, cause.reason, cause.hit, risk


def rate_rows(
    found: Fates, hit: Bool, risk: Bool, least: int, dimensions: Iterable[str] = DIMENSIONS
) -> list[dict[str, Any]]:
    """Rows of ``_WHOM`` and ``_RATES`` for one rule, corrected for all its groups together."""
    whom: list[tuple[str, str]] = []
    parts: list[Ratios] = []
    for dimension in dimensions:
        slices = found.slices(dimension, least)
        if not slices:
            continue
        at_risk = risk & found.at_risk(dimension)
        strata = None if dimension == "source" else found.source
        ratios = rate_ratios(list(slices.values()), hit, at_risk, found.cluster, strata)
        whom += [(dimension, name) for name in slices]
        parts.append(ratios)
    if not parts:
        return []
    joined = [np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Ratios)]
    enough = np.flatnonzero((joined[0] >= least) & (joined[3] > 0))
    whole = Ratios(*(values[enough] for values in joined))
    corrected = whole.corrected
    rows = []
    for i, (dimension, name) in enumerate(whom[int(place)] for place in enough):
        rows.append(
            {
                "dimension": dimension, "slice": name, "n": int(whole.n[i]),
                "removed": int(whole.events[i]), "clusters": int(whole.clusters[i]),
                "other_n": int(whole.other_n[i]), "other_removed": int(whole.other_events[i]),
                "rate": whole.events[i] / whole.n[i],
                "other_rate": whole.other_events[i] / whole.other_n[i],
                "ratio": _finite(whole.ratio[i]), "low": _finite(whole.low[i]),
                "high": _finite(whole.high[i]),
                "within": _finite(whole.within[i]), "p": _finite(whole.p[i]),
                "corrected": _finite(corrected[i]), "least": _finite(whole.least[i]),
                "verdict": verdict(corrected[i], whole.events[i] * whole.other_n[i],
                                   whole.other_events[i] * whole.n[i]),
            }
        )  # fmt: skip
    return rows


def asked(found: Fates, stage_: str) -> Iterable[str]:
    """The dimensions that are known of the documents that a stage took."""
    return ("source",) if stage_ == found.first else DIMENSIONS


def verdict(p: float, own: float, others: float) -> str:
    if not p < SIGNIFICANT:
        return "not shown"
    return "more" if own > others else "less"


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


#: How a value compares with a bound that it breaks.
_BREAKS = {"ge": np.less, "gt": np.less_equal, "le": np.greater, "lt": np.greater_equal}


def thresholds(values: NDArray[np.float64], bound: str, own: float, shares: Any) -> list[float]:
    """Those that would take about these shares of the values, and the rule's own; ascending."""
    below = bound in ("ge", "gt")
    levels = [share if below else 1 - share for share in shares]
    found = np.quantile(values, levels, method="higher").tolist() if len(values) else []
    return sorted({*found, own})


def threshold_rows(
    found: Fates, history: Mapping[str, Artifact], config: EffectsConfig
) -> Iterator[dict[str, Any]]:
    orders = {title: order for order, title in enumerate(history)}
    for title, artifact in history.items():
        for rule in rules_of(artifact):
            bounds = {b: float(v) for b in _BREAKS if isinstance(v := rule[b], float | int)}
            if not bounds:  # a rule about labels has no range
                continue
            values = signal(history, str(rule["signal"]), found)
            if values is None:
                continue
            risk = (found.left >= orders[title]) & np.isfinite(values)
            for bound, own in bounds.items():
                breaks = _BREAKS[bound]
                for limit in thresholds(values[risk], bound, float(own), config.shares):
                    head = {"stage": title, "reason": rule["name"], "signal": rule["signal"],
                            "bound": bound, "threshold": limit, "own": limit == own}  # fmt: skip
                    hit = breaks(values, limit)
                    for row in rate_rows(found, hit, risk, config.least):
                        yield head | row


# Lost clusters and examples --------------------------------------------------------------------


def lost_rows(found: Fates, least: int) -> Iterator[dict[str, Any]]:
    why = np.where(found.lost, found.why[found.root], -1)
    causes = [(ANY, found.lost)]
    causes += [(cause, why == i) for i, cause in enumerate(found.reasons) if (why == i).any()]
    slices = {("", ""): np.arange(len(why))}
    for dimension in DIMENSIONS:
        for name, group in found.slices(dimension, least).items():
            slices[dimension, name] = group.members
    for (stage_, reason), lost in causes:
        for (dimension, name), members in slices.items():
            here = members[lost[members]]
            if len(here):
                whole = np.unique(found.cluster[here[found.whole[found.cluster[here]]]])
                yield {"stage": stage_, "reason": reason, "dimension": dimension, "slice": name,
                       "copies": len(here), "clusters": len(whole)}  # fmt: skip


def example_rows(found: Fates, rates: list[dict[str, Any]], most: int) -> Iterator[dict[str, Any]]:
    """Of each rule, source and language the documents with the lowest ids, which are hashes."""
    hits = {(c.stage, c.reason): c.hit for c in found.causes}
    known = {(r["stage"], r["reason"], r["dimension"], r["slice"]): r for r in rates}
    for (stage_, reason), hit in hits.items():
        if (found.copy & hit).any():
            continue  # of copies one stayed
        chosen: list[dict[str, Any]] = []
        for (dimension, name), member in found.groups.items():
            shown = dimension in ("source", "language")
            at = np.flatnonzero((member & hit)[: len(found.ids)]) if shown else hit[:0]
            rate = known.get((stage_, reason, dimension, name), {"ratio": None, "removed": 0})
            alone = rate["ratio"] is None and rate["removed"] > 0  # of all others none was taken
            head = {"stage": stage_, "reason": reason, "dimension": dimension, "slice": name}
            chosen += [head | {"ratio": rate["ratio"], "alone": alone,
                               "doc_id": found.ids[int(i)].as_py()} for i in at[:most]]  # fmt: skip
        yield from sorted(
            chosen, key=lambda r: (not r["alone"], -(r["ratio"] or 0), r["dimension"], r["slice"])
        )


def toxicity_limit(history: Mapping[str, Artifact]) -> float:
    """Return the score from which the first rule over toxicity removes documents; without such a
    rule, that from which the first one tags them; without either, 0.5."""
    rules = [
        rule
        for artifact in history.values()
        for rule in rules_of(artifact)
        if rule["signal"] == "toxicity"
    ]
    rules.sort(key=lambda rule: rule["action"] == "tag")
    limits = [rule["lt"] if rule["lt"] is not None else rule["le"] for rule in rules]
    return next((float(x) for x in limits if isinstance(x, float | int)), 0.5)


# The stage -------------------------------------------------------------------------------------


@stage(
    tables=TABLES,
    code=[
        *WORD_LISTS,
        "tasks/measures/data/identity_sentences.txt",
        "tasks/measures/data/swaps.json",
    ],
    libraries=["numpy", "scipy"],
    external=lambda config, secret_id: scorer_digest(config.scorer),
    determinism="machine",
    reads={"history": ("documents", "ledger", "signals", "lexicons")},
)
def effects(
    documents: Table, history: dict[str, Artifact], config: EffectsConfig, work: Work
) -> None:
    """``documents``: what sentences are drawn from, personal data masked; ``history``: the
    artifacts of the corpus stages by label, in the order they ran, without ``plant``: what that
    holds back for planting was silenced by no filter.

    Holds about 120 bytes a document, kept by ingest or not, some 300 more for each that a rule took
    before near copies were looked for, and of texts the drawn sentences alone.
    """
    found = fates(history, taken_clusters(history, work))
    unknown = float((~found.known[: len(found.ids)]).sum())
    work.measure("documents without signals", unknown, "documents")

    def write(name: str, rows: list[dict[str, Any]]) -> None:
        work.table(name).write(pa.Table.from_pylist(rows, schema=TABLES[name]))

    rates = [
        {"stage": stage_, "reason": reason, **row}
        for stage_, reason, hit, risk in outcomes(found)
        for row in rate_rows(found, hit, risk, config.least, asked(found, stage_))
    ]
    write("rates", rates)
    write("thresholds", [*threshold_rows(found, history, config)])
    write("lost", [*lost_rows(found, config.least)])
    write("examples", [*example_rows(found, rates, config.examples)])
    shares = {
        name: config.documents / max(1, int(member.sum()))
        for (dimension, name), member in found.groups.items()
        if dimension == "identity"
    }
    tables = [signal_table(history, name) for name in ("identities", "language")]
    told = [table for table in tables if table is not None]
    parts = aligned(documents, *told) if len(told) == 2 else []
    brought = brought_of(history)
    done = work.map(draw_part, parts, shares, brought, config)
    tell(work, [part.value for part in done], documents.rows, "the search for sentences to swap")
    drawn = together(done, "drawn", DRAWN)
    summary, rows = swap_tables(drawn, toxicity_limit(history), brought, config)
    write("swaps", summary)
    write("swapped", rows)
    write("lexicon", measured(labelled_sentences()))
