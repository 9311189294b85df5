"""Normalise the metadata of documents: domains of URLs, and dates."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

#: Longer URLs are ignored: browsers and crawlers do not accept them.
MAX_URL_LENGTH = 8192

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
