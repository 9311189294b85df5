"""What a stage is given: tables and artifacts, what of them counts, and where they came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tasks.contract.artifact import Artifact, Table
from tasks.contract.tombstones import as_read


def table_of(given: Any, name: str) -> Any:
    """The table of that name of an artifact, or of several, one behind the other."""
    if isinstance(given, Artifact):
        return given[name]
    if isinstance(given, Sequence):
        return Table(tuple(artifact[name].artifacts[0] for artifact in given), name)
    return given


def digests_of(value: Any) -> tuple[Any, Any]:
    """What counts of an input, and where it came from; of a table of several artifacts lists."""
    if value is None:
        return None, None
    if isinstance(value, Table):
        digests = [as_read(entry["sha256"], entry["parts"]) for entry in value.entries]
        names = [f"{artifact.name}#{value.name}" for artifact in value.artifacts]
        return (digests[0], names[0]) if len(names) == 1 else (digests, names)
    if isinstance(value, Artifact):
        tables = [part for table in value.manifest["tables"].values() for part in table["parts"]]
        return as_read(value.content, [*tables, *value.manifest["files"].values()]), value.name
    if isinstance(value, Mapping):
        pairs = {key: digests_of(item) for key, item in value.items()}
        return {k: p[0] for k, p in pairs.items()}, {k: p[1] for k, p in pairs.items()}
    raise TypeError(f"a stage reads tables and artifacts, not {type(value).__name__}")


def only(value: Any, names: Sequence[str]) -> Any:
    """An artifact, or each of several, with these tables and files alone."""
    if isinstance(value, Mapping):
        return {key: only(item, names) for key, item in value.items()}
    return value.only(names) if isinstance(value, Artifact) else value


def artifacts_of(values: Iterable[Any]) -> Iterator[Artifact]:
    for value in values:
        if isinstance(value, Mapping):
            yield from artifacts_of(value.values())
        elif isinstance(value, Table):
            yield from value.artifacts
        elif value is not None:
            yield value
