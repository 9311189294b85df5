"""Read config, tensors and vocabulary of a checkpoint from its files, without loading the model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from hallmark.reports.page.document import Code, InlineContent, InlineElement
from hallmark.reports.page.figures import FigureBook
from hallmark.reports.sections.findings import get_audit_title
from hallmark.tasks.contract import Artifact, HallmarkError, column, table_schema

TENSOR_SCHEMA = table_schema(
    "The tensors in a safetensors file.",
    column("tensor_name", pa.string(), "label", "tensor name"),
    column("dtype", pa.string(), "label", "tensor data type"),
    column("shape", pa.list_(pa.int64()), "figure", "tensor dimensions"),
    column("parameter_count", pa.int64(), "figure", "number of elements", unit="parameters"),
)

#: A token counts as a label, not as corpus text: it is a piece of a word.
VOCABULARY_SCHEMA = table_schema(
    "The tokens of a tokenizer.",
    column("token_id", pa.int64(), "id", "the token's id"),
    column("token", pa.string(), "label", "the token, as written in tokenizer.json"),
)

_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library


class ConfigSetting(NamedTuple):
    """A value of config.json.

    Attributes:
        name: Its keys, joined by dots, such as "model.width".
        value: The value as text.
    """

    name: str
    value: str


class StoredVocabulary(NamedTuple):
    """The vocabulary in tokenizer.json.

    Attributes:
        tokenizer_kind: The kind of the tokenizer, such as "BPE".
        tokens: The tokens, with the columns of ``VOCABULARY_SCHEMA``, in order of ids.
    """

    tokenizer_kind: str
    tokens: pa.Table


def read_tensor_table_by_file_name(checkpoint: Artifact) -> dict[str, pa.Table]:
    """Read a table of the tensors of each safetensors file, from its header alone.

    Raises:
        HallmarkError: If a header is damaged.
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
    """Read the header of a safetensors file: 8 bytes of length, little-endian, then JSON."""
    try:
        with path.open("rb") as file:
            header_length = int.from_bytes(file.read(8), "little")
            if header_length > _MAX_HEADER_BYTES:
                raise ValueError(f"the header is too large ({header_length:,} bytes)")
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
            f"{path} is not a valid safetensors file ({str(error)[:120]!r}); recreate the "
            "checkpoint"
        ) from error


def read_file_rows(artifact: Artifact, file_name: str) -> pa.Table:
    """Read the rows of a file of a checkpoint that support figures.

    Raises:
        HallmarkError: If the file is damaged, or no figure is computed from such files.
    """
    if file_name == "tokenizer.json" and (vocabulary := read_vocabulary(artifact)) is not None:
        return vocabulary.tokens
    if file_name.endswith(".safetensors"):
        return _read_safetensors_header(artifact.fetch_file(file_name))
    raise HallmarkError(
        f"the {file_name!r:.80} file of {artifact.name} has no rows that support figures"
    )


def describe_parameter_counts(book: FigureBook, checkpoint: Artifact) -> InlineContent:
    """Return the number of stored parameters by file.

    The book must contain the checkpoint under the label "checkpoint".
    """
    parts: list[InlineElement] = []
    for file_name, tensor_table in read_tensor_table_by_file_name(checkpoint).items():
        figure = book.add_computed_figure(
            f"parameters-{file_name}",
            f"number of parameters stored in {file_name}",
            "parameters",
            ("checkpoint", file_name),
            aggregate="sum",
            value_column="parameter_count",
            file_rows=tensor_table,
        )
        parts += [" and " if parts else "", figure, " in ", Code(file_name)]
    return parts or ["not known: the checkpoint has no safetensors file"]


def describe_inference_settings(audits: Mapping[str, Artifact]) -> str:
    """Describe the weights' data type, the precision and the batches of the audited model.

    Args:
        audits: The audits by name; if their settings differ, each description names its audits.
    """
    audits_by_description: dict[str, list[str]] = {}
    for audit, artifact in audits.items():
        rows = artifact["model"].read().to_pylist() if "model" in artifact.tables else []
        for row in rows:
            description = f"weights in {row['dtype']}"
            if (row["dtype"], row["precision"]) == ("float32", "bf16"):
                description += ", matrix products in bfloat16"
            if row["batch_size"] is not None:
                description += f", at most {row['batch_size']} rows per model call"
            audits_by_description.setdefault(description, []).append(get_audit_title(audit))
    if not audits_by_description:
        return "Not known."
    if len(audits_by_description) == 1:
        (description,) = audits_by_description
        return f"{description[:1].upper()}{description[1:]}."
    return " ".join(
        f"{', '.join(titles)}: {description}."
        for description, titles in audits_by_description.items()
    )


def read_config_settings(checkpoint: Artifact) -> list[ConfigSetting]:
    """Return the scalar values and short lists of config.json, with dotted names.

    Settings without a value, null or an empty text or list, are omitted. The list is empty if the
    checkpoint has no config.json.
    """
    if "config.json" not in checkpoint.manifest["files"]:
        return []
    path = checkpoint.fetch_file("config.json")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise HallmarkError(
            f"{path} is not valid JSON ({str(error)[:120]!r}); recreate the checkpoint"
        ) from error
    return list(_flatten_config(config, ""))


def _flatten_config(value: Any, prefix: str) -> Iterator[ConfigSetting]:
    if isinstance(value, dict):
        for key, element in value.items():
            yield from _flatten_config(element, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list):
        if 0 < len(value) <= 8 and not any(isinstance(element, dict | list) for element in value):
            yield ConfigSetting(prefix, ", ".join(map(str, value)))
    elif value not in (None, ""):
        yield ConfigSetting(prefix, json.dumps(value) if not isinstance(value, str) else value)


def read_vocabulary(checkpoint: Artifact) -> StoredVocabulary | None:
    """Return the kind of the tokenizer and its tokens, as tokenizer.json spells them.

    Returns:
        None if the checkpoint has no tokenizer.json.

    Raises:
        HallmarkError: If tokenizer.json is damaged.
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
        tokenizer_kind = str(model.get("type") or "not specified in tokenizer.json")
        return StoredVocabulary(
            tokenizer_kind, pa.Table.from_pylist(rows, schema=VOCABULARY_SCHEMA)
        )
    except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        raise HallmarkError(
            f"{path} cannot be loaded by the tokenizers library ({str(error)[:120]!r}); "
            "recreate the checkpoint"
        ) from error
