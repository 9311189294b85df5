r"""Find credentials in columns of tables, whose names are in another line than the values.

A table is delimited text (CSV, TSV, Markdown), or rows that a statement of SQL inserts::

    name,password                 INSERT INTO users (name, password)
    ann,hT7kLm9wQz                VALUES ('ann', 'hT7kLm9wQz')

The name of a column announces a credential if it consists of a word for one. A column `key`, whose
values are keys of a table, does not count, and neither does `password_hash` or `token_count`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from hallmark.tasks.measures.personal.contact_details import SpanIterator
from hallmark.tasks.measures.personal.random_values import is_random_looking

#: The name of a column with credentials, in lower case and without quotes.
_CREDENTIAL_COLUMN = re.compile(
    r"""(?x)(?:[\w .-]{0,40}[\W_])?(?<!next[\W_])(?<!page[\W_])(?<!continuation[\W_])
    (?:(?:[a-z]{0,12}pass|user|login|client|app|api|auth|access)?
        (?:pass(?:w[o0]?r?d|phrase|code|wort)?|pwd|pw|secrets?|tokens?|credentials?)
      | (?:api|access|secret|private|auth(?:entication|orization)?|account|encryption|master|app
          |service|subscription|licen[cs]e|shared|signing|session|storage|stream|admin|client
          |consumer|product|activation|recovery)[ _.-]?keys?
      | passwort|kennwort|mot[ _-]de[ _-]passe|motdepasse|mdp|contrase[ñn]a|senha|palavra-passe
      | wachtwoord|has[łl]o|пароль|şifre|sifre|parola|lösenord|adgangskode|passord|salasana|heslo
      | jelszó|parolă|κωδικός|mật[ ]khẩu|kata[ ]sandi|รหัสผ่าน
      | .{0,6}(?:パスワード|暗証番号|密码|密碼|口令|密钥|密鑰|令牌|비밀번호|패스워드|암호)
      | كلمة[ ](?:المرور|السر)|סיסמה|पासवर्ड
    )(?:[ _.-]?(?:value|plain(?:text)?|text|\d{1,2}))?"""
)
#: The name of a column for a password; other credentials are longer.
_PASSWORD_COLUMN = re.compile(
    r"pass(?!.*key)|pwd|pw(?![a-z])|[^\x00-\x7f]|wort|senha|sifre|hasl|hesl"
)
_MIN_PASSWORD_CHARACTERS, _MIN_TOKEN_CHARACTERS = 8, 12
#: What follows the name of a column after a word for a credential.
_END_OF_NAME = re.compile(
    r"""s?(?:[ _](?:value|plain(?:text)?|text)|[ _]?\d{1,2})?["'`\]]?[ ]{0,20}(?:[,;|)\t]|\r?\n)"""
)
#: The characters that such text begins with.
_END_CHARACTERS = frozenset(" ,;|)\t\r\n\"'`]s_0123456789")
#: Number of characters of a line or list with the names of columns.
MAX_HEADER_CHARACTERS = 1000
_QUOTES = " \t\r\"'`[]*"


def find_values_in_columns(text: str, name_ends: Iterable[int]) -> SpanIterator:
    """Yield the values in columns whose names end with a word for a credential.

    Args:
        text: The text.
        name_ends: Positions after the words for credentials in the text, in their order.
    """
    searched_end = 0
    for name_end in name_ends:
        if (
            text[name_end : name_end + 1] not in _END_CHARACTERS
            or name_end <= searched_end
            or not _END_OF_NAME.match(text, name_end)
        ):
            continue
        if names := _find_names_of_sql(text, name_end):
            values = _list_sql_values(text, *names)
        elif header := _find_header(text, name_end):
            values = _list_line_values(text, *header)
        else:
            continue
        yield from values.spans
        searched_end = values.searched_end


class _ColumnValues(NamedTuple):
    """The random-looking values in the columns of credentials of a table.

    Attributes:
        spans: Their positions.
        searched_end: Index after the last row, or after the names of the columns if there is none.
    """

    spans: list[tuple[int, int]]
    searched_end: int


def _select_credential_columns(names: list[str]) -> dict[int, int]:
    """Return the least number of characters of a value, by index of each column of credentials."""
    return {
        index: _MIN_PASSWORD_CHARACTERS if _PASSWORD_COLUMN.search(name) else _MIN_TOKEN_CHARACTERS
        for index, name in enumerate(name.strip(_QUOTES).lower() for name in names)
        if _CREDENTIAL_COLUMN.fullmatch(name)
    }


# Delimited text ---------------------------------------------------------------------------------

_COLUMN_NAME = re.compile(r"""\s{0,20}["'`*]{0,2}[^\W\d][^\n"'`=:<>{}]{0,60}["'`*]{0,2}\s{0,20}""")
#: Number of lines in a row that may have another number of cells, as lines within quotes have.
MAX_OTHER_LINES = 5
_CELL_PATTERN = r"""[ ]{0,20}"(?:[^"\n]|"")*+"[ ]{0,20}(?=%s|\r|\Z)|[^%s\n]*+"""
_CELLS = {
    delimiter: re.compile(_CELL_PATTERN % (re.escape(delimiter), re.escape(delimiter)))
    for delimiter in "\t|;,"
}


def _find_header(text: str, position: int) -> tuple[int, int] | None:
    """Return the span of the line around a position, or None if it is long or the last one."""
    start = text.rfind("\n", max(0, position - MAX_HEADER_CHARACTERS), position) + 1
    end = text.find("\n", position, position + MAX_HEADER_CHARACTERS)
    is_long = start == 0 and position > MAX_HEADER_CHARACTERS
    return None if is_long or end < 0 else (start, end)


def _list_line_values(text: str, start: int, end: int) -> _ColumnValues:
    """List the values below the names of credentials in a header."""
    header = text[start:end]
    for delimiter in _CELLS:
        names = header.split(delimiter)
        # The first column has no name if it numbers the rows, as pandas and R write them.
        if len(names) < 2 or not all(
            _COLUMN_NAME.fullmatch(name)
            for index, name in enumerate(names)
            if name.strip(_QUOTES) or (index > 0 and delimiter != "|")
        ):
            continue
        columns = _select_credential_columns(names)
        if columns:
            return _list_row_values(text, end, delimiter, len(names), columns)
    return _ColumnValues([], end)


def _list_row_values(
    text: str, header_end: int, delimiter: str, cell_count: int, columns: dict[int, int]
) -> _ColumnValues:
    spans: list[tuple[int, int]] = []
    rows_end, other_lines, start = header_end, 0, header_end + 1
    while start < len(text) and other_lines < MAX_OTHER_LINES:
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        cells = _split_line(text, start, end, delimiter)
        if len(cells) == cell_count:
            rows_end, other_lines = end, 0
            for index, min_characters in columns.items():
                spans += _list_random_value(text, *cells[index], min_characters)
        else:
            other_lines += 1
        start = end + 1
    return _ColumnValues(spans, rows_end)


def _split_line(text: str, start: int, end: int, delimiter: str) -> list[tuple[int, int]]:
    """Return the spans of the cells of a line."""
    cells = []
    while True:
        cell = _CELLS[delimiter].match(text, start, end)
        assert cell is not None  # A cell may be empty.
        cells.append(cell.span())
        if cell.end() >= end or text[cell.end()] != delimiter:
            return cells
        start = cell.end() + 1


def _list_random_value(
    text: str, start: int, end: int, min_characters: int
) -> list[tuple[int, int]]:
    """Return the span of a cell, without its quotes and blanks, if it looks random."""
    while start < end and text[start] in _QUOTES:
        start += 1
    while start < end and text[end - 1] in _QUOTES:
        end -= 1
    is_url = "://" in text[start:end]
    is_random = not is_url and is_random_looking(text[start:end], min_characters)
    return [(start, end)] * is_random


# SQL --------------------------------------------------------------------------------------------

_BEFORE_NAMES = re.compile(
    r"""\b(?:(?:insert|replace)\s+(?:\w+\s+){0,3}?|merge\s+)into\s+[\w.`"\[\]-]{1,100}\s*\Z"""
    r"""|\bcopy\s+[\w."]{1,100}\s*\Z"""
)
_BEFORE_ROWS = re.compile(r"(?i)\)\s*(?:overriding\s+\w+\s+value\s+)?values\s*(?=\()")
_BEFORE_COPIED_ROWS = re.compile(r"(?i)\)\s*from\s+stdin\b[^\n;]{0,100};\s*?\n")
#: Characters of a statement before the names of its columns.
_MAX_STATEMENT_START = 200
MAX_SQL_CHARACTERS = 10_000
_SQL_STRING = rf"'(?:[^'\\]|''|\\.){{0,{MAX_SQL_CHARACTERS}}}+'"
_SQL_STRING_VALUE = re.compile(rf"(?s){_SQL_STRING}|\"[^\"\n]*+\"")
_SQL_ARGUMENTS = rf"(?:[^()']|{_SQL_STRING})*+"
#: A value of a row: strings, and calls of functions, which may contain others.
_SQL_VALUE = re.compile(
    rf"(?s)(?:[^,()'\"]|{_SQL_STRING}|\"[^\"\n]*+\""
    rf"|\({_SQL_ARGUMENTS}(?:\({_SQL_ARGUMENTS}\){_SQL_ARGUMENTS})*+\))*+"
)
_BEFORE_NEXT_ROW = re.compile(r"\)\s*,\s*(?=\()")


def _find_names_of_sql(text: str, position: int) -> tuple[int, int] | None:
    """Return the span between the parentheses of the names of columns of a statement."""
    start = text.rfind("(", max(0, position - MAX_HEADER_CHARACTERS), position) + 1
    end = text.find(")", position, position + MAX_HEADER_CHARACTERS)
    if start == 0 or end < 0:
        return None
    preceding_text = text[max(0, start - 1 - _MAX_STATEMENT_START) : start - 1].lower()
    has_word = "into" in preceding_text or "copy" in preceding_text
    return (start, end) if has_word and _BEFORE_NAMES.search(preceding_text) else None


def _list_sql_values(text: str, start: int, end: int) -> _ColumnValues:
    """List the values that a statement inserts into columns of credentials."""
    names = text[start:end].split(",")
    columns = _select_credential_columns(names)
    copied_rows = _BEFORE_COPIED_ROWS.match(text, end)
    if columns and copied_rows:
        return _list_row_values(text, copied_rows.end() - 1, "\t", len(names), columns)
    spans: list[tuple[int, int]] = []
    next_row = _BEFORE_ROWS.match(text, end) if columns else None
    while next_row:
        values: list[tuple[int, int]] = []
        end = next_row.end()
        while len(values) < len(names) and (not values or text[end : end + 1] == ","):
            value = _SQL_VALUE.match(text, end + 1)
            assert value is not None  # A value may be empty.
            values.append(value.span())
            end = value.end()
        for index, min_characters in columns.items() if len(values) == len(names) else ():
            string = _SQL_STRING_VALUE.search(text, *values[index])
            if string:
                spans += _list_random_value(text, *string.span(), min_characters)
        next_row = _BEFORE_NEXT_ROW.match(text, end)
    return _ColumnValues(spans, end)
