"""Which files of a ``transformers`` folder hold its weights, in the order of transformers itself.

One answer for whoever reads them, so that two readers of a folder never load different weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from model.interchange.checkpoint import WEIGHTS, CheckpointError

INDEX = f"{WEIGHTS}.index.json"


def list_weight_files(folder: Path, config: dict[str, Any]) -> list[Path]:
    """The safetensors files of a folder's weights.

    A file that config.json names in ``transformers_weights`` comes first, then model.safetensors,
    then the shards of model.safetensors.index.json: so an index that an older save left beside the
    one file is not read.

    Raises:
        CheckpointError: There are none, one lies outside the folder, the index cannot be read, or
            the folder holds an adapter.
    """
    if (folder / "adapter_config.json").is_file():
        raise CheckpointError(
            f"{folder} holds an adapter (adapter_config.json): merge it into its model, and give "
            f"the folder of the whole model."
        )
    named = config.get("transformers_weights")
    named_file = None
    if named is not None:
        if not isinstance(named, str):
            raise CheckpointError(
                f"transformers_weights in {folder / 'config.json'} must be the name of a file; it "
                f"is {str(named)[:100]}."
            )
        named_file = _inside(folder, named, "config.json")
        is_index = named_file.name.endswith(".index.json")
        files = _shards(folder, named_file) if is_index else [named_file]
    elif (folder / WEIGHTS).is_file() or not (folder / INDEX).is_file():
        files = [folder / WEIGHTS]
    else:
        files = _shards(folder, folder / INDEX)
    for path in files:
        if not path.is_file():
            if path == folder / WEIGHTS:
                raise CheckpointError(
                    f"The weights in {folder} cannot be read: it has no {WEIGHTS}."
                )
            source = (
                "transformers_weights in its config.json" if path == named_file else "its index"
            )
            raise CheckpointError(
                f"{folder} has no {path.relative_to(folder)}, which {source} names."
            )
        if path.suffix != ".safetensors":
            raise CheckpointError(
                f"{path} holds weights, but is no safetensors file, and no other format is read: "
                f"convert it, or name a safetensors file."
            )
    return files


def _shards(folder: Path, index: Path) -> list[Path]:
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
        return [_inside(folder, name, index.name) for name in sorted(names)]
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{index} cannot be read as an index of weights: {str(error)[:200]}."
        ) from error


def _inside(folder: Path, name: Any, where: str) -> Path:
    """The path of a file below the folder; hidden files do not count as the folder's content."""
    parts = Path(name).parts if isinstance(name, str) else ()
    if not parts or Path(name).is_absolute() or any(part.startswith(".") for part in parts):
        raise CheckpointError(f"{folder / where} points outside its folder, at {str(name)[:100]}.")
    return folder / name
