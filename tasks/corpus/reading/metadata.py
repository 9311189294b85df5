"""What a document says of where and when it was: domains of URLs, and dates."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

#: A longer one is none: browsers and crawlers take no more.
MAX_URL_LENGTH = 8192

#: Scheme, credentials (up to the last "@", as WHATWG's URL standard reads them), host, port.
_HOST_PATTERN = (
    r"^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#\\]*@)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^/?#\\:@]+)"
    r"(?::[0-9]*)?(?:[/?#\\]|$)"
)
_HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")


def extract_domains(urls: pa.Array) -> pa.Array:
    """Host names of URLs (string): lower case, without port, credentials and a leading ``www.``.

    International names are in the form they are registered in (``xn--…``). Null for what has no
    host or none that can be registered.
    """
    encoded_hosts = pc.struct_field(
        pc.extract_regex(urls, _HOST_PATTERN), "host"
    ).dictionary_encode()
    names = pa.array(
        [normalise_host(host) for host in encoded_hosts.dictionary.to_pylist()], pa.string()
    )
    return names.take(encoded_hosts.indices)


def normalise_host(host: str) -> str | None:
    """The name under which a host is known, see ``domains``."""
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
    """ISO 8601: a day as it is, an instant in UTC to the second, with "Z".

    Of a time without a zone only its day is known. None for what is neither a day nor a time.
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
    except (ValueError, OverflowError):  # the 31st of February; an hour before the year 1
        return None
