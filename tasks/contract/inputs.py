"""What a stage is given: tables and artifacts, what of them counts, and where they came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hallmark.tasks.contract.artifact import Artifact, Table
from hallmark.tasks.contract.tombstones import add_rewritten_digest


def select_input_table(input_value: Any, table_name: str) -> Any:
    """The table of that name of an artifact, or of several, one behind the other."""
    if isinstance(input_value, Artifact):
        return input_value[table_name]
    if isinstance(input_value, Sequence):
        return Table(
            tuple(artifact[table_name].artifacts[0] for artifact in input_value), table_name
        )
    return input_value


def compute_digest_and_lineage(input_value: Any) -> tuple[Any, Any]:
    """What counts of an input, and where it came from; of a table of several artifacts lists."""
    if input_value is None:
        return None, None
    if isinstance(input_value, Table):
        digests = [
            add_rewritten_digest(entry["sha256"], entry["parts"])
            for entry in input_value.manifest_entries
        ]
        names = [f"{artifact.name}#{input_value.name}" for artifact in input_value.artifacts]
        return (digests[0], names[0]) if len(names) == 1 else (digests, names)
    if isinstance(input_value, Artifact):
        tables = [
            part for table in input_value.manifest["tables"].values() for part in table["parts"]
        ]
        return add_rewritten_digest(
            input_value.content_digest, [*tables, *input_value.manifest["files"].values()]
        ), input_value.name
    if isinstance(input_value, Mapping):
        results = {key: compute_digest_and_lineage(item) for key, item in input_value.items()}
        return {k: result[0] for k, result in results.items()}, {
            k: result[1] for k, result in results.items()
        }
    raise TypeError(f"a stage reads tables and artifacts, not {type(input_value).__name__}")


def select_input_contents(input_value: Any, names: Sequence[str]) -> Any:
    """An artifact, or each of several, with these tables and files alone."""
    if isinstance(input_value, Mapping):
        return {key: select_input_contents(item, names) for key, item in input_value.items()}
    return input_value.select_contents(names) if isinstance(input_value, Artifact) else input_value


def iter_artifacts(input_values: Iterable[Any]) -> Iterator[Artifact]:
    for value in input_values:
        if isinstance(value, Mapping):
            yield from iter_artifacts(value.values())
        elif isinstance(value, Table):
            yield from value.artifacts
        elif value is not None:
            yield value
