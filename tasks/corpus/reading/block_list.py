"""Read the block list: the sources, domains and documents that must not enter the corpus."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from pydantic import Field

from hallmark.tasks.contract import (
    ExternalPath,
    FileStamp,
    StageConfig,
    UsageError,
    expand_home,
    explain_relative_path,
    hash_file,
    open_external_file,
    stat_to_file_stamp,
)
from hallmark.tasks.corpus.reading.metadata import normalise_host

_LIST_FORMAT = "a list, or the path to a file with one entry per line; # starts a comment"


class BlockListConfig(StageConfig):
    """Configure what to exclude; each excluded document has a ledger row."""

    sources: tuple[str, ...] | ExternalPath = Field(
        (), description=f"names of sources (or parts of sources) to exclude: {_LIST_FORMAT}"
    )
    domains: tuple[str, ...] | ExternalPath = Field(
        (),
        description="host names to exclude, including their subdomains (a leading www. is ignored, "
        f"except in names such as www.com): {_LIST_FORMAT}",
    )
    doc_ids: tuple[str, ...] | ExternalPath = Field(
        (), description=f"document ids to exclude (32 hexadecimal digits): {_LIST_FORMAT}"
    )

    def digest_list_files(self) -> dict[str, str]:
        """Hash the list files for the fingerprint.

        Raises:
            UsageError: if a list file cannot be read.
        """
        values_by_list = {
            "sources": self.sources,
            "domains": self.domains,
            "doc_ids": self.doc_ids,
        }
        digests = {}
        for list_name, entries_or_path in values_by_list.items():
            if isinstance(entries_or_path, str):
                _read_lines(list_name, entries_or_path)
                digests[f"block.{list_name}"] = hash_file(expand_home(entries_or_path))
        return digests


@dataclass(frozen=True)
class BlockList:
    """Hold the parsed lists in the form that the tables use."""

    sources: frozenset[str]
    domains: frozenset[str]
    doc_ids: frozenset[bytes]

    def is_source_blocked(self, source_name: str) -> bool:
        """Return whether a source, or a source that contains it, is blocked."""
        parts = source_name.split("/")
        return any("/".join(parts[: n + 1]) in self.sources for n in range(len(parts)))

    def mark_blocked_domains(self, domains: pa.Array) -> pa.Array:
        """Return for each domain whether it, or a domain that contains it, is blocked."""
        if not self.domains:
            return pa.repeat(False, len(domains))
        encoded_domains = domains.dictionary_encode()
        is_blocked = [
            self._is_domain_blocked(name) for name in encoded_domains.dictionary.to_pylist()
        ]
        return pa.array(is_blocked, pa.bool_()).take(encoded_domains.indices).fill_null(False)

    def _is_domain_blocked(self, domain: str) -> bool:
        while domain not in self.domains:
            _, separator, domain = domain.partition(".")
            if not separator:
                return False
        return True


def load_block_list(config: BlockListConfig) -> BlockList:
    """Read the block lists.

    Raises:
        UsageError: if a file cannot be read or an entry is invalid; names the entry.
    """
    paths = [
        value
        for value in (config.sources, config.domains, config.doc_ids)
        if isinstance(value, str)
    ]
    stamps = [expand_home(path).stat() for path in paths if expand_home(path).exists()]
    return _parse_block_list(config, tuple(map(stat_to_file_stamp, stamps)))


@lru_cache(maxsize=2)
def _parse_block_list(config: BlockListConfig, stamps: tuple[FileStamp, ...]) -> BlockList:
    domains, doc_ids = set(), set()
    for entry in _read_entries("domains", config.domains):
        if (host := normalise_host(entry)) is None:
            raise _build_entry_error("domains", entry, "is not a host name such as example.org")
        domains.add(host)
    for entry in _read_entries("doc_ids", config.doc_ids):
        if not re.fullmatch("[0-9a-fA-F]{32}", entry):
            raise _build_entry_error(
                "doc_ids", entry, "is not a document id (32 hexadecimal digits)"
            )
        doc_ids.add(bytes.fromhex(entry))
    sources = frozenset(_read_entries("sources", config.sources))
    return BlockList(sources, frozenset(domains), frozenset(doc_ids))


def _build_entry_error(list_name: str, entry: str, problem: str) -> UsageError:
    return UsageError(
        f"ingest.block.{list_name}: {entry[:60]!r} {problem}; correct or remove the entry"
    )


def _read_entries(list_name: str, entries_or_path: tuple[str, ...] | str) -> list[str]:
    lines = (
        _read_lines(list_name, entries_or_path)
        if isinstance(entries_or_path, str)
        else entries_or_path
    )
    return [entry for line in lines if (entry := line.partition("#")[0].strip())]


def _read_lines(list_name: str, path: str) -> list[str]:
    try:
        with open_external_file(expand_home(path), f"ingest.block.{list_name}") as file:
            return file.read().decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"ingest.block.{list_name}: the file {path!r} is not UTF-8 text (invalid at byte "
            f"{error.start + 1}); save it as UTF-8"
        ) from error
    except (OSError, ValueError) as error:  # ValueError: the path has a null byte
        raise UsageError(
            f"ingest.block.{list_name}: the file {path!r}{explain_relative_path(path)} cannot be "
            f"read ({error}); correct the path, or use a list of entries instead"
        ) from error
