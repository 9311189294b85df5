"""Export the cards of a run in machine-readable forms."""

from __future__ import annotations

from typing import Any

from hallmark.flows.card_export import export_run_cards
from hallmark.flows.commands.options import JsonOption, StoreOption, print_result
from hallmark.flows.runs import open_run


def export_cards(
    run: str = "latest", *, output: str, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Export RUN's cards as Hugging Face cards, Croissant, CycloneDX ML-BOM and JSON.

    Texts are redacted as on the pages.

    Parameters
    ----------
    run
        A run id, the start of one, or "latest": the newest run.
    output
        New folder for the exported cards.
    """
    opened_run = open_run(run, store)
    with opened_run.store.shared_lock():
        files = export_run_cards(opened_run, output)
    print_result({"run": opened_run.id, "folder": output, "files": files}, as_json, _render_export)


def _render_export(report: dict[str, Any]) -> str:
    return "\n".join(f"{report['folder']}/{name}" for name in report["files"])
