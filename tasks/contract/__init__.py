"""The stage contract: what every stage stands on, behind this one face.

Stages, reports and flows import from here and nowhere deeper. The contract imports nothing else of
ours; only ``stages`` and ``prefect_ui`` import Prefect, when a stage runs inside a flow.
"""

from tasks.contract import accounts
from tasks.contract.accounts import ACCOUNTS, TERMS
from tasks.contract.artifact import Artifact, Shard, Table, external
from tasks.contract.columns import (
    KINDS,
    Column,
    column,
    described,
    extend,
    is_cut,
    meaning,
    table,
)
from tasks.contract.errors import HallmarkError, UsageError
from tasks.contract.fingerprint import ROOT, canonical, file_digest, library_versions, sha256
from tasks.contract.mappers import InProcess, Mapper, Processes
from tasks.contract.session import Event, Finished, Session, current_session, open_session
from tasks.contract.settings import Device, NoConfig, PlainName, Seed, StageConfig, torch_device
from tasks.contract.stages import STAGES, TELEMETRY, Stage, stage
from tasks.contract.store import Store
from tasks.contract.tables import (
    DOCUMENTS,
    ID,
    LEDGER,
    PLANTS,
    SCORED,
    SPLIT,
    ids,
    ledger_rows,
    text_hashes,
    utf8_bytes,
)
from tasks.contract.work import Part, Tables, Work

__all__ = [
    "ACCOUNTS",
    "DOCUMENTS",
    "ID",
    "KINDS",
    "LEDGER",
    "PLANTS",
    "ROOT",
    "SCORED",
    "SPLIT",
    "STAGES",
    "TELEMETRY",
    "TERMS",
    "Artifact",
    "Column",
    "Device",
    "Event",
    "Finished",
    "HallmarkError",
    "InProcess",
    "Mapper",
    "NoConfig",
    "Part",
    "PlainName",
    "Processes",
    "Seed",
    "Session",
    "Shard",
    "Stage",
    "StageConfig",
    "Store",
    "Table",
    "Tables",
    "UsageError",
    "Work",
    "accounts",
    "canonical",
    "column",
    "current_session",
    "described",
    "extend",
    "external",
    "file_digest",
    "ids",
    "is_cut",
    "ledger_rows",
    "library_versions",
    "meaning",
    "open_session",
    "sha256",
    "stage",
    "table",
    "text_hashes",
    "torch_device",
    "utf8_bytes",
]
