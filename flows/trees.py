"""The tree of a config as it is written: a TOML file, or the name of one in ``flows/configs``, and
what overrides set in it."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.contract import UsageError, open_external

CONFIGS = Path(__file__).parent / "configs"


def names() -> list[str]:
    """The configs that come with Hallmark."""
    return sorted(path.stem for path in CONFIGS.glob("*.toml"))


def overridden(key: str, overrides: Sequence[str]) -> str | None:
    """The text that overrides set a key of the root to; None where they do not."""
    tree: dict[str, Any] = {}
    for override in (o for o in overrides if o.partition("=")[0].strip() == key):
        set_value(tree, override)
    value = tree.get(key)
    return value if isinstance(value, str) else None


def read(config: str) -> dict[str, Any]:
    """The tree of a TOML file, or of a config's name."""
    path, bundled = Path(config), False
    if path.suffix != ".toml":
        path, bundled = CONFIGS / f"{config}.toml", True
        if config not in names():
            raise UsageError(
                f"there is no config {config!r}; give the path of a .toml file or one of: "
                f"{', '.join(names())}"
            )
    try:
        with path.open("rb") if bundled else open_external(path, "config") as file:
            return tomllib.loads(file.read().decode())
    except OSError as error:
        raise UsageError(f"config {path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"config {path}: is not valid TOML ({error})") from error
    except RecursionError as error:
        raise UsageError(f"config {path}: is nested too deeply") from error


def set_value(tree: dict[str, Any], override: str) -> None:
    """Override a value of a tree. UsageError where that cannot be."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--set {override!r}: write it as section.key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    except RecursionError as error:
        raise UsageError(f"--set {override[:60]!r}…: is nested too deeply") from error
    *parents, last = key.strip().split(".")
    node: Any = tree
    for part in parents:
        if isinstance(node, list):
            node = node[_index(node, part, override)]
        else:
            node = node.setdefault(part, {})
        if not isinstance(node, dict | list):
            raise UsageError(f"--set {override!r}: {part!r} is a value, not a section")
    if isinstance(node, list):
        node[_index(node, last, override)] = value
    else:
        node[last] = value


def _index(values: list[Any], part: str, override: str) -> int:
    if not part.isdecimal() or int(part) >= len(values):
        raise UsageError(
            f"--set {override!r}: {part!r} is no place in a list of {len(values)} entries"
        )
    return int(part)
