"""What was known of an invented town beside what the corpus stages found of it."""

from __future__ import annotations

from typing import Any

from reports.page.document import Grid, Inline, Paragraph, Section
from reports.page.figures import Figure
from reports.sections.corpus_figures import CorpusFigures

RECOVERY = "recovery"

Row = dict[str, Any]


def recovery(corpus: CorpusFigures) -> list[Section]:
    """The section, where the corpus holds a town."""
    if RECOVERY not in corpus.history:
        return []
    artifact = corpus.history[RECOVERY]
    found: list[Row] = artifact["recovered"].read().to_pylist()
    rates: list[Row] = artifact["rates"].read().to_pylist()
    women: list[Row] = artifact["occupations"].read().to_pylist()
    sources = dict.fromkeys(row["source"] for row in rates)
    names = ", ".join(sources)
    return [
        Section(
            "Known and recovered",
            [
                Paragraph(
                    [
                        f"The documents of {names} are invented: a seeded grammar composed them, "
                        "so it is known what each of them holds. Their people and places do not "
                        "exist. The tables compare what the stages found with what is there; "
                        "intervals are Wilson's, at 95 %. What a stage finds in easy, invented "
                        "text says little of text that people wrote."
                    ]
                ),
                *(_found(corpus, source, found) for source in sources),
                *(_women(corpus, source, women) for source in sources if women),
                *(_rates(corpus, source, rates) for source in sources),
            ],
        )
    ]


def _found(corpus: CorpusFigures, source: str, rows: list[Row]) -> Grid:
    lines: list[list[Inline]] = []
    for row in rows:
        if row["source"] == source:
            keys = {name: row[name] for name in ("source", "stage", "what", "measure")}
            figure = _figure(corpus, "recovered", keys, row)
            lines.append([row["stage"], row["what"], row["measure"], *_cells(figure, row)])
    note = (
        "Recall: of what is there, the share that the stage found. Precision: of what it found, "
        "the share that is there. False alarms: of the documents that hold none, the share that "
        "was removed or tagged. A stage answers for the documents that came to it. Near copies "
        "below the similarity that it removes are meant to stay."
    )
    columns = ["stage", "what", "measure", "share", "interval", "n"]
    caption = f"What the stages recovered in {source}"
    return Grid(caption, columns, lines, frozenset({3, 4, 5}), note)


def _women(corpus: CorpusFigures, source: str, rows: list[Row]) -> Grid:
    lines: list[list[Inline]] = []
    for row in rows:
        if row["source"] == source:
            keys = {name: row[name] for name in ("source", "occupation")}
            figure = _figure(corpus, "occupations", keys, row)
            stated = f"{100 * row['stated']:g} %"
            lines.append([row["occupation"], stated, *_cells(figure, row)])
    columns = ["occupation", "stated", "recovered", "interval", "n"]
    note = (
        "Of the mentions beside gendered words, the share beside words of women: as the config "
        "states it, and as the profile finds it in the documents that stayed."
    )
    caption = f"Women among the occupations of {source}"
    return Grid(caption, columns, lines, frozenset({1, 2, 3, 4}), note)


def _rates(corpus: CorpusFigures, source: str, rows: list[Row]) -> Grid:
    lines: list[list[Inline]] = []
    for row in rows:
        if row["source"] == source:
            keys = {name: row[name] for name in ("source", "what", "among")}
            figure = _figure(corpus, "rates", keys, row)
            stated = f"{100 * row['stated']:g} %"
            lines.append([row["what"], row["among"], stated, *_cells(figure, row)])
    columns = ["what", "among", "stated", "composed", "interval", "n"]
    caption = f"What the documents of {source} hold"
    return Grid(caption, columns, lines, frozenset({2, 3, 4, 5}))


def _cells(figure: Figure, row: Row) -> list[Inline]:
    return [figure, figure.interval, f"{row['n']:,}"]


def _figure(corpus: CorpusFigures, table: str, keys: dict[str, str], row: Row) -> Figure:
    interval = {} if row["low"] is None else {"low": row["low"], "high": row["high"], "level": 0.95}
    return corpus.book.figure(
        "-".join([table, *keys.values()]), ", ".join(keys.values()), "share", (RECOVERY, table),
        keys, aggregate="ratio", column="hits/n", n=row["n"], method="Wilson interval",
        note="there is none", **interval,
    )  # fmt: skip
