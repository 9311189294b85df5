"""Define the options that commands share, and print results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token

OverridesOption = Annotated[
    list[str] | None,
    Parameter(
        name="--set",
        negative="",
        help="Override a config setting, e.g. pretrain.train.steps=100; can be repeated.",
    ),
]


def _parse_integer(target_type: Any, tokens: Sequence[Token]) -> int:
    """Parse the value of an option as an integer, and refuse "1.5" instead of rounding it."""
    try:
        return int(tokens[0].value)
    except ValueError as error:
        raise ValueError(f"{tokens[0].value!r} is not a whole number") from error


def _check_store_name(target_type: Any, store_name: str | None) -> None:
    """Refuse an empty name here, because commands look for another store if none is named."""
    if store_name == "":
        # Slow to import, and the overview of commands needs none.
        from hallmark.flows.runs import EMPTY_STORE_NAME
        from hallmark.tasks.contract import UsageError

        raise UsageError(EMPTY_STORE_NAME)


OnlyOption = Annotated[
    list[str] | None,
    Parameter(
        name="--only",
        negative="",
        help="Run only these audits; separate names with commas or repeat the option.",
    ),
]
SkipOption = Annotated[
    list[str] | None,
    Parameter(
        name="--skip",
        negative="",
        help="Run all audits except these; separate names with commas or repeat the option.",
    ),
]

WholeNumber = Annotated[int, Parameter(converter=_parse_integer, negative="")]

StoreOption = Annotated[
    str | None,
    Parameter(
        name="--store",
        validator=_check_store_name,
        help="Store folder or URI, or a .toml config file that specifies a store; defaults to the "
        "store that the config specifies, then to the HALLMARK_STORE environment variable, then to "
        "./runs.",
    ),
]
AllowedSignersOption = Annotated[
    Path | None,
    Parameter(
        name="--allowed-signers",
        env_var="HALLMARK_ALLOWED_SIGNERS",
        help="File with the reviewers' public keys, in the allowed signers format of ssh-keygen; "
        "defaults to the value of the HALLMARK_ALLOWED_SIGNERS environment variable.",
    ),
]
RevokedKeysOption = Annotated[
    Path | None,
    Parameter(
        name="--revoked-keys",
        env_var="HALLMARK_REVOKED_KEYS",
        help="File with revoked keys, or a key revocation list created with ssh-keygen -k; "
        "signatures made with revoked keys are not accepted; defaults to the value of the "
        "HALLMARK_REVOKED_KEYS environment variable.",
    ),
]
JsonOption = Annotated[
    bool, Parameter(name="--json", negative="", help="Print the result as JSON to stdout.")
]


_LINE_BREAK = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]")


def format_single_line(text: str, max_characters: int) -> str:
    """Replace line breaks with spaces, and cut a text that a file of a store contains."""
    line = re.sub(
        r"\s+",
        lambda blank: " " if _LINE_BREAK.search(blank[0]) else blank[0],
        text[: max_characters + 1],
    )
    return line if len(line) <= max_characters else f"{line[: max_characters - 1]}…"


def print_result(result: Any, as_json: bool, render_text: Callable[[Any], str]) -> None:
    """Print a result as JSON or as text to stdout.

    Names and texts of stores and files may contain characters that change a terminal or the order
    of its letters, so the text shows their codes instead.
    """
    from hallmark.reports.page.redaction import escape_invisible  # slow to import

    if as_json:
        print(json.dumps(result, indent=2, ensure_ascii=False))
    else:
        print(escape_invisible(render_text(result)))
