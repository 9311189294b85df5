"""Write an unredacted site of one run for local use, with cards rendered from their inputs.

Artifacts hold only redacted cards. This site is outside of the store's artifacts, in a folder that
only its owner can open.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hallmark.reports import datasheet, model_card, removal_experiment_card, task_card
from hallmark.reports.page.redaction import PassthroughRedactor
from hallmark.reports.purge_notices import (
    collect_purged_document_ids,
    format_purge_notice,
    insert_purge_notice,
)
from hallmark.reports.site import JsonRecord, build_site
from hallmark.tasks.contract import Artifact, HallmarkError, Stage, StageContext, Store, UsageError

#: For each card, its stage and the function that writes it with a given redactor.
CARD_WRITERS: dict[str, tuple[Stage, Callable[..., None]]] = {
    "datasheet": (datasheet.build_datasheet, datasheet.write_datasheet),
    "model_card": (model_card.build_model_card, model_card.write_model_card),
    "task_card": (task_card.build_task_card, task_card.write_task_card),
    "removal_experiment_card": (
        removal_experiment_card.build_removal_experiment_card,
        removal_experiment_card.write_removal_experiment_card,
    ),
}

#: Marks a folder that this module created; no other folder is removed.
MARKER_FILE = "UNMASKED"


def write_unredacted_site(store: Store, record: JsonRecord, output_folder: Path) -> Path:
    """Write the unredacted site of one run and return the page of the run.

    An earlier unredacted site in ``output_folder`` is removed.

    Raises:
        UsageError: If ``output_folder`` holds anything else.
        HallmarkError: If an input of a card is missing.
    """
    create_private_folder(output_folder)
    run_page: Path = (
        build_site(store, [record], output_folder).parent / "runs" / record["run"] / "index.html"
    )
    for entry in record["stages"]:
        if entry["label"] in CARD_WRITERS:
            with tempfile.TemporaryDirectory(dir=output_folder) as scratch_folder:
                try:
                    card_files = _render_unredacted_card(store, entry, Path(scratch_folder))
                except HallmarkError as error:
                    raise HallmarkError(f"run {record['run']}: {error}") from error
                card_folder = run_page.parent / entry["label"]
                shutil.rmtree(card_folder, ignore_errors=True)  # the redacted card
                shutil.copytree(card_files, card_folder, ignore=shutil.ignore_patterns("*.parquet"))
                if purged_ids := collect_purged_document_ids(
                    store, _find_required_artifact(store, entry["artifact"])
                ):
                    insert_purge_notice(card_folder, format_purge_notice(purged_ids))
    return run_page


def create_private_folder(folder: Path) -> None:
    """Create an empty folder that only its owner can open.

    Raises:
        UsageError: If the folder holds anything but an earlier unredacted site.
    """
    if folder.exists() and (
        not folder.is_dir() or (any(folder.iterdir()) and not (folder / MARKER_FILE).exists())
    ):
        raise UsageError(
            f"{folder} contains other files, and unredacted pages need a folder of their own; "
            "give a folder that is empty or does not exist"
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)  # independent of the umask
    (folder / MARKER_FILE).write_text(
        "Unredacted personal data and offensive text. Do not publish.\n"
    )


def _render_unredacted_card(store: Store, entry: JsonRecord, work_area: Path) -> Path:
    """Render the files of a card without redaction into the work area and return their folder."""
    stage, write_card = CARD_WRITERS[entry["label"]]
    card = _find_required_artifact(store, entry["artifact"])
    lineage: Mapping[str, Any] = card.manifest["lineage"]
    if lineage.keys() != set(stage.input_names):
        raise HallmarkError(
            f"{card.name} was created by an earlier version of the code; "
            "run the pipeline again to create it again"
        )
    inputs = {
        input_name: _load_inputs(store, artifact_names)
        for input_name, artifact_names in lineage.items()
    }
    config = stage.parameter_types["config"].model_validate(card.manifest["parts"]["config"])
    context = StageContext(work_area, stage.tables)
    write_card(**inputs, config=config, context=context, redactor=PassthroughRedactor())
    context.close()
    return context.output_folder


def _load_inputs(store: Store, artifact_names: Any) -> Artifact | dict[str, Any] | None:
    """Return the artifact of a name, or, for a mapping of names, a mapping of artifacts."""
    if isinstance(artifact_names, Mapping):
        return {
            label: _load_inputs(store, artifact_name)
            for label, artifact_name in artifact_names.items()
        }
    return None if artifact_names is None else _find_required_artifact(store, artifact_names)


def _find_required_artifact(store: Store, artifact_name: str) -> Artifact:
    stage, _, digest = artifact_name.partition("/")
    artifact = store.find_artifact(stage, digest)
    if artifact is None:
        raise HallmarkError(
            f"the store {store.uri} does not contain {artifact_name}, an input of a card; run the "
            "pipeline again (the card of a model from another store cannot be shown unredacted)"
        )
    return artifact
