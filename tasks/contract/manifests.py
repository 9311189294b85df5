"""Parse the manifests of artifacts, which anyone who writes to a store may have written.

Every reader of a manifest gets it from here, so that all may rely on these types. What else a
reader expects, such as the name of a certain input, it asks of ``Artifact``, which raises the same
error. The digests of tables and files must agree with those of the manifest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from hallmark.tasks.contract.errors import HallmarkError
from hallmark.tasks.contract.fingerprint import sha256_hex, to_canonical_json
from hallmark.tasks.contract.local_objects import escape_name
from hallmark.tasks.contract.tombstones import is_safe_relative_path

#: Version of the layout of an artifact's tables and files; raised when the layout changes.
LAYOUT_VERSION = 2

#: "stage/fingerprint"; names in files become parts of paths, and this allows none that leaves its
#: folder.
ARTIFACT_NAME_PATTERN = re.compile(r"\w+/[0-9a-f]+")

#: The largest size of a file and number of rows; a larger one is damage.
MAX_COUNT = 1 << 62

#: The first and the last year in which an artifact can be created. Times near the ends of the
#: calendar cannot be converted to UTC.
FIRST_YEAR, LAST_YEAR = 1970, 9998

#: Number of keys of a field that an error names, and of characters of the description.
MAX_FIELD_KEYS = 6
MAX_MESSAGE_CHARACTERS = 200

ManifestEntry = dict[str, Any]
Manifest = dict[str, Any]


def _check_relative_path(path: str) -> str:
    if not is_safe_relative_path(path):
        raise ValueError("it must be a path inside the artifact")
    return path


def _check_time(time: str) -> str:
    if not FIRST_YEAR <= datetime.fromisoformat(time).year <= LAST_YEAR:
        raise ValueError(f"the year must be between {FIRST_YEAR} and {LAST_YEAR}")
    return time


def _check_source_counts(counts: list[Any]) -> list[Any]:
    """Check the source, action, rows, two sizes in bytes and checksum of a part's rows.

    The source is null if the stage did not write it.
    """
    is_source = bool(counts) and isinstance(counts[0], str | None)
    if not is_source or [*map(type, counts[1:])] != [str, int, int, int, str]:
        raise ValueError("it must have a source, an action, three numbers and a checksum")
    int(counts[-1], 16)
    return counts


def _check_lineage(lineage: dict[str, Any]) -> dict[str, Any]:
    for key, name in iter_lineage_leaves(lineage):
        if name is not None and not (
            isinstance(name, str) and ARTIFACT_NAME_PATTERN.fullmatch(name.partition("#")[0])
        ):
            raise ValueError(f"{escape_name(key)} must be an artifact name")
    return lineage


_Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
_RelativePath = Annotated[str, AfterValidator(_check_relative_path)]


class _ManifestPart(BaseModel):
    """The types of the fields that readers use; there may be others."""

    model_config = ConfigDict(strict=True, extra="allow")


class _FileEntry(_ManifestPart):
    name: _RelativePath
    path: _RelativePath
    size: _Count
    sha256: str


class _PartEntry(_FileEntry):
    rows: _Count
    counts: list[Annotated[list[Any], AfterValidator(_check_source_counts)]]


class _ColumnEntry(_ManifestPart):
    model_config = ConfigDict(strict=True, extra="forbid")

    name: str
    type: str
    kind: str
    meaning: str = ""
    unit: str = ""
    judged_by: str = ""


class _TableEntry(_ManifestPart):
    columns: list[_ColumnEntry]
    parts: Annotated[list[_PartEntry], Field(min_length=1)]
    pieces: list[Annotated[int, Field(gt=0, le=MAX_COUNT)]] = []
    rows: _Count
    sha256: str


class _FingerprintComponents(_ManifestPart):
    """What the fingerprint was computed from; a checkpoint has ``parent`` and ``key``."""

    config: dict[str, Any]
    code: dict[str, str] = {}
    inputs: dict[str, Any] = {}
    libraries: dict[str, str] = {}
    external: dict[str, str] = {}
    parent: Annotated[str, Field(pattern="^[0-9a-f]{16,}$")] = ""
    key: dict[str, Any] = {}


class _Manifest(_ManifestPart):
    stage: Annotated[str, Field(pattern=r"^\w+$")]
    fingerprint: Annotated[str, Field(pattern="^[0-9a-f]{16,}$")]
    content: str
    determinism: str
    tables: dict[str, _TableEntry]
    files: dict[str, _FileEntry]
    telemetry: dict[str, _TableEntry]
    parts: _FingerprintComponents
    equivalent_versions: dict[str, str] = {}
    lineage: Annotated[dict[str, Any], AfterValidator(_check_lineage)]
    created: Annotated[str, AfterValidator(_check_time)]


_REQUIRED_FIELDS = {name for name, field in _Manifest.model_fields.items() if field.is_required()}

_OBJECT_ADAPTER = TypeAdapter(dict[str, Any])


def parse_manifest(manifest_bytes: bytes, artifact_name: str, location: str) -> Manifest:
    """Parse and check a manifest.

    Args:
        manifest_bytes: Content of the file.
        artifact_name: Name of the artifact, for the error.
        location: Folder or address of the artifact, for the error.

    Raises:
        HallmarkError: The manifest is damaged, or of another version of Hallmark.
    """
    try:
        manifest: Manifest = _OBJECT_ADAPTER.validate_json(manifest_bytes)
        if manifest.keys() >= _REQUIRED_FIELDS and manifest.get("layout", 1) != LAYOUT_VERSION:
            raise HallmarkError(
                f"artifact {artifact_name} was written by another version of Hallmark: its layout "
                f"version is {manifest.get('layout', 1)!r:.40}, but this version reads layout "
                f"version {LAYOUT_VERSION}; remove the artifact's folder and run again to rebuild "
                "it, or read it with the version that wrote it"
            )
        _Manifest.model_validate(manifest)
        problem = _find_contradiction(manifest)
    except ValidationError as error:
        problem = describe_validation_problem(error)
    except RecursionError:
        problem = "it is nested too deeply"
    if problem:
        raise make_manifest_error(artifact_name, location, problem)
    return manifest


def make_manifest_error(artifact_name: str, location: str, problem: str) -> HallmarkError:
    """Create the error about a damaged manifest.

    Args:
        artifact_name: Name of the artifact.
        location: Its folder or address.
        problem: What is wrong, beginning with the field if it is one field.
    """
    return HallmarkError(
        f"artifact {artifact_name} is damaged: its manifest.json in {location} is incomplete or "
        f"invalid ({problem}); remove the artifact's folder and run again to rebuild it"
    )


def make_circular_lineage_error(artifact_name: str) -> HallmarkError:
    """Create the error about an artifact that would be an input of itself."""
    return HallmarkError(
        f"artifact {artifact_name} is damaged: its lineage leads back to itself; remove the "
        "artifact's folder and run again to rebuild it"
    )


def describe_validation_problem(error: ValidationError) -> str:
    """Describe the first problem that pydantic found, with its field, in one line."""
    first_error = error.errors(include_url=False, include_context=False, include_input=False)[0]
    message = first_error["msg"].removeprefix("Value error, ")
    field = ".".join(escape_name(str(key)) for key in first_error["loc"][:MAX_FIELD_KEYS])
    message = escape_name(f"{message[:1].lower()}{message[1:]}", MAX_MESSAGE_CHARACTERS)
    return f"{field}: {message}" if field else message


def iter_lineage_leaves(lineage: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the key and the value of each name in a lineage, or in a part of one."""
    if isinstance(lineage, dict | list):
        items = lineage.items() if isinstance(lineage, dict) else enumerate(lineage)
        for name, value in items:
            yield from iter_lineage_leaves(value, f"{key}.{name}" if key else str(name))
    else:
        yield key, lineage


def _find_contradiction(manifest: Manifest) -> str | None:
    """Describe the first contradiction between the fields of a manifest; None without one."""
    for group in ("tables", "telemetry"):
        for name, table in manifest[group].items():
            field = f"{group}.{escape_name(name)}"
            if table["rows"] != sum(part["rows"] for part in table["parts"]):
                return f"{field}.rows: it is not the total number of rows in the parts"
            if sum(table.get("pieces", [len(table["parts"])])) != len(table["parts"]):
                return f"{field}.pieces: their sum is not the number of parts"
            if table["sha256"] != compute_table_digest(table):
                return f"{field}.sha256: it is not the digest of the parts and columns"
    if manifest["content"] != compute_content_digest(manifest["tables"], manifest["files"]):
        return "content: it is not the digest of the tables and files"
    components = manifest["parts"]
    required = {"key"} if "parent" in components else {"code", "inputs", "libraries", "external"}
    if missing := sorted(required - components.keys()):
        return f"parts.{missing[0]}: field required"
    own_name = f"{manifest['stage']}/{manifest['fingerprint'][:16]}"
    for key, name in iter_lineage_leaves(manifest["lineage"]):
        if name and name.partition("#")[0] == own_name:
            return f"lineage.{escape_name(key)} refers to the artifact itself"
    return None


def compute_table_digest(table_entry: ManifestEntry) -> str:
    """Compute a table's digest from its parts' digests and its columns' names and kinds."""
    column_kinds = [
        [column["name"], column["kind"], column.get("judged_by", "")]
        for column in table_entry["columns"]
    ]
    return sha256_hex(
        to_canonical_json(
            {"parts": [part["sha256"] for part in table_entry["parts"]], "columns": column_kinds}
        )
    )


def compute_content_digest(
    table_entries: dict[str, ManifestEntry], file_entries: dict[str, ManifestEntry]
) -> str:
    """Compute an artifact's digest from the names and digests of its tables and files."""
    content = {
        kind: {name: entry["sha256"] for name, entry in group.items()}
        for kind, group in (("tables", table_entries), ("files", file_entries))
    }
    return sha256_hex(to_canonical_json(content))
