"""The embedded corpus: documentation of installed packages, for runs without any data.

Docstrings, package descriptions and licence files are prose that people wrote, with real
duplicates (licences, inherited methods) and real e-mail addresses, and every installation of
Hallmark has them. Sources are parsed with ``ast``: no package is imported, none of its code
runs. Only named packages are read; parsing a whole site-packages takes minutes.
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

from tasks.contract import PlainName, UsageError, canonical, sha256
from tasks.corpus.reading.readers import NOT_UTF8, TOO_LONG, Record, encodable
from tasks.corpus.reading.sources import Source
from tasks.corpus.reading.streams import BOM, Meter


class DocumentationSource(Source):
    """Installed packages; each is a source of its own, ``<name>/<package>``."""

    kind: Literal["documentation"]
    name: PlainName = Field("documentation", description="begins the names of these sources")
    packages: list[str] = Field(min_length=1, description="names of installed distributions")

    def names(self) -> list[str]:
        return [self.name, *(f"{self.name}/{package}" for package in self.packages)]

    @field_validator("packages")
    @classmethod
    def _once_each(cls, packages: list[str]) -> list[str]:
        """However they are spelled: pip takes A.b for a_b."""
        names = Counter(re.sub(r"[-_.]+", "-", package).lower() for package in packages)
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            raise ValueError(f"package {twice[0]!r} is named twice; name it once")
        return packages


_LICENCE = re.compile(r"(licen[sc]e|copying|notice|authors)", re.IGNORECASE)
#: Tests are most of the code and hardly any of the prose.
_LEFT_OUT = {"tests", "test", "testing", "_vendor", "vendor", "externals"}


def package_files(package: str) -> dict[str, Path]:
    """Files that hold prose, by their name in the package's own record, in order of name.

    Raises UsageError for a package that is not installed or keeps no record of its files.
    """
    files = {_place(entry): Path(str(entry.locate())) for entry in _record(package)}
    return dict(sorted(files.items()))


def package_digest(package: str) -> str:
    """Version and recorded SHA-256 of every file with prose; reads none of them."""
    lines = {_place(e): e.hash.value if e.hash else None for e in _record(package)}
    return f"{_installed(package).version} {sha256(canonical(lines))}"


def _installed(package: str) -> Distribution:
    try:
        return distribution(package)
    except PackageNotFoundError as error:
        raise UsageError(
            f"package {package!r} of the documentation source is not installed; install it or "
            f"take it from the source's packages"
        ) from error


def _record(package: str) -> list[PackagePath]:
    files = _installed(package).files
    if not files:
        raise UsageError(
            f"package {package!r} of the documentation source has no record of its files; "
            f"install it from a wheel or take it from the source's packages"
        )
    return [entry for entry in files if _has_prose(entry)]


def _has_prose(entry: PackagePath) -> bool:
    if ".." in entry.parts:
        return False
    if entry.parts[0].endswith(".dist-info"):
        return entry.name == "METADATA" or bool(_LICENCE.match(entry.name))
    return entry.suffix == ".py" and not _LEFT_OUT & set(entry.parts)


def _place(entry: PackagePath) -> str:
    """The name without the version in it."""
    first, *rest = entry.parts
    return "/".join(["dist-info" if first.endswith(".dist-info") else first, *rest])


def read_package(package: str, limit: int, meter: Meter) -> Iterator[Record]:
    """Documents of a package: its description, its licences, then its docstrings by file."""
    yield from read_prose(package_files(package), limit, meter)


def read_prose(files: Mapping[str, Path], limit: int, meter: Meter) -> Iterator[Record]:
    """Documents of files of a package, by their names in its record.

    Raw bytes are those of the docstring as it stands in the parsed source (its indentation is
    no part of the text), of the description, or of the licence file.
    """
    for name, path in files.items():
        data = path.read_bytes().removeprefix(BOM)
        for record in _read(name, data):
            meter.rows += 1
            meter.bytes += record.raw_bytes
            if not record.error and record.raw_bytes > limit:
                record.error, record.raw, record.text = TOO_LONG, record.text.encode(), ""
            record.file = name
            yield record


def _read(name: str, data: bytes) -> Iterator[Record]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        yield Record(f"byte {error.start + 1}", len(data), error=NOT_UTF8, raw=data)
        return
    if name.endswith(".py"):
        yield from _docstrings(text, data)
    elif name.endswith("/METADATA"):
        _, _, description = text.replace("\r\n", "\n").partition("\n\n")
        if description.strip():
            yield Record("description", len(description.encode()), description)
    else:
        yield Record("whole file", len(data), text)


def _docstrings(source: str, data: bytes) -> Iterator[Record]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in other people's strings
            tree = ast.parse(source)
    except (
        SyntaxError,
        ValueError,
        RecursionError,
        MemoryError,
    ) as error:  # too deep: the last two
        place = f"line {getattr(error, 'lineno', None) or 1}"
        yield Record(place, len(data), error="not parsable as Python", raw=data)
        return
    todo: list[tuple[str, ast.AST]] = [("module", tree)]
    while todo:
        name, node = todo.pop()
        if isinstance(node, _DOCUMENTED):
            value = ast.get_docstring(node, clean=False)
            if value is not None:
                yield _docstring(f"{name}, line {node.body[0].lineno}", value)
        prefix = "" if name == "module" else f"{name}."
        inner = [n for n in _statements(node) if isinstance(n, (*_DOCUMENTED, *_BRANCHES))]
        for child in reversed(inner):
            todo.append((f"{prefix}{child.name}" if isinstance(child, _NAMED) else name, child))


_NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED = (ast.Module, *_NAMED)
_BRANCHES = (
    ast.If, ast.Match, ast.match_case, ast.Try, ast.TryStar, ast.ExceptHandler, ast.With,
    ast.AsyncWith, ast.For, ast.AsyncFor, ast.While,
)  # fmt: skip


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    for field in ("body", "cases", "handlers", "orelse", "finalbody"):
        yield from getattr(node, field, ())


def _docstring(place: str, value: str) -> Record:
    raw = value.encode("utf-8", "surrogatepass")
    if not encodable(value):
        return Record(place, len(raw), error="a lone surrogate has no UTF-8 form", raw=raw)
    return Record(place, len(raw), inspect.cleandoc(value))
