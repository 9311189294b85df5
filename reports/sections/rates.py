"""What is known of how often audits are wrong: their rates on worlds with sealed answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reports.page.document import Block, Brief, Inline, Paragraph
from reports.page.figures import Book, Figure
from tasks.audits.about import JUDGED, NOTHING
from tasks.contract import Artifact

RATES = "error_rates"


@dataclass(frozen=True)
class About:
    """What a page says of a kind of candidates.

    title  of its section
    what   one of them
    asked  what the audit does to find it
    dose   what its dose counts
    true   what a figure over all items is
    """

    title: str
    what: str
    asked: str
    dose: str
    true: str


KINDS = {
    "canary": About(
        "Planted secrets",
        "a sentence around a secret of nine random digits",
        "ranks it among secrets that were never written anywhere; it is found where it stands "
        "among the likeliest 5 %",
        "copies",
        "its rank among twenty times as many",
    ),
    "passage": About(
        "Repeated passages",
        "a document of the town",
        "gives the model tokens of it; it is found where the model goes on with the very next "
        "tokens at any of the places that are tried",
        "copies",
        "the share of tokens right, over every place of the passage",
    ),
    "record": About(
        "Personal records",
        "the e-mail address and telephone number of an invented person",
        "gives the model all that stands before them; they are found where the model writes them",
        "copies",
        "",
    ),
    "association": About(
        "Associations between groups and traits",
        "sentences that say an invented trait of an invented group, and another of another",
        "compares how likely both traits are behind sentences that were never written; it is found "
        "where they are further apart than those of pairs that the text never brought together",
        "share of its own trait",
        "the mean over every sentence of the grammar",
    ),
    "speech": About(
        "Rude speech about a group",
        "sentences about an invented group, some of them rude",
        "lets the model go on from sentences about each group and scores what it writes; it is "
        "found where that is more toxic than about the other groups",
        "share of rude sentences",
        "the difference over every sentence of the grammar",
    ),
}


class Detected(NamedTuple):
    """How often candidates of a dose are found; ``effect``: whether there is something to find,
    None where it is less than of others."""

    dose: float
    effect: bool | None
    figure: Figure


@dataclass
class Rates:
    """The rates of a study as figures of a card, each a mean over the candidates of its worlds."""

    book: Book
    artifact: Artifact
    detected: dict[str, list[Detected]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.tables = {
            name: self.artifact[name].read().to_pylist()
            for name in self.artifact.tables
            if name != "units"
        }
        for row in self.tables["detection"]:
            where = {"kind": row["kind"], "dose": row["dose"], "effects": True}
            figure = self.rate(row, f"found {row['kind']} {dose_of(row['dose'])}", "found", where)
            self.detected.setdefault(row["kind"], []).append(
                Detected(row["dose"], row["effect"], figure)
            )
        self.alarmed = {
            row["kind"]: self.rate(row, f"claimed {row['kind']}", "alarm",
                                   {"kind": row["kind"], "effect": False})
            for row in self.tables["alarms"]
        }  # fmt: skip
        self.covered = {
            row["kind"]: self.rate(row, f"covered {row['kind']}", "covered", {"kind": row["kind"]})
            for row in self.tables["calibration"]
        }
        self.smallest = {row["kind"]: row["dose"] for row in self.tables["smallest"]}
        self.counted = self.book.figure("worlds-counted", "worlds that count", "worlds",
                                        (RATES, "worlds"), {"counts": True},
                                        aggregate="count")  # fmt: skip

    def rate(
        self, row: Mapping[str, Any], label: str, column: str, where: Mapping[str, Any]
    ) -> Figure:
        """A share of candidates, with its interval over worlds."""
        told = {name: row[name] for name in ("low", "high", "level", "n", "method")}
        return self.book.figure(label, label, "share", (RATES, "units"),
                                {**where, "learned": True}, aggregate="mean", column=column,
                                **told)  # fmt: skip

    def kinds(self) -> list[str]:
        """Those of which anything is known."""
        known = {*self.detected, *self.alarmed, *self.covered,
                 *(row["kind"] for row in self.tables["unjudged"])}  # fmt: skip
        return [kind for kind in KINDS if kind in known]

    def largest(self, kind: str) -> Detected | None:
        """The largest dose at which there is something to find."""
        return next((each for each in self.detected.get(kind, [])[::-1] if each.effect), None)

    def unjudged(self, kind: str, dose: float | None = None) -> Figure | None:
        """How many candidates, where given of that ``dose``, no rate knows of."""
        doses = [row["dose"] for row in self.tables["unjudged"] if row["kind"] == kind]
        if not any(dose in (None, each) for each in doses):
            return None
        name, label = f"not-judged-{kind}", f"{KINDS[kind].title}: candidates without a verdict"
        where: dict[str, Any] = {"kind": kind}
        if dose is not None:
            name, label = f"{name}-largest", f"{label} at the largest dose"
            where["dose"] = dose
        return self.book.figures.get(name) or self.book.figure(
            name, label, "candidates", (RATES, "unjudged"), where, aggregate="count"
        )

    def without_ends(self, kind: str) -> Figure | None:
        """How many candidates that were judged have no interval with two ends, or no true figure to
        compare it with."""
        where = {"kind": kind, "learned": True, "covered": None}
        if not self.book.evidence(RATES, "units", where).rows:
            return None
        name = f"no-ends-{kind}"
        return self.book.figures.get(name) or self.book.figure(
            name, f"{KINDS[kind].title}: candidates without two ends or a true figure",
            "candidates", (RATES, "units"), where, aggregate="count",
        )  # fmt: skip

    def silent(self, kind: str) -> list[Inline]:
        """How many candidates have no verdict of the largest dose at which there is something to
        find, judged or not; nothing where all have one."""
        nothing = {each.dose for each in self.detected.get(kind, []) if not each.effect}
        nothing.add(NOTHING.get(kind, 0.0))
        told = {row["dose"] for row in self.tables["unjudged"] if row["kind"] == kind} - nothing
        told |= {each.dose for each in [self.largest(kind)] if each}
        if not told:
            return []
        dose, about = max(told), KINDS[kind]
        figure = self.unjudged(kind, dose)
        said = f" at {dose_of(dose)} ({about.dose}) had no verdict, {about.title.lower()}"
        return [] if figure is None else [Brief(figure), said]

    def said_of(self, audit: str) -> list[Block]:
        """How often an audit is wrong, a sentence for each kind of candidates that it judges."""
        made: list[Block] = []
        for kind in (kind for kind in self.kinds() if JUDGED[kind] == audit):
            about, largest = KINDS[kind], self.largest(kind)
            parts: list[Inline] = [
                f"How often it is wrong ({about.title.lower()}): in ", Brief(self.counted),
                " invented worlds whose answers were sealed, it ",
            ]  # fmt: skip
            silent = self.silent(kind)
            if largest is None:
                parts += ["judged nothing of what there is to find" if silent else
                          "had no effect to find"]  # fmt: skip
            else:
                parts += ["found ", *between(largest.figure),
                          f" of candidates with {about.dose} {dose_of(largest.dose)}"]  # fmt: skip
                least = self.smallest[kind]
                for each in self.detected[kind]:
                    if each.dose == least and least < largest.dose:
                        parts += [", ", *between(each.figure), f" of those with {least:g}"]
            if silent:
                parts += [", while ", *silent]
            if kind in self.alarmed:
                parts += [", and claimed ", *between(self.alarmed[kind]),
                          " of those without effect"]  # fmt: skip
            if kind in self.covered:
                parts += ["; its 95 % intervals covered the true figure in ",
                          *between(self.covered[kind])]  # fmt: skip
                if without := self.without_ends(kind):
                    parts += [", left out ", Brief(without), " without two ends or a true figure"]
            made.append(Paragraph([*parts, ". Of another model and other text it may be otherwise: "
                                   "the models of these worlds are small."]))  # fmt: skip
        return made


def dose_of(dose: float) -> str:
    """Copies are whole numbers, shares have three digits."""
    return f"{dose:,.0f}" if dose == int(dose) else f"{dose:.3g}"


def between(figure: Figure) -> list[Inline]:
    """A rate with its interval, where it has one."""
    return [Brief(figure), "" if figure.low is None else f" ({figure.interval})"]


def unmeasured(rates: Mapping[str, Artifact]) -> list[list[Inline]]:
    """What a card says where the error rates of its audits are not known."""
    if rates:
        return []
    return [
        [
            "How often these audits are wrong is not known: this store has no study of this "
            "version of them; the command hallmark study measures it."
        ]
    ]


__all__ = ["KINDS", "RATES", "Detected", "Rates", "between", "unmeasured"]
