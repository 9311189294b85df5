"""What is wrong with a config, in words: pydantic's errors in those of who wrote the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from math import isnan
from typing import Any

from pydantic import BaseModel, ValidationError

#: What a value must be, by the beginning of the name that pydantic has for the error.
EXPECTED_BY_ERROR_TYPE = {
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

ROOT_KEY_HINT = "write it at the top of the file, above the first [table]"


def suggest_closest_name(unknown_name: str, known_names: Iterable[str]) -> str:
    """Which of these names may have been meant; empty where none is like it."""
    matches = get_close_matches(unknown_name, [*known_names], n=1)
    return f" (did you mean {matches[0]}?)" if matches else ""


def format_validation_error(
    error: ValidationError,
    config_tree: Mapping[str, Any],
    root_keys: Sequence[str],
    model: type[BaseModel],
) -> str:
    """All that is wrong with a tree of a ``model``. ``root``: the keys that stand above all
    tables."""
    return "; ".join(
        _format_problem(problem, config_tree, root_keys, model) for problem in error.errors()
    )


def _format_problem(
    problem: Any, config_tree: Mapping[str, Any], root_keys: Sequence[str], model: type[BaseModel]
) -> str:
    key_path, error_type, value = (
        _format_key_path(problem["loc"], config_tree),
        problem["type"],
        problem["input"],
    )
    if error_type in ("extra_forbidden", "unexpected_keyword_argument"):
        *parent_path, key = problem["loc"]
        remedy = _suggest_remedy(problem["loc"], root_keys) or suggest_closest_name(
            str(key), _list_keys_at(parent_path, model)
        )
        return f"{key_path}: there is no such key{remedy}"
    if error_type == "union_tag_invalid":
        return (
            f"{key_path}.kind: must be one of {problem['ctx']['expected_tags']}"
            + _format_given_value(problem["ctx"]["tag"])
        )
    message = next(
        (
            expected
            for error_prefix, expected in EXPECTED_BY_ERROR_TYPE.items()
            if error_type.startswith(error_prefix)
        ),
        "",
    )
    if not message:
        message = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if isinstance(value, float) and isnan(value) and error_type.startswith(("less_", "greater_")):
        message = "must be a number"
    if error_type == "missing" and key_path in root_keys:
        message += f"; {ROOT_KEY_HINT}"
    location = f"{key_path}: " if key_path else ""  # what is wrong with the whole names its keys
    # Of a key that is missing, and of a table in which two things contradict, no value is shown.
    is_missing = error_type in ("missing", "union_tag_not_found")
    is_contradiction = error_type == "value_error" and not isinstance(
        value, str | int | float | list
    )
    return (
        location + message + ("" if is_missing or is_contradiction else _format_given_value(value))
    )


def _format_key_path(location: Sequence[str | int], config_tree: Any) -> str:
    """The key as the file has it. In pydantic's way to it also stands which of several types a
    value was taken for: that of its kind, or such as ``str`` and ``tuple[str, ...]``."""
    keys: list[str] = []
    node = config_tree
    for segment in map(str, location):
        is_type_tag = (
            isinstance(node, Mapping) and segment not in node and segment == node.get("kind")
        )
        if is_type_tag or segment == "str" or "[" in segment:
            continue
        keys.append(segment)
        if isinstance(node, Mapping):
            node = node.get(segment)
        elif isinstance(node, list) and segment.isdecimal():
            node = node[int(segment)]
        else:
            node = None  # a default, or a rule by its name
    return ".".join(keys)


def list_schema_references(property_schema: Mapping[str, Any]) -> list[str]:
    """The tables that a key holds, by name in its JSON schema: one, one of several kinds, or a list
    or a table of such."""
    schemas = [property_schema, property_schema.get("items", {}), *property_schema.get("anyOf", ())]
    if isinstance(value_schema := property_schema.get("additionalProperties"), dict):
        schemas.append(value_schema)
    schemas += [alternative for schema in schemas for alternative in schema.get("oneOf", ())]
    return [schema["$ref"].rpartition("/")[2] for schema in schemas if "$ref" in schema]


def _list_keys_at(parent_path: Sequence[str | int], model: type[BaseModel]) -> set[str]:
    """The keys of the table at the end of a way. On it, places in lists, names that are free, and
    kinds, of which a table may be, are no keys."""
    schema = model.model_json_schema()
    nodes = [schema]
    for segment in parent_path:
        property_schemas = [
            node["properties"][segment] for node in nodes if segment in node.get("properties", ())
        ]
        if property_schemas:
            nodes = [
                schema["$defs"][definition_name]
                for property_schema in property_schemas
                for definition_name in list_schema_references(property_schema)
            ]
    return {key for node in nodes for key in node.get("properties", ())}


def _suggest_remedy(location: Sequence[str | int], root_keys: Sequence[str]) -> str:
    """What to do about a key that is not there: it stands below a header, to which in TOML all that
    follows belongs."""
    is_misplaced = len(location) > 1 and location[-1] in root_keys
    return (
        f" here; {location[-1]} is one of the whole config: {ROOT_KEY_HINT}" if is_misplaced else ""
    )


def _format_given_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return " (given: a table)"
    value_text = str(value).lower() if isinstance(value, bool) else repr(value)
    return f" (given: {value_text if len(value_text) <= 60 else value_text[:57] + '...'})"
