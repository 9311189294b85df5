"""Write the page of the site that describes every table of every stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from hallmark.reports.page.rendering import get_template_environment

TABLES_PAGE = "tables.html"


def write_tables_page(table_descriptions: Sequence[Mapping[str, Any]], site_folder: Path) -> Path:
    """Write the page and return its path.

    Args:
        table_descriptions: The rows of ``hallmark tables``: stage, table, telemetry, meaning and
            columns (name, type, unit, kind, meaning, judged_by).
        site_folder: The folder of the site.
    """
    stages = [
        (stage_name, list(stage_tables))
        for stage_name, stage_tables in groupby(table_descriptions, lambda row: row["stage"])
    ]
    html = get_template_environment().get_template("site_tables.html").render(stages=stages)
    site_folder.mkdir(parents=True, exist_ok=True)
    path = site_folder / TABLES_PAGE
    path.write_text(html, encoding="utf-8")
    return path
