"""Pages of rows: what stands behind the figures of a card, and the documents behind the rows."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import repeat
from typing import Any

import pyarrow as pa
from markupsafe import Markup, escape

from reports.page.document import Callout, Document, masked
from reports.page.figures import FIGURES, Book, Evidence, Figure
from reports.page.masking import Masker, neighbours_of, prompts_of
from reports.page.rendering import environment, render_html, render_markdown
from tasks.contract import Artifact, Column, Work

#: Of the ids in a page's rows so many are looked up, and so many documents shown.
_LOOKED_UP, _DOCUMENTS_A_PAGE = 100, 20
_LABEL = 160  # characters of a label


@dataclass
class Cell:
    text: str = ""
    css: str = ""
    ids: Sequence[str] = ()


#: What stands where a row has no value.
NOTHING = Cell("–", "muted")


@dataclass
class Corpus:
    """Looks up documents by id in the artifacts of the corpus stages, the last stage first."""

    history: Mapping[str, Artifact]
    masker: Masker
    found: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    scores: dict[bytes, float] = field(default_factory=dict)

    def look_up(self, wanted: set[bytes]) -> None:
        """Read the documents, one scan of each artifact for all of them."""
        self._read_scores(wanted)
        for stage, artifact in reversed(list(self.history.items())):
            rest = wanted - self.found.keys()
            if not rest:
                return
            if "documents" not in artifact.tables:
                continue
            table = artifact["documents"].find(sorted(rest), ["doc_id", "source", "text"])
            for row in table.to_pylist():
                self.found.setdefault(row["doc_id"], {**row, "stage": stage})

    def _read_scores(self, wanted: set[bytes]) -> None:
        for artifact in self.history.values():
            known = artifact.tables.get("signals")
            if known is None or "toxicity" not in known.columns:
                continue
            for row in known.find(sorted(wanted), ["doc_id", "toxicity"]).to_pylist():
                if row["toxicity"] is not None and not math.isnan(row["toxicity"]):
                    self.scores[row["doc_id"]] = row["toxicity"]

    def excerpt(self, doc_id: bytes, beside: set[bytes]) -> dict[str, str]:
        """A document as it may be shown. One that nobody scored, because it left before, is judged
        by one that the rows name ``beside`` it, if they agree word for word."""
        row = self.found[doc_id]
        score = self.scores.get(doc_id)
        if score is None:
            twins = [i for i in beside & self.scores.keys() if i in self.found]
            words = row["text"].split()
            alike = [self.scores[i] for i in twins if self.found[i]["text"].split() == words]
            score = max(alike, default=None)
        return {
            "id": doc_id.hex(),
            "source": self.masker.shown(row["source"], "label", limit=_LABEL),
            "stage": row["stage"],
            "score": "–" if score is None else f"{score:.3f}",
            "text": self.masker.shown(row["text"], "corpus text", score, limit=600),
        }


def publish(
    document: Document,
    book: Book,
    work: Work,
    name: str,
    history: Mapping[str, Artifact],
    masker: Masker,
    limit: int,
) -> None:
    """Write a card: ``<name>.html``, ``<name>.md``, its charts, its rows, its table of figures."""
    document = masked(document, masker.whole)
    if masker.notice:
        document.lead = [Callout("bad", [masker.notice]), *document.lead]
    work.file(f"{name}.html").write_text(render_html(document), encoding="utf-8")
    work.file(f"{name}.md").write_text(render_markdown(document), encoding="utf-8")
    for chart in document.charts():
        work.file(chart.path).write_text(chart.draw(masker.whole), encoding="utf-8")
    pages = book.cited()
    heads = {page: evidence.head(limit) for page, (evidence, _) in pages.items()}
    cited = {page: _ids_of(evidence, heads[page]) for page, (evidence, _) in pages.items()}
    corpus = Corpus(history, masker)
    wanted = {i for named in cited.values() for i in named}
    if wanted:
        corpus.look_up(wanted)
    for done, (page, (evidence, figures)) in enumerate(pages.items(), start=1):
        there = [i for i in cited[page] if i in corpus.found][:_DOCUMENTS_A_PAGE]
        documents = [corpus.excerpt(i, cited[page][i]) for i in there]
        html = render_rows(
            evidence, figures, heads[page], documents, masker, card=f"{name}.html",
            kind=document.kind,
        )  # fmt: skip
        work.file(page).write_text(html, encoding="utf-8")
        work.progress(done, len(pages), "pages of rows")
    work.table("figures").write(book.table())


def _ids_of(evidence: Evidence, rows: pa.Table) -> dict[bytes, set[bytes]]:
    """The first ids in the rows, each with those that stand in the same rows: some of them name
    documents."""
    names = [n for n in rows.column_names if evidence.column_of(n).kind == "id"]
    named: dict[bytes, set[bytes]] = {}
    for row in rows.select(names).to_pylist():
        lists = [value if isinstance(value, list) else [value] for value in row.values()]
        ids = [i for values in lists for i in values if isinstance(i, bytes) and len(i) == 16]
        for i in ids:
            if len(named) >= _LOOKED_UP and i not in named:
                return named
            named.setdefault(i, set()).update(ids)
    return named


def render_rows(
    evidence: Evidence,
    figures: Sequence[Figure],
    head: pa.Table,
    documents: Sequence[Mapping[str, str]],
    masker: Masker,
    *,
    card: str,
    kind: str,
) -> str:
    columns = [evidence.column_of(name) for name in head.column_names]
    anchors = {document["id"] for document in documents}
    return environment().get_template("rows.html").render(
        evidence=evidence,
        condition=masker.whole(evidence.condition),
        python=masker.whole(evidence.python()),
        say=masker.whole,
        figures=figures,
        how=describe,
        columns=columns,
        notice=masker.notice,
        numeric={field.name for field in head.schema if _is_number(field.type)},
        rows=_lines(columns, head, masker, anchors),
        shown=len(head),
        documents=documents,
        card=card,
        kind=kind,
    )  # fmt: skip


def describe(figure: Figure) -> str:
    """How the rows make the figure, in words."""
    column = figure.column
    words = {
        "count": "the number of rows",
        "sum": f"the sum of {column}",
        "mean": f"the mean of {column}",
        "ratio": f"the sum of {column.replace('+', ' and ').replace('/', ' over the sum of ')}",
        "min": f"the smallest {column}",
        "max": f"the largest {column}",
        "last": f"the last {column}",
        "distinct": f"the number of different values of {column}",
        "finding": figure.method or "computed by the audit",
    }[figure.aggregate]
    return f"{words}; {figure.method}" if figure.method and figure.aggregate != "finding" else words


def _lines(
    columns: Sequence[Column], head: pa.Table, masker: Masker, anchors: Collection[str]
) -> Markup:
    """The lines of a table's body. They are made here: over the hundreds of thousands of cells of a
    card a template takes longer than all else that is done for them."""
    each = [_cells(column, columns, head, masker, anchors) for column in columns]
    lines = [f"<tr>{''.join(cells)}</tr>" for cells in zip(*each, strict=True)]
    return Markup("\n".join(lines))  # noqa: S704  # of cells that are escaped


def _cells(
    column: Column,
    columns: Sequence[Column],
    head: pa.Table,
    masker: Masker,
    anchors: Collection[str],
) -> Iterable[str]:
    """Make a column's cells, those of equal values and neighbours once."""

    def made(value: Any, score: float | None, beside: tuple[str, str] = ("", "")) -> str:
        return _html(cell_of(column, value, score, masker, beside), anchors)

    values = head[column.name]
    if pa.types.is_floating(values.type) and column.kind != "personal":
        return map(_number, values.to_pylist())  # most of all cells
    judged = head.column_names.count(column.judged_by)
    scores = head[column.judged_by].to_pylist() if judged else repeat(None)
    # Lists are no keys, and -0.0 is the key of 0.0.
    alone = pa.types.is_nested(values.type) or pa.types.is_floating(values.type)
    once = made if alone else cache(made)
    prompts = prompts_of(columns)
    if column.name in (*prompts, *prompts.values()):
        names = sorted({*prompts, *prompts.values()})
        rows = head.select(names).to_pylist()
        beside = [neighbours_of(column.name, row, prompts) for row in rows]
        return map(once, values.to_pylist(), scores, beside)
    return map(once, values.to_pylist(), scores)


def _number(value: float | None) -> str:
    """The cell that ``cell_of`` makes of it, at once."""
    return f'<td class="number">{value:.6g}</td>' if value is not None else _html(NOTHING, ())


def _html(cell: Cell, anchors: Collection[str]) -> str:
    css = f' class="{cell.css}"' if cell.css else ""
    ids = " ".join(
        f'<a href="#doc-{i}"><code>{i}</code></a>' if i in anchors else f"<code>{i}</code>"
        for i in cell.ids
    )
    return f"<td{css}>{ids}{escape(cell.text)}</td>"


def cell_of(
    column: Column,
    value: Any,
    score: float | None,
    masker: Masker,
    beside: tuple[str, str] = ("", ""),
) -> Cell:
    """Return a value of a column as it may be shown.

    ``score``: of the column that judges this one; ``beside``: what its row shows right before and
    after it.
    """
    if value is None:
        return NOTHING
    if column.kind == "personal":
        return Cell(masker.shown(_written(value), column.kind), "text")
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if isinstance(value, int):
        return Cell(str(value), "number")
    if isinstance(value, float):
        return Cell(f"{value:.6g}", "number")
    if isinstance(value, list) and all(isinstance(item, bytes) for item in value):
        return Cell(_more(value, 8), ids=[item.hex() for item in value[:8]])
    if isinstance(value, bytes):
        return Cell(ids=[value.hex()])
    if column.kind in ("label", "id", "figure"):
        return Cell(masker.shown(_written(value), column.kind, limit=_LABEL))
    return Cell(masker.shown(_written(value), column.kind, score, beside=beside), "text")


def _written(value: Any) -> str:
    """A value as text, of a long one the beginning."""
    if isinstance(value, list):
        return ", ".join(_written(item) for item in value[:16]) + _more(value, 16)
    if isinstance(value, bytes):  # raw input that could not be read
        return value[:8000].decode("utf-8", "backslashreplace")
    return str(value)


def _more(values: Sequence[Any], limit: int) -> str:
    return f" … ({len(values):,} in all)" if len(values) > limit else ""


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


__all__ = ["FIGURES", "Corpus", "describe", "publish", "render_rows"]
