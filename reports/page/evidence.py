"""Pages of rows: what stands behind the figures of a card, and the documents behind the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from reports.page.document import Document
from reports.page.figures import FIGURES, Book, Evidence, Figure
from reports.page.masking import Masker, visible
from reports.page.rendering import environment, render_html, render_markdown
from tasks.contract import Artifact, Work

#: Columns whose strings are names given by us or by the config, never longer texts.
LABELS = frozenset(
    """source stage action reason split unit kind type category group term audit metric slice
    method scorer control verdict table where file place template item probe error artifact
    content name dtype shape key stack""".split()  # noqa: SIM905
)

#: Columns that name documents.
DOCUMENT_IDS = ("doc_id", "matched", "left", "right", "doc_ids")

_DOCUMENTS_A_PAGE = 20


@dataclass
class Cell:
    text: str = ""
    css: str = ""
    ids: Sequence[str] = ()


@dataclass
class Corpus:
    """Looks up documents by id in the artifacts of the corpus stages, the last stage first."""

    history: Mapping[str, Artifact]
    masker: Masker
    found: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    scores: dict[bytes, float] = field(default_factory=dict)
    scored: bool = False  # a scorer has seen this corpus

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
            if "scores" not in artifact.tables:
                continue
            self.scored = True
            table = artifact["scores"].find(sorted(wanted), ["doc_id", "score"])
            best = table.group_by("doc_id").aggregate([("score", "max")])
            for row in best.to_pylist():
                if row["score_max"] is not None:
                    self.scores[row["doc_id"]] = row["score_max"]

    def excerpt(self, doc_id: bytes, twin: bytes | None) -> dict[str, str]:
        """A document as it may be shown; one that nobody scored is judged by its twin."""
        row = self.found[doc_id]
        score = self.scores.get(doc_id, self.scores.get(twin or b""))
        if self.scored and score is None:
            text = f"[not shown: not scored, {len(row['text']):,} characters]"
        else:
            text = self.masker.text(row["text"], score, limit=600)
        return {
            "id": doc_id.hex(),
            "source": visible(row["source"]),
            "stage": row["stage"],
            "score": "–" if score is None else f"{score:.3f}",
            "text": text,
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
    work.file(f"{name}.html").write_text(render_html(document), encoding="utf-8")
    work.file(f"{name}.md").write_text(render_markdown(document), encoding="utf-8")
    for chart in document.charts():
        work.file(chart.path).write_text(chart.svg, encoding="utf-8")
    pages = book.cited()
    heads = {page: evidence.head(limit) for page, (evidence, _) in pages.items()}
    cited = {page: _documents_of(head) for page, head in heads.items()}
    corpus = Corpus(history, masker)
    wanted = {i for ids in cited.values() for pair in ids.items() for i in pair if i}
    if wanted:
        corpus.look_up(wanted)
    for done, (page, (evidence, figures)) in enumerate(pages.items(), start=1):
        documents = [
            corpus.excerpt(i, twin) for i, twin in cited[page].items() if i in corpus.found
        ]
        html = render_rows(
            evidence, figures, heads[page], documents, masker, card=f"{name}.html",
            kind=document.kind,
        )  # fmt: skip
        work.file(page).write_text(html, encoding="utf-8")
        work.progress(done, len(pages), "pages of rows")
    work.table("figures").write(book.table())


def _documents_of(rows: pa.Table) -> dict[bytes, bytes | None]:
    """The first documents that rows name, each with the twin it was matched with."""
    named: dict[bytes, bytes | None] = {}
    for row in rows.select([n for n in DOCUMENT_IDS if n in rows.column_names]).to_pylist():
        for column, value in row.items():
            for doc_id in value if isinstance(value, list) else [value]:
                if len(named) >= _DOCUMENTS_A_PAGE:
                    return named
                if doc_id is not None:
                    twin = row.get("matched") if column == "doc_id" else None
                    named[doc_id] = named.get(doc_id) or twin
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
    names = head.column_names
    return environment().get_template("rows.html").render(
        evidence=evidence,
        condition=evidence.condition,
        python=visible(evidence.python()),
        figures=figures,
        how=describe,
        columns=names,
        numeric={field.name for field in head.schema if _is_number(field.type)},
        rows=[[_cell(name, row, masker) for name in names] for row in head.to_pylist()],
        shown=len(head),
        documents=documents,
        anchors={document["id"] for document in documents},
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
        "ratio": f"the sum of {column.replace('/', ' over the sum of ')}",
        "min": f"the smallest {column}",
        "max": f"the largest {column}",
        "last": f"the last {column}",
        "distinct": f"the number of different values of {column}",
        "finding": figure.method or "computed by the audit",
    }[figure.aggregate]
    return f"{words}; {figure.method}" if figure.method and figure.aggregate != "finding" else words


def _cell(name: str, row: Mapping[str, Any], masker: Masker) -> Cell:
    value = row[name]
    if value is None:
        return Cell("–", "muted")
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if isinstance(value, int):
        return Cell(str(value), "number")
    if isinstance(value, float):
        return Cell(f"{value:.6g}", "number")
    if isinstance(value, list) and all(isinstance(item, bytes) for item in value):
        return Cell(_more(value, 8), ids=[item.hex() for item in value[:8]])
    if isinstance(value, list):
        return Cell(visible(", ".join(str(item) for item in value[:16])) + _more(value, 16))
    if isinstance(value, bytes) and len(value) == 16:
        return Cell(ids=[value.hex()])
    if isinstance(value, bytes):  # raw input that could not be read
        return Cell(masker.text(value[:8000].decode("utf-8", "backslashreplace")), "text")
    if name == "secret" and value:
        return Cell(f"[planted secret masked: {len(value):,} characters]", "text")
    text = str(value)
    if name in LABELS:
        return Cell(masker.text(text, limit=160))
    return Cell(masker.text(text, _score(name, row)), "text")


def _score(name: str, row: Mapping[str, Any]) -> float | None:
    """The stored score of the text in a column: of prompts their own, else the row's."""
    columns = ("prompt_score",) if name == "prompt" and "prompt_score" in row else (
        "score", "toxicity",
    )  # fmt: skip
    scores = [row[column] for column in columns if isinstance(row.get(column), float)]
    return max(scores, default=None)


def _more(values: Sequence[Any], limit: int) -> str:
    return f" … ({len(values):,} in all)" if len(values) > limit else ""


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


__all__ = ["FIGURES", "Corpus", "describe", "publish", "render_rows"]
