"""Refuse configs and requests that contain a credential.

run.json, Prefect, pages and cards show what a config and a request contain. The errors of this
module name the setting and never the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from hallmark.tasks.contract import UsageError

#: The shortest text in which vendors' keys are searched.
MIN_KEY_CHARACTERS = 16

#: An address with a user name or a password. A password may contain a slash; a port is no password.
#: Git and ssh have user names that are no secrets, and Azure's containers are written like them.
_USER_IN_ADDRESS = re.compile(
    r"(?i)\b(?!(?:abfss?|[a-z0-9+.-]*ssh)://[^\s/?#:@]*@)[a-z][a-z0-9+.-]*://[^\s/?#@]*@"
    r"|\b[a-z][a-z0-9+.-]*://[^\s/@:]*:(?!\d+(?:[/?#]|$))[^\s@]*@"
)

#: A query of an address whose value is a signature, a key or a password.
_KEY_IN_ADDRESS = re.compile(
    r"(?i)\b[a-z][a-z0-9+.-]*://\S*[?&;](?:sig|signature|(?:[a-z0-9]+[_-])*(?:token|key|secret|"
    r"password|passwd|pwd)|api_?key|x-amz-(?:signature|credential|security-token)|"
    r"x-goog-(?:signature|credential))=[^\s&]{6}"
)

_PRIVATE_KEY = re.compile(r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY")


@cache
def _compile_vendor_keys() -> re.Pattern[str]:
    from hallmark.tasks.measures.personal.vendor_keys import VENDOR_KEY_FORMATS

    keys = "|".join(key_format.complete_pattern for key_format in VENDOR_KEY_FORMATS)
    return re.compile(f"(?<![A-Za-z0-9])(?:{keys})(?![A-Za-z0-9])")


def describe_secret(text: str) -> str | None:
    """Describe the credential that a text contains; None if there is none."""
    if "://" in text:
        if _USER_IN_ADDRESS.search(text):
            return "an address with a user name or a password"
        if _KEY_IN_ADDRESS.search(text):
            return "an address with a signature or a key"
    if _PRIVATE_KEY.search(text):
        return "a private key"
    if len(text) >= MIN_KEY_CHARACTERS and _compile_vendor_keys().search(text):
        return "text that looks like a key or a token"
    return None


def check_no_secrets(value: Any, setting: str, source: str = "") -> None:
    """Refuse a setting, or a tree of settings, that contains a credential.

    Args:
        value: The value of the setting.
        setting: Its name; "" for the root of a config.
        source: Where the setting is from, such as "config my.toml", for the error.

    Raises:
        UsageError: If it contains one; the message does not contain it.
    """
    for key, text in _iter_texts(value, setting):
        if description := describe_secret(text):
            raise UsageError(
                f"{source and f'{source}: '}{key} contains {description}, which run.json, Prefect "
                "and pages would show; remove it, and set it in its library's environment variable "
                "or reference it in the credentials section of the config (hallmark settings "
                "credentials)"
            )


def check_no_secrets_in_overrides(overrides: Iterable[str]) -> None:
    """Refuse an override such as ``key=value`` that contains a credential.

    Raises:
        UsageError: If one contains one; the message does not contain it.
    """
    for override in overrides:
        key, _, value = override.partition("=")
        check_no_secrets(value, f"--set {key.strip():.80}")


def _iter_texts(value: Any, setting: str) -> Iterator[tuple[str, str]]:
    """Yield each text of a tree with the name of its setting; a key may be one too."""
    if isinstance(value, str):
        yield setting, value
    elif isinstance(value, Mapping):
        for key, member in value.items():
            yield f"{setting} (a key)".strip(), str(key)
            yield from _iter_texts(member, f"{setting}.{key}".strip("."))
    elif isinstance(value, list | tuple):
        for index, member in enumerate(value):
            yield from _iter_texts(member, f"{setting}.{index}")
