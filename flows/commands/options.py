"""The options that commands share, and how they print a result."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token

OverridesOption = Annotated[
    list[str] | None,
    Parameter(
        name="--set", negative="", help="Override a config value, e.g. pretrain.train.steps=100."
    ),
]


def _parse_whole_number(target_type: Any, tokens: Sequence[Token]) -> int:
    """Of an option; "1.5" is not rounded."""
    try:
        return int(tokens[0].value)
    except ValueError as error:
        raise ValueError(f"{tokens[0].value!r} is no whole number") from error


WholeNumber = Annotated[int, Parameter(converter=_parse_whole_number, negative="")]

StoreOption = Annotated[
    str | None,
    Parameter(
        name="--store",
        help="The store, a folder, a URI or the .toml file of a config that names one, instead of "
        "the one that the config or HALLMARK_STORE names.",
    ),
]
JsonOption = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON to stdout.")]


def print_result(result: Any, as_json: bool, render_text: Callable[[Any], str]) -> None:
    print(json.dumps(result, indent=2, ensure_ascii=False) if as_json else render_text(result))
