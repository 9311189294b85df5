r"""Find credentials: vendors' keys and tokens, private keys, and passwords.

A vendor's key is found by its prefix, a password in a URL by its place before the host. Any other
credential is found if what stands before it announces it, and if it looks random. Names announce a
credential in an assignment (`db_password = "..."`, `"api-key": "..."`, `token%3D...`), an option
(`--token ...`), a header (`Authorization: Basic ...`), an element (`<password>...</password>`), a
table (`| token | ... |`), and similar forms. Other modules find the values of columns
(`credential_columns`) and of short options (`program_options`).

Not found: passwords that consist of words, values without a name, values that are split over lines,
and the certificates, public keys and digests that look like credentials but are public.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from hallmark.tasks.measures.personal.contact_details import (
    SPACED_CODE_POINTS,
    SPACED_SCRIPT,
    SpanIterator,
)
from hallmark.tasks.measures.personal.credential_columns import (
    find_values_in_columns,
)
from hallmark.tasks.measures.personal.folding import build_character_class
from hallmark.tasks.measures.personal.prefilters import ignore_case
from hallmark.tasks.measures.personal.program_options import (
    PROGRAM_OPTION_PREFILTER,
    find_passwords_in_options,
)
from hallmark.tasks.measures.personal.random_values import is_random_looking
from hallmark.tasks.measures.personal.vendor_keys import VENDOR_KEY_FORMATS

# Keys with a fixed format -----------------------------------------------------------------------

_VENDOR_KEY = re.compile(
    f"(?<![A-Za-z0-9])(?:{'|'.join(f.complete_pattern for f in VENDOR_KEY_FORMATS)})(?![A-Za-z0-9])"
)
_PRIVATE_KEY_BOUNDARY = re.compile(
    r"-----(BEGIN|END) (?:[A-Z0-9]{2,16} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
)
_PRIVATE_KEY_BODY = re.compile(r"[A-Za-z0-9+/=]{40}")
#: Lines of a private key from its first boundary on: headers, and rows of encoded characters, with
#: the marks that surround them inside of strings. The last row may be short.
_PRIVATE_KEY_LINES = re.compile(
    r"""
    (?:
        (?:\\[nr]|[\s"'+,>\\])*+
        (?:(?:Proc-Type|DEK-Info|Version|Comment|Charset):[ ][^\n\\]{0,100}|[A-Za-z0-9+/=]{16,}+)
    )*+
    (?:(?:\\[nr]|[\r\n"'+,> ])++(?=[A-Za-z]*[0-9+/=])=?[A-Za-z0-9+/]{2,15}={0,2}(?=[\s"'\\]|\Z))?
    """,
    re.VERBOSE,
)
VENDOR_KEY_PREFILTER = "|".join([*(f.prefilter_pattern for f in VENDOR_KEY_FORMATS), "PRIVATE KEY"])


def find_vendor_and_private_keys(text: str, regions: Sequence[str] = ()) -> SpanIterator:
    for match in _VENDOR_KEY.finditer(text):
        yield match.span()
    boundaries = [*_PRIVATE_KEY_BOUNDARY.finditer(text)]
    for begin, end in pairwise([*boundaries, None]):
        if begin is None or begin[1] == "END":
            continue
        if end and end[1] == "END":
            # "-----BEGIN ... -----END" without a body is documentation about keys.
            if _PRIVATE_KEY_BODY.search(text, begin.end(), end.start()):
                yield begin.start(), end.end()
            continue
        lines = _PRIVATE_KEY_LINES.match(text, begin.end(), end.start() if end else len(text))
        if lines and _PRIVATE_KEY_BODY.search(lines[0]):
            yield begin.start(), lines.end()


# Credentials in URLs ----------------------------------------------------------------------------

_HOST_CHARACTER = build_character_class(
    code for code in SPACED_CODE_POINTS if not chr(code).isspace() and chr(code) not in "\"'<>/?#@"
)
#: What a host consists of. Chinese or Thai text may follow without a space, or be its name.
_HOST = (
    rf"(?:{_HOST_CHARACTER}{{0,200}}(?:{SPACED_SCRIPT.word}|\])"
    r"|[^\s\"'<>/?#@]{0,200}[\w\]])"
)
#: Credentials in a URL: "postgres://user:password@host". The search starts at the rarest
#: characters; the scheme before them is matched backwards. A password may contain "@", and "/"
#: unless a port precedes it.
_CONNECTION_PASSWORD = re.compile(
    r"://[^\s:/@\"'<>]{0,64}:(?:([^\s/\"<>]{3,128})@"
    + _HOST
    + r"|(?!\d{1,5}/)([^\s\"<>@]{3,128})@"
    + _HOST
    + ")"
)
#: A token in place of the user: "https://token@host".
_CONNECTION_TOKEN = re.compile(rf"://([^\s:/@\"'<>]{{16,255}})@{_HOST}")
_URL_SCHEME = re.compile(r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{1,20}$")
_PASSWORD_PLACEHOLDER = re.compile(
    r"[{<*]|%[A-Za-z_]+%$|\$(?:[{(]|[A-Z_][A-Z0-9_]*$|[a-z][A-Za-z_]*$)"
    r"|(?i:pass(?:word|wd)?|pwd|pw|secret|token|x+)\d?$"
)
CONNECTION_PREFILTER = r"://[^\s:/@]{0,64}:[^\s]{3,128}@|://[^\s:/@]{16,255}@"


def find_connection_credentials(text: str, regions: Sequence[str] = ()) -> SpanIterator:
    for match in _CONNECTION_PASSWORD.finditer(text):
        scheme = _find_scheme(text, match.start())
        if scheme and not _PASSWORD_PLACEHOLDER.match(match[1] or match[2]):
            yield match.start() - len(scheme), match.end()
    for match in _CONNECTION_TOKEN.finditer(text):
        scheme = _find_scheme(text, match.start())
        if scheme and is_random_looking(match[1], 16):
            yield match.start() - len(scheme), match.end()


def _find_scheme(text: str, end: int) -> str:
    scheme = _URL_SCHEME.search(text[max(0, end - 22) : end])
    return scheme[0] if scheme else ""


# Credentials after a name -----------------------------------------------------------------------

#: Words, in lower case, with which the name of a credential ends, by characters that they contain;
#: a text without these characters is not searched. The last ones are names only as whole words, in
#: a URL, in the header of a signed request, or in a statement of SQL.
_CREDENTIAL_NAMES = {
    "k": r"k(?:ey|en(?<=token))",
    "secret": "secret",
    "p": r"p(?:ass(?:w(?:[o0]r)?d|[ -]?(?:phrase|code)|-word|(?<=requirepass))"
    r"|ass(?:(?<![a-z]pass)|(?<=userpass)|(?<=rootpass)|(?<=dbpass))(?![a-z])"
    r"|wd|sk(?<![a-z]psk)|w(?<![a-z0-9]pw)(?![a-z0-9]))",
    "credential": "credential",
    "bearer": "bearer",
    "auth": r"auth(?<![a-z]auth)(?:orization)?(?![a-z])",
    "sig": r"sig(?:(?<=[?&;]sig)(?=[=%])|nature(?<=[ ,&-]signature)(?==))",
    "identified by": "identified by",
}
#: The same words in other languages.
CREDENTIAL_NAMES_IN_OTHER_LANGUAGES = (
    *("passwort", "kennwort", "zugangscode", "schlüssel", "schluessel", "geheimnis"),  # de
    *("mot de passe", "motdepasse", "mdp", "clé", "clef", "jeton"),  # fr
    *("contraseña", "contrasena", "clave", "secreto"),  # es
    *("chiave", "parola d'ordine", "segreto", "gettone"),  # it
    *("senha", "palavra-passe", "palavra passe", "chave", "segredo"),  # pt
    *("wachtwoord", "sleutel", "geheim", "toegangscode"),  # nl
    *("hasło", "haslo", "klucz", "sekret"),  # pl
    *("пароль", "пароля", "ключ доступа", "ключ", "токен", "секрет"),  # ru, uk
    *("şifre", "sifre", "şifresi", "şifreniz", "parola", "parolanız", "anahtar", "anahtarı"),  # tr
    *("lösenord", "nyckel", "adgangskode", "passord", "nøkkel", "salasana", "avain"),  # sv, da, fi
    *("heslo", "klíč", "jelszó", "kulcs", "parolă", "cheie", "κωδικός", "κλειδί"),  # cs, hu, ro, el
    *("mật khẩu", "khóa", "kata sandi", "kunci", "รหัสผ่าน"),  # vi, id, th
    *("パスワード", "暗証番号", "トークン", "シークレット", "キー", "秘密鍵"),  # ja
    *("密码", "密碼", "口令", "密钥", "密鑰", "令牌", "秘钥"),  # zh
    *("비밀번호", "패스워드", "암호", "토큰", "키"),  # ko
    *("كلمة المرور", "كلمة السر", "المفتاح", "الرمز", "סיסמה", "מפתח"),  # ar, he
    *("पासवर्ड", "कुंजी", "टोकन"),  # hi
)
_ENGLISH_NAMES = {cue: re.compile(pattern) for cue, pattern in _CREDENTIAL_NAMES.items()}
_OTHER_NAMES = {"": re.compile("|".join(sorted(CREDENTIAL_NAMES_IN_OTHER_LANGUAGES, reverse=True)))}

#: What every text with a credential after a name matches, in any case. No small letter follows a
#: name except "s": "keyboard" and "author" are no names.
CREDENTIAL_NAME_PREFILTER = ignore_case(
    r"(?:key|token|secret|pass(?:w(?:[o0]r)?d|[ -]?(?:phrase|code)|-word)?|pwd?|psk|credential"
    r"|bearer|auth(?:orization)?)(?-i:[^a-rt-z]|\z)"
    r"|[?&;]sig[=%]|[ ,&-]signature=|-u(?:ser)?[ =]|digest |identified by|"
    + PROGRAM_OPTION_PREFILTER
)
OTHER_CREDENTIAL_NAME_PREFILTER = ignore_case("|".join(CREDENTIAL_NAMES_IN_OTHER_LANGUAGES))

#: An opening quote, also escaped, as an HTML entity, or encoded for a URL.
_QUOTE = r"\\?\"{3}|\\?'{3}|\\{0,3}[\"'`]|[“”„‟‘’‚«»‹›「『]|&(?:quot|apos|\#0?3[49]);|%2[27]"
_BLANK = "(?:[ \t]|%20|&nbsp;)"
_TAG = r"</?[a-zA-Z][^<>\n]{0,60}>"
_TEXT_AFTER_NAME = re.compile(
    rf"""
    # The rest of a name: "token2", "API_KEY_PROD", "secretKeyId".
    s?+(?:(?:[_.-]|(?<=[a-z])(?=[A-Z])|(?=[0-9]))[A-Za-z0-9]{{1,12}}+){{0,3}}+
    (?:\[[0-9]{{0,5}}\])?+
    (?P<closers>(?:{_QUOTE}|[\])}}*_~」』]){{0,5}}+)(?:[ ]?\([^()\n"'`]{{1,30}}\))?
    # "Password for root", "clave de acceso".
    (?:[ ](?:for|of|für|zu[mr]|pour|para|del?|d[aiou']|voor|dla|от|для)[ ]?[\w.@-]{{1,30}}+)?+
    (?![a-zA-Z0-9.])(?:
        # The value of another attribute: 'name="API_KEY" value="..."'.
        {_BLANK}{{0,8}}[,{{]?\s{{0,20}}(?:{_QUOTE})?(?:value|content|default)(?:{_QUOTE})?
          [ \t]{{0,3}}[:=]
        # The type of a variable: 'token: str = "..."', 'token string = "..."'.
        | [ \t]{{0,8}}(?::[ \t]{{0,3}}|[ \t])[A-Za-z_][\w.?|\[\]]{{0,30}}[ \t]{{1,3}}=(?=[ \t])
        # The attributes of an element: '<password type="plain">...'.
        | (?:[ \t]{{1,3}}[\w:-]{{1,30}}="[^"<>\n]{{0,60}}"){{1,3}}>
        # The next element or cell: '<td>password</td><td>...</td>'.
        | (?:\s{{0,20}}{_TAG}){{2,3}}
        | (?:{_BLANK}|{_TAG}){{0,8}}
          (?:[:=]{{1,3}}>?|-?>|<-|[|、]|%(?:25)?3[ADad]|&(?:\#61|equals);|\\u003[ADad])
        | [ \t]{{0,8}}(?P<comma>[,;])(?!\s*\n)
        | [ \t]{{1,3}}(?:is|was|to|ist|lautet|est|es|è|é|jest|هي|[–—-])[ \t:] | [は是为為은는]
        | (?P<blank>\t|(?=[ (])|%20|\+)
    )
    (?:{_BLANK}|{_TAG}){{0,8}}\*{{0,3}}{_BLANK}{{0,8}}
    # The value may be on the next line.
    (?:
        (?:[|>(\\][+-]?|<<[-~]?["']?\w{{1,20}}["']?)?
        [ \t]{{0,3}}(?P<newline>\r?\n[ \t]{{0,60}})
    )?
    (?:
        # An opening quote, after brackets, a call, and the prefix of a string.
        (?:[\w.:]{{0,30}}[(\[{{][ \t]{{0,3}}){{0,2}}[bBrRfFuULl$@]{{0,2}}
        (?P<quote>{_QUOTE})(?:(?<=["']{{3}})\r?\n[ \t]{{0,60}})?
        | \((?=[A-Za-z0-9])
    )?
    # The scheme of an authorization, and a quote after it.
    (?:
        (?i:basic|bearer|token|api-?key|oauth|negotiate|aws4-hmac-sha256)(?:{_BLANK}{{1,3}}|\+)
        (?P<inner>{_QUOTE})?
    )?
    """,
    re.VERBOSE,
)
#: What precedes a name if only a blank separates it from the value: an option, or a login.
_BEFORE_NAME_AND_BLANK = re.compile(r"(?:(?<!\S)--?[\w-]{0,40}|login\s{1,20}\S{1,80}\s{1,20})$")
#: Names of values that are public: keys of tables and caches, public keys, and digests.
_PUBLIC_NAME = re.compile(
    r"(?:(?:public|pub|primary|foreign|sort|partition|range|cache|result|limit|group|index|lookup|row"
    r"|data|object|i18n|translation|locali[sz]ation|recv|send)[_ -]?key"
    r"|(?:next|page|continuation)[_ -]?token|::\w{1,40}::\w{1,80})$"
)
#: A name that no word qualifies, as "API key" does.
_BARE_KEY = re.compile(r"(?<![A-Za-z0-9_.-])(?<![A-Za-z] )key\Z")
#: Values of such a key that identify something: UUIDs, and names of fonts, as "DejaVuSans9pt7b".
_IDENTIFIER = re.compile(
    r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
    r"|[A-Za-z_-]{2,40}(?:[Ss]ans|[Ss]erif|[Mm]ono|Neue)(?![a-z])[\w.-]{0,24}"
)
_PUBLIC_SUFFIX = re.compile(r"[_.-]?(?:hash|digest|sha\d+|md5|fingerprint|checksum)")

#: Quotes that close a value, if they differ from the opening quote.
_CLOSING_QUOTES = {
    **{
        "“": "”“",
        "„": "“”",
        "‟": "”",
        "‘": "’‘",
        "‚": "‘’",
        "«": "»",
        "»": "«",
        "‹": "›",
        "›": "‹",
    },
    **{"「": "」", "『": "』"},
}
MAX_VALUE_CHARACTERS = 10_000
#: The next parameter of a URL, and an HTML entity, are not part of a value.
_NEXT_PARAMETER = r"(?:(?:&|%26)[\w.%-]{1,60}(?:=|%3[Dd])|&(?:[a-z]{2,8}|#\d{1,5});)"
_VALUE_CHARACTERS = r"[A-Za-z0-9+/=_.~!@#$^*?{}-]"
_UNQUOTED_VALUE = re.compile(
    rf"{_VALUE_CHARACTERS}*+(?:(?!{_NEXT_PARAMETER})[&%]{_VALUE_CHARACTERS}*+){{0,200}}+"
)
#: Before a parenthesis, the name of a function; it may not be a long run of letters and digits.
_FUNCTION_NAME = re.compile(r"[A-Za-z0-9]{1,15}|(?=[A-Za-z0-9]*[_.])[\w.]+")
#: What may follow an unquoted value: marks of Markdown, and the end of a sentence or parameter.
_AFTER_UNQUOTED_VALUE = ".?*_~&"
#: Another assignment inside a value, as in "a=b&api_key=...".
_NESTED_ASSIGNMENT = re.compile(
    rf"[&;,/|?]?[\w.-]{{0,30}}(?i:{'|'.join(_CREDENTIAL_NAMES.values())})[\w-]{{0,10}}"
    r"(?:=|%3[Dd])(?=.{8})"
)
_URL_PARAMETER = re.compile(r"[?&][\w.%-]*$")


def find_assigned_credentials(text: str, regions: Sequence[str] = ()) -> SpanIterator:
    """Find values after English names, and after the options and headers for a user."""
    yield from _find_named_values(text, _ENGLISH_NAMES)
    if "-u" in text:
        for match in _USER_OPTION.finditer(text):
            if is_random_looking(match[1] or match[2], 8):
                yield match.span(1 if match[1] else 2)
    if "Digest " in text:
        for match in _DIGEST_RESPONSE.finditer(text):
            yield match.span(1)
    yield from find_passwords_in_options(text)


def find_credentials_named_in_other_languages(
    text: str, regions: Sequence[str] = ()
) -> SpanIterator:
    yield from _find_named_values(text, _OTHER_NAMES)


#: The user and password of a request by curl.
_USER_OPTION = re.compile(
    r"-u(?<=[\s\"'`(-]-u)(?:ser)?[ =]{1,3}(?:"
    rf"[^\s:\"']{{1,64}}:([^\s\"'<>|;]{{8,{MAX_VALUE_CHARACTERS}}})"
    rf"|[\"'][^\s:\"']{{1,64}}:([^\n\"']{{8,{MAX_VALUE_CHARACTERS}}})[\"'])"
)
_DIGEST_RESPONSE = re.compile(r"Digest [^\n]{0,400}?\bresponse=\"?([0-9a-f]{32})(?![0-9a-f])")


class _Value(NamedTuple):
    """The position of a value that follows a name.

    Attributes:
        start: Index of its first character.
        end: Index after its last character.
        is_quoted: Whether quotes enclose it.
    """

    start: int
    end: int
    is_quoted: bool


def _find_named_values(text: str, name_patterns: Mapping[str, re.Pattern[str]]) -> SpanIterator:
    """Yield the values after names; a pattern is searched if the text contains its key."""
    lower_case = text.replace("İ", "i").lower()  # "İ" alone has two characters in lower case.
    names = [
        name
        for cue, pattern in name_patterns.items()
        if cue in lower_case
        for name in pattern.finditer(lower_case)
    ]
    names.sort(key=lambda name: name.start())
    yield from find_values_in_columns(text, [name.end() for name in names])
    end = 0
    for name in names:
        if name.start() < end:
            continue
        following = _TEXT_AFTER_NAME.match(text, name.end())
        if following is None:
            continue
        value = _read_value(text, following)
        if value is None or not _is_announced(text, name, following, value):
            continue
        is_short_allowed = value.is_quoted or name[0].startswith(("pass", "pw"))
        characters = text[value.start : value.end]
        if (
            is_random_looking(characters, 8 if is_short_allowed else 12)
            and not _is_public(lower_case, name)
            and not (
                _IDENTIFIER.fullmatch(characters)
                and _BARE_KEY.match(lower_case, name.start(), name.end())
            )
        ):
            yield value.start, value.end
            end = value.end


def _is_public(lower_case: str, name: re.Match[str]) -> bool:
    """Return whether the words around a name say that its value is public."""
    if _PUBLIC_SUFFIX.match(lower_case, name.end()):
        return True
    return bool(_PUBLIC_NAME.search(lower_case, max(0, name.start() - 120), name.end()))


def _read_value(text: str, following: re.Match[str]) -> _Value | None:
    """Return the position of the value after a name, or None if there is none."""
    start = following.end()
    quote = following["inner"] or following["quote"]
    end = _find_closing_quote(text, start, quote) if quote else -1
    is_quoted = end >= 0
    if not is_quoted:
        unquoted = _UNQUOTED_VALUE.match(text, start, start + MAX_VALUE_CHARACTERS)
        if unquoted is None or unquoted.end() < start + 8:
            return None
        end = start + _measure_unquoted_value(unquoted[0])
        next_character = text[unquoted.end() : unquoted.end() + 1]
        if next_character == "(" and _FUNCTION_NAME.fullmatch(unquoted[0]):
            return None
        if following["newline"] and next_character not in ("", "\r", "\n"):
            return None
        fragment = text.find("#", start, end)
        before = text[max(0, following.start() - 40) : following.start()]
        if fragment >= 0 and _URL_PARAMETER.search(before):
            end = fragment
    has_assignment = "=" in text[start:end] or "%3" in text[start:end]
    nested = _NESTED_ASSIGNMENT.search(text, start, end) if has_assignment else None
    return _Value(start, nested.start() if nested else end, is_quoted)


def _measure_unquoted_value(characters: str) -> int:
    """Return the length of a value without a full stop, an index or a brace after it."""
    value = characters.rstrip(_AFTER_UNQUOTED_VALUE)
    opening_brace = value.rfind("{")
    if not value.endswith("}") or opening_brace == 0:
        return len(value)
    return opening_brace if opening_brace > 0 else len(value.rstrip("}"))


def _find_closing_quote(text: str, start: int, quote: str) -> int:
    """Return the position of the quote that closes a value on the same line, or -1."""
    last = start + MAX_VALUE_CHARACTERS
    line_end = text.find("\n", start, last)
    if line_end >= 0:
        last = line_end
    if quote in _CLOSING_QUOTES:
        positions = [text.find(closing, start, last) for closing in _CLOSING_QUOTES[quote]]
        return min((position for position in positions if position >= 0), default=-1)
    end = text.find(quote, start, last)
    while end > start and text[end - 1] == "\\" and quote[0] != "\\":
        end = text.find(quote, end + 1, last)
    return end


def _is_announced(text: str, name: re.Match[str], following: re.Match[str], value: _Value) -> bool:
    """Return whether a name and the text between it and a value announce a credential."""
    if following["comma"]:  # An argument of a call: 'define("AUTH_KEY", "...")'.
        return value.is_quoted and bool(following["closers"])
    if following["blank"] is None or following["blank"] == "\t" or value.is_quoted:
        return True
    is_bare_key = name[0] == "key" and not text[: name.start()][-1:].strip(" \t\n\"'(")
    if not is_bare_key and not text[name.end() : value.start].strip(" ("):
        return True
    return bool(_BEFORE_NAME_AND_BLANK.search(text, max(0, name.start() - 140), name.start()))
