"""Count the words of rendered pages, as the limits of the cards count them.

    python -m tests.reports.word_counts FOLDER

prints the counts of all HTML pages of a folder.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

#: Elements whose text does not count: cells of tables, drawings, and what a browser does not show.
UNCOUNTED_ELEMENTS = {"td", "th", "svg", "style", "title", "script"}

#: Elements without an end.
VOID_ELEMENTS = {"meta", "img", "br", "link", "hr", "input"}


@dataclass
class WordCounts:
    """The words of a page without the cells of tables and the labels of charts.

    Attributes:
        visible: Words outside of ``<details>``; the summaries count.
        folded: Words that a click on a summary shows.
    """

    visible: int = 0
    folded: int = 0

    @property
    def total(self) -> int:
        return self.visible + self.folded


class _WordCounter(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.counts = WordCounts()
        self._open_elements: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID_ELEMENTS:
            self._open_elements.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass  # has no text

    def handle_endtag(self, tag):
        while self._open_elements and self._open_elements.pop() != tag:
            pass

    def handle_data(self, data):
        if UNCOUNTED_ELEMENTS.intersection(self._open_elements):
            return
        count = len(data.split())
        if "details" in self._open_elements and "summary" not in self._open_elements:
            self.counts.folded += count
        else:
            self.counts.visible += count


def count_words(html: str) -> WordCounts:
    """Count the words of a page."""
    counter = _WordCounter()
    counter.feed(html)
    counter.close()
    return counter.counts


if __name__ == "__main__":
    for path in sorted(Path(sys.argv[1]).glob("*.html")):
        counts = count_words(path.read_text(encoding="utf-8"))
        size = path.stat().st_size
        print(f"{path.name:40} visible {counts.visible:6} total {counts.total:6} bytes {size:8}")
