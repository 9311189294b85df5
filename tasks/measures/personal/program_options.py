"""Find passwords in short options of programs: `mysql -pPASSWORD`, `sshpass -p PASSWORD`.

The same option of another program is no password, so only known programs are searched. An option
with a name (`--password`) is found by `secrets`.
"""

from __future__ import annotations

import re

from hallmark.tasks.measures.personal.contact_details import SpanIterator
from hallmark.tasks.measures.personal.prefilters import WHITE_SPACE
from hallmark.tasks.measures.personal.random_values import is_random_looking

_MIN_PASSWORD_CHARACTERS = 8
#: An option and its value. A search that begins with a literal character is fast.
_OPTION = re.compile(
    r"""-(?<=\s-)
    (?P<option>(?:store|key|new)pass|h?p|P|a|w|k|U[ ]{0,3}["']?[^\s%"']{1,64}%)
    (?P<blank>[ =]{0,3})
    (?:"(?P<double>[^"\n]{8,200})"|'(?P<single>[^'\n]{8,200})'|(?P<bare>[^\s"'<>|;&`]{8,}))""",
    re.VERBOSE,
)
#: Number of characters between the name of a program and an option.
_MAX_COMMAND_CHARACTERS = 400
#: After `-p` of these programs a blank ends the option, and what follows is no password.
_ATTACHED = r"(?:mysql|mariadb)[a-z_-]{0,12}|mycli|7z[ar]?|(?:un)?rar"
_DETACHED = (
    r"sshpass|mongo[a-z]{0,8}|cqlsh|rdesktop"
    r"|(?:docker|podman|buildah|skopeo|nerdctl|helm|oc|az|cf)\ [a-z ]{0,12}login"
)
_PROGRAMS_BY_OPTION = {
    ("p", False): f"{_ATTACHED}|{_DETACHED}",
    ("p", True): _DETACHED,
    ("hp", False): "(?:un)?rar",
    **{("P", blank): "(?:un)?zip|sqlcmd|bcp|osql|tsql|ipmitool" for blank in (False, True)},
    **{("a", blank): "redis-cli" for blank in (False, True)},
    **{("w", blank): "ldap[a-z]{2,9}" for blank in (False, True)},
    **{("U", blank): "smbclient|rpcclient" for blank in (False, True)},
    ("k", True): "openssl",
    **{(f"{word}pass", True): "keytool|jarsigner|apksigner" for word in ("store", "key", "new")},
}
#: A program and its options up to the end of the text; the end of a line may be escaped.
_COMMANDS_BY_OPTION = {
    option: re.compile(
        rf"(?<![\w-])(?:{programs})(?:\.exe)?(?=[ \t\\])(?:[^\n|;&\\]|\\\r?\n|\\[^\n])*\Z"
    )
    for option, programs in _PROGRAMS_BY_OPTION.items()
}
#: The password of a wireless network in a QR code.
_WIRELESS_PASSWORD = re.compile(r"WIFI:(?:[A-Z]:[^;\n]{0,64};){0,4}?P:([^;\n]{8,63});")
#: What all texts with such a password match in any case.
PROGRAM_OPTION_PREFILTER = rf"{WHITE_SPACE}-(?:h?p|a|w|k|u|store|new)|wifi:"


def find_passwords_in_options(text: str) -> SpanIterator:
    for option in _OPTION.finditer(text):
        name = option["option"]
        key = (name[0] if name[0] == "U" else name, bool(option["blank"]))
        command_pattern = _COMMANDS_BY_OPTION.get(key)
        value = option.lastgroup or ""
        if (
            command_pattern is not None
            and is_random_looking(option[value], _MIN_PASSWORD_CHARACTERS)
            and command_pattern.search(
                text, max(0, option.start() - _MAX_COMMAND_CHARACTERS), option.start()
            )
        ):
            yield option.span(value)
    for match in _WIRELESS_PASSWORD.finditer(text) if "WIFI:" in text else ():
        if is_random_looking(match[1], _MIN_PASSWORD_CHARACTERS):
            yield match.span(1)
