"""Find credentials: vendors' keys and tokens, private keys, and passwords."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from hallmark.tasks.measures.personal.contact_details import NOT_SPACED_SCRIPT, SpanIterator

#: Credentials with a vendor's prefix, which distinguishes them from other text. Random-looking
#: strings without a prefix are hashes and digests far more often than secrets.
_VENDOR_KEY_PATTERNS = tuple(
    re.compile(r"(?<![A-Za-z0-9])" + pattern + r"(?![A-Za-z0-9])")
    for pattern in (
        r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}",  # Amazon Web Services
        r"gh[pousr]_[A-Za-z0-9]{36}",  # GitHub
        r"github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}",
        r"gl(?:pat|dt|ft|soat|rt)-[A-Za-z0-9_-]{20,50}",  # GitLab
        r"xox[abeoprs]-(?:\d{1,16}-){1,4}[A-Za-z0-9]{10,64}",  # Slack
        r"(?:sk|rk)_live_[A-Za-z0-9]{24,99}",  # Stripe
        r"sk-[A-Za-z0-9_-]{16,90}T3BlbkFJ[A-Za-z0-9_-]{16,90}",  # OpenAI
        r"AIza[A-Za-z0-9_-]{35}",  # Google
        r"hf_[A-Za-z]{34}",  # Hugging Face
        r"npm_[A-Za-z0-9]{36}",
        r"pypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,1000}",
        r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}",  # SendGrid
        r"sk-ant-[A-Za-z0-9_-]{24,120}",  # Anthropic
        r"GOCSPX-[A-Za-z0-9_-]{28}",  # Google, as an OAuth client
        r"dop_v1_[0-9a-f]{64}",  # DigitalOcean
        r"shp(?:at|ca|pa|ss)_[0-9a-f]{32}",  # Shopify
        r"dapi[0-9a-f]{32}",  # Databricks
        r"\d{8,10}:AA[A-Za-z0-9_-]{33}",  # Telegram
        r"eyJ[A-Za-z0-9_-]{10,2000}\.eyJ[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{10,2000}",  # JWT
    )
)
_PRIVATE_KEY_BOUNDARY = re.compile(
    r"-----(BEGIN|END) (?:[A-Z]{2,16} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
)
_PRIVATE_KEY_BODY = re.compile(r"[A-Za-z0-9+/=]{40}")


# The following two searches start at the rarest character; the name before it is matched backwards.
#: Credentials in a URL: "postgres://user:password@host".
_CONNECTION_PASSWORD = re.compile(
    r"://[^\s:/@\"'<>]{0,64}:([^\s/@\"'<>]{3,128})@"
    # Chinese or Thai text may follow without a space, or be the name of the host.
    rf"(?:[^\s\"'<>/?#@\u0500-\u1dff\u2000-\U0010ffff]{{0,200}}(?:[^{NOT_SPACED_SCRIPT}]|\])"
    r"|[^\s\"'<>/?#@]{0,200}[\w\]])"
)
_URL_SCHEME = re.compile(r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{1,20}$")
_CREDENTIAL_NAME = r"(?i:key|token|secret|passw(?:or)?d|pwd|passphrase|credentials?)"
#: What all texts with an assigned credential match.
CREDENTIAL_ASSIGNMENT_PATTERN = (
    rf"{_CREDENTIAL_NAME}(?:\\?[\"'`])?[ \t]{{0,3}}(?:[:=>]|%3[ADad])"
    rf"|--[\w-]*{_CREDENTIAL_NAME}[ \t]|[Bb]earer[ \t]"
)
#: In a URL, the next parameter is not part of a value.
_NEXT_PARAMETER = r"(?:&|%26)(?:amp;)?[\w.%-]{1,60}(?:=|%3[Dd])"
#: A value, with or without quotes. It is matched ahead of the position, because it may contain the
#: actual assignment, as in "https://host/?a=b&api_key=...".
_VALUE_AHEAD = (
    r"(?=[ \t]{0,3}\\?([\"'`]?)"
    rf"((?:[A-Za-z0-9+/=_.~!@#$^*?-]|(?!{_NEXT_PARAMETER})[&%]){{8,200}})(?![A-Za-z0-9(\[{{]))"
)
#: "=" or ":", the end of an XML tag, or "%3D" in a URL, before a value ...
_ASSIGNED_VALUE = re.compile(rf"(?:[=:>]>?|%3[ADad]){_VALUE_AHEAD}")
#: ... and a name before it that suggests a credential.
_NAME_BEFORE_VALUE = re.compile(rf"{_CREDENTIAL_NAME}(?:\\?[\"'`])?[ \t]{{0,3}}:?$")
#: An option such as "--token" and the word "Bearer" need only a space before the value.
_OPTION_VALUE = re.compile(
    rf"(?:--(?=[A-Za-z])[\w-]{{0,40}}?{_CREDENTIAL_NAME}|[Bb]earer)[ \t]{_VALUE_AHEAD}"
)
_ASSIGNMENT_IN_VALUE = re.compile(rf"{_CREDENTIAL_NAME}(?:=|%3[Dd]).{{8}}")
#: An encoded character in a URL.
_URL_ENCODED_CHARACTER = re.compile("%[0-9A-Fa-f]{2}")
#: Placeholders that examples contain in place of credentials.
_PLACEHOLDER_HINT = re.compile(
    r"(?i)[$%{<]|pass|pwd|secret|token|user|example|sample|dummy|change|your|my[-_]|test|foo|"
    r"x{3}|\*{2}|\.{2}|1234|abcd"
)

_PASSWORD_PLACEHOLDER = re.compile(r"[$%{<*]|(?i:pass(?:word|wd)?|pwd|pw|secret|token|x+)\d?$")


def find_vendor_and_private_keys(text: str, regions: Sequence[str] = ()) -> SpanIterator:
    for pattern in _VENDOR_KEY_PATTERNS:
        for match in pattern.finditer(text):
            yield match.span()
    for begin, end in pairwise(_PRIVATE_KEY_BOUNDARY.finditer(text)):
        # "-----BEGIN ... -----END" without a body is documentation about keys.
        is_key_pair = begin[1] == "BEGIN" and end[1] == "END"
        if is_key_pair and _PRIVATE_KEY_BODY.search(text, begin.end(), end.start()):
            yield begin.start(), end.end()


def find_connection_credentials(text: str, regions: Sequence[str] = ()) -> SpanIterator:
    for match in _CONNECTION_PASSWORD.finditer(text):
        scheme = _URL_SCHEME.search(text[max(0, match.start() - 22) : match.start()])
        if scheme and not _PASSWORD_PLACEHOLDER.match(match[1]):
            yield match.start() - len(scheme[0]), match.end()


def find_assigned_credentials(text: str, regions: Sequence[str] = ()) -> SpanIterator:
    for match in _ASSIGNED_VALUE.finditer(text):
        name = text[max(0, match.start() - 20) : match.start()]
        if _NAME_BEFORE_VALUE.search(name) and _is_credential(match):
            yield match.span(2)
    for match in _OPTION_VALUE.finditer(text):
        if _is_credential(match):
            yield match.span(2)


def _is_credential(match: re.Match[str]) -> bool:
    """Return whether the value of a match looks random and is no assignment itself."""
    return _is_random_looking(match[2], quoted=bool(match[1])) and not (
        _ASSIGNMENT_IN_VALUE.search(match[2])
    )


def _is_random_looking(value: str, quoted: bool) -> bool:
    """Return whether a value looks random, as keys and good passwords do.

    It must have a higher Shannon entropy than words (3 bits per character), and change between
    lower case, capitals and digits more often than names do. Without quotes it must be long.
    """
    value = _URL_ENCODED_CHARACTER.sub("_", value).rstrip(".!?")
    if len(value) < (8 if quoted else 16) or _PLACEHOLDER_HINT.search(value):
        return False
    if value.count(".") > 1 or value.count("/") > len(value) // 12:
        return False
    character_kinds = [c.isdigit() + 2 * c.isupper() for c in value]
    change_rate = sum(a != b for a, b in pairwise(character_kinds)) / (len(value) - 1)
    counts = Counter(value).values()
    entropy_bits = -sum(n / len(value) * math.log2(n / len(value)) for n in counts)
    return change_rate >= 0.25 and entropy_bits >= (3 if len(value) >= 16 else 2.75)
