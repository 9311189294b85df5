"""Committing what a stage left: its accounts are checked, its manifest is written."""

from __future__ import annotations

import platform
import resource
import shutil
import socket
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.contract import accounts
from tasks.contract.artifact import Artifact, Manifest, content_digest, describe
from tasks.contract.columns import column, table
from tasks.contract.fingerprint import fingerprint
from tasks.contract.tables import LEDGER
from tasks.contract.work import Clock, Work

if TYPE_CHECKING:
    from tasks.contract.stages import Call

TELEMETRY = table(
    "What the stage cost on this machine; no part of its content.",
    column("metric", pa.string(), "label", "what was measured or noted"),
    column("value", pa.float64(), "figure", "the measurement, in the unit beside it"),
    column("unit", pa.string(), "label", "unit of the value"),
    column("note", pa.string(), "label", "a name instead of a value: host, platform, Python"),
)


def commit(call: Call, work: Work, clock: Clock) -> Artifact:
    """Check the accounts, write the telemetry and the manifest, and move all into the store."""
    work.close()
    tables = work.assemble(call.stage.tables)
    if call.stage.conserves:
        _balance(call, work, tables)
        tables |= work.assemble(("accounts", "checksums"))
    if "accounts" in tables:
        accounts.check(call.label, _rows(work, tables["accounts"]))
    if "checksums" in tables:
        accounts.check_sums(call.label, _rows(work, tables["checksums"]))
    _measure(work, clock)
    telemetry = work.assemble([*call.stage.telemetry, "telemetry"])
    parts = {p["name"] for entry in (tables | telemetry).values() for p in entry["parts"]}
    header = _header(call, work, tables, _files(work.out, parts))
    return call.session.store.commit(work.out, header | {"telemetry": telemetry})


def _rows(work: Work, entry: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for p in entry["parts"] for row in pq.read_table(work.out / p["name"]).to_pylist()]


def _balance(call: Call, work: Work, tables: dict[str, Any]) -> None:
    """Write the accounts of a stage that takes documents, and leaves documents and a ledger."""
    if call.stage.tables["ledger"].names != LEDGER.names:
        raise TypeError(f"{call.stage.name}: its ledger does not have the LEDGER schema")
    counts = [accounts.merged(part["counts"] for part in tables[name]["parts"])
              for name in ("documents", "ledger")]  # fmt: skip
    entered = call.arguments["documents"].counts
    books = accounts.balance(entered, *counts)
    work.table("accounts").write(pa.Table.from_pylist(books, schema=accounts.ACCOUNTS))
    sums = accounts.checksums(entered, *counts)
    work.table("checksums").write(pa.Table.from_pylist(sums, schema=accounts.CHECKSUMS))


def _measure(work: Work, clock: Clock) -> None:
    wall, cpu = clock.read()
    work.measure("seconds", wall, "s")
    work.measure("cpu_seconds", cpu, "s")
    work.measure("peak_memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MiB")
    notes = {"host": socket.gethostname(), "platform": platform.platform()}
    notes["python"] = platform.python_version()
    rows = [{**m, "note": None} for m in work.measurements]
    rows += [{"metric": k, "value": None, "unit": None, "note": v} for k, v in notes.items()]
    work.table("telemetry").write(pa.Table.from_pylist(rows, schema=TELEMETRY))


def _files(folder: Path, known: Collection[str] = ()) -> dict[str, Any]:
    """Manifest entries of the files below a folder that are no parts of tables."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in paths]
    return {name: describe(folder, name) for name in names if name not in known}


def _header(call: Call, work: Work, tables: dict[str, Any], files: dict[str, Any]) -> Manifest:
    return {
        "stage": call.stage.name,
        "fingerprint": call.fingerprint,
        "content": content_digest(tables, files),
        "determinism": work.determinism,
        "tables": tables,
        "files": files,
        "parts": call.parts,
        "lineage": call.lineage,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def commit_child(
    call: Call, work: Work, name: str, key: Mapping[str, Any], folder: Path
) -> Artifact:
    """Commit a folder as an artifact of its own while its stage goes on (a checkpoint)."""
    parts = {"stage": name, "parent": call.fingerprint, "key": dict(key)}
    digest = fingerprint(parts)
    found = call.session.store.find(name, digest)
    if found is None:
        manifest = _header(call, work, {}, _files(folder)) | {"telemetry": {}, "stage": name}
        manifest |= {"fingerprint": digest, "parts": parts}
        found = call.session.store.commit(folder, manifest)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return found
