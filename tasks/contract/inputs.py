"""Select the inputs of a stage and compute their digests and lineage.

``stage_call.py`` uses these functions to bind the inputs of a call and compute its fingerprint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hallmark.tasks.contract.artifact import Artifact, Table
from hallmark.tasks.contract.tombstones import add_rewritten_digest


def select_input_table(input_value: Any, table_name: str) -> Any:
    """Return the named table of an artifact, or one table over several artifacts in order.

    Any other value, such as a table or None, is returned unchanged.
    """
    if isinstance(input_value, Artifact):
        return input_value[table_name]
    if isinstance(input_value, Sequence):
        return Table(
            tuple(artifact[table_name].artifacts[0] for artifact in input_value), table_name
        )
    return input_value


def compute_digest_and_lineage(input_value: Any) -> tuple[Any, Any]:
    """Return the digest of an input for the fingerprint, and the name of the input's origin.

    Both are lists for a table of several artifacts, dicts for a mapping, and None for None.

    Raises:
        TypeError: The input is no table, artifact, mapping or None.
    """
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
    raise TypeError(
        f"an input of a stage must be a table or an artifact, not {type(input_value).__name__}"
    )


def select_input_contents(input_value: Any, names: Sequence[str]) -> Any:
    """Reduce an artifact, or each artifact of a mapping, to the named tables and files."""
    if isinstance(input_value, Mapping):
        return {key: select_input_contents(item, names) for key, item in input_value.items()}
    return input_value.select_contents(names) if isinstance(input_value, Artifact) else input_value


def iter_artifacts(input_values: Iterable[Any]) -> Iterator[Artifact]:
    """Yield every artifact among inputs, including those of tables and mappings."""
    for value in input_values:
        if isinstance(value, Mapping):
            yield from iter_artifacts(value.values())
        elif isinstance(value, Table):
            yield from value.artifacts
        elif value is not None:
            yield value
