"""Record in a store which versions of a model were released.

    <store>/releases/<run id>.json        name and version of the model, its checkpoint, the time

``hallmark release`` writes a record for the run that audited the checkpoint. The next version of
the same name finds it and is compared with it. A record is never overwritten. The number in a
record gives its order, since the clocks of hosts may differ.
"""

from __future__ import annotations

import logging

from pydantic import BaseModel, ConfigDict, ValidationError

from hallmark.tasks.contract import Store, format_current_time

log = logging.getLogger("hallmark")

RELEASED_VERSIONS_FOLDER = "releases"


class ReleasedVersion(BaseModel):
    """A released version of a model.

    Attributes:
        name: The name of the model, as its card has it.
        version: The version, as stated in the config; empty if it was not.
        run: The run that audited the checkpoint.
        checkpoint: The content digest of the checkpoint.
        released: The time of the release, in UTC.
        number: One more than the largest number in the store at the time of the release.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    version: str
    run: str
    checkpoint: str
    released: str
    number: int


def record_released_version(
    store: Store, *, name: str, version: str, run: str, checkpoint: str
) -> None:
    """Record a release, unless the same audit of this checkpoint was released before.

    The arguments are those of ``ReleasedVersion``.
    """
    earlier_versions = read_released_versions(store)
    version_record = ReleasedVersion(
        name=name,
        version=version,
        run=run,
        checkpoint=checkpoint,
        released=format_current_time(),
        number=max((earlier.number for earlier in earlier_versions), default=0) + 1,
    )
    store.create_if_absent(
        f"{RELEASED_VERSIONS_FOLDER}/{run}.json", version_record.model_dump_json().encode()
    )


def read_released_versions(store: Store) -> list[ReleasedVersion]:
    """Read the releases of a store, oldest first; damaged records are skipped with a warning."""
    versions = []
    for key in sorted(store.list_object_sizes(RELEASED_VERSIONS_FOLDER)):
        try:
            versions.append(ReleasedVersion.model_validate_json(store.get(key) or b""))
        except ValidationError:
            log.warning(
                "%s/%s is damaged, so this release is not compared with later versions; remove the "
                "file, and release the run again",
                store.uri,
                key,
            )
    return sorted(versions, key=lambda version: (version.number, version.run))


def find_release_before(
    versions: list[ReleasedVersion], name: str, checkpoint_digest: str | None
) -> ReleasedVersion | None:
    """Find the release that precedes a checkpoint.

    Args:
        versions: All releases, oldest first.
        name: The name of the model.
        checkpoint_digest: The content digest of the checkpoint; None if it does not exist yet.

    Returns:
        The newest release of this name; if the checkpoint was released itself, the newest one
        before, so that a release does not change later cards of the same checkpoint.
    """
    earlier = None
    for version in versions:
        if version.name != name:
            continue
        if version.checkpoint == checkpoint_digest:
            break
        earlier = version
    return earlier
