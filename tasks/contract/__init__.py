"""The stage contract: what every stage stands on, behind this one face.

Stages, reports and flows import from here and nowhere deeper. The contract imports nothing else of
ours; only ``stages`` and ``prefect_ui`` import Prefect, when a stage runs inside a flow.
"""

from tasks.contract import accounts
from tasks.contract.accounts import ACCOUNTS, CHECKSUMS, TERMS
from tasks.contract.artifact import Artifact, Entry, Part, Table, part_of
from tasks.contract.beside import aligned, looked_up
from tasks.contract.closure import code_digests
from tasks.contract.columns import (
    KINDS,
    Column,
    column,
    described,
    is_cut,
    meaning,
    table,
)
from tasks.contract.commit import TELEMETRY
from tasks.contract.errors import FileChangedError, GateError, HallmarkError, UsageError
from tasks.contract.external_files import (
    ExternalFiles,
    FileStamp,
    FileState,
    changed_sentence,
    file_digest,
    file_stamp,
    is_settled,
    missing_sentence,
    record_state,
)
from tasks.contract.fingerprint import ROOT, canonical, library_versions, sha256
from tasks.contract.mappers import InProcess, Mapper, Needs, Processes, make_mapper
from tasks.contract.objects import is_store_folder
from tasks.contract.roots import (
    External,
    ExternalPath,
    NamedPath,
    Roots,
    check_config,
    check_external,
    declared_roots,
    external_paths,
    is_corpus_file,
    open_external,
)
from tasks.contract.session import (
    Event,
    Finished,
    Session,
    Watcher,
    current_session,
    open_session,
)
from tasks.contract.settings import (
    Device,
    NoConfig,
    PlainName,
    Seed,
    StageConfig,
    expanded,
    torch_device,
)
from tasks.contract.stages import STAGES, Call, Stage, stage
from tasks.contract.store import CHANGING, Store
from tasks.contract.tables import (
    DOCUMENTS,
    ID,
    LEDGER,
    LEXICONS,
    PLANTS,
    as_documents,
    departures,
    identities,
    ids,
    ledger_rows,
    ledger_table,
    removals,
    text_hashes,
    utf8_bytes,
    with_columns,
)
from tasks.contract.tombstones import DENIED, TOMBSTONES, read_denied, read_tombstones
from tasks.contract.watching import external, watch_folder
from tasks.contract.work import Done, Work, together
from tasks.contract.writer import Tables

__all__ = [
    "ACCOUNTS",
    "CHANGING",
    "CHECKSUMS",
    "DENIED",
    "DOCUMENTS",
    "ID",
    "KINDS",
    "LEDGER",
    "LEXICONS",
    "PLANTS",
    "ROOT",
    "STAGES",
    "TELEMETRY",
    "TERMS",
    "TOMBSTONES",
    "Artifact",
    "Call",
    "Column",
    "Device",
    "Done",
    "Entry",
    "Event",
    "External",
    "ExternalFiles",
    "ExternalPath",
    "FileChangedError",
    "FileStamp",
    "FileState",
    "Finished",
    "GateError",
    "HallmarkError",
    "InProcess",
    "Mapper",
    "NamedPath",
    "Needs",
    "NoConfig",
    "Part",
    "PlainName",
    "Processes",
    "Roots",
    "Seed",
    "Session",
    "Stage",
    "StageConfig",
    "Store",
    "Table",
    "Tables",
    "UsageError",
    "Watcher",
    "Work",
    "accounts",
    "aligned",
    "as_documents",
    "canonical",
    "changed_sentence",
    "check_config",
    "check_external",
    "code_digests",
    "column",
    "current_session",
    "declared_roots",
    "departures",
    "described",
    "expanded",
    "external",
    "external_paths",
    "file_digest",
    "file_stamp",
    "identities",
    "ids",
    "is_corpus_file",
    "is_cut",
    "is_settled",
    "is_store_folder",
    "ledger_rows",
    "ledger_table",
    "library_versions",
    "looked_up",
    "make_mapper",
    "meaning",
    "missing_sentence",
    "open_external",
    "open_session",
    "part_of",
    "read_denied",
    "read_tombstones",
    "record_state",
    "removals",
    "sha256",
    "stage",
    "table",
    "text_hashes",
    "together",
    "torch_device",
    "utf8_bytes",
    "watch_folder",
    "with_columns",
]
