"""Decide whether a checkpoint that another trainer writes is complete, from its own statements.

config.json names the weights, an index names their files, and the header of each safetensors file
states how long it is. So a checkpoint that is half-written is recognized, however slowly it grows.
"""

from __future__ import annotations

import json
import re
from typing import Any

from hallmark.flows.checkpoint_sources import CheckpointListing
from hallmark.tasks.contract import escape_name

#: The names of weights, as in ``hallmark.model.interchange.weight_files``, which imports torch.
WEIGHTS_FILE, WEIGHTS_INDEX_FILE = "model.safetensors", "model.safetensors.index.json"

#: Largest sizes in bytes of a config, and of an index or the header of a safetensors file.
MAX_CONFIG_BYTES, MAX_HEADER_BYTES = 10 << 20, 100 << 20

#: Largest size of the weights in one file that a header may announce.
MAX_WEIGHTS_BYTES = 1 << 50

#: Bytes before the header of a safetensors file, which state its length.
_LENGTH_BYTES = 8

_TOKENIZER_FILE = re.compile(
    r"tokenizer.*|vocab.*|spiece\.model|sentencepiece.*\.model|.*\.tiktoken|bpe\.codes|tekken\.json"
)


def find_missing_part(listing: CheckpointListing) -> str | None:
    """Say why a checkpoint is not complete or cannot be audited; None if it can.

    Returns:
        A sentence without a full stop.

    Raises:
        HallmarkError: A file cannot be read now, or changes while it is read.
    """
    try:
        return _find_missing_part(listing)
    except _InvalidFileError as error:
        return str(error)


class _InvalidFileError(Exception):
    """A JSON file is invalid; the message is a sentence."""


def _find_missing_part(listing: CheckpointListing) -> str | None:
    if listing.problem is not None:
        return listing.problem
    if listing.temporary_files:
        name = escape_name(listing.temporary_files[0])
        return f"the temporary file {name} is still being written or was left behind"
    files = listing.model_files
    if "adapter_config.json" in files:
        return (
            "the folder contains an adapter without its base model; merge the adapter into the "
            "base model"
        )
    if "config.json" not in files:
        return "the folder has no config.json"
    config = _read_json(listing, "config.json", MAX_CONFIG_BYTES)
    if not isinstance(config, dict):
        return "config.json is not a JSON object"
    weights = config.get("transformers_weights")
    if weights is None:
        weights = WEIGHTS_FILE if WEIGHTS_FILE in files else WEIGHTS_INDEX_FILE
        if weights not in files:
            if listing.pickled_weights:
                return (
                    f"the weights are only in {escape_name(listing.pickled_weights[0])}, a file "
                    f"that can execute code when loaded; save them as {WEIGHTS_FILE}"
                )
            return f"the folder has neither {WEIGHTS_FILE} nor {WEIGHTS_INDEX_FILE}"
    if not isinstance(weights, str):
        return "transformers_weights in config.json is not a file name"
    problem = (
        _check_index(listing, weights)
        if weights.endswith(".index.json")
        else _check_weights(listing, weights, "config.json")
    )
    if problem is None and not any(map(_TOKENIZER_FILE.fullmatch, files)):
        return "the folder has no tokenizer"
    return problem


def _check_index(listing: CheckpointListing, index_name: str) -> str | None:
    """Check that all weights of an index are in the files that it names for them."""
    if index_name not in listing.model_files:
        return f"{escape_name(index_name)}, which config.json references, is missing"
    index = _read_json(listing, index_name, MAX_HEADER_BYTES)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        return f"{escape_name(index_name)} lists no weights"
    names_by_file: dict[str, set[str]] = {}
    for tensor_name, file_name in weight_map.items():
        if not isinstance(file_name, str):
            return f"{escape_name(index_name)} contains a file name that is not a string"
        names_by_file.setdefault(file_name, set()).add(tensor_name)
    for file_name, tensor_names in sorted(names_by_file.items()):
        problem = _check_weights(listing, file_name, escape_name(index_name), tensor_names)
        if problem is not None:
            return problem
    return None


def _check_weights(
    listing: CheckpointListing,
    file_name: str,
    named_by: str,
    tensor_names: set[str] | frozenset[str] = frozenset(),
) -> str | None:
    """Check that a safetensors file is as long as its header states and has these tensors."""
    shown_name = escape_name(file_name)
    if file_name not in listing.model_files or not file_name.endswith(".safetensors"):
        return f"{shown_name}, a safetensors file listed in {named_by}, is missing"
    size = listing.model_files[file_name].size
    length_bytes = listing.read_start(file_name, _LENGTH_BYTES)
    header_length = int.from_bytes(length_bytes, "little")
    if len(length_bytes) < _LENGTH_BYTES or _LENGTH_BYTES + header_length > size:
        return f"{shown_name} is shorter than its declared header"
    if header_length > MAX_HEADER_BYTES:
        return f"the header of {shown_name} is larger than {MAX_HEADER_BYTES:,} bytes"
    header_bytes = listing.read_start(file_name, _LENGTH_BYTES + header_length)[_LENGTH_BYTES:]
    try:
        header = json.loads(header_bytes)
        tensors = {name: value for name, value in header.items() if name != "__metadata__"}
        end = max((int(tensor["data_offsets"][1]) for tensor in tensors.values()), default=0)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
        return f"{shown_name} does not have a valid safetensors header"
    if end > MAX_WEIGHTS_BYTES:
        return f"the header of {shown_name} declares more than {MAX_WEIGHTS_BYTES:,} bytes"
    expected_size = _LENGTH_BYTES + header_length + end
    if size != expected_size:
        return f"{shown_name} has {size:,} bytes, but its header declares {expected_size:,}"
    if missing_names := sorted(tensor_names - tensors.keys()):
        return f"{shown_name} does not contain the weights {escape_name(missing_names[0])}"
    return None


def _read_json(listing: CheckpointListing, name: str, max_bytes: int) -> Any:
    """Read a JSON file.

    Raises:
        _InvalidFileError: It is too large, or not JSON.
    """
    if listing.model_files[name].size > max_bytes:
        raise _InvalidFileError(f"{escape_name(name)} is larger than {max_bytes:,} bytes")
    try:
        return json.loads(listing.read_start(name, max_bytes))
    except (ValueError, RecursionError) as error:
        raise _InvalidFileError(f"{escape_name(name)} is not valid JSON") from error
