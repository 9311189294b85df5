"""Read the embedded corpus: documentation of installed packages, for runs without any data.

Docstrings, package descriptions and licence files are prose that people wrote. They contain real
duplicates (licences, inherited methods) and real e-mail addresses, and every installation of
Hallmark has them. Sources are parsed with ``ast``: no package is imported and none of its code
runs. Only the named packages are read, because parsing a whole site-packages takes minutes.
"""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from hallmark.tasks.contract import PathSafeName, UsageError, sha256_hex, to_canonical_json
from hallmark.tasks.corpus.reading.byte_streams import BOM, ReadCounts
from hallmark.tasks.corpus.reading.metadata import LICENCE_FIELD
from hallmark.tasks.corpus.reading.readers import (
    NOT_UTF8,
    TOO_LONG,
    fill_metadata,
    is_utf8_encodable,
)
from hallmark.tasks.corpus.reading.sources import CustomSource, DigestFunction, Input, Record


class DocumentationSource(CustomSource):
    """Configure installed packages; each is a separate source, ``<name>/<package>``."""

    kind: Literal["documentation"]
    name: PathSafeName = Field(
        "documentation",
        description="source name, which is also the prefix of its part names: <name>/<package>",
    )
    packages: list[str] = Field(min_length=1, description="names of installed Python packages")

    def list_source_and_part_names(self) -> list[str]:
        return [self.name, *(f"{self.name}/{package}" for package in self.packages)]

    def list_inputs(self, source_index: int) -> Iterator[Input]:
        for package in self.packages:
            find_paths_by_document_name(package)  # refuse a package that is not installed
            yield Input(f"{self.name}/{package}", source_index, package, package)

    def compute_input_digest(self, source_input: Input, digest_file: DigestFunction) -> str:
        return compute_package_digest(source_input.locator)

    def read_input(
        self, source_input: Input, max_bytes: int, counts: ReadCounts, resume_folder: Path | None
    ) -> Iterator[Record]:
        return read_package_documentation(source_input.locator, max_bytes, counts)

    @field_validator("packages")
    @classmethod
    def _reject_repeated_packages(cls, packages: list[str]) -> list[str]:
        """Reject a package named twice in any spelling; to pip, A.b and a_b are the same."""
        name_counts = Counter(re.sub(r"[-_.]+", "-", package).lower() for package in packages)
        repeated = [name for name, count in name_counts.items() if count > 1]
        if repeated:
            raise ValueError(
                f"the package {repeated[0]!r} is listed twice; remove one of the entries"
            )
        return packages


_LICENCE_FILE = re.compile(r"(licen[sc]e|copying|notice|authors)", re.IGNORECASE)
#: Tests are most of the code but hold hardly any prose.
_EXCLUDED_FOLDERS = {"tests", "test", "testing", "_vendor", "vendor", "externals"}


def find_paths_by_document_name(package: str) -> dict[str, Path]:
    """Find the files of a package that hold prose.

    Returns:
        Paths by the name in the package's own file record, sorted by name.

    Raises:
        UsageError: if the package is not installed or has no record of its files.
    """
    files = {
        _strip_version_from_name(entry): Path(str(entry.locate()))
        for entry in _list_prose_entries(package)
    }
    return dict(sorted(files.items()))


def compute_package_digest(package: str) -> str:
    """Combine the version with the recorded SHA-256 of every prose file; read no file."""
    hash_by_name = {
        _strip_version_from_name(entry): entry.hash.value if entry.hash else None
        for entry in _list_prose_entries(package)
    }
    return f"{_get_distribution(package).version} {sha256_hex(to_canonical_json(hash_by_name))}"


def _get_distribution(package: str) -> Distribution:
    try:
        return distribution(package)
    except PackageNotFoundError as error:
        raise UsageError(
            f"the package {package!r} in the documentation source is not installed; install the "
            "package, or remove it from the source's 'packages' setting"
        ) from error


def _list_prose_entries(package: str) -> list[PackagePath]:
    files = _get_distribution(package).files
    if not files:
        raise UsageError(
            f"the package {package!r} in the documentation source has no file list; install the "
            "package from a wheel, or remove it from the source's 'packages' setting"
        )
    return [entry for entry in files if _holds_docstrings_or_metadata(entry)]


def _holds_docstrings_or_metadata(entry: PackagePath) -> bool:
    if ".." in entry.parts:
        return False
    if entry.parts[0].endswith(".dist-info"):
        return entry.name == "METADATA" or bool(_LICENCE_FILE.match(entry.name))
    return entry.suffix == ".py" and not _EXCLUDED_FOLDERS & set(entry.parts)


def _strip_version_from_name(entry: PackagePath) -> str:
    """Return the name of an entry without the version of its .dist-info folder."""
    top_folder, *other_parts = entry.parts
    return "/".join(
        ["dist-info" if top_folder.endswith(".dist-info") else top_folder, *other_parts]
    )


def read_package_documentation(
    package: str, max_bytes: int, counts: ReadCounts
) -> Iterator[Record]:
    """Yield the documents of a package: its description, licences and docstrings by file.

    Each carries the licence that the package states, if it states one.
    """
    licence = {LICENCE_FIELD: read_package_licence(package)}
    for record in read_prose_files(find_paths_by_document_name(package), max_bytes, counts):
        fill_metadata(record, licence)
        yield record


def read_package_licence(package: str) -> str | None:
    """Return the licence of a package: an SPDX expression, a classifier, or a line of text."""
    headers = _get_distribution(package).metadata
    for expression in headers.get_all("License-Expression") or ():
        return str(expression)
    for classifier in headers.get_all("Classifier") or ():
        category, _, name = classifier.rpartition(" :: ")
        if category.startswith("License"):
            return str(name)
    for text in headers.get_all("License") or ():
        return None if "\n" in text.strip() else str(text)
    return None


def read_prose_files(
    path_by_file_name: Mapping[str, Path], max_bytes: int, counts: ReadCounts
) -> Iterator[Record]:
    """Yield the documents of package path_by_file_name.

    ``raw_bytes`` counts the docstring as it appears in the parsed source (including indentation
    that is not part of the text), the description, or the licence file.

    Args:
        path_by_file_name: Paths by the name in the package's file record.
    """
    for file_name, path in path_by_file_name.items():
        data = path.read_bytes().removeprefix(BOM)
        for record in _split_into_documents(file_name, data):
            counts.record_count += 1
            counts.byte_count += record.raw_bytes
            if not record.error and record.raw_bytes > max_bytes:
                record.error, record.raw, record.text = TOO_LONG, record.text.encode(), ""
            record.file_name = file_name
            yield record


def _split_into_documents(file_name: str, data: bytes) -> Iterator[Record]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        yield Record(f"byte {error.start + 1}", len(data), error=NOT_UTF8, raw=data)
        return
    if file_name.endswith(".py"):
        yield from _extract_docstrings(text, data)
    elif file_name.endswith("/METADATA"):
        _, _, description = text.replace("\r\n", "\n").partition("\n\n")
        if description.strip():
            yield Record("description", len(description.encode()), description)
    else:
        yield Record("whole file", len(data), text)


def _extract_docstrings(source_code: str, data: bytes) -> Iterator[Record]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the strings of the packages
            tree = ast.parse(source_code)
    # RecursionError and MemoryError: the code is nested too deeply.
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        location = f"line {getattr(error, 'lineno', None) or 1}"
        yield Record(location, len(data), error="not parsable as Python", raw=data)
        return
    pending: list[tuple[str, ast.AST]] = [("module", tree)]
    while pending:
        name, node = pending.pop()
        if isinstance(node, _DOCSTRING_NODES):
            docstring = ast.get_docstring(node, clean=False)
            if docstring is not None:
                yield _docstring_to_record(f"{name}, line {node.body[0].lineno}", docstring)
        prefix = "" if name == "module" else f"{name}."
        child_nodes = [
            statement
            for statement in _iterate_child_statements(node)
            if isinstance(statement, (*_DOCSTRING_NODES, *_BLOCK_NODES))
        ]
        for child in reversed(child_nodes):
            pending.append(
                (f"{prefix}{child.name}" if isinstance(child, _DEFINITION_NODES) else name, child)
            )


_DEFINITION_NODES = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_DOCSTRING_NODES = (ast.Module, *_DEFINITION_NODES)
_BLOCK_NODES = (
    ast.If,
    ast.Match,
    ast.match_case,
    ast.Try,
    ast.TryStar,
    ast.ExceptHandler,
    ast.With,
    ast.AsyncWith,
    ast.For,
    ast.AsyncFor,
    ast.While,
)


def _iterate_child_statements(node: ast.AST) -> Iterator[ast.AST]:
    for attribute in ("body", "cases", "handlers", "orelse", "finalbody"):
        yield from getattr(node, attribute, ())


def _docstring_to_record(location: str, docstring: str) -> Record:
    raw = docstring.encode("utf-8", "surrogatepass")
    if not is_utf8_encodable(docstring):
        return Record(
            location,
            len(raw),
            error="the docstring contains a lone surrogate, which cannot be encoded as UTF-8",
            raw=raw,
        )
    return Record(location, len(raw), inspect.cleandoc(docstring))
