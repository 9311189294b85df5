"""Every setting of a config: its key, its default, what it may be, what it means."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from flows.commands.shared import Json, show
from flows.config import Config
from flows.mistakes import closest, references
from tasks.contract import UsageError

Row = dict[str, Any]
Schema = dict[str, Any]


def settings(section: str | None = None, *, json_: Json = False) -> None:
    """List every setting of a config, with its default, what it may be and what it means.

    Parameters
    ----------
    section
        Only this section or key, such as pretrain.train, pretrain.train.steps or earlier; study,
        study.world …: those of the command study.
    """
    show(list_settings(section), json_, render)


def list_settings(section: str | None = None) -> list[Row]:
    """Rows (section, several, about, key, required, default, allowed, meaning), as in the config.

    ``section``: only those of this section and of the sections in it, or only this key.
    ``several`` sections of the name may stand in a config. UsageError where there is neither.
    """
    schema = Config.model_json_schema()
    if section is not None and section.partition(".")[0] == "study":
        from flows.study_config import StudyConfig

        schema, section = StudyConfig.model_json_schema(), section.partition(".")[2] or None
    found = list(_walk("", False, schema, schema["$defs"], {}))
    if section is None:
        return found
    chosen = [row for row in found if f"{row['section']}.".startswith(f"{section}.")]
    chosen += [row for row in found if f"{row['section']}.{row['key']}".strip(".") == section]
    if not chosen:
        names = dict.fromkeys(row["section"] for row in found if row["section"])
        top = [row["key"] for row in found if not row["section"]]
        keys = [f"{row['section']}.{row['key']}".strip(".") for row in found]
        raise UsageError(
            f"there is no section or key {section!r}{closest(section, (*names, *keys))}; choose "
            f"one of: {', '.join(names)}; or a key, such "
            f"as those that stand in none: {', '.join(top)}"
        )
    return chosen


def _walk(
    section: str, several: bool, node: Schema, definitions: Schema, defaults: Schema
) -> Iterator[Row]:
    """First the section's own keys, then the sections in it.

    ``defaults``: of this section, where the one above gives it others than its kind has.
    """
    inner: list[tuple[str, bool, Schema, Schema]] = []
    about = node.get("description", "") if section else ""
    for key, value in node["properties"].items():
        name = f"{section}.{key}" if section else key
        objects = [definitions[ref] for ref in references(value)]
        if objects:
            own = defaults.get(key) or value.get("default") or {}
            if "items" in value:
                objects, own = [_of_a_list(each, value, own) for each in objects], {}
            if "additionalProperties" in value:
                name, own = f"{name}.NAME", {}
            inner += [(name, "items" in value, each, own) for each in objects]
            continue
        yield {
            "section": section,
            "several": several,
            "about": about.replace("``", ""),
            "key": key,
            "required": key in node.get("required", ()),
            "default": defaults.get(key, value.get("default", value.get("const"))),
            "allowed": _allowed(value),
            "meaning": value.get("description", "") or _said(key, about),
        }
    for name, many, each, own in inner:
        yield from _walk(name, many, each, definitions, own)


def _said(key: str, about: str) -> str:
    """The sentences about a key in what is said of its section."""
    sentences = re.split(r"(?<=[.;])\s+(?=[A-Z`])", " ".join(about.split()))
    found = [each.rstrip(";") for each in sentences if f"``{key}``" in each]
    return " ".join(found).replace("``", "")


def _of_a_list(node: Schema, value: Schema, default: Any) -> Schema:
    """A section that may stand several times, with what is said of all of them together."""
    said = [node.get("description", ""), value.get("description", "")]
    for given in default:
        known = {k: v for k, v in given.items() if v != node["properties"][k].get("default")}
        said.append(f"By default: {json.dumps(known, ensure_ascii=False)}")
    return {**node, "description": "\n".join(filter(None, said))}


def _allowed(node: Schema) -> str:
    if "enum" in node or "const" in node:
        return ", ".join(json.dumps(value) for value in node.get("enum", [node.get("const")]))
    if "anyOf" in node:
        return " or ".join(_allowed(kind) for kind in node["anyOf"] if kind.get("type") != "null")
    kind = node.get("type", "anything")
    if kind == "array":
        return f"list of {_allowed(node.get('items', {}))}"
    bounds = [
        words.format(node[key])
        for key, words in (
            ("minimum", "from {}"),
            ("exclusiveMinimum", "above {}"),
            ("maximum", "to {}"),
            ("exclusiveMaximum", "below {}"),
        )
        if key in node
    ]
    return " ".join([kind, *bounds])


def render(rows: list[Row]) -> str:
    """The rows as text for a terminal, as they would stand in a TOML file."""
    lines: list[str] = []
    seen: tuple[str, str] | None = None
    for row in rows:
        if (row["section"], row["about"]) != seen:
            seen = row["section"], row["about"]
            title = f"[{row['section']}]"
            lines += ["", f"[{title}]" if row["several"] else title] if row["section"] else []
            lines += [f"# {line}".rstrip() for line in row["about"].split("\n")]
            if not row["about"]:
                lines.pop()
        value = f" = {json.dumps(row['default'], ensure_ascii=False)}"
        if row["default"] is None:
            value = " (must be set)" if row["required"] else " (not set)"
        head = row["key"] + value
        said = "; ".join(filter(None, (row["allowed"], row["meaning"])))
        lines += textwrap.wrap(
            f"{head:<34} # {said}", 110, subsequent_indent=" " * 36 + "# ",
            break_long_words=False, drop_whitespace=True,
        )  # fmt: skip
    return "\n".join(lines).strip("\n")
