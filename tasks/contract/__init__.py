"""The stage contract: what every stage stands on, behind this one face.

Stages, reports and flows import from here and nowhere deeper. The contract imports nothing else of
ours; only ``stages`` and ``prefect_ui`` import Prefect, when a stage runs inside a flow.
"""

from tasks.contract import accounts
from tasks.contract.accounts import ACCOUNT_TERMS, ACCOUNTS, CHECKSUMS
from tasks.contract.alignment import align_parts, lookup_column_by_doc_id
from tasks.contract.allowed_roots import (
    AllowedRoots,
    ConfigPath,
    ExternalMarker,
    ExternalPath,
    check_config_paths,
    check_external_path,
    is_corpus_file,
    iter_config_paths,
    open_external_file,
    read_declared_roots,
)
from tasks.contract.artifact import Artifact, ManifestEntry, Table, TablePart, doc_id_to_part_index
from tasks.contract.columns import (
    COLUMN_KINDS,
    Column,
    column,
    describe_columns,
    get_table_meaning,
    is_partitioned,
    table_schema,
)
from tasks.contract.commit import TELEMETRY
from tasks.contract.corpus_tables import (
    CANARIES,
    DOCUMENTS,
    ID_TYPE,
    LEDGER,
    LEXICONS,
    build_document_ledger_columns,
    build_ledger_columns,
    build_ledger_table,
    build_removal_columns,
    count_utf8_bytes,
    fill_document_columns,
    hash_documents,
    hash_texts,
    hash_to_ids,
    replace_columns,
)
from tasks.contract.errors import FileChangedError, HallmarkError, PolicyViolationError, UsageError
from tasks.contract.external_files import (
    ExternalFiles,
    FileStamp,
    FileState,
    format_file_changed_message,
    format_file_missing_message,
    hash_file,
    is_stamp_reliable,
    record_file_state,
    stat_to_file_stamp,
)
from tasks.contract.external_inputs import folder_to_artifact, record_folder_files
from tasks.contract.fingerprint import (
    PROJECT_ROOT,
    read_library_versions,
    sha256_hex,
    to_canonical_json,
)
from tasks.contract.import_closure import compute_code_digests
from tasks.contract.mappers import Mapper, ProcessMapper, Resources, SerialMapper, make_mapper
from tasks.contract.object_store import is_store_folder
from tasks.contract.session import (
    BackgroundListener,
    Event,
    LastStageReached,
    Session,
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
from tasks.contract.stage_context import ItemResult, StageContext, concat_spilled_tables
from tasks.contract.stages import STAGES, BoundStage, Stage, stage
from tasks.contract.store import STALENESS_COMPONENTS, Store
from tasks.contract.table_writers import TableWriters
from tasks.contract.tombstones import (
    PURGED_DOCUMENTS_FILE,
    TOMBSTONES_FILE,
    parse_tombstones,
    read_purged_documents,
)

__all__ = [
    "ACCOUNTS",
    "ACCOUNT_TERMS",
    "CANARIES",
    "CHECKSUMS",
    "COLUMN_KINDS",
    "DOCUMENTS",
    "ID_TYPE",
    "LEDGER",
    "LEXICONS",
    "PROJECT_ROOT",
    "PURGED_DOCUMENTS_FILE",
    "STAGES",
    "STALENESS_COMPONENTS",
    "TELEMETRY",
    "TOMBSTONES_FILE",
    "AllowedRoots",
    "Artifact",
    "BackgroundListener",
    "BoundStage",
    "Column",
    "ConfigPath",
    "DeviceName",
    "EmptyConfig",
    "Event",
    "ExternalFiles",
    "ExternalMarker",
    "ExternalPath",
    "FileChangedError",
    "FileStamp",
    "FileState",
    "HallmarkError",
    "ItemResult",
    "LastStageReached",
    "ManifestEntry",
    "Mapper",
    "PathSafeName",
    "PolicyViolationError",
    "ProcessMapper",
    "Resources",
    "Seed",
    "SerialMapper",
    "Session",
    "Stage",
    "StageConfig",
    "StageContext",
    "Store",
    "Table",
    "TablePart",
    "TableWriters",
    "UsageError",
    "accounts",
    "align_parts",
    "build_document_ledger_columns",
    "build_ledger_columns",
    "build_ledger_table",
    "build_removal_columns",
    "check_config_paths",
    "check_external_path",
    "column",
    "compute_code_digests",
    "concat_spilled_tables",
    "count_utf8_bytes",
    "describe_columns",
    "doc_id_to_part_index",
    "expand_home",
    "fill_document_columns",
    "folder_to_artifact",
    "format_file_changed_message",
    "format_file_missing_message",
    "get_current_session",
    "get_table_meaning",
    "hash_documents",
    "hash_file",
    "hash_texts",
    "hash_to_ids",
    "is_corpus_file",
    "is_partitioned",
    "is_stamp_reliable",
    "is_store_folder",
    "iter_config_paths",
    "lookup_column_by_doc_id",
    "make_mapper",
    "open_external_file",
    "open_session",
    "parse_tombstones",
    "read_declared_roots",
    "read_library_versions",
    "read_purged_documents",
    "record_file_state",
    "record_folder_files",
    "replace_columns",
    "resolve_torch_device",
    "sha256_hex",
    "stage",
    "stat_to_file_stamp",
    "table_schema",
    "to_canonical_json",
]
