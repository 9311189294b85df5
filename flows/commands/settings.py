"""List every setting of a config: key, default, allowed values and meaning."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from hallmark.flows.commands.options import JsonOption, print_result
from hallmark.flows.config import Config
from hallmark.flows.config_errors import list_schema_references
from hallmark.tasks.contract import Row, UsageError, format_closest_name_hint

Schema = dict[str, Any]


def settings(section: str | None = None, *, as_json: JsonOption = False) -> None:
    """List config settings with their defaults, allowed values and meanings.

    Parameters
    ----------
    section
        List only this section or this key, such as pretrain.train, pretrain.train.steps or
        earlier_run; "study" and "study.synthetic_corpus" list the settings of the command study.
    """
    rows = list_settings(section)
    is_one_key = section is not None and all(
        _get_full_key(row) == section.removeprefix("study.") for row in rows
    )
    print_result(rows, as_json, render_setting if is_one_key else render_settings)


def list_settings(section: str | None = None) -> list[Row]:
    """List the settings in the order of the config.

    Args:
        section: List only this section with its subsections, or only this key.

    Returns:
        Rows: section, is_repeatable (a config may contain several sections of this name),
        section_description, key, required, default, allowed_values, meaning.

    Raises:
        UsageError: If there is no such section or key.
    """
    schema = Config.model_json_schema()
    if section is not None and section.partition(".")[0] == "study":
        from hallmark.flows.study_config import StudyConfig

        schema, section = StudyConfig.model_json_schema(), section.partition(".")[2] or None
    rows = list(_iter_setting_rows("", False, schema, schema["$defs"], {}))
    if section is None:
        return rows
    selected_rows = [row for row in rows if f"{row['section']}.".startswith(f"{section}.")]
    selected_rows += [row for row in rows if _get_full_key(row) == section]
    if not selected_rows:
        section_names = dict.fromkeys(row["section"] for row in rows if row["section"])
        top_level_keys = [row["key"] for row in rows if not row["section"]]
        known_names = [*section_names, *map(_get_full_key, rows)]
        raise UsageError(
            "there is no section or key "
            f"{section!r}{_format_closest_setting_hint(section, known_names)}; choose a section "
            f"({', '.join(section_names)}) or a key; the top-level keys are "
            f"{', '.join(top_level_keys)}"
        )
    return selected_rows


def _format_closest_setting_hint(unknown_name: str, known_names: list[str]) -> str:
    """Return a hint with the most similar section or key.

    A name without a dot is compared with the last part of each known name: "stepz" is similar to
    "pretrain.train.steps".
    """
    if "." not in unknown_name:
        names_by_last_part = {name.rpartition(".")[2]: name for name in reversed(known_names)}
        for last_part in get_close_matches(unknown_name, names_by_last_part, n=1):
            unknown_name = names_by_last_part[last_part]
    return format_closest_name_hint(unknown_name, known_names)


def _get_full_key(row: Row) -> str:
    return f"{row['section']}.{row['key']}".strip(".")


def _iter_setting_rows(
    section: str, is_repeatable: bool, schema: Schema, definitions: Schema, defaults: Schema
) -> Iterator[Row]:
    """Yield the keys of a section, then those of its subsections.

    ``defaults`` holds the defaults of this section that differ from those in its schema.
    """
    subsections: list[tuple[str, bool, Schema, Schema]] = []
    description, key_descriptions = _split_text_and_key_descriptions(schema.get("description", ""))
    description = description if section else ""
    for key, key_schema in schema["properties"].items():
        subsection = f"{section}.{key}" if section else key
        object_schemas = [definitions[ref] for ref in list_schema_references(key_schema)]
        if object_schemas:
            subsection_defaults = defaults.get(key) or key_schema.get("default") or {}
            if "items" in key_schema:
                object_schemas, subsection_defaults = (
                    [
                        _add_list_description(object_schema, key_schema, subsection_defaults)
                        for object_schema in object_schemas
                    ],
                    {},
                )
            if "additionalProperties" in key_schema:
                subsection, subsection_defaults = f"{subsection}.NAME", {}
            subsections += [
                (subsection, "items" in key_schema, object_schema, subsection_defaults)
                for object_schema in object_schemas
            ]
            continue
        yield {
            "section": section,
            "is_repeatable": is_repeatable,
            "section_description": description.replace("``", ""),
            "key": key,
            "required": key in schema.get("required", ()),
            "default": defaults.get(key, key_schema.get("default", key_schema.get("const"))),
            "allowed_values": _describe_allowed_values(key_schema),
            "meaning": key_schema.get("description", "") or key_descriptions.get(key, ""),
        }
    for subsection, is_list, object_schema, subsection_defaults in subsections:
        yield from _iter_setting_rows(
            subsection, is_list, object_schema, definitions, subsection_defaults
        )


def _split_text_and_key_descriptions(docstring: str) -> tuple[str, dict[str, str]]:
    """Split a Google-style docstring into its text and the descriptions of its attributes."""
    text, _, attributes = inspect.cleandoc(docstring).partition("\nAttributes:\n")
    descriptions: dict[str, str] = {}
    for entry in re.split(r"\n(?= {4}\w)", f"\n{attributes}"):
        key, _, description = entry.strip().partition(": ")
        if description:
            descriptions[key] = " ".join(description.replace("``", "").split())
    return text.strip(), descriptions


def _add_list_description(item_schema: Schema, list_schema: Schema, default_items: Any) -> Schema:
    """Append the description and the default items of a list to the schema of its items."""
    descriptions = [item_schema.get("description", ""), list_schema.get("description", "")]
    for default_item in default_items:
        changed_settings = {
            key: value
            for key, value in default_item.items()
            if value != item_schema["properties"][key].get("default")
        }
        descriptions.append(f"By default: {json.dumps(changed_settings, ensure_ascii=False)}")
    return {**item_schema, "description": "\n".join(filter(None, descriptions))}


def _describe_allowed_values(schema: Schema) -> str:
    if "enum" in schema or "const" in schema:
        return ", ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return " or ".join(
            _describe_allowed_values(kind) for kind in schema["anyOf"] if kind.get("type") != "null"
        )
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_describe_allowed_values(schema.get('items', {}))}"
    bounds = [
        template.format(schema[key])
        for key, template in (
            ("minimum", "from {}"),
            ("exclusiveMinimum", "above {}"),
            ("maximum", "to {}"),
            ("exclusiveMaximum", "below {}"),
        )
        if key in schema
    ]
    return " ".join([kind, *bounds])


def render_setting(rows: list[Row]) -> str:
    """Format the rows of one key, which several kinds of a section may have, for a terminal."""
    (key,) = {_get_full_key(row) for row in rows}
    lines = [key]
    for details in dict.fromkeys(map(_format_setting_details, rows)):
        lines += details
    return "\n".join(lines)


def _format_setting_details(row: Row) -> tuple[str, ...]:
    """Return the lines that describe a setting: its default, allowed values and meaning."""
    return tuple(
        line
        for label, text in (
            ("default", _format_default(row)),
            ("allowed", row["allowed_values"]),
            ("meaning", row["meaning"]),
        )
        if text
        for line in textwrap.wrap(
            f"    {label}: {text}", 100, subsequent_indent=" " * 13, break_long_words=False
        )
    )


def _format_default(row: Row) -> str:
    if row["default"] is None:
        return "none; must be set" if row["required"] else "not set"
    return json.dumps(row["default"], ensure_ascii=False)


def render_settings(rows: list[Row]) -> str:
    """Format the rows for a terminal, in the form of a TOML file."""
    lines: list[str] = []
    current_section: tuple[str, str] | None = None
    for row in rows:
        if (row["section"], row["section_description"]) != current_section:
            current_section = row["section"], row["section_description"]
            header = f"[{row['section']}]"
            lines += (
                ["", f"[{header}]" if row["is_repeatable"] else header] if row["section"] else []
            )
            lines += [f"# {line}".rstrip() for line in row["section_description"].split("\n")]
            if not row["section_description"]:
                lines.pop()
        value = f" = {json.dumps(row['default'], ensure_ascii=False)}"
        if row["default"] is None:
            value = " (must be set)" if row["required"] else " (not set)"
        assignment = row["key"] + value
        comment = "; ".join(filter(None, (row["allowed_values"], row["meaning"])))
        lines += textwrap.wrap(
            f"{assignment:<34} # {comment}",
            110,
            subsequent_indent=" " * 36 + "# ",
            break_long_words=False,
            drop_whitespace=True,
        )
    return "\n".join(lines).strip("\n")
