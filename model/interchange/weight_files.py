"""Find the files of a ``transformers`` folder that hold its weights, in transformers' own order.

All readers use this module, so that two readers of a folder never load different weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hallmark.model.interchange.checkpoint import (
    WEIGHTS_FILE,
    CheckpointError,
    check_no_lfs_pointer,
)

WEIGHTS_INDEX_FILE = f"{WEIGHTS_FILE}.index.json"


def list_weight_files(folder: Path, config: dict[str, Any]) -> list[Path]:
    """List the safetensors files of a folder's weights.

    A file that config.json names in ``transformers_weights`` comes first, then model.safetensors,
    then the shards of model.safetensors.index.json. So an index that an older save wrote next to a
    single file is not read.

    Raises:
        CheckpointError: There are no weights, a file is outside the folder, has another format or
            is a pointer of Git LFS, the index is unreadable, or the folder contains an adapter.
    """
    if (folder / "adapter_config.json").is_file():
        raise CheckpointError(
            f"{folder} contains an adapter (adapter_config.json): merge the adapter into its base "
            "model and specify the folder of the merged model; to use the base model alone, "
            "specify a folder without the adapter."
        )
    named_path = config.get("transformers_weights")
    named_file = None
    if named_path is not None:
        if not isinstance(named_path, str):
            raise CheckpointError(
                f"transformers_weights in {folder / 'config.json'} must be a file name, not "
                f"{str(named_path)[:100]}."
            )
        named_file = _resolve_inside_folder(folder, named_path, "config.json")
        is_index = named_file.name.endswith(".index.json")
        files = _list_shards(folder, named_file) if is_index else [named_file]
    elif (folder / WEIGHTS_FILE).is_file() or not (folder / WEIGHTS_INDEX_FILE).is_file():
        files = [folder / WEIGHTS_FILE]
    else:
        files = _list_shards(folder, folder / WEIGHTS_INDEX_FILE)
    for path in files:
        if not path.is_file():
            if path == folder / WEIGHTS_FILE:
                raise CheckpointError(
                    f"The weights in {folder} cannot be read: the folder has no {WEIGHTS_FILE}."
                )
            source = (
                "the transformers_weights key in config.json" if path == named_file else "its index"
            )
            raise CheckpointError(
                f"{folder} has no {path.relative_to(folder)}, although {source} refers to it."
            )
        if path.suffix != ".safetensors":
            raise CheckpointError(
                f"{path} is not a safetensors file, which is the only supported format: convert "
                "it, or specify a safetensors file."
            )
        check_no_lfs_pointer(path)
    return files


def _list_shards(folder: Path, index_path: Path) -> list[Path]:
    try:
        names = set(json.loads(index_path.read_bytes())["weight_map"].values())
        return [_resolve_inside_folder(folder, name, index_path.name) for name in sorted(names)]
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{index_path} cannot be read as a weight index: {str(error)[:200]}."
        ) from error


def _resolve_inside_folder(folder: Path, file_name: Any, source_name: str) -> Path:
    """Return the path of a file below the folder; refuse hidden files and files outside it."""
    path_parts = Path(file_name).parts if isinstance(file_name, str) else ()
    if (
        not path_parts
        or Path(file_name).is_absolute()
        or any(part.startswith(".") for part in path_parts)
    ):
        raise CheckpointError(
            f"{folder / source_name} refers to the file {str(file_name)[:100]}, which is outside "
            "the folder."
        )
    return Path(folder, file_name)
