"""A run's site with nothing masked, for local eyes: the cards are rendered anew from their inputs.

Artifacts hold masked cards alone. What is written here lies outside of the store's artifacts, in a
folder that only its owner can enter.
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
    collect_purged_documents,
    format_purge_notice,
    insert_purge_notice,
)
from hallmark.reports.site import JsonRecord, build_site
from hallmark.tasks.contract import Artifact, HallmarkError, Stage, StageContext, Store, UsageError

#: Each card's stage, and its work with any masker.
CARD_WRITERS: dict[str, tuple[Stage, Callable[..., None]]] = {
    "datasheet": (datasheet.build_datasheet, datasheet.write_datasheet),
    "model_card": (model_card.build_model_card, model_card.write_model_card),
    "task_card": (task_card.build_task_card, task_card.write_task_card),
    "removal_experiment_card": (
        removal_experiment_card.build_removal_experiment_card,
        removal_experiment_card.write_removal_experiment_card,
    ),
}

#: Stands in a folder that this module made; another one is not touched.
MARKER_FILE = "UNMASKED"


def write_unredacted_site(store: Store, record: JsonRecord, output_folder: Path) -> Path:
    """Write the unmasked site of one run into ``out`` and return the run's page.

    An earlier unmasked site there is removed. UsageError where ``out`` holds anything else;
    HallmarkError where an input of a card is gone.
    """
    create_private_folder(output_folder)
    run_page = (
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
                shutil.rmtree(card_folder, ignore_errors=True)  # the masked one
                shutil.copytree(card_files, card_folder, ignore=shutil.ignore_patterns("*.parquet"))
                if purged_ids := collect_purged_documents(
                    store, _find_required_artifact(store, entry["artifact"])
                ):
                    insert_purge_notice(card_folder, format_purge_notice(purged_ids))
    return run_page


def create_private_folder(folder: Path) -> None:
    """An empty folder that only its owner can enter; UsageError where there is anything else."""
    if folder.exists() and (
        not folder.is_dir() or (any(folder.iterdir()) and not (folder / MARKER_FILE).exists())
    ):
        raise UsageError(
            f"{folder}: holds something else, and unmasked pages must not stand beside it; give a "
            f"folder that is empty or does not exist"
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)  # whatever the umask says
    (folder / MARKER_FILE).write_text(
        "Personal data and offensive text in clear. Do not publish.\n"
    )


def _render_unredacted_card(store: Store, entry: JsonRecord, work_area: Path) -> Path:
    """The files of a card, rendered into the work area ``area`` with nothing masked."""
    stage, write_card = CARD_WRITERS[entry["label"]]
    card = _find_required_artifact(store, entry["artifact"])
    lineage: Mapping[str, Any] = card.manifest["lineage"]
    if lineage.keys() != set(stage.input_names):
        raise HallmarkError(
            f"{card.name} was made by an earlier version of the code; run again to make it anew"
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


def _load_inputs(store: Store, artifact_names: Any) -> Any:
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
            f"the store {store.uri} does not hold {artifact_name}, which a card rests on; a "
            f"card of a model "
            f"from elsewhere cannot be revealed, any other after running again"
        )
    return artifact
