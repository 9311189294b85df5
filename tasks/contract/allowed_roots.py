"""The roots of a served deployment: the folders and URIs that a request may read and write.

``hallmark serve`` declares them in an environment variable, which the processes that it starts
inherit. Settings that name a file are ``Path`` or ``ExternalPath``; ``external_paths`` finds them
in any config by type, and ``Roots.check`` refuses those that lead elsewhere. Where no roots are
declared, as on a person's command line, nothing is refused.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, BinaryIO, Union, get_args, get_origin, get_type_hints
from urllib.parse import unquote

from pydantic import BaseModel

from hallmark.tasks.contract.errors import UsageError

#: The environment variable that holds the declared roots, as a JSON list.
ROOTS_ENVIRONMENT_VARIABLE = "HALLMARK_SERVE_ROOTS"

#: What comes with Hallmark: stages read items, words and lexicons of its own.
PACKAGE_DATA = Path(__file__).resolve().parents[1]

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://")
_HOST = re.compile(r"(\w[\w.-]*|\[[0-9a-f:.]+\])(:\d+)?", re.ASCII | re.IGNORECASE)
#: Of Azure, where the container stands in the place of a user: container@account.
_CONTAINER = re.compile(r"[\w$][\w-]*@", re.ASCII)
_AZURE = {"abfs", "abfss"}
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_WILDCARDS = set("*?[")

#: How often the percent-escapes of a URI are decoded; one that has more of them is refused.
MAX_DECODINGS = 5


@dataclass(frozen=True)
class ExternalMarker:
    """Marks a setting that names something outside the config: a file, a folder or a URI."""

    built_in_names: tuple[str, ...] = ()
    """Values that name a file of this package instead."""

    allows_hub_id: bool = False
    """Whether a value that is no local path is the id of a data set on the Hugging Face hub."""

    recursive: bool = True
    """Whether everything below a folder is read, so that links in it count."""

    endings: tuple[str, ...] = ()
    """Of a folder only files count that ``is_corpus_file`` takes by these endings, and no folder
    that a link names is searched; without endings anything below it may be read."""


#: A text setting that names a file, a folder, a pattern of files or an object-store URI.
ExternalPath = Annotated[str, ExternalMarker()]


@dataclass(frozen=True)
class ConfigPath:
    """A path that a config names."""

    setting: str
    """The key, such as ``ingest.sources.0.path``."""

    path: str
    marker: ExternalMarker = ExternalMarker()


@dataclass(frozen=True)
class AllowedRoots:
    """The folders and URIs that a served deployment may read and write."""

    folders: tuple[str, ...]
    """Real paths, without links."""

    uris: tuple[str, ...] = ()
    """Beginnings of object-store URIs, without a slash at the end."""

    @classmethod
    def from_names(
        cls, folders_and_uris: Iterable[str], named_by: str = "--allowed-root"
    ) -> AllowedRoots:
        """Resolve folders and URIs as a person names them.

        URIs are compared as they are spelled, for readers differ: a store takes ``%20`` as a
        space, a corpus as three characters of a key.

        Args:
            names: Folders and URIs.
            named_by: What the person names them with, for the error.

        Raises:
            UsageError: If a URI is not of the form ``scheme://name``, or a reader may take it for
                another one.
        """
        folders: dict[str, None] = {}
        uris: dict[str, None] = {}
        for folder_or_uri in folders_and_uris:
            scheme = _SCHEME.match(folder_or_uri)
            if scheme is None or scheme[1] == "file":
                folders[
                    os.path.realpath(os.path.expanduser(folder_or_uri.removeprefix("file://")))
                ] = None
            elif fault := _find_uri_fault(folder_or_uri, is_pattern=False):
                raise UsageError(
                    f"{named_by} {folder_or_uri!r} is not a URI such as s3://bucket/folder: "
                    f"it {fault}; "
                    f"correct it"
                )
            else:
                uris[folder_or_uri.rstrip("/")] = None
        return cls(tuple(folders), tuple(uris))

    def __or__(self, other: AllowedRoots) -> AllowedRoots:
        """The roots of both, each once."""
        folders = dict.fromkeys(self.folders + other.folders)
        return AllowedRoots(tuple(folders), tuple(dict.fromkeys(self.uris + other.uris)))

    def __str__(self) -> str:
        return ", ".join((*self.folders, *self.uris)) or "none"

    def export_to_environment(self) -> None:
        """Bound this process and those that it starts to these roots."""
        os.environ[ROOTS_ENVIRONMENT_VARIABLE] = json.dumps(
            {"folders": self.folders, "uris": self.uris}
        )

    def check_path(
        self, path: str | Path, setting: str, marker: ExternalMarker = ExternalMarker()
    ) -> None:
        """Refuse a path that leads outside the roots, links and ``..`` resolved.

        Args:
            path: A path, a pattern of files or a URI, as a request names it.
            setting: The setting or parameter that names it, for the error.
            marker: How the setting reads it.

        Raises:
            UsageError: If the path, or a link below it, leads outside.
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
        except (ValueError, OSError) as error:  # a null byte, or a folder that may not be listed
            raise UsageError(f"{setting}: {path_text!r} cannot be checked ({error})") from error

    def check_open_file(self, descriptor: int, path: str | Path, setting: str) -> None:
        """Refuse an open file that is not the one at ``path`` inside the roots.

        A link that was exchanged after ``check`` is found here, for the file is compared itself.
        """
        real_path = os.path.realpath(path)
        try:
            path_stat, descriptor_stat = (
                os.stat(real_path, follow_symlinks=False),
                os.fstat(descriptor),
            )
        except OSError as error:
            raise UsageError(f"{setting}: {os.fspath(path)!r} changed while it was opened") from (
                error
            )
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
        while has_wildcards and _WILDCARDS & set(
            str(base_folder)
        ):  # up to the folder before the pattern
            base_folder = base_folder.parent
        if not self._is_path_allowed(os.path.realpath(base_folder)):
            raise self._make_forbidden_path_error(config_value, setting)
        if has_wildcards:
            pattern = Path(local_path).relative_to(base_folder)
            if ".." in pattern.parts:
                raise self._make_forbidden_path_error(config_value, setting)
            nested_paths: Iterable[str] = map(str, base_folder.glob(str(pattern)))
        else:
            nested_paths = _iter_symlinks(local_path, marker.endings)
        for path in nested_paths if marker.recursive else ():
            if not self._is_path_allowed(os.path.realpath(path)):
                raise self._make_forbidden_path_error(path, setting)

    def _is_path_allowed(self, real_path: str) -> bool:
        return any(
            real_path == root or real_path.startswith(root.rstrip("/") + "/")
            for root in self.folders
        )

    def _check_uri(self, uri: str, setting: str, is_pattern: bool) -> None:
        """``is_pattern``: whether the reader takes wildcards of the path as such."""
        if fault := _find_uri_fault(uri, is_pattern):
            raise self._make_forbidden_path_error(
                uri, setting, f"cannot be compared with the roots of this deployment: it {fault}"
            )
        bound = uri.rstrip("/")
        path = uri.partition("://")[2].partition("/")[2]
        wild = next((place for place, c in enumerate(path) if c in _WILDCARDS), None)
        if is_pattern and wild is not None:  # up to the folder before the pattern
            bound = uri[: len(uri) - len(path) + wild].rpartition("/")[0]
        if not any(bound == root or bound.startswith(f"{root}/") for root in self.uris):
            raise self._make_forbidden_path_error(uri, setting)

    def _make_forbidden_path_error(
        self, path: str, setting: str, why: str = "leads outside the roots of this deployment"
    ) -> UsageError:
        return UsageError(
            f"{setting}: {path!r} {why} ({self}); name something inside them, or declare another "
            "root with: hallmark serve --allowed-root PATH"
        )


def _find_uri_fault(uri: str, is_pattern: bool) -> str | None:
    """Why a reader may take a URI for another one than its beginning says; None where none may.

    Args:
        uri: What stands there, with or without percent-escapes. Readers decode them once or not
            at all; the path must be plain however often they are decoded.
        is_pattern: Whether a ``?`` is a wildcard of a pattern and no query.
    """
    scheme, _, rest = uri.partition("://")
    authority, _, path = rest.partition("/")
    host = _CONTAINER.sub("", authority, count=1) if scheme in _AZURE else authority
    if uri != uri.strip():
        return "begins or ends with white space"
    if "@" in host:
        return "names a user or a password"
    if not _HOST.fullmatch(host):
        return "names no bucket or host"
    if "#" in path:
        return "has a fragment (#)"
    if "?" in path and not is_pattern:
        return "has a query (?)"
    for _ in range(MAX_DECODINGS):
        if "\\" in path or not path.isprintable():
            return "has a backslash or a character that is not printed"
        parts = path.removesuffix("/").split("/") if path else []
        if any(part.strip() in ("", ".", "..") for part in parts):
            return "has an empty part, or one that is . or .."
        try:
            decoded = unquote(path, errors="strict")
        except UnicodeDecodeError:
            return "has percent-escapes that are not UTF-8"
        if decoded == path:
            return None
        path = decoded
    return "has percent-escapes of percent-escapes"


def _iter_possible_local_paths(
    path_text: str, is_uri: bool, marker: ExternalMarker
) -> Iterator[str]:
    """The local paths that readers may take a text for."""
    if is_uri:
        uri_path = path_text.removeprefix("file://")
        for local_path in {uri_path, unquote(uri_path)}:
            yield local_path
            if not local_path.startswith("/"):  # a host, as in file://localhost/path
                yield f"/{local_path.partition('/')[2]}"
        return
    expanded_path = os.path.expanduser(path_text)
    yield expanded_path
    # A folder whose name is ~: one that is there is read, one that is not may be made.
    if expanded_path != path_text and (os.path.lexists(path_text) or not marker.recursive):
        yield path_text


def is_corpus_file(name: str, endings: tuple[str, ...]) -> bool:
    """Whether a source reads a file that it finds in its folder, or in one below, by its name.

    Hidden folders are searched as any other; folders that links name are not.
    """
    return name.endswith(endings) and not name.startswith(".")


def _iter_symlinks(path: str, endings: tuple[str, ...]) -> Iterator[str]:
    """The symbolic links below a path, if it is a folder; with ``endings`` those that a source
    reads."""
    if not os.path.isdir(path):
        return

    def raise_error(error: OSError) -> None:
        raise error

    for folder, folder_names, file_names in os.walk(path, onerror=raise_error):
        listed = [*folder_names, *file_names]
        if endings:
            listed = [name for name in file_names if is_corpus_file(name, endings)]
        for name in listed:
            if os.path.islink(entry_path := os.path.join(folder, name)):
                yield entry_path


# The declared roots --------------------------------------------------------------------------


def read_declared_roots() -> AllowedRoots | None:
    """The roots that ``hallmark serve`` declared for this process; None on the command line."""
    roots_json = os.environ.get(ROOTS_ENVIRONMENT_VARIABLE)
    return None if roots_json is None else _parse_roots(roots_json)


@lru_cache(maxsize=4)
def _parse_roots(roots_json: str) -> AllowedRoots:
    parsed_roots = json.loads(roots_json)
    return AllowedRoots(tuple(parsed_roots["folders"]), tuple(parsed_roots["uris"]))


def check_external_path(
    path: str | Path, setting: str, marker: ExternalMarker = ExternalMarker()
) -> None:
    """Refuse a path outside the declared roots, if roots are declared."""
    if (roots := read_declared_roots()) is not None:
        roots.check_path(path, setting, marker)


def check_config_paths(config: Any, section: str) -> None:
    """Refuse a config of a stage that names a path outside the declared roots."""
    if (roots := read_declared_roots()) is not None:
        for config_path in iter_config_paths(config, section):
            roots.check_path(config_path.path, config_path.setting, config_path.marker)


def open_external_file(path: Path, setting: str, buffering: int = -1) -> BinaryIO:
    """Open a file that a config names, to read its bytes; inside the declared roots, if any.

    Args:
        path: The file.
        setting: The setting that names it, or what the file holds, for the error.
        buffering: As of ``open``.

    Raises:
        UsageError: If the file is outside the roots, also where a link was exchanged meanwhile.
        OSError: If it cannot be opened.
    """
    roots = read_declared_roots()
    if roots is None or Path(os.path.realpath(path)).is_relative_to(PACKAGE_DATA):
        return open(path, "rb", buffering=buffering)
    roots.check_path(path, setting, ExternalMarker(recursive=False))
    # Without O_NONBLOCK a named pipe that took the file's place would be waited for.
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
    """The paths that a config, or a part of one, names.

    A ``Path`` is one whatever its field is called; a text is one if its type is ``ExternalPath``
    or it is annotated with ``External``.
    """
    yield from _iter_typed_paths(config, type(config), setting, None)


def _iter_typed_paths(
    value: Any, type_hint: Any, setting: str, marker: ExternalMarker | None
) -> Iterator[ConfigPath]:
    """``marker``: that of the type around ``kind``, if it has one."""
    origin, arguments = get_origin(type_hint), get_args(type_hint)
    if origin is Annotated:
        inner, *metadata = arguments
        own_marker = next(
            (annotation for annotation in metadata if isinstance(annotation, ExternalMarker)),
            marker,
        )
        yield from _iter_typed_paths(value, inner, setting, own_marker)
    elif origin in (Union, UnionType):
        member = next((member for member in arguments if _matches_type(value, member)), Any)
        yield from _iter_typed_paths(value, member, setting, marker)
    elif isinstance(value, Path):
        yield ConfigPath(setting, str(value), marker or ExternalMarker())
    elif isinstance(value, str):
        if marker is not None:
            yield ConfigPath(setting, value, marker)
    elif isinstance(value, BaseModel | Mapping) or is_dataclass(value):
        for name, inner, member, own_marker in _iter_members(value, arguments):
            yield from _iter_typed_paths(inner, member, f"{setting}.{name}".strip("."), own_marker)
    elif isinstance(value, list | tuple | set | frozenset):
        members = [argument for argument in arguments if argument is not Ellipsis]
        for index, inner in enumerate(value):
            member = members[min(index, len(members) - 1)] if members else Any
            yield from _iter_typed_paths(inner, member, f"{setting}.{index}", marker)


def _matches_type(value: Any, type_hint: Any) -> bool:
    """Whether a value is of a member of a union, as far as paths depend on it."""
    while get_origin(type_hint) is Annotated:
        type_hint = get_args(type_hint)[0]
    if get_origin(type_hint) in (Union, UnionType):
        return any(_matches_type(value, member) for member in get_args(type_hint))
    runtime_type = get_origin(type_hint) or type_hint
    return isinstance(runtime_type, type) and isinstance(value, runtime_type)


def _iter_members(
    value: Any, type_arguments: Any
) -> Iterator[tuple[str, Any, Any, ExternalMarker | None]]:
    """Name, value, type and marker of each member of a config, a table or a dataclass."""
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            own_marker = next(
                (element for element in field.metadata if isinstance(element, ExternalMarker)), None
            )
            yield name, getattr(value, name), field.annotation, own_marker
    elif isinstance(value, Mapping):
        value_type = type_arguments[1] if len(type_arguments) == 2 else Any
        for key, member_value in value.items():
            yield str(key), member_value, value_type, None
    else:
        hints = get_type_hints(type(value), include_extras=True)
        for element in fields(value):
            yield element.name, getattr(value, element.name), hints[element.name], None
