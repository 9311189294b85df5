"""Watch folders and buckets to which other trainers write, and request an audit of each checkpoint.

A checkpoint is audited when it is complete and two polls in a row saw the same files. What was
requested is recorded in the store by the digest of the checkpoint, and Prefect's server creates one
flow run for each digest. So several watchers, or one that is started again, request each version
once:

    <store>/watched/<digest>.json             the version whose audit was requested
    <store>/watched/listing-<digest>.json     the digest of objects with these ETags, which are
                                              therefore not read again
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hallmark.flows.checkpoint_completeness import find_missing_part
from hallmark.flows.checkpoint_sources import CheckpointListing, list_checkpoints
from hallmark.flows.checkpoint_versions import (
    DIGEST_PATTERN,
    CheckpointVersion,
    check_copy_fits,
    copy_checkpoint,
    hash_checkpoint,
    remove_unused_copy,
)
from hallmark.flows.run_request import RunRequest
from hallmark.tasks.contract import (
    ExternalMarker,
    HallmarkError,
    Store,
    UsageError,
    check_external_path,
    escape_name,
    format_current_time,
    sha256_hex,
)

log = logging.getLogger("hallmark")

#: Default number of seconds between two looks at the watched places.
POLL_SECONDS = 2.0

#: Seconds for which a checkpoint must have been the same before its problem is reported. A trainer
#: may pause for that long between two files.
REPORT_SECONDS = 30.0

#: Seconds after an error before a checkpoint is read again.
RETRY_SECONDS = 10.0

#: Number of problems that are remembered as reported.
MAX_REPORTED = 10_000

#: Prefix of the records in the store.
WATCHED_PREFIX = "watched"

#: Number of characters of a location in a message.
MAX_LOCATION_CHARACTERS = 300


class AuditRequester:
    """Request audits of watched checkpoints from a Prefect server.

    Args:
        store: The store of the audits.
        request: The request of each audit, apart from its checkpoint.
    """

    def __init__(self, store: Store, request: RunRequest) -> None:
        self.store = store
        self.request = request

    @property
    def deployment_name(self) -> str:
        """Its name contains the beginning of the store's id, as ``each-checkpoint-ID`` does."""
        return f"watched-{self.store.compute_secret_id()[:8]}"

    def request_audit(self, version: CheckpointVersion) -> str | None:
        """Create the flow run that audits a version, unless there is one.

        Returns:
            The id of the flow run; None if the server cannot create one now.

        Raises:
            HallmarkError: The server refuses the request.
        """
        import httpx
        from prefect.client.orchestration import get_client
        from prefect.exceptions import ObjectNotFound

        request = self.request.with_changes(checkpoint=version.name)
        try:
            with get_client(sync_client=True) as client:
                deployment = client.read_deployment_by_name(f"audit/{self.deployment_name}")
                flow_run = client.create_flow_run_from_deployment(
                    deployment.id,
                    parameters=request.given_parameters,
                    idempotency_key=f"{self.store.compute_secret_id()}-{version.digest}",
                )
        except ObjectNotFound:  # it is being registered
            return None
        except httpx.HTTPStatusError as error:
            if error.response.is_server_error:
                return None
            raise HallmarkError(
                f"the Prefect server refused the audit request: {str(error).splitlines()[0]}"
            ) from error
        except httpx.HTTPError:  # ``DeploymentRunner`` says that the server is away
            return None
        return str(flow_run.id)


@dataclass
class _CheckpointState:
    """What the watcher knows about a checkpoint.

    Attributes:
        state: The state of its files at the last poll.
        since: The monotonic time at which this state was seen first.
        problem: Why the checkpoint with this state cannot be audited; None if it is not known.
        version: The version with this state; None if it is not known.
        is_done: Whether nothing is to be done until the state changes.
        retry_at: The monotonic time before which nothing is tried again after an error.
    """

    state: Any = None
    since: float = 0.0
    problem: str | None = None
    version: CheckpointVersion | None = None
    is_done: bool = False
    retry_at: float = 0.0


@dataclass
class CheckpointWatcher:
    """Find new checkpoints in a folder or bucket, and request their audits.

    Attributes:
        requester: Requests the audits.
        location: The watched folder, as an absolute path, or URI.
        report_seconds: See ``REPORT_SECONDS``.
    """

    requester: AuditRequester
    location: str
    report_seconds: float = REPORT_SECONDS
    _states: dict[str, _CheckpointState] = field(default_factory=dict)
    _reported: set[tuple[str, str]] = field(default_factory=set)
    _problem: str | None = None

    def poll(self) -> None:
        """Look at the location once; report a problem once until it can be listed again."""
        try:
            listings = list_checkpoints(self.location)
        except (HallmarkError, OSError) as error:
            if str(error) != self._problem:
                log.warning("--watch %s: %s; watching continues", self.location, error)
            self._problem = str(error)
            return
        self._problem = None
        for listing in listings:
            self._examine(listing)
        for location in self._states.keys() - {listing.location for listing in listings}:
            del self._states[location]

    def _examine(self, listing: CheckpointListing) -> None:
        known = self._states.setdefault(listing.location, _CheckpointState())
        if known.state != listing.state:
            self._states[listing.location] = _CheckpointState(listing.state, time.monotonic())
            return
        if known.is_done or time.monotonic() < known.retry_at:
            return
        problem = known.problem
        try:
            if problem is None and known.version is None:
                problem = known.problem = find_missing_part(listing)
            if problem is None:
                known.is_done = self._request_audit(listing, known)
        except (HallmarkError, OSError) as error:  # which may disappear while the files stay
            problem = str(error).splitlines()[0]
            known.retry_at = time.monotonic() + RETRY_SECONDS
        if problem is not None and time.monotonic() - known.since >= self.report_seconds:
            known.is_done = known.problem is not None
            self._report_checkpoint(listing.location, problem)

    def _report_checkpoint(self, location: str, problem: str) -> None:
        """Log a problem of a checkpoint once."""
        if (location, problem) not in self._reported:
            if len(self._reported) >= MAX_REPORTED:
                self._reported.clear()
            self._reported.add((location, problem))
            shown_location = escape_name(location, MAX_LOCATION_CHARACTERS)
            log.warning(
                "%s was not audited: %s; it will be audited once the problem has been fixed",
                shown_location,
                problem,
            )

    def _request_audit(self, listing: CheckpointListing, known: _CheckpointState) -> bool:
        """Request the audit of a complete checkpoint; return whether nothing more is to be done."""
        store = self.requester.store
        if known.version is None:
            digest = self._find_digest_of_objects(listing) or self._copy_new_version(listing)
            known.version = CheckpointVersion(listing.location, digest)
        version = known.version
        key = f"{WATCHED_PREFIX}/{version.digest}.json"
        if store.get(key) is None:
            flow_run_id = self.requester.request_audit(version)
            if flow_run_id is None:
                return False
            record = {
                "checkpoint": version.name,
                "flow_run": flow_run_id,
                "requested": format_current_time(),
                "token": secrets.token_hex(8),
            }
            if store.create_if_absent(key, json.dumps(record).encode()):
                shown_name = escape_name(version.short_name, MAX_LOCATION_CHARACTERS)
                print(f"requested an audit of the checkpoint {shown_name}", flush=True)
        if listing.objects is not None:
            content = json.dumps({"digest": version.digest, "token": secrets.token_hex(8)})
            store.create_if_absent(_get_listing_key(listing), content.encode())
        return True

    def _find_digest_of_objects(self, listing: CheckpointListing) -> str | None:
        """Return the recorded digest of objects with these ETags; None for a folder."""
        if listing.objects is None:
            return None
        content = self.requester.store.get(_get_listing_key(listing))
        if content is None:
            return None
        try:
            digest = json.loads(content)["digest"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        is_digest = isinstance(digest, str) and DIGEST_PATTERN.fullmatch(digest)
        return digest if is_digest else None

    def _copy_new_version(self, listing: CheckpointListing) -> str:
        """Compute the digest of a checkpoint, and copy it unless its audit was requested."""
        store = self.requester.store
        if listing.objects is None:
            check_copy_fits(store, listing)
            digest = hash_checkpoint(listing)
            if self._was_requested(digest):
                return digest
        with copy_checkpoint(store, listing) as digest:
            pass
        if self._was_requested(digest):
            remove_unused_copy(store, digest)
        return digest

    def _was_requested(self, digest: str) -> bool:
        return self.requester.store.get(f"{WATCHED_PREFIX}/{digest}.json") is not None


def _get_listing_key(listing: CheckpointListing) -> str:
    content = [listing.location, sorted(map(str, listing.model_files.items()))]
    return f"{WATCHED_PREFIX}/listing-{sha256_hex(json.dumps(content).encode())}.json"


def resolve_watched_locations(locations: Sequence[str]) -> list[str]:
    """Make folders absolute, and check that they exist and are inside the allowed roots.

    Raises:
        UsageError: One does not exist, or is outside; the error names ``--watch``.
    """
    resolved_locations = []
    for location in locations:
        check_external_path(location, "--watch", ExternalMarker(recursive=False))
        if "://" not in location:
            location = os.path.abspath(os.path.expanduser(location))
            if not os.path.isdir(location):
                raise UsageError(
                    f"--watch {location}: there is no such folder; create it or correct the path"
                )
        resolved_locations.append(location.rstrip("/") or "/")
    return [*dict.fromkeys(resolved_locations)]


@contextmanager
def watch_checkpoints(watchers: Sequence[CheckpointWatcher], poll_seconds: float) -> Iterator[None]:
    """Poll while the context is open, each location in a thread: a bucket may answer slowly."""
    has_ended = threading.Event()

    def repeat(watcher: CheckpointWatcher) -> None:
        while not has_ended.wait(poll_seconds):
            try:
                watcher.poll()
            except Exception:
                log.exception(
                    "an error occurred while watching %s; watching continues", watcher.location
                )

    for watcher in watchers:
        # A daemon, because reading a large checkpoint must not delay the end of the process.
        threading.Thread(target=repeat, args=[watcher], daemon=True).start()
    try:
        yield
    finally:
        has_ended.set()
