"""Findings of audits that asked alike, side by side: what each differs in from another, in pairs
of the units of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from tasks.audits.exchange import SETTINGS
from tasks.audits.judging.measures import WHOLE
from tasks.audits.judging.units import CAPABILITY, Unit, Units, texts_in
from tasks.contract import Artifact
from tasks.measures.corrections import holm
from tasks.measures.estimates import Estimate, difference, estimate, scaled

Row = dict[str, Any]

#: What rounding leaves of equal values is no difference.
ROUNDING = 1e-12

#: Fewer members, or others, tell too little of how far off an area is.
FEW = 5

#: Settings of a trace that decide no finding.
NO_MATTER = ("places",)


class Audited(Protocol):
    """A checkpoint, and what audits of it left: the findings ("audit"), "ask" and "score"."""

    @property
    def name(self) -> str: ...

    def part(self, audit: str, stage: str) -> Artifact | None: ...


def label(audit: str, stage: str) -> str:
    """What a stage of an audit is called in a run."""
    return f"audit_{audit}" if stage == "audit" else f"{audit}_{stage}"


def unlike(audit: str, subjects: Sequence[Audited]) -> str:
    """Why an audit of these cannot be compared; empty where it can."""
    for first, second in pairwise(subjects):
        one, other = (each.part(audit, "audit") for each in (first, second))
        if one is None or other is None:
            return f"{(second if one else first).name} has no such audit"
        if changed := settings_apart(one, other):
            return f"its settings differ: {', '.join(changed)}"
        if audit == CAPABILITY and texts_in(one) != texts_in(other):
            return "other held-out texts were measured"
        one, other = (each.part(audit, "ask") for each in (first, second))
        if one and other and one["items"].digest != other["items"].digest:
            return "other items were asked about"
        if one and other and drawn(one) != drawn(other):
            return "texts were drawn otherwise, or with another seed"
        one, other = (each.part(audit, "trace") for each in (first, second))
        if one and other and (changed := settings_apart(one, other, NO_MATTER)):
            return f"its settings differ: {', '.join(f'trace.{name}' for name in changed)}"
        one, other = (each.part(audit, "reference") for each in (first, second))
        if one and other and reference_of(one) != reference_of(other):
            return f"another model is the reference: {reference_of(one)}, {reference_of(other)}"
        one, other = (each.part(audit, "score") for each in (first, second))
        if one and other:
            names = [a["scorer"].read()["scorer"].to_pylist() for a in (one, other)]
            if names[0] != names[1]:
                return f"scored by {names[0][0]} and by {names[1][0]}"
    return ""


def reference_of(referred: Artifact) -> str:
    """The model that read what another wrote."""
    return str(referred.manifest["lineage"]["reference"])


def settings_apart(one: Artifact, other: Artifact, no_matter: Sequence[str] = ()) -> list[str]:
    """Settings that differ, and files that were read to judge. Where files are is none: what was in
    those that are asked about is known by the items."""
    parts = [artifact.manifest["parts"] for artifact in (one, other)]
    left, right = (part["config"] for part in parts)
    # What people said is of a checkpoint's own texts, and differs as these do.
    files = [{name: digest for name, digest in part.get("external", {}).items()
              if not name.startswith("ratings")} for part in parts]  # fmt: skip
    return [
        name
        for name in sorted({*left, *right})
        if name not in no_matter
        and left.get(name) != right.get(name)
        and not any(isinstance(side.get(name), str | list) for side in (left, right))
    ] + (["what is in the files that judge"] if files[0] != files[1] else [])


def drawn(asked: Artifact) -> set[tuple[Any, ...]]:
    requests = asked["requests"]
    names = [name for name in SETTINGS if name in requests.columns]  # an older run had fewer
    rows = requests.read(names).group_by(names).aggregate([])
    return {tuple(row.get(name) for name in SETTINGS) for row in rows.to_pylist()}


@dataclass(frozen=True)
class Compared:
    """A finding that several audits have.

    found    the row of each
    changes  what the second of each pair of audits has more than the first; None where the finding
             is no mean of units
    """

    found: Sequence[Row]
    changes: Sequence[Row | None]


def compared(artifacts: Sequence[Artifact], pairs: Sequence[tuple[int, int]]) -> list[Compared]:
    """The findings that all have, and what they differ in between ``pairs`` of them, whose p are
    corrected for all that is compared here."""
    first, *others = [measured(artifact) for artifact in artifacts]
    units = [Units(artifact) for artifact in artifacts]
    made: list[Compared] = []
    for key in first:
        if all(key in other for other in others):
            found = [first[key], *(other[key] for other in others)]
            sides = [unit.of(row) for unit, row in zip(units, found, strict=True)]
            unit = first[key]["unit"]
            made.append(Compared(found, [paired(sides[i], sides[j], unit) for i, j in pairs]))
    known = [d for each in made for d in each.changes if d and d["p"] is not None]
    # No test could tell apart what is the same in every pair, as what hangs on no checkpoint: the
    # others need no correction for it (Tarone 1990).
    tested = [change for change in known if not change["same"]]
    for change in known:
        change["p_corrected"] = change["p"]
    for change, p in zip(tested, holm([d["p"] for d in tested]), strict=True):
        change["p_corrected"] = p
    return made


def measured(artifact: Artifact) -> dict[tuple[str, str], Row]:
    """The findings of an audit, without its controls."""
    rows = artifact["findings"].read().to_pylist()
    return {(row["metric"], row["slice"]): row for row in rows if not row["control"]}


def paired(
    first: Mapping[Any, Unit] | None, second: Mapping[Any, Unit] | None, unit: str = ""
) -> Row | None:
    """Compute by how much the second is higher than the first, unit by unit.

    Of shares and areas no end of the interval is beyond what a difference of such can be.

    Returns:
        The difference; None where the two have not the same units, or a unit is not the mean of as
        many values in both, does not weigh as much, or has its value among others than there. The
        model's texts then decide which texts count (as where a figure is about toxic continuations
        alone), and a difference over the common ones would contradict the two values.
    """
    if not first or not second or first.keys() != second.keys():
        return None
    pairs = [(one, second[item]) for item, one in first.items()]
    alike = all(
        (one.draws, one.weight, one.member) == (other.draws, other.weight, other.member)
        for one, other in pairs
    )
    if not alike:
        return None
    if pairs[0][0].member is None:
        found = _means_apart(pairs, unit)
    else:
        found = _areas_apart(pairs)
    # A p may be as small.
    ends = ("value", "low", "high", "smallest")
    nothing: Row = {name: 0.0 for name in ends if abs(getattr(found, name)) < ROUNDING}
    found = replace(found, **nothing)
    made = {
        "value": found.value, "low": found.low, "high": found.high, "p": found.p,
        "smallest_effect": found.smallest,
    }  # fmt: skip
    known = {name: None if np.isnan(value) else float(value) for name, value in made.items()}
    return known | {"p_corrected": None, "n": found.n, "clusters": found.clusters,
                    "missing": found.missing, "method": found.method,
                    "same": bool(found.n) and not np.nan_to_num(_apart(pairs)).any()}  # fmt: skip


def _apart(pairs: Sequence[tuple[Unit, Unit]]) -> np.ndarray:
    """What the second of each has more than the first, (pairs,)."""
    first, second = np.array([[one.value, other.value] for one, other in pairs]).T
    apart = second - first
    return np.where(abs(apart) < ROUNDING, 0.0, apart)


def _means_apart(pairs: Sequence[tuple[Unit, Unit]], unit: str) -> Estimate:
    """By how much the mean of the second is more than that of the first."""
    units, apart = [one for one, _ in pairs], _apart(pairs)
    weights = [one.weight for one in units]
    shares: dict[str, Any] = {"clusters": [each.cluster for each in units], "unit": "pairs"}
    if any(each.crossed is not None for each in units):
        shares["crossed"] = [each.crossed for each in units]
    whole = WHOLE.get(unit, np.inf)
    values = np.array([[one.value, other.value] for one, other in pairs])
    if not (np.isfinite(whole) and np.nanmin(values, initial=0) >= 0
            and np.nanmax(values, initial=0) <= whole):  # fmt: skip
        return estimate(apart, null=0.0, weights=weights, **shares)
    # From -1 to 1: put to where shares lie, and back.
    found = scaled(estimate((apart / whole + 1) / 2, share=True, null=0.5, **shares), 2 * whole)
    moved = {name: getattr(found, name) - whole for name in ("value", "low", "high", "null")}
    return replace(found, **moved)


def _areas_apart(pairs: Sequence[tuple[Unit, Unit]]) -> Estimate:
    """By how much the area under the curve of the second is larger than that of the first (DeLong,
    DeLong & Clarke-Pearson 1988): members differ, and others do, of which there may be few (Welch
    1947)."""
    apart, member = _apart(pairs), np.array([one.member for one, _ in pairs])
    value, few = apart[member].mean(), min(member.sum(), (~member).sum())
    found = difference(apart[member], value - apart[~member], unit="pairs")
    if few < FEW:
        return replace(found, low=np.nan, high=np.nan, p=np.nan, smallest=np.nan,
                       method=f"no interval: of one kind there are fewer than {FEW}")  # fmt: skip
    if np.isnan(found.low) and value:
        return replace(found, p=2.0 ** (1 - few), smallest=np.nan,
                       method=f"no interval: all moved alike; p of {few} pairs")  # fmt: skip
    return replace(found, low=max(found.low, -1.0), high=min(found.high, 1.0),
                   smallest=found.smallest if found.smallest <= 1 else np.nan)  # fmt: skip
