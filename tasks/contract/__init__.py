"""Export the public interface of the stage contract, on which every stage is built.

Stages, reports and flows import from here, not from the modules below. The contract imports no
other package of the project. Only ``stages`` and ``prefect_reporter`` import Prefect, and only when
a stage runs inside a flow.
"""

from hallmark.tasks.contract import accounts
from hallmark.tasks.contract.accounts import ACCOUNT_TERMS, ACCOUNTS, CHECKSUMS
from hallmark.tasks.contract.alignment import align_parts, lookup_column_by_doc_id
from hallmark.tasks.contract.allowed_roots import (
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
from hallmark.tasks.contract.artifact import (
    Artifact,
    ManifestEntry,
    Table,
    TablePart,
    doc_id_to_part_index,
)
from hallmark.tasks.contract.code_digests import compute_code_digests, find_module_file
from hallmark.tasks.contract.columns import (
    COLUMN_KINDS,
    Column,
    column,
    describe_columns,
    get_table_meaning,
    is_partitioned,
    table_schema,
)
from hallmark.tasks.contract.commit import format_current_time
from hallmark.tasks.contract.corpus_tables import (
    CANARIES,
    DOCUMENTS,
    ID_TYPE,
    LEDGER,
    LEXICONS,
    METADATA_TYPE,
    build_document_ledger_columns,
    build_ledger_columns,
    build_ledger_table,
    build_removal_columns,
    count_metadata_bytes,
    count_utf8_bytes,
    fill_document_columns,
    flatten_metadata,
    hash_documents,
    hash_texts,
    hash_to_ids,
    ids_to_uint64_pairs,
    replace_columns,
)
from hallmark.tasks.contract.errors import (
    FileChangedError,
    HallmarkError,
    PolicyViolationError,
    UsageError,
    shorten_error,
)
from hallmark.tasks.contract.external_files import (
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
from hallmark.tasks.contract.external_inputs import folder_to_artifact, record_folder_files
from hallmark.tasks.contract.fingerprint import (
    PROJECT_ROOT,
    read_library_versions,
    sha256_hex,
    to_canonical_json,
)
from hallmark.tasks.contract.mappers import ProcessMapper, make_mapper
from hallmark.tasks.contract.object_store import is_store_folder
from hallmark.tasks.contract.resources import Mapper, Resources, SerialMapper
from hallmark.tasks.contract.session import (
    BackgroundListener,
    Event,
    LastStageReached,
    Session,
    get_current_session,
    open_session,
)
from hallmark.tasks.contract.settings import (
    DeviceName,
    EmptyConfig,
    PathSafeName,
    Seed,
    StageConfig,
    expand_home,
    resolve_torch_device,
)
from hallmark.tasks.contract.stage_call import TELEMETRY
from hallmark.tasks.contract.stage_context import ItemResult, StageContext, concat_spilled_tables
from hallmark.tasks.contract.stages import STAGES, BoundStage, Stage, stage
from hallmark.tasks.contract.store import STALENESS_COMPONENTS, Store, get_artifact_store
from hallmark.tasks.contract.table_writers import TableWriters
from hallmark.tasks.contract.tombstones import (
    PURGED_DOCUMENTS_FILE,
    TOMBSTONES_FILE,
    parse_tombstones,
    read_purged_documents,
)
from hallmark.tasks.contract.wording import format_all, format_count, to_singular

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
    "METADATA_TYPE",
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
    "count_metadata_bytes",
    "count_utf8_bytes",
    "describe_columns",
    "doc_id_to_part_index",
    "expand_home",
    "fill_document_columns",
    "find_module_file",
    "flatten_metadata",
    "folder_to_artifact",
    "format_all",
    "format_count",
    "format_current_time",
    "format_file_changed_message",
    "format_file_missing_message",
    "get_artifact_store",
    "get_current_session",
    "get_table_meaning",
    "hash_documents",
    "hash_file",
    "hash_texts",
    "hash_to_ids",
    "ids_to_uint64_pairs",
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
    "shorten_error",
    "stage",
    "stat_to_file_stamp",
    "table_schema",
    "to_canonical_json",
    "to_singular",
]
