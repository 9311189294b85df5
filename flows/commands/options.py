"""Define the options that commands share, and print results."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token

OverridesOption = Annotated[
    list[str] | None,
    Parameter(
        name="--set",
        negative="",
        help="Override a setting of the config, e.g. pretrain.train.steps=100; can be repeated.",
    ),
]


def _parse_integer(target_type: Any, tokens: Sequence[Token]) -> int:
    """Parse the value of an option as an integer, and refuse "1.5" instead of rounding it."""
    try:
        return int(tokens[0].value)
    except ValueError as error:
        raise ValueError(f"{tokens[0].value!r} is not a whole number") from error


OnlyOption = Annotated[
    list[str] | None,
    Parameter(
        name="--only",
        negative="",
        help="Run only these audits; separate the names with commas, or repeat the option.",
    ),
]
SkipOption = Annotated[
    list[str] | None,
    Parameter(
        name="--skip",
        negative="",
        help="Run all audits except these; separate the names with commas, or repeat the option.",
    ),
]

WholeNumber = Annotated[int, Parameter(converter=_parse_integer, negative="")]

StoreOption = Annotated[
    str | None,
    Parameter(
        name="--store",
        help="The store: a folder, a URI, or the .toml file of a config that specifies a store; by "
        "default the store that the config specifies, otherwise the value of the environment "
        "variable HALLMARK_STORE, or else ./runs.",
    ),
]
AllowedSignersOption = Annotated[
    Path | None,
    Parameter(
        name="--allowed-signers",
        env_var="HALLMARK_ALLOWED_SIGNERS",
        help="File that lists the public keys of the reviewers, in the format that ssh-keygen uses "
        "for allowed signers; by default the value of the environment variable "
        "HALLMARK_ALLOWED_SIGNERS.",
    ),
]
RevokedKeysOption = Annotated[
    Path | None,
    Parameter(
        name="--revoked-keys",
        env_var="HALLMARK_REVOKED_KEYS",
        help="File of revoked keys, or a key revocation list made with ssh-keygen -k; signatures "
        "by revoked keys do not count; by default the value of the environment variable "
        "HALLMARK_REVOKED_KEYS.",
    ),
]
JsonOption = Annotated[
    bool, Parameter(name="--json", negative="", help="Print the result as JSON to stdout.")
]


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
