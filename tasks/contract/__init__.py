"""The stage contract: what every stage stands on, behind this one face.

Stages, reports and flows import from here and nowhere deeper. The contract imports nothing else of
ours; only ``stages`` and ``prefect_ui`` import Prefect, when a stage runs inside a flow.
"""

from tasks.contract import accounts
from tasks.contract.accounts import ACCOUNTS, CHECKSUMS, ACCOUNT_TERMS
from tasks.contract.artifact import Artifact, ManifestEntry, TablePart, Table, doc_id_to_part_index
from tasks.contract.beside import align_parts, lookup_column_by_doc_id
from tasks.contract.closure import compute_code_digests
from tasks.contract.columns import (
    COLUMN_KINDS,
    Column,
    column,
    describe_columns,
    is_partitioned,
    get_table_meaning,
    table_schema,
)
from tasks.contract.commit import TELEMETRY
from tasks.contract.errors import FileChangedError, PolicyViolationError, HallmarkError, UsageError
from tasks.contract.external_files import (
    ExternalFiles,
    FileStamp,
    FileState,
    format_file_changed_message,
    hash_file,
    stat_to_file_stamp,
    is_stamp_reliable,
    format_file_missing_message,
    record_file_state,
)
from tasks.contract.fingerprint import PROJECT_ROOT, to_canonical_json, read_library_versions, sha256_hex
from tasks.contract.mappers import SerialMapper, Mapper, Resources, ProcessMapper, make_mapper
from tasks.contract.objects import is_store_folder
from tasks.contract.roots import (
    ExternalMarker,
    ExternalPath,
    ConfigPath,
    AllowedRoots,
    check_config_paths,
    check_external_path,
    read_declared_roots,
    iter_config_paths,
    is_corpus_file,
    open_external_file,
)
from tasks.contract.session import (
    Event,
    LastStageReached,
    Session,
    BackgroundListener,
    get_current_session,
    open_session,
)
from tasks.contract.settings import (
    DeviceName,
    EmptyConfig,
    PathSafeName,
    Seed,
    StageConfig,
    expand_home,
    resolve_torch_device,
)
from tasks.contract.stages import STAGES, BoundStage, Stage, stage
from tasks.contract.store import STALENESS_COMPONENTS, Store
from tasks.contract.tables import (
    DOCUMENTS,
    ID_TYPE,
    LEDGER,
    LEXICONS,
    CANARIES,
    fill_document_columns,
    build_document_ledger_columns,
    hash_documents,
    hash_to_ids,
    build_ledger_columns,
    build_ledger_table,
    build_removal_columns,
    hash_texts,
    count_utf8_bytes,
    replace_columns,
)
from tasks.contract.tombstones import PURGED_DOCUMENTS_FILE, TOMBSTONES_FILE, read_purged_documents, parse_tombstones
from tasks.contract.watching import folder_to_artifact, record_folder_files
from tasks.contract.work import ItemResult, StageContext, concat_spilled_tables
from tasks.contract.writer import TableWriters

__all__ = [
    "ACCOUNTS",
    "STALENESS_COMPONENTS",
    "CHECKSUMS",
    "PURGED_DOCUMENTS_FILE",
    "DOCUMENTS",
    "ID_TYPE",
    "COLUMN_KINDS",
    "LEDGER",
    "LEXICONS",
    "CANARIES",
    "PROJECT_ROOT",
    "STAGES",
    "TELEMETRY",
    "ACCOUNT_TERMS",
    "TOMBSTONES_FILE",
    "Artifact",
    "BoundStage",
    "Column",
    "DeviceName",
    "ItemResult",
    "ManifestEntry",
    "Event",
    "ExternalMarker",
    "ExternalFiles",
    "ExternalPath",
    "FileChangedError",
    "FileStamp",
    "FileState",
    "LastStageReached",
    "PolicyViolationError",
    "HallmarkError",
    "SerialMapper",
    "Mapper",
    "ConfigPath",
    "Resources",
    "EmptyConfig",
    "TablePart",
    "PathSafeName",
    "ProcessMapper",
    "AllowedRoots",
    "Seed",
    "Session",
    "Stage",
    "StageConfig",
    "Store",
    "Table",
    "TableWriters",
    "UsageError",
    "BackgroundListener",
    "StageContext",
    "accounts",
    "align_parts",
    "fill_document_columns",
    "to_canonical_json",
    "format_file_changed_message",
    "check_config_paths",
    "check_external_path",
    "compute_code_digests",
    "column",
    "get_current_session",
    "read_declared_roots",
    "build_document_ledger_columns",
    "describe_columns",
    "expand_home",
    "folder_to_artifact",
    "iter_config_paths",
    "hash_file",
    "stat_to_file_stamp",
    "hash_documents",
    "hash_to_ids",
    "is_corpus_file",
    "is_partitioned",
    "is_stamp_reliable",
    "is_store_folder",
    "build_ledger_columns",
    "build_ledger_table",
    "read_library_versions",
    "lookup_column_by_doc_id",
    "make_mapper",
    "get_table_meaning",
    "format_file_missing_message",
    "open_external_file",
    "open_session",
    "doc_id_to_part_index",
    "read_purged_documents",
    "parse_tombstones",
    "record_file_state",
    "build_removal_columns",
    "sha256_hex",
    "stage",
    "table_schema",
    "hash_texts",
    "concat_spilled_tables",
    "resolve_torch_device",
    "count_utf8_bytes",
    "record_folder_files",
    "replace_columns",
]
