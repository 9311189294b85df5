"""Export the cards of a run in machine-readable forms."""

from __future__ import annotations

from pathlib import Path

from hallmark.flows.output_folders import check_can_be_created, resolve_new_folder
from hallmark.flows.runs import Run, find_artifact
from hallmark.model.interchange.atomic_files import sync_to_disk, write_folder_atomically
from hallmark.reports.exports.export_files import build_export_files
from hallmark.reports.exports.exported_card import load_exported_card
from hallmark.tasks.contract import Artifact, Store, UsageError


def find_run_cards(run: Run) -> tuple[Artifact | None, Artifact | None]:
    """Return the model card of a run and the datasheet of its corpus, as far as there are any.

    Raises:
        UsageError: The run has neither.
    """
    model_card = run["model_card"] if "model_card" in run.stages else None
    datasheet = run["datasheet"] if "datasheet" in run.stages else None
    if datasheet is None and model_card is not None:
        name = model_card.get_input_names_by_key("corpus_artifacts").get("datasheet")
        datasheet = None if name is None else find_artifact(run.store, name)
    if model_card is None and datasheet is None:
        raise UsageError(
            f"run {run.id} has neither a model card nor a datasheet; choose a run that has one "
            "(to list all runs: hallmark runs)"
        )
    return model_card, datasheet


def export_run_cards(run: Run, folder_name: str) -> list[str]:
    """Write the cards of a run into a new folder, and return the paths of the files within it.

    A killed process leaves no folder of this name.

    Raises:
        UsageError: The folder is not empty or cannot be created, or the run has no card.
        HallmarkError: A card is damaged, or an earlier version of the code wrote it.
    """
    folder = resolve_new_folder(folder_name, "export")
    model_card, datasheet = find_run_cards(run)
    check_can_be_created(folder, "export")
    with write_folder_atomically(folder) as new_folder:
        return write_card_exports(run.store, model_card, datasheet, new_folder)


def write_card_exports(
    store: Store, model_card: Artifact | None, datasheet: Artifact | None, folder: Path
) -> list[str]:
    """Write the machine-readable forms of cards, and return their paths within the folder.

    Raises:
        HallmarkError: A card is damaged, or an earlier version of the code wrote it.
    """
    files = build_export_files(
        *(
            None if card is None else load_exported_card(store, card)
            for card in (model_card, datasheet)
        )
    )
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        sync_to_disk(path)
    return list(files)
