"""Record and check the version of the format of a store.

    <store>/store-format.json          the version, created with the first run

The version says how the store is divided into objects. The layout of an artifact, the format of
run.json and that of a request have versions of their own, which each manifest and run.json name.
docs/store.md lists the versions of each.
"""

from __future__ import annotations

import json
import time
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from hallmark.tasks.contract.errors import HallmarkError
from hallmark.tasks.contract.manifests import describe_validation_problem
from hallmark.tasks.contract.object_store import STORE_FORMAT_KEY, ObjectStore

#: The version of the format of stores that this version of Hallmark reads and writes.
STORE_FORMAT = 1

#: Seconds for which a process does not read the format of a remote store again.
FORMAT_VALIDITY_SECONDS = 60.0

#: When this process found that a remote store has this format, in monotonic seconds, by address.
_check_times: dict[str, float] = {}


class _StoreFormat(BaseModel):
    """The object; a newer format may have more fields."""

    model_config = ConfigDict(strict=True, extra="allow")

    format: Annotated[int, Field(ge=1)]


_STORE_FORMAT = TypeAdapter(_StoreFormat)


def check_store_format(store: ObjectStore) -> bool:
    """Check that this version of Hallmark reads the format of a store.

    A store without the object is empty, or older than the object. Its format is then version 1,
    which is the same.

    Returns:
        Whether the store records its format.

    Raises:
        HallmarkError: The format is another version, or the object that records it is damaged.
    """
    if store.root_folder is None:
        checked_at = _check_times.get(store.uri)
        if checked_at is not None and time.monotonic() - checked_at < FORMAT_VALIDITY_SECONDS:
            return True
    content = store.get(STORE_FORMAT_KEY)
    if content is None:
        return False
    address = f"{store.root_folder or store.uri}/{STORE_FORMAT_KEY}"
    try:
        version = _STORE_FORMAT.validate_json(content).format
    except ValidationError as error:
        raise HallmarkError(
            f"{address} is damaged ({describe_validation_problem(error)}), so the store's format "
            "is unknown; restore the file from a backup of the store, or remove it if no newer "
            "version of Hallmark has written to the store"
        ) from error
    if version != STORE_FORMAT:
        raise HallmarkError(
            f"the store {store.uri} has format {version}, but this version of Hallmark reads "
            f"format {STORE_FORMAT}; use the version of Hallmark that wrote the store, or specify "
            "another store with --store or in HALLMARK_STORE"
        )
    if store.root_folder is None:
        _check_times[store.uri] = time.monotonic()
    return True


def record_store_format(store: ObjectStore) -> None:
    """Record the format of a store before something is written to it, unless that was done.

    Raises:
        HallmarkError: The format is another version, also if another process wrote it meanwhile.
    """
    if check_store_format(store):
        return
    content = json.dumps({"format": STORE_FORMAT}).encode()
    # Another process that writes the same content meanwhile means the same.
    if not store.create_if_absent(STORE_FORMAT_KEY, content) and not check_store_format(store):
        raise HallmarkError(
            f"{store.root_folder or store.uri}/{STORE_FORMAT_KEY} is a folder instead of a file; "
            "remove it, then run again"
        )
