"""The page of the site that says what every table of every stage holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from reports.page.rendering import environment

PAGE = "tables.html"


def write_tables(rows: Sequence[Mapping[str, Any]], out: Path) -> Path:
    """Write the page into the site's folder ``out``; ``rows`` are those of ``hallmark tables``:
    stage, table, telemetry, meaning, columns (name, type, unit, kind, meaning, judged_by)."""
    stages = [(name, list(found)) for name, found in groupby(rows, lambda row: row["stage"])]
    html = environment().get_template("site_tables.html").render(stages=stages)
    out.mkdir(parents=True, exist_ok=True)
    path = out / PAGE
    path.write_text(html, encoding="utf-8")
    return path
