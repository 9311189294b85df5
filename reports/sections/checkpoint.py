"""What the files of a checkpoint tell without loading it: its config, tensors and vocabulary."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from reports.page.document import Code, Inline, Parts
from reports.page.figures import Book
from tasks.contract import Artifact, HallmarkError, column, table

TENSORS = table(
    "The tensors of a safetensors file.",
    column("name", pa.string(), "label", "the tensor"),
    column("dtype", pa.string(), "label", "type of its numbers"),
    column("shape", pa.list_(pa.int64()), "figure", "its dimensions"),
    column("parameters", pa.int64(), "figure", "numbers in it", unit="parameters"),
)

#: A token names its id; it is a piece of a word, and no text of the corpus.
VOCABULARY = table(
    "The tokens of a tokenizer.",
    column("id", pa.int64(), "id", "the token's id"),
    column("token", pa.string(), "label", "the token as tokenizer.json spells it"),
)

_LARGEST_HEADER = 100_000_000  # bytes; what the safetensors library allows


def tensors(checkpoint: Artifact) -> dict[str, pa.Table]:
    """The tensors in each safetensors file, from its header alone.

    Raises HallmarkError where a header is damaged.
    """
    names = sorted(n for n in checkpoint.manifest["files"] if n.endswith(".safetensors"))
    return {name: _read_header(checkpoint.path(name)) for name in names}


def _read_header(path: Path) -> pa.Table:
    """Format: 8 bytes of length, little-endian, and as many bytes of JSON."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > _LARGEST_HEADER:
                raise ValueError(f"its header claims {length:,} bytes")
            header = json.loads(file.read(length))
        rows = [
            {
                "name": name,
                "dtype": entry["dtype"],
                "shape": entry["shape"],
                "parameters": math.prod(entry["shape"]),
            }
            for name, entry in header.items()
            if name != "__metadata__"
        ]
        return pa.Table.from_pylist(rows, schema=TENSORS)
    except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        raise HallmarkError(
            f"{path}: is no safetensors file ({str(error)[:120]!r}); make the checkpoint again"
        ) from error


def parameters(book: Book, checkpoint: Artifact) -> Parts:
    """How many numbers the checkpoint stores; in the book its label is "checkpoint"."""
    parts: list[Inline] = []
    for name, data in tensors(checkpoint).items():
        figure = book.figure(
            f"parameters-{name}", f"parameters stored in {name}", "parameters",
            ("checkpoint", name), aggregate="sum", column="parameters", data=data,
        )  # fmt: skip
        parts += [" and " if parts else "", figure, " in ", Code(name)]
    return parts or ["not known: the checkpoint has no safetensors file"]


def settings(checkpoint: Artifact) -> list[tuple[str, str]]:
    """The simple values of config.json, nested ones with dotted names; empty without the file."""
    if "config.json" not in checkpoint.manifest["files"]:
        return []
    path = checkpoint.path("config.json")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise HallmarkError(f"{path}: is not valid JSON ({str(error)[:120]!r})") from error
    return list(_flat(config, ""))


def _flat(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        if len(value) <= 8 and not any(isinstance(item, dict | list) for item in value):
            yield name, ", ".join(map(str, value))
    else:
        yield name, json.dumps(value) if not isinstance(value, str) else value


def vocabulary(checkpoint: Artifact) -> tuple[str, pa.Table] | None:
    """The kind of the tokenizer and its tokens by their ids, as tokenizer.json spells them.

    None without the file; HallmarkError where it is damaged.
    """
    if "tokenizer.json" not in checkpoint.manifest["files"]:
        return None
    path = checkpoint.path("tokenizer.json")
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        model = stored["model"]
        if isinstance(model["vocab"], dict):
            tokens = {number: token for token, number in model["vocab"].items()}
        else:  # Unigram: pairs of a token and its logarithmic probability
            tokens = {number: token for number, (token, _) in enumerate(model["vocab"])}
        tokens |= {added["id"]: added["content"] for added in stored.get("added_tokens") or []}
        rows = [{"id": number, "token": tokens[number]} for number in sorted(tokens)]
        kind = str(model.get("type") or "not said in tokenizer.json")
        return kind, pa.Table.from_pylist(rows, schema=VOCABULARY)
    except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        raise HallmarkError(
            f"{path}: is no tokenizer of the tokenizers library ({str(error)[:120]!r}); make the "
            f"checkpoint again"
        ) from error
