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

from reports import datasheet, model_card, proof_card, task_card
from reports.page.masking import Unmasked
from reports.purged import mark, notice, purged_from
from reports.site import Record, build_site
from tasks.contract import Artifact, HallmarkError, Stage, Store, UsageError, Work

#: Each card's stage, and its work with any masker.
CARDS: dict[str, tuple[Stage, Callable[..., None]]] = {
    "datasheet": (datasheet.datasheet, datasheet.write),
    "model_card": (model_card.model_card, model_card.write),
    "task_card": (task_card.task_card, task_card.write),
    "proof_card": (proof_card.proof_card, proof_card.write),
}

#: Stands in a folder that this module made; another one is not touched.
MARK = "UNMASKED"


def reveal(store: Store, record: Record, out: Path) -> Path:
    """Write the unmasked site of one run into ``out`` and return the run's page.

    An earlier unmasked site there is removed. UsageError where ``out`` holds anything else;
    HallmarkError where an input of a card is gone.
    """
    make_private(out)
    page = build_site(store, [record], out).parent / "runs" / record["run"] / "index.html"
    for entry in record["stages"]:
        if entry["label"] in CARDS:
            with tempfile.TemporaryDirectory(dir=out) as scratch:
                try:
                    card = _rendered(store, entry, Path(scratch))
                except HallmarkError as error:
                    raise HallmarkError(f"run {record['run']}: {error}") from error
                target = page.parent / entry["label"]
                shutil.rmtree(target, ignore_errors=True)  # the masked one
                shutil.copytree(card, target, ignore=shutil.ignore_patterns("*.parquet"))
                if gone := purged_from(store, _find(store, entry["artifact"])):
                    mark(target, notice(gone))
    return page


def make_private(out: Path) -> None:
    """An empty folder that only its owner can enter; UsageError where there is anything else."""
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / MARK).exists())):
        raise UsageError(
            f"{out}: holds something else, and unmasked pages must not stand beside it; give a "
            f"folder that is empty or does not exist"
        )
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True, mode=0o700)
    out.chmod(0o700)  # whatever the umask says
    (out / MARK).write_text("Personal data and offensive text in clear. Do not publish.\n")


def _rendered(store: Store, entry: Record, area: Path) -> Path:
    """The files of a card, rendered into the work area ``area`` with nothing masked."""
    stage, write = CARDS[entry["label"]]
    card = _find(store, entry["artifact"])
    lineage: Mapping[str, Any] = card.manifest["lineage"]
    if lineage.keys() != set(stage.inputs):
        raise HallmarkError(
            f"{card.name} was made by an earlier version of the code; run again to make it anew"
        )
    inputs = {name: _inputs(store, names) for name, names in lineage.items()}
    config = stage.parameters["config"].model_validate(card.manifest["parts"]["config"])
    work = Work(area, stage.tables)
    write(**inputs, config=config, work=work, masker=Unmasked())
    work.close()
    return work.out


def _inputs(store: Store, names: Any) -> Any:
    if isinstance(names, Mapping):
        return {label: _inputs(store, name) for label, name in names.items()}
    return None if names is None else _find(store, names)


def _find(store: Store, name: str) -> Artifact:
    stage, _, digest = name.partition("/")
    found = store.find(stage, digest)
    if found is None:
        raise HallmarkError(
            f"the store {store.uri} does not hold {name}, which a card rests on; a card of a model "
            f"from elsewhere cannot be revealed, any other after running again"
        )
    return found
