"""TOML text: hostile nesting is refused at once, and dots outside keys are no nesting."""

import pytest

from hallmark.tasks.contract import parse_toml
from tests.time_limits import limit_time

DEEP = ".".join(["a"] * 50_000)
QUOTE, APOSTROPHE = '"' * 3, "'" * 3


@pytest.mark.parametrize(
    "text",
    [
        f"{DEEP} = 1",
        f"[{DEEP}]",
        f"[[{DEEP}]]",
        f"x = {{{DEEP} = 1}}",
        DEEP.replace(".", " .\t") + " = 1",
        DEEP.replace("a", '"#"') + " = 1",
        DEEP.replace("a", "'.'") + " = 1",
        f'x = {{a = {QUOTE}b{QUOTE}", {DEEP} = 1}}',
        f"x = {{a = {APOSTROPHE}b{APOSTROPHE}'', {DEEP} = 1}}",
        f"x = '\\'\n{DEEP} = 1 # '",
        f"x = {'[' * 50_000}",
        f"x = {'{x = ' * 50_000}",
        f"x = {'[' * 150}{']' * 150}",
    ],
)
def test_deep_nesting_is_refused_at_once(text):
    with limit_time(), pytest.raises(RecursionError):
        parse_toml(text)


@pytest.mark.parametrize("start", ['"', "'", QUOTE, APOSTROPHE, "#"])
def test_dots_in_strings_and_comments_are_no_nesting(start):
    line = f"x = {start}{DEEP}" + ("" if start == "#" else start)
    text = f"x = 1 {line[4:]}" if start == "#" else line
    assert parse_toml(text)["x"] == (1 if start == "#" else DEEP)


@pytest.mark.parametrize(
    "text",
    [
        "x = " + '"' + '\\"' * 100_000,
        f"x = {QUOTE}" + '\\"' * 100_000,
        "x = " + '"a" ' * 100_000,
        "a" * 400_000,
        "a " * 200_000,
        "a. " * 99 + "a" * 300_000,
    ],
)
def test_an_invalid_text_is_refused_at_once(text):
    with limit_time(), pytest.raises(ValueError):
        parse_toml(text)


def test_a_key_of_some_parts_is_parsed():
    assert parse_toml("a.'b.c' . \"d\" = [1.5, 2.5]") == {"a": {"b.c": {"d": [1.5, 2.5]}}}
