"""The error rates of the audits, from verdicts on sealed worlds and their opened envelopes.

A verdict stands beside what was really in the text. Detection: of candidates with an effect, the
share that was found, by dose. Alarms: of candidates without any, the share with p below 0.05, or,
where nothing has a p, that was found all the same. Calibration: how often the 95 % intervals cover
what the same model gives over all items. Candidates of one world share its model: intervals are
over worlds. A world whose model learned nothing tells nothing of the audits, and is counted apart;
so is one whose envelope is missing, or is not the one that was sealed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from tasks.audits.about import JUDGED, NOTHING
from tasks.audits.proofs.candidates import NOMINAL, VERDICTS
from tasks.contract import Artifact, StageConfig, Work, column, stage, table
from tasks.measures.estimates import Estimate, estimate

#: A dose is seen where at least this share of its candidates is found.
SEEN = 0.8


class ErrorRatesConfig(StageConfig):
    """Settings of the error rates."""

    void: dict[str, str] = Field(
        default={}, description="worlds that tell nothing, with the reason"
    )
    top: int = Field(default=128, ge=1, description="documents that were named of a text, at most")


UNITS = table(
    "Every candidate of every world: what the audits said of it, and what was so.",
    column("world", pa.string(), "label", "the world"),
    column("effects", pa.bool_(), "label", "whether the world has any effects"),
    column("learned", pa.bool_(), "label", "whether its model learned more than frequencies"),
    column("dose", pa.float64(), "figure", "copies, or the share of sentences"),
    column("effect", pa.bool_(), "label", "whether there is something to find; null: it is less "
           "than of others, and what is to be found is more"),
    column("alarm", pa.bool_(), "label", "whether an effect is claimed of it: p below 0.05, in "
           "whatever direction; without a p, that it was found"),
    column("covered", pa.bool_(), "label", "whether the interval covers the figure over all items; "
           "null: there is no interval, or none with two ends"),
    *(VERDICTS.field(name) for name in VERDICTS.names),
)  # fmt: skip


def rates(meaning: str, *more: pa.Field) -> pa.Schema:
    return table(
        meaning,
        column("kind", pa.string(), "label", "canary, passage, record, association or speech"),
        *more,
        column("value", pa.float64(), "figure", "the share; null: nothing to measure it on",
               unit="share"),
        column("low", pa.float64(), "figure", "lower end of its interval, over worlds"),
        column("high", pa.float64(), "figure", "upper end"),
        column("level", pa.float64(), "figure", "level of the interval", unit="share"),
        column("n", pa.int64(), "figure", "candidates"),
        column("worlds", pa.int64(), "figure", "worlds that they are of"),
        column("method", pa.string(), "project text", "how the interval was made"),
    )  # fmt: skip


DOSE = column("dose", pa.float64(), "figure", "copies, or the share of sentences")

DETECTION = rates(
    "How often an effect of a dose is found.",
    DOSE,
    column("effect", pa.bool_(), "label", "whether there is something to find at this dose; null: "
           "it is less than of others, in some world or in all"),
)  # fmt: skip
UNJUDGED = table(
    "Candidates of which the audits gave no verdict: they are in no rate.",
    column("world", pa.string(), "label", "the world"),
    column("kind", pa.string(), "label", "canary, passage, record, association or speech"),
    column("unit", pa.string(), "label", "the candidate"),
    DOSE,
)
ALARMS = rates("How often an effect is claimed where there is none; nominal: 0.05.")
CALIBRATION = rates("How often the 95 % intervals cover the figure over all items.")

SMALLEST = table(
    "The smallest dose that is found, with all above it, in at least 80 % of cases.",
    column("kind", pa.string(), "label", "canary, passage, record, association or speech"),
    column("dose", pa.float64(), "figure", "copies, or the share of sentences; null: none is"),
)

PRECISION = rates(
    "How often the documents that attribution names first, as many as there are, are those that "
    "were written for a candidate; each text counts alike."
)

REMOVED = rates(
    "By how much the figures of candidates fall that were found, in models that were trained anew "
    "without the documents that attribution names.",
    column(
        "arm",
        pa.string(),
        "label",
        "removed: without these documents; random: without as many "
        "others; between: by how much more without these",
    ),
)

WORLDS = table(
    "The worlds, and what of them counts.",
    column("world", pa.string(), "label", "the world"),
    column("counts", pa.bool_(), "label", "whether it counts in the rates"),
    column("why", pa.string(), "project text", "why it does not"),
    column("bits", pa.float64(), "figure", "what a byte of held-out text costs its model",
           unit="bits per byte"),
    column("simple", pa.float64(), "figure", "what it costs one that knows frequencies alone",
           unit="bits per byte"),
)  # fmt: skip

#: Models that are trained anew: without what attribution names, without as many others.
ARMS = ("removed", "random")


def doses_of(envelope: pa.Table) -> dict[tuple[str, str], float]:
    """The dose of each candidate that an envelope names, by kind and unit."""
    return {(row["kind"], row["unit"]): row["dose"] for row in envelope.to_pylist()}


def joined(world: str, verdicts: Artifact, envelope: pa.Table) -> list[dict[str, Any]]:
    """Rows of UNITS: the verdicts of a world beside its opened envelope."""
    (model,) = verdicts["model"].read().to_pylist()
    doses = doses_of(envelope)
    speech = [dose for (kind, _), dose in doses.items() if kind == "speech"]
    effects = len({*speech}) > 1 or any(
        dose != NOTHING[kind] for (kind, _), dose in doses.items() if kind != "speech"
    )
    rows = []
    for row in verdicts["verdicts"].read().to_pylist():
        dose = doses[row["kind"], row["unit"]]
        effect: bool | None = dose != NOTHING.get(row["kind"], dose)
        if row["kind"] == "speech":  # a group stands beside the others
            mean = (sum(speech) - dose) / (len(speech) - 1) if len(speech) > 1 else dose
            effect = False if np.isclose(dose, mean) else True if dose > mean else None
        told = {"world": world, "effects": effects, "learned": model["learned"], "dose": dose}
        judged = {"effect": effect, "alarm": alarm(row), "covered": covered(row)}
        rows.append(row | told | judged)
    return rows


def unjudged(world: str, verdicts: pa.Table, envelope: pa.Table) -> list[dict[str, Any]]:
    """Rows of UNJUDGED of a world."""
    judged = {(row["kind"], row["unit"]) for row in verdicts.to_pylist()}
    return [
        {"world": world, "kind": kind, "unit": unit, "dose": dose}
        for (kind, unit), dose in doses_of(envelope).items()
        if (kind, unit) not in judged
    ]


def covered(row: Mapping[str, Any]) -> bool | None:
    """Whether the interval of a verdict covers the figure over all items. "At least" is none."""
    if None in (row["low"], row["high"], row["whole"]):
        return None
    return bool(row["low"] <= row["whole"] <= row["high"])


def alarm(row: Mapping[str, Any]) -> bool:
    """Whether an effect is claimed of a candidate."""
    return bool(row["found"] if row["p"] is None else row["p"] < NOMINAL)


def rate_of(
    rows: Sequence[Mapping[str, Any]], values: Sequence[float], level: float = 0.95,
    share: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """The figures of RATES: candidates of a world are a cluster."""
    found: Estimate = estimate(
        np.array(values, np.float64), [row["world"] for row in rows], share=share, level=level,
        unit="worlds",
    )  # fmt: skip
    figures = {"value": found.value, "low": found.low, "high": found.high}
    told = {name: None if np.isnan(value) else value for name, value in figures.items()}
    worlds = len({row["world"] for row in rows})
    return {**told, "level": level, "n": found.n, "worlds": worlds, "method": found.method}


def kinds_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [kind for kind in JUDGED if any(row["kind"] == kind for row in rows)]


def detection(units: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of DETECTION, of worlds with effects, the dose of nothing among them."""
    for kind in kinds_of(units):
        mine = [row for row in units if row["kind"] == kind and row["effects"]]
        for dose in sorted({row["dose"] for row in mine}):
            rows = [row for row in mine if row["dose"] == dose]
            found = [row["found"] for row in rows]
            same = {row["effect"] for row in rows}
            effect = same.pop() if len(same) == 1 else None
            yield {"kind": kind, "dose": dose, "effect": effect, **rate_of(rows, found)}


def alarms(units: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of ALARMS; the intervals hold for all kinds together (Bonferroni)."""
    kinds = kinds_of(units)
    for kind in kinds:
        rows = [row for row in units if row["kind"] == kind and row["effect"] is False]
        if rows:
            level = 1 - 0.05 / len(kinds)
            yield {"kind": kind, **rate_of(rows, [row["alarm"] for row in rows], level)}


def calibration(units: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of CALIBRATION."""
    for kind in kinds_of(units):
        rows = [row for row in units if row["kind"] == kind and row["covered"] is not None]
        if rows:
            yield {"kind": kind, **rate_of(rows, [row["covered"] for row in rows])}


def smallest(found: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of SMALLEST from rows of DETECTION."""
    for kind in dict.fromkeys(row["kind"] for row in found):
        seen = None
        for row in reversed([row for row in found if row["kind"] == kind]):
            if not row["effect"] or row["value"] is None or row["value"] < SEEN:
                break
            seen = row["dose"]
        yield {"kind": kind, "dose": seen}


def precision(
    world: str, attributed: pa.Table, origins: pa.Table, top: int
) -> Iterator[dict[str, Any]]:
    """Of each text for which documents were written the share of these among as many that
    attribution names first, or among ``top``, the most that it names."""
    true: dict[tuple[str, str, str], set[bytes]] = {}
    for row in origins.filter(origins["supports"]).to_pylist():
        true.setdefault((row["kind"], row["unit"], row["about"]), set()).add(row["doc_id"])
    named: dict[tuple[str, str, str], list[bytes]] = {}
    for row in attributed.sort_by("place").to_pylist():
        named.setdefault((row["kind"], row["unit"], row["about"]), []).append(row["doc_id"])
    for key, there in true.items():
        looked = min(len(there), top)
        right = there & {*named.get(key, [])[:looked]}
        yield {"world": world, "kind": key[0], "value": len(right) / looked}


def precisions(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of PRECISION."""
    for kind in kinds_of(rows):
        mine = [row for row in rows if row["kind"] == kind]
        yield {"kind": kind, **rate_of(mine, [row["value"] for row in mine])}


def fallen(world: str, base: pa.Table, arms: Mapping[str, pa.Table]) -> Iterator[dict[str, Any]]:
    """Of each candidate that was found and is looked for in likelihoods: how far its figure fell in
    either arm, as a share of the figure itself."""
    known = {(row["kind"], row["unit"]): row for row in base.to_pylist()}
    values = {
        arm: {(row["kind"], row["unit"]): row["value"] for row in table.to_pylist()}
        for arm, table in arms.items()
    }
    for key, row in known.items():
        after = [values[arm].get(key) for arm in ARMS]
        if key[0] in NOTHING and row["found"] and row["value"] and None not in after:
            removed, random = (1 - value / row["value"] for value in after if value is not None)
            told = {"removed": removed, "random": random, "between": removed - random}
            yield from ({"world": world, "kind": key[0], "arm": arm, "value": value}
                        for arm, value in told.items())  # fmt: skip


def falls(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of REMOVED: means over candidates, those of a world a cluster."""
    for kind in kinds_of(rows):
        for arm in (*ARMS, "between"):
            mine = [row for row in rows if (row["kind"], row["arm"]) == (kind, arm)]
            yield {
                "kind": kind,
                "arm": arm,
                **rate_of(mine, [row["value"] for row in mine], share=False),
            }


@stage(
    tables={"units": UNITS, "detection": DETECTION, "alarms": ALARMS, "calibration": CALIBRATION,
            "smallest": SMALLEST, "worlds": WORLDS, "unjudged": UNJUDGED,
            "precision": PRECISION, "removed": REMOVED},
    libraries=["numpy", "scipy"],
    reads={"verdicts": ("verdicts", "model"), "envelopes": ("envelope", "written_for"),
           "attributions": ("attributed",), "arms": ("verdicts",)},
)  # fmt: skip
def error_rates(
    verdicts: Mapping[str, Artifact],
    envelopes: Mapping[str, Artifact],
    attributions: Mapping[str, Artifact],
    arms: Mapping[str, Artifact],
    config: ErrorRatesConfig,
    work: Work,
) -> None:
    """All by world; those that are void are in none. ``arms``: verdicts on models that were trained
    anew, by world and arm."""
    units: list[dict[str, Any]] = []
    worlds: list[dict[str, Any]] = []
    traced: list[dict[str, Any]] = []
    dropped: list[dict[str, Any]] = []
    silent: list[dict[str, Any]] = []
    for world, artifact in verdicts.items():
        envelope = envelopes[world]["envelope"].read()
        rows = joined(world, artifact, envelope)
        (model,) = artifact["model"].read().to_pylist()
        why = "" if model["learned"] else "its model learned no more than frequencies"
        figures = {name: model[name] for name in ("bits", "simple")}
        worlds.append({"world": world, "counts": not why, "why": why, **figures})
        units += rows
        if why:
            continue
        origins = envelopes[world]["written_for"].read()
        both = {arm: arms[f"{world} {arm}"]["verdicts"].read() for arm in ARMS
                if f"{world} {arm}" in arms}  # fmt: skip
        dropped += fallen(world, artifact["verdicts"].read(), both) if both else []
        named = attributions[world]["attributed"].read()
        traced += precision(world, named, origins, config.top)
        silent += unjudged(world, artifact["verdicts"].read(), envelope)
    worlds += [{"world": world, "counts": False, "why": why} for world, why in config.void.items()]
    counted = [row for row in units if row["learned"]]
    found = [*detection(counted)]
    work.table("units").write(pa.Table.from_pylist(units, schema=UNITS))
    for name, schema, made in (
        ("detection", DETECTION, found),
        ("alarms", ALARMS, [*alarms(counted)]),
        ("calibration", CALIBRATION, [*calibration(counted)]),
        ("smallest", SMALLEST, [*smallest(found)]),
        ("precision", PRECISION, [*precisions(traced)]),
        ("removed", REMOVED, [*falls(dropped)]),
        ("worlds", WORLDS, worlds),
        ("unjudged", UNJUDGED, silent),
    ):
        work.table(name).write(pa.Table.from_pylist(made, schema=schema))
