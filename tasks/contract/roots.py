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

from tasks.contract.errors import UsageError

#: The environment variable that holds the declared roots, as a JSON list.
ROOTS_VARIABLE = "HALLMARK_SERVE_ROOTS"

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
class External:
    """Marks a setting that names something outside the config: a file, a folder or a URI."""

    built_in: tuple[str, ...] = ()
    """Values that name a file of this package instead."""

    hub: bool = False
    """Whether a value that is no local path is the id of a data set on the Hugging Face hub."""

    whole: bool = True
    """Whether everything below a folder is read, so that links in it count."""

    endings: tuple[str, ...] = ()
    """Of a folder only files count that ``is_corpus_file`` takes by these endings, and no folder
    that a link names is searched; without endings anything below it may be read."""


#: A text setting that names a file, a folder, a pattern of files or an object-store URI.
ExternalPath = Annotated[str, External()]


@dataclass(frozen=True)
class NamedPath:
    """A path that a config names."""

    setting: str
    """The key, such as ``ingest.sources.0.path``."""

    path: str
    marker: External = External()


@dataclass(frozen=True)
class Roots:
    """The folders and URIs that a served deployment may read and write."""

    folders: tuple[str, ...]
    """Real paths, without links."""

    uris: tuple[str, ...] = ()
    """Beginnings of object-store URIs, without a slash at the end."""

    @classmethod
    def from_names(cls, names: Iterable[str], named_by: str = "--root") -> Roots:
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
        for name in names:
            scheme = _SCHEME.match(name)
            if scheme is None or scheme[1] == "file":
                folders[os.path.realpath(os.path.expanduser(name.removeprefix("file://")))] = None
            elif fault := _find_uri_fault(name, is_pattern=False):
                raise UsageError(
                    f"{named_by} {name!r} is not a URI such as s3://bucket/folder: it {fault}; "
                    f"correct it"
                )
            else:
                uris[name.rstrip("/")] = None
        return cls(tuple(folders), tuple(uris))

    def __or__(self, other: Roots) -> Roots:
        """The roots of both, each once."""
        folders = dict.fromkeys(self.folders + other.folders)
        return Roots(tuple(folders), tuple(dict.fromkeys(self.uris + other.uris)))

    def __str__(self) -> str:
        return ", ".join((*self.folders, *self.uris)) or "none"

    def declare(self) -> None:
        """Bound this process and those that it starts to these roots."""
        os.environ[ROOTS_VARIABLE] = json.dumps({"folders": self.folders, "uris": self.uris})

    def check(self, path: str | Path, setting: str, marker: External = External()) -> None:
        """Refuse a path that leads outside the roots, links and ``..`` resolved.

        Args:
            path: A path, a pattern of files or a URI, as a request names it.
            setting: The setting or parameter that names it, for the error.
            marker: How the setting reads it.

        Raises:
            UsageError: If the path, or a link below it, leads outside.
        """
        text = os.fspath(path)
        if text in marker.built_in:
            return
        scheme = _SCHEME.match(text)
        if scheme is not None and scheme[1] != "file":
            self._check_uri(text, setting, is_pattern=marker.whole)
            return
        if marker.hub and scheme is None and _HUB_ID.fullmatch(text) and not os.path.exists(text):
            self._check_uri(f"hf://datasets/{text}", setting, is_pattern=False)
            return
        try:
            spellings = list(_local_spellings(text, scheme is not None, marker))
            for spelling in spellings:
                self._check_local(spelling, text, setting, marker)
        except (ValueError, OSError) as error:  # a null byte, or a folder that may not be listed
            raise UsageError(f"{setting}: {text!r} cannot be checked ({error})") from error

    def check_opened(self, descriptor: int, path: str | Path, setting: str) -> None:
        """Refuse an open file that is not the one at ``path`` inside the roots.

        A link that was exchanged after ``check`` is found here, for the file is compared itself.
        """
        real = os.path.realpath(path)
        try:
            inside, opened = os.stat(real, follow_symlinks=False), os.fstat(descriptor)
        except OSError as error:
            raise UsageError(f"{setting}: {os.fspath(path)!r} changed while it was opened") from (
                error
            )
        same = (inside.st_dev, inside.st_ino) == (opened.st_dev, opened.st_ino)
        if not self._holds_folder(real) or not same:
            raise self._outside(os.fspath(path), setting)

    def _check_local(self, spelling: str, named: str, setting: str, marker: External) -> None:
        pattern = _WILDCARDS & set(spelling) and not os.path.lexists(spelling)
        base = Path(spelling)
        while pattern and _WILDCARDS & set(str(base)):  # up to the folder before the pattern
            base = base.parent
        if not self._holds_folder(os.path.realpath(base)):
            raise self._outside(named, setting)
        if pattern:
            rest = Path(spelling).relative_to(base)
            if ".." in rest.parts:
                raise self._outside(named, setting)
            found: Iterable[str] = map(str, base.glob(str(rest)))
        else:
            found = _links(spelling, marker.endings)
        for path in found if marker.whole else ():
            if not self._holds_folder(os.path.realpath(path)):
                raise self._outside(path, setting)

    def _holds_folder(self, real: str) -> bool:
        return any(real == root or real.startswith(root.rstrip("/") + "/") for root in self.folders)

    def _check_uri(self, uri: str, setting: str, is_pattern: bool) -> None:
        """``is_pattern``: whether the reader takes wildcards of the path as such."""
        if fault := _find_uri_fault(uri, is_pattern):
            raise self._outside(
                uri, setting, f"cannot be compared with the roots of this deployment: it {fault}"
            )
        bound = uri.rstrip("/")
        path = uri.partition("://")[2].partition("/")[2]
        wild = next((place for place, c in enumerate(path) if c in _WILDCARDS), None)
        if is_pattern and wild is not None:  # up to the folder before the pattern
            bound = uri[: len(uri) - len(path) + wild].rpartition("/")[0]
        if not any(bound == root or bound.startswith(f"{root}/") for root in self.uris):
            raise self._outside(uri, setting)

    def _outside(
        self, path: str, setting: str, why: str = "leads outside the roots of this deployment"
    ) -> UsageError:
        return UsageError(
            f"{setting}: {path!r} {why} ({self}); name something inside them, or declare another "
            f"root with: hallmark serve --root PATH"
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


def _local_spellings(text: str, is_uri: bool, marker: External) -> Iterator[str]:
    """The local paths that readers may take a text for."""
    if is_uri:
        rest = text.removeprefix("file://")
        for spelling in {rest, unquote(rest)}:
            yield spelling
            if not spelling.startswith("/"):  # a host, as in file://localhost/path
                yield f"/{spelling.partition('/')[2]}"
        return
    expanded = os.path.expanduser(text)
    yield expanded
    # A folder whose name is ~: one that is there is read, one that is not may be made.
    if expanded != text and (os.path.lexists(text) or not marker.whole):
        yield text


def is_corpus_file(name: str, endings: tuple[str, ...]) -> bool:
    """Whether a source reads a file that it finds in its folder, or in one below, by its name.

    Hidden folders are searched as any other; folders that links name are not.
    """
    return name.endswith(endings) and not name.startswith(".")


def _links(path: str, endings: tuple[str, ...]) -> Iterator[str]:
    """The symbolic links below a path, if it is a folder; with ``endings`` those that a source
    reads."""
    if not os.path.isdir(path):
        return

    def fail(error: OSError) -> None:
        raise error

    for folder, inner, names in os.walk(path, onerror=fail):
        listed = [*inner, *names]
        if endings:
            listed = [name for name in names if is_corpus_file(name, endings)]
        for name in listed:
            if os.path.islink(below := os.path.join(folder, name)):
                yield below


# The declared roots --------------------------------------------------------------------------


def declared_roots() -> Roots | None:
    """The roots that ``hallmark serve`` declared for this process; None on the command line."""
    declared = os.environ.get(ROOTS_VARIABLE)
    return None if declared is None else _parse_roots(declared)


@lru_cache(maxsize=4)
def _parse_roots(declared: str) -> Roots:
    found = json.loads(declared)
    return Roots(tuple(found["folders"]), tuple(found["uris"]))


def check_external(path: str | Path, setting: str, marker: External = External()) -> None:
    """Refuse a path outside the declared roots, if roots are declared."""
    if (roots := declared_roots()) is not None:
        roots.check(path, setting, marker)


def check_config(config: Any, section: str) -> None:
    """Refuse a config of a stage that names a path outside the declared roots."""
    if (roots := declared_roots()) is not None:
        for named in external_paths(config, section):
            roots.check(named.path, named.setting, named.marker)


def open_external(path: Path, setting: str, buffering: int = -1) -> BinaryIO:
    """Open a file that a config names, to read its bytes; inside the declared roots, if any.

    Args:
        path: The file.
        setting: The setting that names it, or what the file holds, for the error.
        buffering: As of ``open``.

    Raises:
        UsageError: If the file is outside the roots, also where a link was exchanged meanwhile.
        OSError: If it cannot be opened.
    """
    roots = declared_roots()
    if roots is None or Path(os.path.realpath(path)).is_relative_to(PACKAGE_DATA):
        return open(path, "rb", buffering=buffering)
    roots.check(path, setting, External(whole=False))
    # Without O_NONBLOCK a named pipe that took the file's place would be waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        roots.check_opened(descriptor, path, setting)
        os.set_blocking(descriptor, True)
        return open(descriptor, "rb", buffering=buffering)
    except BaseException:
        os.close(descriptor)
        raise


# The paths of a config -----------------------------------------------------------------------


def external_paths(value: Any, setting: str = "") -> Iterator[NamedPath]:
    """The paths that a config, or a part of one, names.

    A ``Path`` is one whatever its field is called; a text is one if its type is ``ExternalPath``
    or it is annotated with ``External``.
    """
    yield from _paths(value, type(value), setting, None)


def _paths(value: Any, kind: Any, setting: str, marker: External | None) -> Iterator[NamedPath]:
    """``marker``: that of the type around ``kind``, if it has one."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        inner, *metadata = arguments
        own = next((each for each in metadata if isinstance(each, External)), marker)
        yield from _paths(value, inner, setting, own)
    elif origin in (Union, UnionType):
        member = next((member for member in arguments if _fits(value, member)), Any)
        yield from _paths(value, member, setting, marker)
    elif isinstance(value, Path):
        yield NamedPath(setting, str(value), marker or External())
    elif isinstance(value, str):
        if marker is not None:
            yield NamedPath(setting, value, marker)
    elif isinstance(value, BaseModel | Mapping) or is_dataclass(value):
        for name, inner, member, own in _members(value, arguments):
            yield from _paths(inner, member, f"{setting}.{name}".strip("."), own)
    elif isinstance(value, list | tuple | set | frozenset):
        members = [argument for argument in arguments if argument is not Ellipsis]
        for number, inner in enumerate(value):
            member = members[min(number, len(members) - 1)] if members else Any
            yield from _paths(inner, member, f"{setting}.{number}", marker)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a member of a union, as far as paths depend on it."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, UnionType):
        return any(_fits(value, member) for member in get_args(kind))
    outer = get_origin(kind) or kind
    return isinstance(outer, type) and isinstance(value, outer)


def _members(value: Any, arguments: Any) -> Iterator[tuple[str, Any, Any, External | None]]:
    """Name, value, type and marker of each member of a config, a table or a dataclass."""
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            own = next((each for each in field.metadata if isinstance(each, External)), None)
            yield name, getattr(value, name), field.annotation, own
    elif isinstance(value, Mapping):
        kind = arguments[1] if len(arguments) == 2 else Any
        for key, inner in value.items():
            yield str(key), inner, kind, None
    else:
        hints = get_type_hints(type(value), include_extras=True)
        for each in fields(value):
            yield each.name, getattr(value, each.name), hints[each.name], None
