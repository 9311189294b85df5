"""Files in object stores: found by URI, known by their tags, read from a copy that is kept as long
as they are read."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import obstore
from obstore.exceptions import BaseError, PreconditionError
from obstore.store import from_url

from tasks.contract import FileChangedError, HallmarkError, UsageError

_URI = re.compile(r"(?P<root>[a-z][a-z0-9+.-]*://[^/]+)/*(?P<key>.*)", re.DOTALL)


@dataclass(frozen=True)
class RemoteFile:
    uri: str
    size: int
    tag: str  # changes whenever the content does


def is_remote(path: str) -> bool:
    return bool(re.match(r"[a-z][a-z0-9+.-]*://", path))


def remote_files(source: str, path: str, endings: tuple[str, ...]) -> dict[str, RemoteFile]:
    """Objects at a URI, below it, or that it is a pattern of, by their name below it, in order."""
    match = _URI.fullmatch(path)
    if match is None:
        raise UsageError(f"source {source!r}: {path!r} names no bucket; write s3://bucket/path")
    root, key = match["root"], match["key"]
    wild = re.search(r"[*?\[]", key)
    base = key[: key.rindex("/", 0, wild.start()) + 1] if wild and "/" in key[: wild.start()] else (
        "" if wild else key
    )  # fmt: skip
    try:
        store = from_url(root)
        found = {}
        for chunk in obstore.list(store, base.strip("/") or None):
            for meta in chunk:
                name = str(meta["path"])
                found[name] = RemoteFile(f"{root}/{name}", meta["size"], _tag(meta))
        if not wild and key and not found:  # an object, not a folder
            meta = obstore.head(store, key)
            return {PurePosixPath(key).name: RemoteFile(f"{root}/{key}", meta["size"], _tag(meta))}
    except FileNotFoundError:
        found = {}
    except (BaseError, OSError, ValueError) as error:
        raise UsageError(
            f"source {source!r}: {path!r} cannot be listed ({_first(error)}); correct the source's "
            f"path, or check permissions, credentials and the network"
        ) from error
    if wild:
        try:
            pattern = re.compile(_pattern(key))
        except re.error as error:  # such as [z-a]
            raise UsageError(
                f"source {source!r}: {path!r} is no pattern ({error}); correct the source's path"
            ) from error
        found = {name: file for name, file in found.items() if pattern.fullmatch(name)}
    else:
        ends = tuple(ending + packed for ending in endings for packed in ("", ".gz", ".zst"))
        found = {name: file for name, file in found.items() if name.endswith(ends)}
    if not found:
        kind = "nothing is" if wild else f"no object that ends in {', '.join(endings)} is"
        raise UsageError(f"source {source!r}: {kind} at {path!r}; correct the source's path")
    below = len(base.rstrip("/")) + 1 if base else 0
    return {name[below:]: file for name, file in sorted(found.items())}


def _tag(meta: Any) -> str:
    """Where a store gives none: the time of the last change."""
    return str(meta["e_tag"] or meta["version"] or meta["last_modified"].isoformat())


def _pattern(glob: str) -> str:
    """A regular expression for a pattern as ``Path.glob`` reads it."""
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pieces = re.split(r"(\*\*/|\*\*|\*|\?|\[!?[^\]]+\])", glob)
    return "".join(
        parts.get(p, _one_of(p) if p.startswith("[") and len(p) > 2 else re.escape(p))
        for p in pieces
    )


def _one_of(characters: str) -> str:
    """[ab], or [!ab] for any other, as an expression: there ^ stands for the latter."""
    negated = characters.startswith("[!") and len(characters) > 3
    some = characters[2:-1] if negated else characters[1:-1]
    escaped = re.sub(r"[\\^\[&|~]", r"\\\g<0>", some)
    return f"[^/{escaped}]" if negated else f"[{escaped}]"


@contextmanager
def fetched(uri: str, tag: str, folder: Path | None) -> Iterator[Path]:
    """A copy of an object, in a folder of its own below ``folder`` that is removed afterwards.

    Raises HallmarkError if it is another one than ``tag`` names, is gone or cannot be had.
    """
    match = _URI.fullmatch(uri)
    assert match is not None
    with tempfile.TemporaryDirectory(dir=folder, prefix="fetched-") as here:
        path = Path(here) / PurePosixPath(match["key"]).name
        try:
            with path.open("wb") as file:
                got = obstore.get(from_url(match["root"]), match["key"])
                if _tag(got.meta) != tag:
                    raise FileChangedError(_changed(uri))
                for chunk in got.stream():
                    file.write(chunk)
        except FileNotFoundError as error:
            raise FileChangedError(
                f"{uri} vanished before it was read; put it back and run again"
            ) from error
        except PreconditionError as error:
            raise FileChangedError(_changed(uri)) from error
        except BaseError as error:
            raise HallmarkError(
                f"{uri} cannot be read ({_first(error)}); check permissions, credentials and the "
                f"network, then run again: what was read before stays"
            ) from error
        yield path


def _changed(uri: str) -> str:
    return f"{uri} changed while it was read (its tag is another one); run again"


def _first(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
