"""Turn pydantic's validation errors into sentences that use the keys of the config file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from math import isnan
from typing import Any

from pydantic import BaseModel, ValidationError

from hallmark.tasks.contract import format_closest_name_hint, format_count

#: What is wrong with a value, by the beginning of pydantic's name for the error.
EXPECTED_BY_ERROR_TYPE = {
    "int_": "must be a whole number",
    "float_": "must be a number",
    "bool_": "must be true or false",
    "string_type": "must be text, in quotes",
    "path_type": "must be a path, in quotes",
    "date_": "must be a date such as 2026-01-31",
    "list_type": "must be a list, in brackets",
    "tuple_type": "must be a list, in brackets",
    "dict_type": "must be a table of settings",
    "model_": "must be a table of settings",
    "dataclass_type": "must be a table of settings",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
    "missing": "is missing",
    "union_tag_not_found": "needs a 'kind' key that specifies the type of this entry",
}

#: Number of problems that an error describes, and of characters of each part of a key.
MAX_DESCRIBED_PROBLEMS, MAX_KEY_CHARACTERS = 10, 80

#: Number of characters of the sentence of one problem, which may repeat a value, and of the
#: sentences of all problems after the first.
MAX_SENTENCE_CHARACTERS, MAX_DESCRIPTION_CHARACTERS = 1000, 2000

ROOT_KEY_HINT = "write the key at the top of the file, above the first [table]"


def format_validation_error(
    error: ValidationError,
    config_tree: Mapping[str, Any],
    root_keys: Sequence[str],
    model: type[BaseModel],
) -> str:
    """Describe the first problems of a config tree in one line, and count the others.

    Args:
        error: The validation error of ``model``.
        config_tree: The tree that was validated.
        root_keys: The keys outside all sections.
        model: The model of the config.
    """
    problems = error.errors()
    sentences: list[str] = []
    for problem in problems[:MAX_DESCRIBED_PROBLEMS]:
        sentence = _format_problem(problem, config_tree, root_keys, model)
        if sentences and len("; ".join([*sentences, sentence])) > MAX_DESCRIPTION_CHARACTERS:
            break
        sentences.append(sentence)
    if hidden_count := len(problems) - len(sentences):
        sentences.append(f"and {format_count(hidden_count, 'other problem')}")
    return "; ".join(sentences)


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
        remedy = _suggest_remedy(problem["loc"], root_keys) or format_closest_name_hint(
            str(key), _list_keys_at(parent_path, model)
        )
        return f"{key_path}: there is no such key{remedy}"
    if error_type == "union_tag_invalid":
        return (
            f"{key_path}.kind: must be one of {problem['ctx']['expected_tags']}"
            + _format_given_value(problem["ctx"]["tag"])
            + _suggest_allowed_value(problem["ctx"]["tag"], problem["ctx"]["expected_tags"])
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
        if len(message) > MAX_SENTENCE_CHARACTERS:
            message = message[:MAX_SENTENCE_CHARACTERS] + "..."
    if isinstance(value, float) and isnan(value) and error_type.startswith(("less_", "greater_")):
        message = "must be a number"
    if error_type == "missing" and key_path in root_keys:
        message += f"; {ROOT_KEY_HINT}"
    location = f"{key_path}: " if key_path else ""  # problems of the whole config name their keys
    # A missing key has no value to show, and neither has a contradiction between two keys. A value
    # in the section of the credentials may be one.
    is_missing = error_type in ("missing", "union_tag_not_found")
    is_contradiction = error_type == "value_error" and not isinstance(
        value, str | int | float | list
    )
    suggestion = ""
    if error_type == "literal_error":
        suggestion = _suggest_allowed_value(value, problem["ctx"]["expected"])
    is_hidden = is_missing or is_contradiction or problem["loc"][:1] == ("credentials",)
    given_value = "" if is_hidden else _format_given_value(value)
    return location + message + given_value + suggestion


def _suggest_allowed_value(value: Any, allowed_values: str) -> str:
    """Suggest the most similar of the allowed values, which pydantic lists in quotes."""
    return format_closest_name_hint(str(value), re.findall(r"'([^']*)'", allowed_values))


def _format_key_path(location: Sequence[str | int], config_tree: Any) -> str:
    """Format a location as the key in the file.

    Pydantic's location also contains the type that it tried for a union: the ``kind`` of a table,
    or a name such as ``str`` or ``tuple[str, ...]``. These are dropped.
    """
    keys: list[str] = []
    node = config_tree
    for segment in map(str, location):
        is_type_tag = (
            isinstance(node, Mapping) and segment not in node and segment == node.get("kind")
        )
        if is_type_tag or segment == "str" or "[" in segment:
            continue
        keys.append(_escape_control_characters(segment)[:MAX_KEY_CHARACTERS])
        if isinstance(node, Mapping):
            node = node.get(segment)
        elif isinstance(node, list) and segment.isdecimal():
            node = node[int(segment)]
        else:
            node = None  # a default value, or a rule that is named by its key
    return ".".join(keys)


def _escape_control_characters(text: str) -> str:
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def list_schema_references(property_schema: Mapping[str, Any]) -> list[str]:
    """List the definitions that a key's JSON schema refers to.

    Its value may be a table, one of several kinds of tables, or a list or a table of these.
    """
    schemas = [property_schema, property_schema.get("items", {}), *property_schema.get("anyOf", ())]
    if isinstance(value_schema := property_schema.get("additionalProperties"), dict):
        schemas.append(value_schema)
    schemas += [alternative for schema in schemas for alternative in schema.get("oneOf", ())]
    return [schema["$ref"].rpartition("/")[2] for schema in schemas if "$ref" in schema]


def _list_keys_at(parent_path: Sequence[str | int], model: type[BaseModel]) -> set[str]:
    """Return the keys of the table at a path in which list positions, free names and kinds of
    tables may occur besides keys."""
    schema = _build_json_schema(model)
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


@cache
def _build_json_schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def _suggest_remedy(location: Sequence[str | int], root_keys: Sequence[str]) -> str:
    """Suggest to move a root key that was written inside a section, or return ""."""
    is_misplaced = len(location) > 1 and location[-1] in root_keys
    return (
        f" in this section; {location[-1]} applies to the whole config: {ROOT_KEY_HINT}"
        if is_misplaced
        else ""
    )


def _format_given_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return " (given: a table)"
    value_text = str(value).lower() if isinstance(value, bool) else repr(value)
    return f" (given: {value_text if len(value_text) <= 60 else value_text[:57] + '...'})"
