"""Select the inputs of a stage and compute their digests and lineage.

``stage_call.py`` uses these functions to bind the inputs of a call and compute its fingerprint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hallmark.tasks.contract.artifact import Artifact, Table
from hallmark.tasks.contract.tombstones import combine_with_rewritten_digests

#: An input as a flow passes it to a stage.
StageInput = Artifact | Table | Sequence[Artifact] | Mapping[str, Any] | None


class DigestAndLineage(NamedTuple):
    """Digest and origin of an input.

    Both are lists for a table of several artifacts, dicts for a mapping, and None for None.
    """

    digest: Any
    """Digest of the contents that are read, for the fingerprint."""
    lineage: Any
    """Name of the artifact, with ``#`` and the name of the table if the input is a table."""


def select_input_table(input_value: StageInput, table_name: str) -> StageInput:
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


def compute_digest_and_lineage(input_value: StageInput) -> DigestAndLineage:
    """Compute the digest of an input for the fingerprint, and name the input's origin.

    Raises:
        TypeError: The input is no table, artifact, mapping or None.
    """
    if input_value is None:
        return DigestAndLineage(None, None)
    if isinstance(input_value, Table):
        digests = [
            combine_with_rewritten_digests(entry["sha256"], entry["parts"])
            for entry in input_value.manifest_entries
        ]
        names = [f"{artifact.name}#{input_value.name}" for artifact in input_value.artifacts]
        if len(names) == 1:
            return DigestAndLineage(digests[0], names[0])
        return DigestAndLineage(digests, names)
    if isinstance(input_value, Artifact):
        tables = [
            part for table in input_value.manifest["tables"].values() for part in table["parts"]
        ]
        digest = combine_with_rewritten_digests(
            input_value.content_digest, [*tables, *input_value.manifest["files"].values()]
        )
        return DigestAndLineage(digest, input_value.name)
    if isinstance(input_value, Mapping):
        results = {key: compute_digest_and_lineage(item) for key, item in input_value.items()}
        return DigestAndLineage(
            {key: result.digest for key, result in results.items()},
            {key: result.lineage for key, result in results.items()},
        )
    raise TypeError(
        f"a stage input must be a table or an artifact, not {type(input_value).__name__}"
    )


def select_input_contents(
    input_value: StageInput, table_names_and_file_patterns: Sequence[str]
) -> StageInput:
    """Reduce an artifact, or each artifact of a mapping, to the named tables and files."""
    if isinstance(input_value, Mapping):
        return {
            key: select_input_contents(item, table_names_and_file_patterns)
            for key, item in input_value.items()
        }
    return (
        input_value.select_contents(table_names_and_file_patterns)
        if isinstance(input_value, Artifact)
        else input_value
    )


def iter_inputs(input_values: Iterable[Any]) -> Iterator[Artifact | Table]:
    """Yield every artifact and every table among inputs, including those of mappings."""
    for value in input_values:
        if isinstance(value, Mapping):
            yield from iter_inputs(value.values())
        elif value is not None:
            yield value


def iter_artifacts(input_values: Iterable[Any]) -> Iterator[Artifact]:
    """Yield every artifact among inputs, including those of tables and mappings."""
    for value in iter_inputs(input_values):
        yield from value.artifacts if isinstance(value, Table) else (value,)
