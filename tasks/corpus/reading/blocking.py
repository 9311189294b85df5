"""The block list: sources, domains and documents that must not enter the corpus."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from pydantic import Field

from tasks.contract import (
    ExternalPath,
    FileStamp,
    StageConfig,
    UsageError,
    expanded,
    file_digest,
    file_stamp,
    open_external,
)
from tasks.corpus.reading.labels import domain

_ONE_A_LINE = "a list, or a file with one a line, where # begins a comment"


class BlockConfig(StageConfig):
    """What must not enter the corpus; each document it takes has a ledger row."""

    sources: tuple[str, ...] | ExternalPath = Field(
        (), description=f"names of sources and, where they have parts, of these: {_ONE_A_LINE}"
    )
    domains: tuple[str, ...] | ExternalPath = Field(
        (), description=f"hosts, each with all its subdomains: {_ONE_A_LINE}"
    )
    documents: tuple[str, ...] | ExternalPath = Field(
        (), description=f"doc_ids as 32 hexadecimal digits: {_ONE_A_LINE}"
    )

    def digests(self) -> dict[str, str]:
        """Of the files among them, for the fingerprint."""
        lists = {"sources": self.sources, "domains": self.domains, "documents": self.documents}
        found = {}
        for name, given in lists.items():
            if isinstance(given, str):
                _lines(name, given)
                found[f"block.{name}"] = file_digest(expanded(given))
        return found


@dataclass(frozen=True)
class Blocked:
    """What the lists name, in the form of the tables."""

    sources: frozenset[str]
    domains: frozenset[str]
    documents: frozenset[bytes]

    def source(self, name: str) -> bool:
        parts = name.split("/")
        return any("/".join(parts[: n + 1]) in self.sources for n in range(len(parts)))

    def hosts(self, domains: pa.Array) -> pa.Array:
        """Whether each of a column of domains, or a domain that it lies in, is blocked."""
        if not self.domains:
            return pa.repeat(False, len(domains))
        found = domains.dictionary_encode()
        known = [self._host(name) for name in found.dictionary.to_pylist()]
        return pa.array(known, pa.bool_()).take(found.indices).fill_null(False)

    def _host(self, name: str) -> bool:
        while name not in self.domains:
            _, dot, name = name.partition(".")
            if not dot:
                return False
        return True


def blocked(config: BlockConfig) -> Blocked:
    """Read the lists. UsageError names the entry that is none."""
    paths = [v for v in (config.sources, config.domains, config.documents) if isinstance(v, str)]
    stamps = [expanded(path).stat() for path in paths if expanded(path).exists()]
    return _blocked(config, tuple(map(file_stamp, stamps)))


@lru_cache(maxsize=2)
def _blocked(config: BlockConfig, stamps: tuple[FileStamp, ...]) -> Blocked:
    domains, documents = set(), set()
    for entry in _entries("domains", config.domains):
        if (host := domain(entry)) is None:
            raise _wrong("domains", entry, "is no host name such as example.org")
        domains.add(host)
    for entry in _entries("documents", config.documents):
        if not re.fullmatch("[0-9a-fA-F]{32}", entry):
            raise _wrong("documents", entry, "is no doc_id of 32 hexadecimal digits")
        documents.add(bytes.fromhex(entry))
    sources = frozenset(_entries("sources", config.sources))
    return Blocked(sources, frozenset(domains), frozenset(documents))


def _wrong(name: str, entry: str, why: str) -> UsageError:
    return UsageError(f"ingest.block.{name}: {entry[:60]!r} {why}; correct it or take it out")


def _entries(name: str, given: tuple[str, ...] | str) -> list[str]:
    lines = _lines(name, given) if isinstance(given, str) else given
    return [entry for line in lines if (entry := line.partition("#")[0].strip())]


def _lines(name: str, path: str) -> list[str]:
    try:
        with open_external(expanded(path), f"ingest.block.{name}") as file:
            return file.read().decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"ingest.block.{name}: the file {path!r} is not UTF-8 text, at byte "
            f"{error.start + 1}; save it as UTF-8"
        ) from error
    except (OSError, ValueError) as error:  # a path may have a null byte
        raise UsageError(
            f"ingest.block.{name}: the file {path!r} cannot be read ({error}); correct its path, "
            f"or give a list"
        ) from error
