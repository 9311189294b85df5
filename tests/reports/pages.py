"""Build small cards, and read pages: HTML with the standard parser, Markdown with another one."""

from __future__ import annotations

import atexit
import json
import re
import shutil
import tempfile
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pandas as pd
from markdown_it import MarkdownIt

from hallmark.reports.cards import read_card
from hallmark.reports.model_card import ModelCardConfig, build_model_card
from hallmark.reports.page.card_pages import write_card_pages
from hallmark.reports.page.card_tables import CardContent
from hallmark.reports.page.document import Chart, Document
from hallmark.reports.page.figures import FigureBook
from hallmark.reports.page.redaction import Redactor
from hallmark.tasks.contract import Artifact, get_artifact_store

VOID = {"meta", "img", "br", "link", "hr", "input"}


class Page(HTMLParser):
    """The tags, ids, headings, links and table rows of one page."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.headings: list[int] = []
        self.links: list[tuple[str, str]] = []  # (href, text)
        self.figures: list[tuple[str, str]] = []  # the links that are figures
        self.sources: list[str] = []  # of images
        self.alts: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self.open: list[str] = []
        self._link: list[str] | None = None
        self._cell: list[str] | None = None
        self._is_figure = False
        self.feed(source)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        assert not any(name.startswith("on") for name in given), given
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in given:
            self.ids.append(given["id"])
        if tag[0] == "h" and tag[1:].isdigit():
            self.headings.append(int(tag[1:]))
        if tag == "a":
            self._link = [given["href"], ""]
            self._is_figure = given.get("class") == "figure"
        if given.get("role") == "img":
            self.alts.append(given["aria-label"])
        if tag == "img":
            self.sources.append(given["src"])
            self.alts.append(given["alt"])
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self._cell = [""]

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)  # <img ... />, as Markdown renders it, or in an SVG
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        while self.open and self.open[-1] == "p" and tag != "p":
            self.open.pop()
        assert self.open.pop() == tag
        if tag == "a" and self._link is not None:
            self.links.append((self._link[0], self._link[1]))
            if self._is_figure:
                self.figures.append((self._link[0], self._link[1]))
            self._link = None
        if tag in ("td", "th") and self._cell is not None:
            self.tables[-1][-1].append(self._cell[0])
            self._cell = None

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data
        if self._link is not None:
            self._link[1] += data
        if self._cell is not None:
            self._cell[0] += data


def read(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def read_card_source(path: Path) -> str:
    """Return the HTML of the page of a card, followed by that of its sections with own pages."""
    own_pages = sorted(page for page in path.parent.glob("*.html") if page != path)
    return "\n".join(page.read_text(encoding="utf-8") for page in (path, *own_pages))


def read_whole_card(path: Path) -> Page:
    """Read the page of a card and those of its sections as if they were one."""
    return Page(read_card_source(path))


def read_charts(path: Path) -> list[str]:
    """Return the charts of a page as SVG, in their order."""
    return re.findall(r"<svg\b.*?</svg>", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def list_charts(card: Artifact) -> list[Chart]:
    """Return the charts of a card, in their order."""
    return read_card(get_artifact_store(card), card).document.list_charts()


def list_card_pages(card: Artifact, name: str) -> list[Path]:
    """Return the page of a card and those of its sections, without those of the evidence."""
    folder = write_pages(card)
    first = folder / f"{name}.html"
    return [first, *(path for path in sorted(folder.glob("*.html")) if path != first)]


def render(markdown: str) -> Page:
    """Render Markdown as a reader sees it, with raw HTML allowed."""
    return Page(MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown))


def without_revealed_secrets(text: str) -> str:
    """Return the source of a page without the invented secrets that a click shows."""
    return re.sub(r"<details><summary>Show the planted secrets.*?</details>", "", text, flags=re.S)


def broken_links(folder: Path) -> list[str]:
    """List the links and pictures of every page whose target is missing."""
    pages = {path: read(path) for path in folder.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        for href in [link for link, _ in page.links] + page.sources:
            parts = urlsplit(href)
            if parts.scheme or parts.netloc or href.startswith("/"):
                broken.append(f"{path.name}: {href} is not relative")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                broken.append(f"{path.name}: {href} is no file")
            elif parts.fragment and parts.fragment not in (pages.get(target) or read(target)).ids:
                broken.append(f"{path.name}: {href} has no such place")
    return broken


def rows_behind(artifact: Artifact, table: str, where: str) -> pd.DataFrame:
    """Select the evidence rows of a figure with pandas; columns of lists are omitted."""
    whole = artifact[table].read()
    plain = [f.name for f in whole.schema if not str(f.type).startswith("list")]
    rows = whole.select(plain).to_pandas()
    for column, value in json.loads(where).items():
        if value is None:
            rows = rows[rows[column].isna()]
        elif isinstance(value, list):
            rows = rows[rows[column].isin(value)]
        else:
            rows = rows[rows[column] == value]
    return rows


def recompute(rows: pd.DataFrame, aggregate: str, column: str) -> float | None:
    """Compute the value of a figure with pandas."""
    match aggregate:
        case "count":
            return len(rows)
        case "sum":
            return rows[column].sum()
        case "mean":
            return rows[column].mean()
        case "ratio":
            top, bottom = column.split("/")
            above = rows[top.split("+")].sum().sum()
            return above / rows[bottom].sum() if rows[bottom].sum() else None
        case "distinct":
            return rows[column].nunique()
        case "max":
            return rows[column].max()
        case "last":
            known = rows[column].dropna()
            return known.iloc[-1] if len(known) else None
    raise AssertionError(aggregate)


@cache
def _write_pages(store, name, content_digest) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="card-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_card_pages(read_card(store, store.find_artifact(*name.split("/"))), folder)
    return folder


def write_pages(card: Artifact) -> Path:
    """Write the pages of a card into a temporary folder and return it."""
    return _write_pages(get_artifact_store(card), card.name, card.content_digest)


def read_figures(card: Artifact) -> pd.DataFrame:
    """Read the figures of a card, each with the rows that support it and their page."""
    figures = card["figures"].read().to_pandas()
    evidence = card["evidence"].read().to_pandas().rename(columns={"id": "evidence_id"})
    joined = figures.merge(evidence, on="evidence_id", how="left", validate="many_to_one")
    places = []
    for evidence_id in joined["evidence_id"]:
        stage, _, rest = evidence_id.partition("--")
        places.append(f"rows/{stage}.html#rows-{rest.rpartition('--')[2]}")
    return joined.assign(page_path=places)


def read_evidence(folder: Path, place: str) -> Page:
    """Read the selection of rows at a place of a page of evidence, as a page of its own."""
    return Page(read_evidence_source(folder, place))


def read_evidence_source(folder: Path, place: str) -> str:
    path, _, anchor = place.partition("#")
    text = (folder / path).read_text(encoding="utf-8")
    start = text.index(f'<section class="selection" id="{anchor}">')
    return text[start : text.index("</section>", start) + len("</section>")]


def text_of(card, name):
    """Return the text of the card and of its sections that have a page of their own."""
    assert broken_links(write_pages(card)) == []
    return " ".join(" ".join(read(path).text.split()) for path in list_card_pages(card, name))


def content_of(
    book: FigureBook, redactor: Redactor, corpus: dict[str, Artifact] | None = None
) -> CardContent:
    """Return a card that has figures and no text."""
    return CardContent("a", Document("", "Card", [], []), book, corpus or {}, redactor)


def card_of(checkpoint, audits=None, corpus=None):
    """Build a card without training, tokenizer, attention maps and samples."""
    config = ModelCardConfig()
    return build_model_card(
        checkpoint, None, None, audits or {}, corpus or {}, None, None, None, None, {}, None, config
    )
