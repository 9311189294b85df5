"""Normalise the metadata of documents: domains of URLs, dates, and further fields.

Further fields come from untrusted records. A document has at most MAX_METADATA_FIELDS of them, with
names of METADATA_NAME_PATTERN and values of at most MAX_VALUE_CHARACTERS. What does not fit is
not carried, and is counted. It is not shortened: a shortened licence is another licence, and a
shortened address is not found by the search for personal data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

#: Longer URLs are ignored: browsers and crawlers do not accept them.
MAX_URL_LENGTH = 8192

#: Most fields of a document, and most characters of the value of one. Both, and the length of
#: names, limit the memory for metadata to 34 KB (in ASCII) for each document.
MAX_METADATA_FIELDS, MAX_VALUE_CHARACTERS = 32, 1000
METADATA_NAME_PATTERN = r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$"
_METADATA_NAME = re.compile(METADATA_NAME_PATTERN.removesuffix("$") + r"\Z")

#: Name of the field with the terms under which a document may be used.
LICENCE_FIELD = "licence"

#: Scheme, credentials (up to the last "@", as in WHATWG's URL standard), host, port.
_HOST_PATTERN = (
    r"^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#\\]*@)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^/?#\\:@]+)"
    r"(?::[0-9]*)?(?:[/?#\\]|$)"
)
_HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")


def extract_domains(urls: pa.Array) -> pa.Array:
    """Extract host names of URLs: lower case, without port, credentials and leading ``www.``.

    International names are in their registered form (``xn--…``).

    Returns:
        Strings; null if the URL has no host or one that cannot be registered.
    """
    encoded_hosts = pc.struct_field(
        pc.extract_regex(urls, _HOST_PATTERN), "host"
    ).dictionary_encode()
    names = pa.array(
        [normalise_host(host) for host in encoded_hosts.dictionary.to_pylist()], pa.string()
    )
    return names.take(encoded_hosts.indices)


def normalise_host(host: str) -> str | None:
    """Return a host in the form of ``extract_domains``, or None if it is not a host name."""
    if host.startswith("["):
        return host.lower()
    if len(host) > 253:
        return None
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError:
            return None
    host_name = host.lower().removesuffix(".").removeprefix("www.")
    return host_name if _HOST_NAME.fullmatch(host_name) else None


_DAY_PATTERN = re.compile(r"\d{4}-\d\d-\d\d")
_INSTANT_PATTERN = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d)(:\d\d)?([.,]\d+)?\s?([Zz]|[+-]\d\d(?::?\d\d)?)?"
)


def normalise_date(value: Any) -> str | None:
    """Convert a date or time to ISO 8601.

    Returns:
        A day unchanged; a time in UTC, to the second, with "Z"; only the day of a time without a
        zone; None for any other value.
    """
    if isinstance(value, datetime):
        value = value.isoformat()
    elif isinstance(value, date):
        return value.isoformat()
    if not isinstance(value, str):
        return None
    value = value.strip()
    try:
        if _DAY_PATTERN.fullmatch(value):
            return date.fromisoformat(value).isoformat()
        if not (match := _INSTANT_PATTERN.fullmatch(value)):
            return None
        day, minutes, seconds, _, zone = match.groups()
        zone = (zone or "").upper()
        time_text = f"{day}T{minutes}{seconds or ':00'}"
        instant = datetime.fromisoformat(time_text + zone)
        if zone == "Z":
            return f"{time_text}Z"
        return instant.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z" if zone else day
    except (ValueError, OverflowError):  # such as 31 February, or a time before the year 1
        return None


class NormalisedMetadata(NamedTuple):
    """Hold the metadata of a document."""

    text_by_field: dict[str, str]
    """The values that are stored with the document by field name, sorted by field name."""
    rejected_count: int
    """Number of values that are not stored with the document.

    These are values whose field name or length violates the limits of this module, values of
    surplus fields, lists, objects, and text that cannot be encoded as UTF-8.
    """


def normalise_metadata(fields: Mapping[str, Any]) -> NormalisedMetadata:
    """Convert the further fields of a record to text.

    Text loses the white space around it. Numbers, dates and truth values are written out. Missing
    and empty values are ignored.
    """
    text_by_field: dict[str, str] = {}
    rejected_count = 0
    for name in sorted(fields):
        text = _value_to_text(fields[name])
        if text == "":
            continue
        if (
            text is None
            or len(text_by_field) == MAX_METADATA_FIELDS
            or not _METADATA_NAME.match(name)
        ):
            rejected_count += 1
        else:
            text_by_field[name] = text
    return NormalisedMetadata(text_by_field, rejected_count)


def _value_to_text(value: Any) -> str | None:
    """Return a value as text, "" if it is missing, and None if a document cannot carry it."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case float():
            return "" if value != value else repr(value)  # pandas writes NaN for a missing value
        case datetime() | date():
            return value.isoformat()
        case str() | int():
            try:
                text = str(value).strip()
                text.encode()
            except ValueError:  # a number of thousands of digits, or a lone surrogate
                return None
            return text if len(text) <= MAX_VALUE_CHARACTERS else None
    return None
