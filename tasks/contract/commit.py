"""Commit the output of a stage: check its accounts, write its manifest, move it into the store.

``stages.py`` calls this after the stage body has finished, and for artifacts that a stage commits
while it runs (checkpoints).
"""

from __future__ import annotations

import platform
import shutil
import socket
from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from hallmark.tasks.contract import accounts
from hallmark.tasks.contract.artifact import Artifact, build_file_entry
from hallmark.tasks.contract.corpus_tables import LEDGER
from hallmark.tasks.contract.fingerprint import compute_fingerprint
from hallmark.tasks.contract.manifests import Manifest, compute_content_digest
from hallmark.tasks.contract.stage_call import TELEMETRY, StageCall
from hallmark.tasks.contract.stage_context import (
    StageContext,
    Stopwatch,
    read_peak_memory_mebibytes,
)
from hallmark.tasks.contract.tombstones import ManifestEntry

#: The units of the fields of ``ParallelUsage`` in the telemetry.
UNIT_BY_PARALLEL_METRIC = {
    "parallel_seconds": "s",
    "worker_seconds": "s",
    "worker_cpu_seconds": "s",
    "worker_peak_memory": "MiB",
    "parallel_items": "items",
    "reused_items": "items",
    "temporary_bytes": "bytes",
}


def commit_stage_output(call: StageCall, context: StageContext, stopwatch: Stopwatch) -> Artifact:
    """Check the accounts, write telemetry and manifest, and move everything into the store.

    Raises:
        HallmarkError: The accounts or checksums do not balance.
    """
    context.close()
    table_entries = context.assemble_tables(call.stage.tables)
    if call.stage.has_automatic_accounts:
        _write_accounts_and_checksums(call, context, table_entries)
        table_entries |= context.assemble_tables(("accounts", "checksums"))
    if "accounts" in table_entries:
        accounts.check_accounts_balance(
            call.label, _read_written_table_rows(context, table_entries["accounts"])
        )
    if "checksums" in table_entries:
        accounts.check_checksums_balance(
            call.label, _read_written_table_rows(context, table_entries["checksums"])
        )
    _write_telemetry(context, stopwatch)
    telemetry_entries = context.assemble_tables([*call.stage.telemetry_tables, "telemetry"])
    part_names = {
        part["name"]
        for entry in (table_entries | telemetry_entries).values()
        for part in entry["parts"]
    }
    manifest = _build_manifest(
        call, context, table_entries, _build_file_entries_by_name(context.output_folder, part_names)
    )
    return call.session.store.commit(
        context.output_folder, manifest | {"telemetry": telemetry_entries}
    )


def _read_written_table_rows(
    context: StageContext, table_entry: ManifestEntry
) -> list[dict[str, Any]]:
    return [
        row
        for part in table_entry["parts"]
        for row in pq.read_table(context.output_folder / part["name"]).to_pylist()
    ]


def _write_accounts_and_checksums(
    call: StageCall, context: StageContext, table_entries: dict[str, ManifestEntry]
) -> None:
    """Write the accounts and checksums of a stage that writes documents and a ledger."""
    if call.stage.tables["ledger"].names != LEDGER.names:
        raise TypeError(
            f"stage {call.stage.name}: its ledger must have the columns defined in LEDGER"
        )
    counts = [
        accounts.merge_counts(part["counts"] for part in table_entries[name]["parts"])
        for name in ("documents", "ledger")
    ]
    input_counts = call.arguments["documents"].source_counts
    account_rows = accounts.compute_account_rows(input_counts, *counts)
    context.get_table_writer("accounts").write(
        pa.Table.from_pylist(account_rows, schema=accounts.ACCOUNTS)
    )
    checksum_rows = accounts.compute_checksum_rows(input_counts, *counts)
    context.get_table_writer("checksums").write(
        pa.Table.from_pylist(checksum_rows, schema=accounts.CHECKSUMS)
    )


def _write_telemetry(context: StageContext, stopwatch: Stopwatch) -> None:
    wall_seconds, cpu_seconds = stopwatch.read_wall_and_cpu_seconds()
    context.record_measurement("seconds", wall_seconds, "s")
    context.record_measurement("cpu_seconds", cpu_seconds, "s")
    context.record_measurement("peak_memory", read_peak_memory_mebibytes(), "MiB")
    for metric, value in asdict(context.parallel_usage).items():
        context.record_measurement(metric, value, UNIT_BY_PARALLEL_METRIC[metric])
    notes = {"host": socket.gethostname(), "platform": platform.platform()}
    notes["python"] = platform.python_version()
    rows = [{**measurement, "note": None} for measurement in context.measurements]
    rows += [{"metric": k, "value": None, "unit": None, "note": v} for k, v in notes.items()]
    context.get_table_writer("telemetry").write(pa.Table.from_pylist(rows, schema=TELEMETRY))


def _build_file_entries_by_name(
    folder: Path, excluded_names: Collection[str] = ()
) -> dict[str, ManifestEntry]:
    """Build manifest entries of the files below a folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in paths]
    return {name: build_file_entry(folder, name) for name in names if name not in excluded_names}


def _build_manifest(
    call: StageCall,
    context: StageContext,
    table_entries: dict[str, ManifestEntry],
    file_entries: dict[str, ManifestEntry],
) -> Manifest:
    manifest = {
        "stage": call.stage.name,
        "fingerprint": call.fingerprint,
        "content": compute_content_digest(table_entries, file_entries),
        "determinism": context.determinism,
        "tables": table_entries,
        "files": file_entries,
        "parts": call.fingerprint_components,
        "lineage": call.lineage,
        "created": format_current_time(),
    }
    if call.equivalent_versions:
        manifest["equivalent_versions"] = call.equivalent_versions
    return manifest


def format_current_time() -> str:
    """Return the current time to the second, as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class CommittedChild(NamedTuple):
    """A separate artifact of a running stage.

    Attributes:
        artifact: The artifact.
        was_stored: Whether the store already had it before the commit.
    """

    artifact: Artifact
    was_stored: bool


def commit_child_artifact(
    call: StageCall,
    context: StageContext,
    stage_name: str,
    identifying_values: Mapping[str, Any],
    folder: Path,
) -> CommittedChild:
    """Commit a folder as a separate artifact (a checkpoint) while its stage continues.

    The folder is removed if the store already has the artifact. The manifest also records the
    settings of the stage, which others cannot read elsewhere until the stage ends.

    Args:
        call: The running stage.
        context: The context of the running stage.
        stage_name: Stage name under which the artifact is stored.
        identifying_values: Values that distinguish this artifact from others of the same call.
        folder: Folder with the files.
    """
    components = {
        "stage": stage_name,
        "parent": call.fingerprint,
        "config": call.fingerprint_components["config"],
        "key": dict(identifying_values),
    }
    child_fingerprint = compute_fingerprint(components)
    artifact = call.session.store.find_artifact(stage_name, child_fingerprint)
    was_stored = artifact is not None
    if artifact is None:
        file_entries = _build_file_entries_by_name(folder)
        manifest = _build_manifest(call, context, {}, file_entries) | {
            "telemetry": {},
            "stage": stage_name,
        }
        manifest |= {"fingerprint": child_fingerprint, "parts": components}
        artifact = call.session.store.commit(folder, manifest)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return CommittedChild(artifact, was_stored)
