"""What the files of a checkpoint tell without loading it: its config, tensors and vocabulary."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from hallmark.reports.page.document import Code, InlineContent, InlineElement
from hallmark.reports.page.figures import FigureBook
from hallmark.tasks.contract import Artifact, HallmarkError, column, table_schema

TENSOR_SCHEMA = table_schema(
    "The tensors of a safetensors file.",
    column("tensor_name", pa.string(), "label", "the tensor"),
    column("dtype", pa.string(), "label", "type of its numbers"),
    column("shape", pa.list_(pa.int64()), "figure", "its dimensions"),
    column("parameter_count", pa.int64(), "figure", "numbers in it", unit="parameters"),
)

#: A token names its id; it is a piece of a word, and no text of the corpus.
VOCABULARY_SCHEMA = table_schema(
    "The tokens of a tokenizer.",
    column("token_id", pa.int64(), "id", "the token's id"),
    column("token", pa.string(), "label", "the token as tokenizer.json spells it"),
)

_MAX_HEADER_BYTES = 100_000_000  # bytes; what the safetensors library allows


def read_tensor_tables(checkpoint: Artifact) -> dict[str, pa.Table]:
    """The tensors in each safetensors file, from its header alone.

    Raises HallmarkError where a header is damaged.
    """
    file_names = sorted(
        file_name
        for file_name in checkpoint.manifest["files"]
        if file_name.endswith(".safetensors")
    )
    return {
        file_name: _read_safetensors_header(checkpoint.fetch_file(file_name))
        for file_name in file_names
    }


def _read_safetensors_header(path: Path) -> pa.Table:
    """Format: 8 bytes of length, little-endian, and as many bytes of JSON."""
    try:
        with path.open("rb") as file:
            header_length = int.from_bytes(file.read(8), "little")
            if header_length > _MAX_HEADER_BYTES:
                raise ValueError(f"its header claims {header_length:,} bytes")
            header = json.loads(file.read(header_length))
        rows = [
            {
                "tensor_name": tensor_name,
                "dtype": tensor_entry["dtype"],
                "shape": tensor_entry["shape"],
                "parameter_count": math.prod(tensor_entry["shape"]),
            }
            for tensor_name, tensor_entry in header.items()
            if tensor_name != "__metadata__"
        ]
        return pa.Table.from_pylist(rows, schema=TENSOR_SCHEMA)
    except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        raise HallmarkError(
            f"{path}: is no safetensors file ({str(error)[:120]!r}); make the checkpoint again"
        ) from error


def describe_parameter_counts(book: FigureBook, checkpoint: Artifact) -> InlineContent:
    """How many numbers the checkpoint stores; in the book its label is "checkpoint"."""
    parts: list[InlineElement] = []
    for file_name, tensor_table in read_tensor_tables(checkpoint).items():
        figure = book.add_computed_figure(
            f"parameters-{file_name}",
            f"parameters stored in {file_name}",
            "parameters",
            ("checkpoint", file_name),
            aggregate="sum",
            value_column="parameter_count",
            file_rows=tensor_table,
        )
        parts += [" and " if parts else "", figure, " in ", Code(file_name)]
    return parts or ["not known: the checkpoint has no safetensors file"]


def read_config_settings(checkpoint: Artifact) -> list[tuple[str, str]]:
    """The simple values of config.json, nested ones with dotted names; empty without the file."""
    if "config.json" not in checkpoint.manifest["files"]:
        return []
    path = checkpoint.fetch_file("config.json")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise HallmarkError(f"{path}: is not valid JSON ({str(error)[:120]!r})") from error
    return list(_flatten_config(config, ""))


def _flatten_config(value: Any, prefix: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, element in value.items():
            yield from _flatten_config(element, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list):
        if len(value) <= 8 and not any(isinstance(element, dict | list) for element in value):
            yield prefix, ", ".join(map(str, value))
    else:
        yield prefix, json.dumps(value) if not isinstance(value, str) else value


def read_vocabulary(checkpoint: Artifact) -> tuple[str, pa.Table] | None:
    """The kind of the tokenizer and its tokens by their ids, as tokenizer.json spells them.

    None without the file; HallmarkError where it is damaged.
    """
    if "tokenizer.json" not in checkpoint.manifest["files"]:
        return None
    path = checkpoint.fetch_file("tokenizer.json")
    try:
        tokenizer_json = json.loads(path.read_text(encoding="utf-8"))
        model = tokenizer_json["model"]
        if isinstance(model["vocab"], dict):
            token_by_id = {token_id: token for token, token_id in model["vocab"].items()}
        else:  # Unigram: pairs of a token and its logarithmic probability
            token_by_id = {token_id: token for token_id, (token, _) in enumerate(model["vocab"])}
        token_by_id |= {
            added_token["id"]: added_token["content"]
            for added_token in tokenizer_json.get("added_tokens") or []
        }
        rows = [
            {"token_id": token_id, "token": token_by_id[token_id]}
            for token_id in sorted(token_by_id)
        ]
        tokenizer_kind = str(model.get("type") or "not said in tokenizer.json")
        return tokenizer_kind, pa.Table.from_pylist(rows, schema=VOCABULARY_SCHEMA)
    except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        raise HallmarkError(
            f"{path}: is no tokenizer of the tokenizers library ({str(error)[:120]!r}); make the "
            f"checkpoint again"
        ) from error
