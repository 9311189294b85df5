"""Normalise the metadata of documents: domains of URLs, dates, and further fields.

Further fields come from untrusted records. A document has at most MAX_METADATA_FIELDS of them, with
names of METADATA_NAME_PATTERN and values of at most MAX_VALUE_CHARACTERS. What does not fit is
not carried, and is counted. It is not shortened: a shortened licence is another licence, and a
shortened address is not found by the search for personal data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from functools import cache, lru_cache
from ipaddress import IPv6Address
from typing import Any, NamedTuple
from urllib.parse import unquote

import idna
import pyarrow as pa
import pyarrow.compute as pc
from publicsuffixlist import PublicSuffixList

#: Longer URLs are ignored: browsers and crawlers do not accept them.
MAX_URL_LENGTH = 8192

#: Most fields of a document, and most characters of the value of one. Both, and the length of
#: names, limit the memory for metadata to 34 KB (in ASCII) for each document.
MAX_METADATA_FIELDS, MAX_VALUE_CHARACTERS = 32, 1000
METADATA_NAME_PATTERN = r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$"
_METADATA_NAME = re.compile(METADATA_NAME_PATTERN.removesuffix("$") + r"\Z")

#: Name of the field with the terms under which a document may be used.
LICENCE_FIELD = "licence"

#: Scheme, credentials (up to the last "@"), host and port. As in WHATWG's URL standard, the slashes
#: after the schemes of the web may be backslashes and of any number.
_HOST_AND_PORT = (
    r"(?:[^/?#\\]*@)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^/?#\\:@\[\]]+)(?::[0-9]*)?(?:[/?#\\]|$)"
)
_HOST_AFTER_SCHEME = (
    r"^(?:(?i:https?|wss?|ftp):[/\\]*|[A-Za-z][A-Za-z0-9+.-]*://|[/\\]{2})" + _HOST_AND_PORT
)
_HOST_WITHOUT_SCHEME = r"^(?P<host>[^/?#\\:@\[\]]+)(?::[0-9]*)?(?:[/?#\\]|$)"
#: Blanks and invisible characters around a URL, and line breaks and tabs in it: browsers drop them.
_IGNORED_IN_URL = r"^[\pZ\pC]+|[\pZ\pC]+$|[\t\n\r]"
#: Registries allow no hyphen at the ends of a label and no underscore, but subdomains have them.
_LABEL = "[a-z0-9_-]{1,63}"
_HOST_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
MAX_HOST_LENGTH = 253
#: Top-level domains of private networks and documentation (RFC 2606, 6761, 6762, 7686 and the
#: reservation of "internal"), which no list of public suffixes has.
_RESERVED_TOP_LEVEL_DOMAINS = frozenset(
    {"example", "test", "invalid", "localhost", "local", "internal", "onion"}
)


def extract_domains(urls: pa.Array) -> pa.Array:
    """Extract host names of URLs, in the form of ``normalise_host``.

    A URL may lack its scheme (``//example.org/a``, ``example.org/a``), and may have blanks around
    it. Without scheme and slashes, a name is a host only if its top-level domain is a known one,
    because it may as well be a file name.

    Returns:
        Strings; null if the URL has no host or one that is not a host name.
    """
    urls = pc.replace_substring_regex(urls, _IGNORED_IN_URL, "")
    hosts = pc.struct_field(pc.extract_regex(urls, _HOST_AFTER_SCHEME), "host")
    domains = _map_distinct(hosts, normalise_host)
    lacks_host = pc.and_(urls.is_valid(), hosts.is_null())
    if pc.any(lacks_host).as_py():
        bare_urls = pc.if_else(lacks_host, urls, None)
        bare_hosts = pc.struct_field(pc.extract_regex(bare_urls, _HOST_WITHOUT_SCHEME), "host")
        domains = pc.coalesce(domains, _map_distinct(bare_hosts, _normalise_bare_host))
    return domains


def _map_distinct(values: pa.Array, convert: Callable[[str], str | None]) -> pa.Array:
    """Convert each distinct string once."""
    encoded = values.dictionary_encode()
    converted = pa.array(map(convert, encoded.dictionary.to_pylist()), pa.string())
    return converted.take(encoded.indices)


@lru_cache(maxsize=1 << 16)
def normalise_host(host: str) -> str | None:
    """Return a host in the form in which hosts are compared, or None if it is not a host name.

    The form is lower case, without a leading ``www.`` and a final dot. International names are in
    their registered form (``xn--…``) according to IDNA 2008, mapped as in UTS 46 without its
    transitional rules; symbols, which browsers accept, are accepted as well. A name of which only a
    public suffix would remain, such as ``www.com``, keeps its ``www.``.
    """
    try:
        if host.startswith("["):
            return f"[{IPv6Address(host[1:-1]).compressed}]"
        name = host.lower() if host.isascii() and "%" not in host else _encode_host(host)
    except ValueError:  # no IPv6 address, no UTF-8, or a character that no name may have
        return None
    name = name.removesuffix(".")
    if len(name) > MAX_HOST_LENGTH or not _HOST_NAME.fullmatch(name):
        return None
    shorter_name = name.removeprefix("www.")
    if shorter_name != name and _load_public_suffixes().is_public(shorter_name):
        return name
    return shorter_name


def _encode_host(host: str) -> str:
    """Convert an international or percent-encoded name to its registered form.

    Raises:
        ValueError: if a character is not UTF-8 or not possible in a name.
    """
    name = unquote(host, errors="strict")
    if len(name) > MAX_HOST_LENGTH:  # encoding takes quadratic time
        raise ValueError("the name is too long")
    labels = idna.uts46_remap(name, std3_rules=False).split(".")
    return ".".join(
        label if label.isascii() else f"xn--{label.encode('punycode').decode()}" for label in labels
    )


def _normalise_bare_host(host: str) -> str | None:
    """Normalise the host of a URL without scheme; return None if it may be another kind of name."""
    name = normalise_host(host)
    if name is None or "." not in name:
        return None
    is_known = _load_public_suffixes().publicsuffix(name, accept_unknown=False) is not None
    return name if is_known or name.split(".")[-1] in _RESERVED_TOP_LEVEL_DOMAINS else None


@cache
def _load_public_suffixes() -> PublicSuffixList:
    return PublicSuffixList()


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
