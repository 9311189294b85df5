"""Restrict the paths that a served deployment may read and write to declared roots.

``hallmark serve`` declares the roots (folders and URIs) in an environment variable that its child
processes inherit. Settings that name a file have the type ``Path`` or ``ExternalPath``;
``iter_config_paths`` finds them in any config by type, and ``AllowedRoots.check_path`` rejects
those outside the roots. Without declared roots, as on the command line, nothing is rejected.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    BinaryIO,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)
from urllib.parse import unquote

from pydantic import BaseModel

from hallmark.tasks.contract.errors import UsageError

#: Environment variable with the declared roots as a JSON object of ``folders`` and ``uris``.
ROOTS_ENVIRONMENT_VARIABLE = "HALLMARK_SERVE_ROOTS"

#: Folder with the data files of Hallmark itself: items, words and lexicons.
PACKAGE_DATA = Path(__file__).resolve().parents[1]

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://")
_HOST = re.compile(r"(\w[\w.-]*|\[[0-9a-f:.]+\])(:\d+)?", re.ASCII | re.IGNORECASE)
#: Azure's URIs have the container in the position of a user: container@account.
_CONTAINER = re.compile(r"[\w$][\w-]*@", re.ASCII)
_AZURE = {"abfs", "abfss"}
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_WILDCARDS = set("*?[")

#: Number of times that the percent-escapes of a URI are decoded; more nesting is rejected.
MAX_DECODINGS = 5


@dataclass(frozen=True)
class ExternalMarker:
    """Annotation of a setting that names a file, a folder or a URI."""

    built_in_names: tuple[str, ...] = ()
    """Values that name a file of this package instead of a path."""

    allows_hub_id: bool = False
    """Whether a value that is no local path may be the id of a data set on the Hugging Face Hub."""

    recursive: bool = True
    """Whether everything below a folder is read, so that links in it are checked."""

    list_endings: Callable[[], tuple[str, ...]] = tuple
    """Returns the endings of the file names that are read from a folder, see ``is_corpus_file``;
    folders that are links are not searched. Without endings, everything below the folder may be
    read."""


#: A text setting that names a file, a folder, a pattern of files or an object-store URI.
ExternalPath = Annotated[str, ExternalMarker()]


@dataclass(frozen=True)
class ConfigPath:
    """A path in a config."""

    setting: str
    """The key, such as ``ingest.sources.0.path``."""

    path: str
    marker: ExternalMarker = ExternalMarker()


@dataclass(frozen=True)
class AllowedRoots:
    """The folders and URIs that a served deployment may read and write."""

    folders: tuple[str, ...]
    """Real paths, without symbolic links."""

    uris: tuple[str, ...] = ()
    """Prefixes of object-store URIs, without a slash at the end."""

    environment_variables: tuple[str, ...] = ()
    """Environment variables that a request may name as the source of a credential."""

    @classmethod
    def from_names(
        cls, folders_and_uris: Iterable[str], named_by: str = "--allowed-root"
    ) -> AllowedRoots:
        """Create the roots from folders and URIs that a user names.

        URIs are compared literally, since readers differ: a store decodes ``%20`` as a space, a
        corpus reader takes it as three characters of a key.

        Args:
            folders_and_uris: Folders and URIs.
            named_by: Option or setting that names them, for the error.

        Raises:
            UsageError: A URI is invalid, or readers may interpret it differently.
        """
        folders: dict[str, None] = {}
        uris: dict[str, None] = {}
        for folder_or_uri in folders_and_uris:
            scheme = _SCHEME.match(folder_or_uri)
            if scheme is None or scheme[1] == "file":
                local_path = os.path.expanduser(folder_or_uri.removeprefix("file://"))
                folders[os.path.realpath(local_path)] = None
            elif fault := _find_uri_fault(folder_or_uri, is_pattern=False):
                raise UsageError(
                    f"{named_by} {_hide_user(folder_or_uri)!r} is not a URI such as "
                    f"s3://bucket/folder: it {fault}; correct the URI"
                )
            else:
                uris[folder_or_uri.rstrip("/")] = None
        return cls(tuple(folders), tuple(uris))

    def __or__(self, other: AllowedRoots) -> AllowedRoots:
        """Return the union of both roots, without duplicates."""
        return AllowedRoots(
            *(
                tuple(dict.fromkeys(getattr(self, each.name) + getattr(other, each.name)))
                for each in fields(self)
            )
        )

    def __str__(self) -> str:
        return ", ".join((*self.folders, *self.uris)) or "none"

    def export_to_environment(self) -> None:
        """Restrict this process and its child processes to these roots."""
        os.environ[ROOTS_ENVIRONMENT_VARIABLE] = json.dumps(asdict(self))

    def check_path(
        self, path: str | Path, setting: str, marker: ExternalMarker = ExternalMarker()
    ) -> None:
        """Raise UsageError if a path leads outside the roots after resolving links and ``..``.

        Args:
            path: A path, a pattern of files or a URI, as a request names it.
            setting: The setting or parameter that names it, for the error.
            marker: How the setting is read.

        Raises:
            UsageError: The path, or a link below it, leads outside the roots.
        """
        path_text = os.fspath(path)
        if path_text in marker.built_in_names:
            return
        scheme = _SCHEME.match(path_text)
        if scheme is not None and scheme[1] != "file":
            self._check_uri(path_text, setting, is_pattern=marker.recursive)
            return
        if (
            marker.allows_hub_id
            and scheme is None
            and _HUB_ID.fullmatch(path_text)
            and not os.path.exists(path_text)
        ):
            self._check_uri(f"hf://datasets/{path_text}", setting, is_pattern=False)
            return
        try:
            local_paths = list(_iter_possible_local_paths(path_text, scheme is not None, marker))
            for local_path in local_paths:
                self._check_local_path(local_path, path_text, setting, marker)
        except (ValueError, OSError) as error:  # a null byte, or a folder that cannot be listed
            raise UsageError(
                f"{setting}: {path_text!r} cannot be checked ({error}); correct the path, or make "
                "its folder readable"
            ) from error

    def check_open_file(self, descriptor: int, path: str | Path, setting: str) -> None:
        """Raise UsageError if an open file is not the one at ``path`` inside the roots.

        This detects a link that was replaced after ``check_path``, since it compares the open file.
        """
        real_path = os.path.realpath(path)
        try:
            path_stat = os.stat(real_path, follow_symlinks=False)
            descriptor_stat = os.fstat(descriptor)
        except OSError as error:
            raise UsageError(
                f"{setting}: {os.fspath(path)!r} changed while it was being opened; run again when "
                "no other process is changing it"
            ) from error
        is_same_file = (path_stat.st_dev, path_stat.st_ino) == (
            descriptor_stat.st_dev,
            descriptor_stat.st_ino,
        )
        if not self._is_path_allowed(real_path) or not is_same_file:
            raise self._make_forbidden_path_error(os.fspath(path), setting)

    def _check_local_path(
        self, local_path: str, config_value: str, setting: str, marker: ExternalMarker
    ) -> None:
        has_wildcards = _WILDCARDS & set(local_path) and not os.path.lexists(local_path)
        base_folder = Path(local_path)
        # Find the folder above the first wildcard.
        while has_wildcards and _WILDCARDS & set(str(base_folder)):
            base_folder = base_folder.parent
        if not self._is_path_allowed(os.path.realpath(base_folder)):
            raise self._make_forbidden_path_error(config_value, setting)
        if has_wildcards:
            pattern = Path(local_path).relative_to(base_folder)
            if ".." in pattern.parts:
                raise self._make_forbidden_path_error(config_value, setting)
            nested_paths: Iterable[str] = map(str, base_folder.glob(str(pattern)))
        else:
            nested_paths = _iter_symlinks(local_path, marker.list_endings() or None)
        for path in nested_paths if marker.recursive else ():
            if not self._is_path_allowed(os.path.realpath(path)):
                raise self._make_forbidden_path_error(path, setting)

    def _is_path_allowed(self, real_path: str) -> bool:
        return any(
            real_path == root or real_path.startswith(root.rstrip("/") + "/")
            for root in self.folders
        )

    def _check_uri(self, uri: str, setting: str, is_pattern: bool) -> None:
        """Raise UsageError unless a URI is below a root.

        Args:
            uri: The URI.
            setting: The setting that names it, for the error.
            is_pattern: Whether the reader expands wildcards in the path.
        """
        if fault := _find_uri_fault(uri, is_pattern):
            raise self._make_forbidden_path_error(
                uri, setting, f"cannot be compared with the allowed roots: it {fault}"
            )
        prefix = uri.rstrip("/")
        path = uri.partition("://")[2].partition("/")[2]
        wildcard_index = next(
            (i for i, character in enumerate(path) if character in _WILDCARDS), None
        )
        if is_pattern and wildcard_index is not None:  # use the folder above the first wildcard
            prefix = uri[: len(uri) - len(path) + wildcard_index].rpartition("/")[0]
        if not any(prefix == root or prefix.startswith(f"{root}/") for root in self.uris):
            raise self._make_forbidden_path_error(uri, setting)

    def _make_forbidden_path_error(
        self, path: str, setting: str, problem: str = "leads outside the allowed roots"
    ) -> UsageError:
        return UsageError(
            f"{setting}: {_hide_user(path)!r} {problem} ({self}); specify a path inside the "
            "allowed roots, or allow another root with: hallmark serve --allowed-root PATH"
        )


def _hide_user(path: str) -> str:
    """Replace the user and the password of a URI, which an error must not contain."""
    scheme = _SCHEME.match(path)
    if scheme is None:
        return path
    user = "[^/]*:[^/]*@" if scheme[1] in _AZURE else "[^/]*@"
    return re.sub(f"://{user}", "://…@", path, count=1)


def _find_uri_fault(uri: str, is_pattern: bool) -> str | None:
    """Describe why a reader may resolve a URI to a place that its prefix does not show.

    Args:
        uri: The URI, with or without percent-escapes. Readers decode them once or not at all, so
            the path must be unambiguous after any number of decodings.
        is_pattern: Whether a ``?`` is a wildcard and not the start of a query.

    Returns:
        Predicate of a sentence about the URI; None if it is unambiguous.
    """
    scheme, _, rest = uri.partition("://")
    authority, _, path = rest.partition("/")
    host = _CONTAINER.sub("", authority, count=1) if scheme in _AZURE else authority
    if uri != uri.strip():
        return "begins or ends with whitespace"
    if "@" in host:
        return "contains a user name or a password"
    if not _HOST.fullmatch(host):
        return "does not specify a bucket or host"
    if "#" in path:
        return "has a fragment (#)"
    if "?" in path and not is_pattern:
        return "has a query (?)"
    for _ in range(MAX_DECODINGS):
        if "\\" in path or not path.isprintable():
            return "contains a backslash or a non-printable character"
        parts = path.removesuffix("/").split("/") if path else []
        if any(part.strip() in ("", ".", "..") for part in parts):
            return "contains an empty path segment or a '.' or '..' segment"
        try:
            decoded = unquote(path, errors="strict")
        except UnicodeDecodeError:
            return "contains percent-escapes that are not valid UTF-8"
        if decoded == path:
            return None
        path = decoded
    return "contains deeply nested percent-escapes"


def _iter_possible_local_paths(
    path_text: str, is_uri: bool, marker: ExternalMarker
) -> Iterator[str]:
    """Yield the local paths that a reader may open for a path or file URI."""
    if is_uri:
        uri_path = path_text.removeprefix("file://")
        for local_path in {uri_path, unquote(uri_path)}:
            yield local_path
            if not local_path.startswith("/"):  # it begins with a host: file://localhost/path
                yield f"/{local_path.partition('/')[2]}"
        return
    expanded_path = os.path.expanduser(path_text)
    yield expanded_path
    # The path may also literally begin with a folder named ~, which exists or may be created.
    if expanded_path != path_text and (os.path.lexists(path_text) or not marker.recursive):
        yield path_text


def is_corpus_file(name: str, endings: tuple[str, ...]) -> bool:
    """Whether a source reads a file with this name that is in or below its folder.

    Capital letters in the ending do not matter. Hidden folders are searched too; folders that are
    symbolic links are not.

    Args:
        endings: The endings in lower case.
    """
    return name.lower().endswith(endings) and not name.startswith(".")


def _iter_symlinks(path: str, file_endings: tuple[str, ...] | None) -> Iterator[str]:
    """Yield the symbolic links below a folder.

    With ``file_endings``, yield only links to files that a source of such files reads.
    """
    if not os.path.isdir(path):
        return

    def raise_error(error: OSError) -> None:
        raise error

    for folder, folder_names, file_names in os.walk(path, onerror=raise_error):
        names = [*folder_names, *file_names]
        if file_endings is not None:
            names = [name for name in file_names if is_corpus_file(name, file_endings)]
        for name in names:
            if os.path.islink(entry_path := os.path.join(folder, name)):
                yield entry_path


# The declared roots --------------------------------------------------------------------------


def read_declared_roots() -> AllowedRoots | None:
    """Return the roots that ``hallmark serve`` declared; None if there are none."""
    roots_json = os.environ.get(ROOTS_ENVIRONMENT_VARIABLE)
    return None if roots_json is None else _parse_roots(roots_json)


@lru_cache(maxsize=4)
def _parse_roots(roots_json: str) -> AllowedRoots:
    parsed_roots = json.loads(roots_json)
    return AllowedRoots(
        tuple(parsed_roots["folders"]),
        tuple(parsed_roots["uris"]),
        tuple(parsed_roots.get("environment_variables", ())),
    )


def check_external_path(
    path: str | Path, setting: str, marker: ExternalMarker = ExternalMarker()
) -> None:
    """Raise UsageError if roots are declared and a path leads outside them."""
    if (roots := read_declared_roots()) is not None:
        roots.check_path(path, setting, marker)


def check_config_paths(config: Any, section: str) -> None:
    """Raise UsageError if roots are declared and a path in a config leads outside them."""
    if (roots := read_declared_roots()) is not None:
        for config_path in iter_config_paths(config, section):
            roots.check_path(config_path.path, config_path.setting, config_path.marker)


def open_external_file(path: Path, setting: str, buffering: int = -1) -> BinaryIO:
    """Open a file that a config names for reading bytes, inside the declared roots if any.

    Args:
        path: The file.
        setting: The setting that names it, or a word for its content, for the error.
        buffering: See ``open``.

    Raises:
        UsageError: The file is outside the roots, possibly because a link was replaced meanwhile.
        OSError: The file cannot be opened.
    """
    roots = read_declared_roots()
    if roots is None or Path(os.path.realpath(path)).is_relative_to(PACKAGE_DATA):
        return open(path, "rb", buffering=buffering)
    roots.check_path(path, setting, ExternalMarker(recursive=False))
    # O_NONBLOCK, since opening a named pipe that replaced the file would block.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        roots.check_open_file(descriptor, path, setting)
        os.set_blocking(descriptor, True)
        return open(descriptor, "rb", buffering=buffering)
    except BaseException:
        os.close(descriptor)
        raise


# The paths of a config -----------------------------------------------------------------------


def iter_config_paths(config: Any, setting: str = "") -> Iterator[ConfigPath]:
    """Yield the paths in a config or in a part of one.

    These are all values of type ``Path``, and strings whose type is ``ExternalPath`` or has an
    ``ExternalMarker`` annotation.

    Args:
        config: The config, or a part.
        setting: Key of the part, the prefix of the yielded keys.
    """
    yield from _iter_typed_paths(config, type(config), setting, None)


def _iter_typed_paths(
    value: Any, type_hint: Any, setting: str, marker: ExternalMarker | None
) -> Iterator[ConfigPath]:
    """Yield the paths in a value of a config.

    Args:
        value: The value.
        type_hint: Its declared type.
        setting: Its key.
        marker: Marker of the enclosing type, if any.
    """
    origin, arguments = get_origin(type_hint), get_args(type_hint)
    if origin is Annotated:
        inner, *metadata = arguments
        own_marker = next(
            (annotation for annotation in metadata if isinstance(annotation, ExternalMarker)),
            marker,
        )
        yield from _iter_typed_paths(value, inner, setting, own_marker)
    elif origin in (Union, UnionType):
        member_type = next((each for each in arguments if _matches_type(value, each)), Any)
        yield from _iter_typed_paths(value, member_type, setting, marker)
    elif isinstance(value, Path):
        yield ConfigPath(setting, str(value), marker or ExternalMarker())
    elif isinstance(value, str):
        if marker is not None:
            yield ConfigPath(setting, value, marker)
    elif isinstance(value, BaseModel | Mapping) or is_dataclass(value):
        for member in _iter_members(value, arguments):
            yield from _iter_typed_paths(
                member.value,
                member.type_hint,
                f"{setting}.{member.name}".strip("."),
                member.marker,
            )
    elif isinstance(value, list | tuple | set | frozenset):
        element_types = [argument for argument in arguments if argument is not Ellipsis]
        for index, element in enumerate(value):
            element_type = (
                element_types[min(index, len(element_types) - 1)] if element_types else Any
            )
            yield from _iter_typed_paths(element, element_type, f"{setting}.{index}", marker)


def _matches_type(value: Any, type_hint: Any) -> bool:
    """Whether a value matches a member of a union, ignoring the types of elements."""
    while get_origin(type_hint) is Annotated:
        type_hint = get_args(type_hint)[0]
    if get_origin(type_hint) in (Union, UnionType):
        return any(_matches_type(value, member) for member in get_args(type_hint))
    runtime_type = get_origin(type_hint) or type_hint
    return isinstance(runtime_type, type) and isinstance(value, runtime_type)


class _ConfigMember(NamedTuple):
    """A field of a config or dataclass, or an item of a mapping."""

    name: str
    value: Any
    type_hint: Any
    """The declared type."""
    marker: ExternalMarker | None
    """The marker in the annotation of the field, if any."""


def _iter_members(value: Any, type_arguments: Any) -> Iterator[_ConfigMember]:
    """Yield each field of a config or dataclass, or each item of a mapping."""
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            own_marker = next(
                (element for element in field.metadata if isinstance(element, ExternalMarker)), None
            )
            yield _ConfigMember(name, getattr(value, name), field.annotation, own_marker)
    elif isinstance(value, Mapping):
        value_type = type_arguments[1] if len(type_arguments) == 2 else Any
        for key, member_value in value.items():
            yield _ConfigMember(str(key), member_value, value_type, None)
    else:
        hints = get_type_hints(type(value), include_extras=True)
        for element in fields(value):
            name = element.name
            yield _ConfigMember(name, getattr(value, name), hints[name], None)
