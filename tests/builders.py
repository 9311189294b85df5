"""Read what a builder of requests collected, as rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from hallmark.tasks.audits.audit_tables import RequestBuilder


def item_rows(builder: RequestBuilder) -> dict[bytes, dict[str, Any]]:
    """Return the row of each item, by its id."""
    return {
        item.item: {"item": item.item, "cluster": item.cluster, "text": item.text, **item.tags}
        for item in builder.items.values()
    }


def row_dicts(rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Return requests, responses and other dataclasses as rows."""
    return [asdict(row) for row in rows]
