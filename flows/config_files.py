"""Read the tree of a config from a TOML file or by its bundled name, and apply overrides to it."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hallmark.tasks.contract import UsageError, format_closest_name_hint, open_external_file

CONFIG_FOLDER = Path(__file__).parent / "configs"


def list_bundled_configs() -> list[str]:
    """List the names of the configs that come with Hallmark."""
    return sorted(path.stem for path in CONFIG_FOLDER.glob("*.toml"))


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
    path, is_bundled = Path(config), False
    if path.suffix != ".toml":
        path, is_bundled = CONFIG_FOLDER / f"{config}.toml", True
        if config not in list_bundled_configs():
            raise UsageError(
                f"there is no config {config!r}"
                f"{format_closest_name_hint(config, list_bundled_configs())}; give the path of a "
                f".toml file or one of: {', '.join(list_bundled_configs())}"
            )
    try:
        with path.open("rb") if is_bundled else open_external_file(path, "config") as file:
            return tomllib.loads(file.read().decode())
    except OSError as error:
        raise UsageError(
            f"config {path}: the file cannot be read ({error.strerror}: {path.absolute()})"
            f"{_suggest_config_file(path)}; give the path of a .toml file"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"config {path}: the file is not UTF-8 text (byte {error.start + 1}); save it as UTF-8"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"config {path}: the file is not valid TOML ({error}); correct it"
        ) from error
    except RecursionError as error:
        raise UsageError(f"config {path}: the file is nested too deeply") from error


def _suggest_config_file(path: Path) -> str:
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
        raise UsageError(f"--set {override!r}: write it as section.key=value")
    try:
        value = tomllib.loads(f"value = {value_text}")["value"]
    except tomllib.TOMLDecodeError:
        value = value_text  # a bare word is a string
    except RecursionError as error:
        raise UsageError(f"--set {override[:60]!r}…: the value is nested too deeply") from error
    *parent_keys, last_key = key.strip().split(".")
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
    if not list_key.isdecimal() or int(list_key) >= len(values):
        raise UsageError(
            f"--set {override!r}: {list_key!r} is not a position in a list of {len(values)} "
            "entries, counted from 0"
        )
    return int(list_key)
