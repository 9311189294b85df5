"""Read the trees of configs and policies from TOML files or by bundled names; apply overrides."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hallmark.tasks.contract import (
    MAX_TOML_DEPTH,
    OversizedIntegerError,
    UsageError,
    format_closest_name_hint,
    open_external_file,
    parse_toml,
)

CONFIG_FOLDER = Path(__file__).parent / "configs"
POLICY_FOLDER = Path(__file__).parent / "policies"

#: Largest number of characters of a position in a list.
MAX_INDEX_CHARACTERS = 20


def list_bundled_configs() -> list[str]:
    """List the names of the configs that come with Hallmark."""
    return _list_bundled_names(CONFIG_FOLDER)


def _list_bundled_names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.toml"))


def find_text_override(key: str, overrides: Sequence[str]) -> str | None:
    """Return the text to which overrides set a root key, or None if they do not."""
    tree: dict[str, Any] = {}
    for override in (
        candidate for candidate in overrides if candidate.partition("=")[0].strip() == key
    ):
        apply_override(tree, override)
    value = tree.get(key)
    return value if isinstance(value, str) else None


def read_config_tree(config: str) -> dict[str, Any]:
    """Read a TOML file, or a bundled config by its name.

    Raises:
        UsageError: If it does not exist, cannot be read or is not valid TOML.
    """
    return _read_toml("config", config, CONFIG_FOLDER)


def insert_policy_rules(config_tree: dict[str, Any]) -> None:
    """Replace the ``policy.file`` setting of a tree by the rules that the file contains.

    Rules of the tree replace those of the file that have the same name. A recorded config thus
    keeps the rules that it used, whatever becomes of the file.

    Raises:
        UsageError: If the file cannot be read, or contains anything but rules.
    """
    section = config_tree.get("policy")
    if not isinstance(section, dict) or not isinstance(section.get("file"), str):
        return
    rules = section.get("rules", {})
    if not isinstance(rules, dict):
        return
    file_rules = _read_policy_rules(section["file"])
    config_tree["policy"] = section | {"file": None, "rules": file_rules | rules}


def _read_policy_rules(policy: str) -> dict[str, Any]:
    """Read the rules of a TOML file, or of a bundled policy by its name."""
    tree = _read_toml("policy", policy, POLICY_FOLDER)
    section = tree.get("policy")
    rules = section.get("rules") if isinstance(section, dict) and len(section) == 1 else None
    if len(tree) != 1 or not isinstance(rules, dict) or not rules:
        raise UsageError(f"policy.file: {policy} must contain only [policy.rules.NAME] sections")
    return rules


def _read_toml(kind: str, name: str, bundled_folder: Path) -> dict[str, Any]:
    """Read a TOML file, or a bundled one by its name.

    Args:
        kind: What the file contains, "config" or "policy", for errors.
        name: The path of a .toml file, or the name of a bundled file.
        bundled_folder: The folder of the bundled files.

    Raises:
        UsageError: If it does not exist, cannot be read or is not valid TOML.
    """
    path, is_bundled = Path(name), False
    if path.suffix != ".toml":
        path, is_bundled = bundled_folder / f"{name}.toml", True
        bundled_names = _list_bundled_names(bundled_folder)
        if name not in bundled_names:
            raise UsageError(
                f"there is no {kind} {name!r}{format_closest_name_hint(name, bundled_names)}; "
                f"specify the path of a .toml file or one of: {', '.join(bundled_names)}"
            )
    try:
        with path.open("rb") if is_bundled else open_external_file(path, kind) as file:
            return parse_toml(file.read().decode())
    except OSError as error:
        raise UsageError(
            f"{kind} {path}: the file cannot be read ({error.strerror}: "
            f"{path.absolute()}){_suggest_file(path)}; specify the path of a .toml file"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{kind} {path}: the file is not UTF-8 text (invalid at byte {error.start + 1}); "
            "save it as UTF-8"
        ) from error
    except (tomllib.TOMLDecodeError, OversizedIntegerError) as error:
        raise UsageError(
            f"{kind} {path}: the file is not valid TOML ({error}); correct it"
        ) from error
    except RecursionError as error:
        raise UsageError(f"{kind} {path}: the content is nested too deeply") from error


def _suggest_file(path: Path) -> str:
    """Suggest the file with the most similar name in the same folder."""
    file_names = [file.name for file in path.parent.glob("*.toml") if file.is_file()]
    return format_closest_name_hint(path.name, file_names)


def get_config_folder(config: str | None) -> str | None:
    """Return the folder of a config file, where its relative paths start; None for other configs.

    Links in the path of the folder are followed, but not a link that is the file itself.
    """
    if config is None or not config.endswith(".toml"):
        return None
    return os.path.realpath(os.path.dirname(config))


def rebase_path(path: str, folder: str) -> str:
    """Turn a path that starts at a folder into one that starts at the working directory.

    Absolute paths, those that begin with ``~`` and URIs stay as they are.
    """
    is_relative = path and not path.startswith(("/", "~")) and "://" not in path
    return os.path.relpath(os.path.join(folder, path)) if is_relative else path


def apply_override(config_tree: dict[str, Any], override: str) -> None:
    """Set a value of a tree from ``section.key=value``.

    Raises:
        UsageError: If the override is malformed or its key leads through a value.
    """
    key, separator, value_text = override.partition("=")
    if not separator or not key.strip():
        raise UsageError(f"--set {override!r}: write the setting as section.key=value")
    try:
        value = parse_toml(f"value = {value_text}")["value"]
    except tomllib.TOMLDecodeError:
        value = value_text  # a bare word is a string
    except OversizedIntegerError as error:
        raise UsageError(
            f"--set {override[:60]!r}…: {error}; write a smaller number, or text in quotes"
        ) from error
    except RecursionError as error:
        raise UsageError(f"--set {override[:60]!r}…: the value is nested too deeply") from error
    *parent_keys, last_key = key.strip().split(".")
    if len(parent_keys) >= MAX_TOML_DEPTH:
        raise UsageError(f"--set {override[:60]!r}…: the key is nested too deeply")
    node: Any = config_tree
    for parent_key in parent_keys:
        if isinstance(node, list):
            node = node[_parse_list_index(node, parent_key, override)]
        else:
            node = node.setdefault(parent_key, {})
        if not isinstance(node, dict | list):
            raise UsageError(f"--set {override!r}: {parent_key!r} is a value, not a section")
    if isinstance(node, list):
        node[_parse_list_index(node, last_key, override)] = value
    else:
        node[last_key] = value


def _parse_list_index(values: list[Any], list_key: str, override: str) -> int:
    # Python converts no text of thousands of digits.
    has_long_key = len(list_key) > MAX_INDEX_CHARACTERS
    if has_long_key or not list_key.isdecimal() or int(list_key) >= len(values):
        raise UsageError(
            f"--set {override!r:.200}: {list_key!r:.60} is not an index of a list of "
            f"{len(values)} entries; indices start at 0"
        )
    return int(list_key)
