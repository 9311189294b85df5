"""What a corpus holds: its sources, lengths, personal data, offensive text, people and plants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow.compute as pc

from reports.page.document import (
    Block,
    Callout,
    Code,
    Grid,
    Inline,
    Paragraph,
    Parts,
    Section,
    stated,
)
from reports.page.figures import Figure
from reports.sections.breakdown import breakdown, occupations
from reports.sections.corpus_figures import PROFILE, CorpusFigures
from reports.sections.personal import personal_data


def plants_callout(corpus: CorpusFigures) -> Callout:
    if not has_plants(corpus):
        return Callout("note", ["Nothing was planted in this corpus."])
    documents = corpus.sum("plants", "documents", "documents", "planted documents")
    return Callout(
        "note",
        [
            "Planted on purpose, to measure memorisation: ",
            documents,
            " that are synthetic or repeated. Whoever reuses the corpus should remove them; "
            "their source begins with ",
            Code("planted/"),
            ".",
        ],
    )


def has_plants(corpus: CorpusFigures) -> bool:
    """Whether any document was planted: controls that were drawn and never planted are none."""
    counts = corpus.profile["plants"].read(["documents"])["documents"]
    return bool(pc.sum(counts).as_py())


def composition(corpus: CorpusFigures, licence: str | None = None) -> Section:
    """``licence``: what a person stated for the whole corpus."""
    declared = [row["licence"] for row in _said_of_sources(corpus) if row["licence"]]
    return Section(
        "Composition",
        [Paragraph(["An instance is one document: a text with its source."])],
        [
            *additions(corpus),
            sources(corpus),
            breakdown(corpus, licence, declared),
            lengths(corpus),
            personal_data(corpus),
            toxicity(corpus),
            identities(corpus),
            occupations(corpus),
            plants(corpus),
        ],
    )


def additions_of(corpus: CorpusFigures) -> list[str]:
    """The labels of what each addition left, oldest first; one where the corpus did not grow."""
    return [label for label, artifact in corpus.history.items() if artifact.stage == "plant"]


#: What of a corpus that grew is told of its last addition alone.
OF_THE_LAST = (
    "removal rates by group, what the stages did and what left for which reason, the quarantine, "
    "personal data, toxicity, published rules, near copies, and what was known and recovered"
)


def grew(corpus: CorpusFigures) -> list[Callout]:
    """For the head of a corpus that grew: which figures are of all of it."""
    found = additions_of(corpus)
    if len(found) < 2:
        return []
    many = len(found)
    return [
        Callout(
            "note",
            [
                f"This corpus grew: it holds {many - 1} earlier addition{'s' * (many > 2)} and a "
                "last one of ",
                addition(corpus, many, found[-1], "rows"),
                ". What it holds, its documents, sources, lengths and groups, is told of all of "
                f"it; of the last addition alone: {OF_THE_LAST}.",
            ],
        )
    ]


def addition(corpus: CorpusFigures, number: int, label: str, unit: str) -> Figure:
    """Documents, or bytes, that an addition left."""
    name, what = f"addition-{number}-{unit}", {"rows": "documents", "bytes": "bytes"}[unit]
    return corpus.book.figures.get(name) or corpus.book.figure(
        name, f"{what} of addition {number}", what, (label, "accounts"), {"unit": unit},
        column="kept",
    )  # fmt: skip


def additions(corpus: CorpusFigures) -> Iterator[Section]:
    """What this corpus adds to, where it grew: a row for each earlier addition, and for its own."""
    found = additions_of(corpus)
    if len(found) < 2:
        return
    rows: list[list[Inline]] = []
    for number, label in enumerate(found, 1):
        cells = [addition(corpus, number, label, unit) for unit in ("rows", "bytes")]
        rows.append([str(number), Code(corpus.history[label].name), *cells])
    said = (
        "The corpus grew: it holds what earlier runs made, unchanged, and behind it what the last "
        "one added. New documents were compared with all that was there, and left where an earlier "
        f"one is the same or nearly so. Of the last addition alone is told {OF_THE_LAST}; all else "
        "is of the whole."
    )
    columns = ["addition", "artifact", "documents", "bytes"]
    yield Section(
        "Additions",
        [Paragraph([said]), Grid("Additions, oldest first", columns, rows, frozenset({2, 3}))],
    )


def sources(corpus: CorpusFigures, **split: str) -> Section:
    """Documents by source; of one ``split``, or of all."""
    names, note = corpus.few("sources", "source", "bytes")
    rows: list[list[Inline]] = []
    for name in names:
        cells = [
            corpus.sum("sources", unit, unit, f"{unit} of {name}", source=name, **split)
            for unit in ("documents", "bytes", "characters")
        ]
        rows.append([name, *cells])
    title = "".join(["Documents by source", *(f", split {name}" for name in split.values())])
    columns = ["source", "documents", "bytes", "characters"]
    grid = Grid(title, columns, rows, frozenset({1, 2, 3}), note)
    blocks = [grid if rows else Paragraph(["The corpus is empty."])]
    return Section("Sources", [*blocks, *_declared(corpus)])


def _said_of_sources(corpus: CorpusFigures) -> list[dict[str, Any]]:
    """The rows of ingest's table; additions to a corpus may say the same, once is enough."""
    read = [a for a in corpus.history.values() if a.stage == "ingest" and "sources" in a.tables]
    said = [row for artifact in read for row in artifact["sources"].read().to_pylist()]
    return list({tuple(row.values()): row for row in said}.values())


def _declared(corpus: CorpusFigures) -> Iterator[Grid]:
    """What the config says of the sources, if it says anything."""
    rows: list[list[Inline]] = []
    for row in _said_of_sources(corpus):
        days = " to ".join(day for day in (row["collected_from"], row["collected_to"]) if day)
        if row["licence"] or row["origin"] or days:
            known = [value or "not stated" for value in (row["licence"], row["origin"], days)]
            rows.append([row["source"], *known])
    limit = corpus.lines_shown
    note = f"The first {limit} of {len(rows):,}; all are in the table sources of ingest."
    if rows:
        columns = ["source", "licence", "origin", "collected"]
        yield Grid("What the sources declare", columns, rows[:limit], frozenset(),
                   note if len(rows) > limit else "")  # fmt: skip


def licences(corpus: CorpusFigures, said: str | None) -> Parts:
    """What a person said of all of it, else what its sources declare."""
    by_licence: dict[str, list[str]] = {}
    for row in _said_of_sources(corpus):
        if row["licence"]:
            by_licence.setdefault(row["licence"], []).append(row["source"])
    if (said and said.strip()) or not by_licence:
        return stated(said)
    told = [f"{licence} ({', '.join(sources)})" for licence, sources in by_licence.items()]
    return [f"As the sources declare: {'; '.join(told)}."]


def lengths(corpus: CorpusFigures) -> Section:
    caption, nothing = "Bytes a document", "The corpus holds no document."
    return quantiles(corpus, "Lengths", "lengths", "bytes", "bytes", caption, nothing)


def quantiles(
    corpus: CorpusFigures,
    title: str,
    table: str,
    column: str,
    unit: str,
    caption: str,
    nothing: str,
    **more: Any,
) -> Section:
    """Quantiles of a column over all sources; ``nothing``: what is said where there are none."""
    known = corpus.profile[table].read(["source", "quantile"])
    whole = known.filter(pc.equal(known["source"], ""))["quantile"].to_pylist()
    if not whole:
        return Section(title, [Paragraph([nothing])])
    cells = [
        corpus.book.figure(
            f"{table}-{q}", f"{caption.lower()}, quantile {q:g}", unit, (PROFILE, table),
            {"source": "", "quantile": q}, aggregate="last", column=column, **more,
        )
        for q in whole
    ]  # fmt: skip
    rows: list[list[Inline]] = [
        [f"{_quantile(q)}", cell] for q, cell in zip(whole, cells, strict=True)
    ]
    return Section(title, [Grid(caption, ["quantile", unit], rows, frozenset({1}))])


def toxicity(corpus: CorpusFigures) -> Section:
    section = quantiles(
        corpus, "Offensive text", "toxicity", "score", "score",
        "Toxicity of documents before the filter", "No document has a toxicity score.",
        scorer=scorer(corpus),
    )  # fmt: skip
    section.blocks[:0] = windows(corpus)
    if corpus.profile["toxicity_status"].rows:
        section.add(
            statuses(corpus),
            Paragraph(
                ["A scorer is asked only about texts in the languages that it was made for. "
                 "Without a score toxicity is unknown, neither high nor low: a rule removes such "
                 "documents only where it says so, and its reason is then its name with "
                 f"“unknown”. The scorer is {scorer(corpus) or 'not known'}. A score is an "
                 "estimate: scorers are known to call dialects and mentions of minorities toxic "
                 "that are not."]
            ),
        )  # fmt: skip
    section.add(*cascade(corpus))
    return section


def windows(corpus: CorpusFigures) -> list[Block]:
    """What the toxicity of a long document is, and of which text."""
    config = next((artifact.manifest["parts"]["config"] for artifact in corpus.history.values()
                   if artifact.stage == "score_toxicity"), None)  # fmt: skip
    if config is None:
        return []
    later = "cut_toxic" in corpus.history
    return [
        Paragraph(
            [
                "The toxicity of a document is the highest score of its windows of up to "
                f"{config['window']:,} characters, not their mean, so that an insult counts in a "
                "long text as in a short one; it is that of the text which the filter read"
                + (", before cut_toxic took windows out of it." if later else ".")
            ]
        )
    ]


#: What is known of a document's toxicity, in words.
STATUS = {
    "scored": "scored",
    "other language": "in languages that the scorer was not made for",
    "cleared": "cleared by the cheap scorer, not scored",
    "empty": "without a visible character",
    "failed": "at which the scorer failed",
}


def statuses(corpus: CorpusFigures) -> Grid:
    """What is known of the documents' toxicity, and what the rules made of that."""
    data = corpus.profile["toxicity_status"].read(["status", "reason"])
    pairs = {(row["status"], row["reason"]) for row in data.to_pylist()}
    rows: list[list[Inline]] = []
    for status, reason in sorted(pairs, key=lambda pair: ([*STATUS].index(pair[0]), pair[1])):
        where = {"status": status, "reason": reason}
        fate = f"removed: {reason}" if reason else "kept"
        label = f"documents {STATUS[status]}, {fate}"
        count = corpus.sum("toxicity_status", "documents", "documents", label, **where)
        rows.append([STATUS[status], fate, count])
    columns = ["documents", "what the rules did", "how many"]
    return Grid("What the scorer knows of the documents", columns, rows, frozenset({2}))


def cascade(corpus: CorpusFigures) -> list[Paragraph]:
    """What a cascade of scorers cleared and may have missed; nothing where there was none."""
    label = next((k for k, a in corpus.history.items() if a.stage == "score_toxicity"), "")
    table = corpus.history[label].tables.get("cascade") if label else None
    if table is None or not table.rows:
        return []
    row = table.read().to_pylist()[0]

    def figure(column: str, said: str, unit: str = "documents", **more: Any) -> Inline:
        return corpus.book.figure(
            f"cascade-{column}", said, unit, (label, "cascade"), aggregate="last", column=column,
            **more,
        )  # fmt: skip

    method = "one-sided Clopper-Pearson bound over documents drawn by a hash of their ids"
    return [
        Paragraph(
            [
                "Of those without a score ",
                figure("cleared", "documents cleared by the cheap scorer"),
                f" were cleared by {row['cheap']}, which found them below "
                f"{row['clears_below']:g}. Both scorers read ",
                figure("drawn", "documents drawn to measure the cascade"),
                ", of which ",
                figure("toxic", "drawn documents at or above the threshold"),
                f" were toxic, at {row['threshold']:g} or above; the cheap one would have cleared ",
                figure("missed", "drawn toxic documents that the cheap scorer would clear"),
                " of these. So the share of toxic documents that the cascade finds is at least ",
                figure("bound", "recall of the cascade, lower bound", "share",
                       n=row["toxic"], method=method),
                f" with {100 * row['level']:g} % confidence, an estimate; "
                f"{100 * row['required']:g} % was required.",
            ]
        )
    ]  # fmt: skip


def scorer(corpus: CorpusFigures) -> str:
    """Name and digest of the scorer of the corpus, "" where none ran."""
    for artifact in corpus.history.values():
        if artifact.stage == "score_toxicity":
            known = artifact.manifest["parts"]["external"]
            return f"{known['scorer']} ({known['digest'][:12]})"
    return ""


def identities(corpus: CorpusFigures) -> Section:
    groups, note = corpus.few("identities", "group", "mentions")
    rows = [
        [
            group,
            corpus.sum("identities", "mentions", "mentions", f"mentions, {group}", group=group),
            corpus.book.figure(
                f"identities-terms-{group}", f"terms found, {group}", "terms",
                (PROFILE, "identities"), {"group": group}, aggregate="distinct", column="term",
            ),
        ]
        for group in groups
    ]  # fmt: skip
    section = Section("Mentions of people")
    if not rows:
        section.add(Paragraph(["None of the identity terms in the list occurs."]))
        return section
    columns = ["group", "mentions", "terms found"]
    section.add(
        Grid("Identity terms in the text", columns, rows, frozenset({1, 2}), note),
        Paragraph(["Counted with a short list of English words; whole words only."]),
    )
    return section


def plants(corpus: CorpusFigures) -> Section:
    section = Section("Planted documents")
    table = corpus.profile["plants"].read(["kind", "copies"])
    rows = []
    for row in table.to_pylist():
        where = {"kind": row["kind"], "copies": row["copies"]}
        label = f"{row['kind']} with {row['copies']} copies"
        rows.append(
            [
                row["kind"],
                str(row["copies"]),
                corpus.sum("plants", "plants", "plants", f"plants, {label}", **where),
                corpus.sum("plants", "documents", "documents", f"documents, {label}", **where),
                corpus.sum("plants", "bytes", "bytes", f"bytes, {label}", **where),
            ]
        )
    if rows:
        columns = ["kind", "copies of each", "plants", "documents", "bytes"]
        section.add(
            Paragraph(
                [
                    "Canaries, records and associations are made up; passages were held back "
                    "from the corpus. Each was given its number of copies by lot. Those with "
                    "no copies were never planted and serve as the control. An association is "
                    "a sentence that says an invented trait of an invented group, as often as "
                    "its dose wants it."
                ]
            ),
            Grid("Plants", columns, rows, frozenset({1, 2, 3, 4})),
        )
    else:
        section.add(Paragraph(["None."]))
    return section


def _quantile(q: float) -> str:
    return {0.0: "smallest", 0.5: "median", 1.0: "largest"}.get(q, f"{100 * q:g} %")
