"""What is wrong with a config, in words: pydantic's errors in those of who wrote the file;
and configs that runs of earlier versions recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from difflib import get_close_matches
from math import isnan
from typing import Any

from pydantic import BaseModel, ValidationError

#: What a value must be, by the beginning of the name that pydantic has for the error.
MUST_BE = {
    "int_": "must be a whole number",
    "float_": "must be a number",
    "bool_": "must be true or false",
    "string_type": "must be text, in quotes",
    "path_type": "must be a path, in quotes",
    "date_": "must be a day such as 2026-01-31",
    "list_type": "must be a list, in brackets",
    "tuple_type": "must be a list, in brackets",
    "dict_type": "must be a table of settings",
    "model_": "must be a table of settings",
    "dataclass_type": "must be a table of settings",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
    "missing": "is missing",
    "union_tag_not_found": "has no kind, which says what it is",
}

#: Keys that stand somewhere else than in earlier versions, and where: runs recorded them there.
MOVED = {
    ("audit_toxicity", "scorer"): ("score", "scorer"),
    ("audit_toxicity", "device"): ("respond", "device"),
    ("audit_bias", "device"): ("respond", "device"),
    ("audit_extraction", "device"): ("respond", "device"),
}

#: Keys of earlier versions that nothing stands for any more, and why.
GONE = {
    (f"audit_{probe}", "resamples"): "no interval of this audit is resampled now"
    for probe in (
        "amplification", "associations", "bbq", "bias", "bold", "capability", "counterfactual",
        "extraction", "extraction_attack", "honest", "membership", "misuse", "stereoset",
        "winobias", "winogender",
    )
}  # fmt: skip

ABOVE = "write it at the top of the file, above the first [table]"


def brought_up(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The tree that a run recorded, with keys that were moved since where they stand now, and
    without those that are gone."""
    tree = deepcopy(dict(recorded))
    for (section, key), (there, name) in MOVED.items():
        here, now = tree.get(section), tree.setdefault(there, {})
        if isinstance(here, dict) and isinstance(now, dict) and key in here:
            now.setdefault(name, here.pop(key))
    for section, key in GONE:
        if isinstance(here := tree.get(section), dict):
            here.pop(key, None)
    return tree


def closest(given: str, names: Iterable[str]) -> str:
    """Which of these names may have been meant; empty where none is like it."""
    found = get_close_matches(given, [*names], n=1)
    return f" (did you mean {found[0]}?)" if found else ""


def sentence(
    error: ValidationError, tree: Mapping[str, Any], root: Sequence[str], model: type[BaseModel]
) -> str:
    """All that is wrong with a tree of a ``model``. ``root``: the keys that stand above all
    tables."""
    return "; ".join(_said(problem, tree, root, model) for problem in error.errors())


def _said(
    problem: Any, tree: Mapping[str, Any], root: Sequence[str], model: type[BaseModel]
) -> str:
    place, kind, value = _place(problem["loc"], tree), problem["type"], problem["input"]
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        *way, key = problem["loc"]
        remedy = _remedy(problem["loc"], root) or closest(str(key), _keys_at(way, model))
        return f"{place}: there is no such key{remedy}"
    if kind == "union_tag_invalid":
        return f"{place}.kind: must be one of {problem['ctx']['expected_tags']}" + _given(
            problem["ctx"]["tag"]
        )
    says = next((words for start, words in MUST_BE.items() if kind.startswith(start)), "")
    if not says:
        says = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if isinstance(value, float) and isnan(value) and kind.startswith(("less_", "greater_")):
        says = "must be a number"
    if kind == "missing" and place in root:
        says += f"; {ABOVE}"
    at = f"{place}: " if place else ""  # what is wrong with the whole names its keys
    # Of a key that is missing, and of a table in which two things contradict, no value is shown.
    lacks = kind in ("missing", "union_tag_not_found")
    whole = kind == "value_error" and not isinstance(value, str | int | float | list)
    return at + says + ("" if lacks or whole else _given(value))


def _place(loc: Sequence[str | int], tree: Any) -> str:
    """The key as the file has it. In pydantic's way to it also stands which of several types a
    value was taken for: that of its kind, or such as ``str`` and ``tuple[str, ...]``."""
    said: list[str] = []
    node = tree
    for part in map(str, loc):
        kind = isinstance(node, Mapping) and part not in node and part == node.get("kind")
        if kind or part == "str" or "[" in part:
            continue
        said.append(part)
        if isinstance(node, Mapping):
            node = node.get(part)
        elif isinstance(node, list) and part.isdecimal():
            node = node[int(part)]
        else:
            node = None  # a default, or a rule by its name
    return ".".join(said)


def references(value: Mapping[str, Any]) -> list[str]:
    """The tables that a key holds, by name in its JSON schema: one, one of several kinds, or a list
    or a table of such."""
    parts = [value, value.get("items", {}), *value.get("anyOf", ())]
    if isinstance(named := value.get("additionalProperties"), dict):
        parts.append(named)
    parts += [kind for part in parts for kind in part.get("oneOf", ())]
    return [part["$ref"].rpartition("/")[2] for part in parts if "$ref" in part]


def _keys_at(way: Sequence[str | int], model: type[BaseModel]) -> set[str]:
    """The keys of the table at the end of a way. On it, places in lists, names that are free, and
    kinds, of which a table may be, are no keys."""
    schema = model.model_json_schema()
    nodes = [schema]
    for part in way:
        values = [node["properties"][part] for node in nodes if part in node.get("properties", ())]
        if values:
            nodes = [schema["$defs"][name] for value in values for name in references(value)]
    return {key for node in nodes for key in node.get("properties", ())}


def _remedy(loc: Sequence[str | int], root: Sequence[str]) -> str:
    """What to do about a key that is not there: it was moved, is gone, or stands below a header, to
    which in TOML all that follows belongs."""
    for place, there in MOVED.items():
        if tuple(loc) == place:
            return f"; it is {'.'.join(there)} now, for all audits"
    for place, why in GONE.items():
        if tuple(loc) == place:
            return f" any more, since {why}: leave it out"
    misplaced = len(loc) > 1 and loc[-1] in root
    return f" here; {loc[-1]} is one of the whole config: {ABOVE}" if misplaced else ""


def _given(value: Any) -> str:
    if isinstance(value, Mapping):
        return " (given: a table)"
    said = str(value).lower() if isinstance(value, bool) else repr(value)
    return f" (given: {said if len(said) <= 60 else said[:57] + '...'})"
