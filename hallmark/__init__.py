"""The public interface of Hallmark: raw text to an audited language model.

``run`` and ``audit`` start what the commands of the same names start, ``open_run`` reads the tables
of a past run, ``load_config`` reads a config. Everything is imported when it is first used, so that
``import hallmark.model`` needs nothing but PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hallmark.flows.config import load_config as load_config
    from hallmark.flows.runs import open_artifact as open_artifact
    from hallmark.flows.runs import open_run as open_run

_MODULES_BY_NAME = {
    "load_config": "hallmark.flows.config",
    "open_artifact": "hallmark.flows.runs",
    "open_run": "hallmark.flows.runs",
}

__all__ = [*_MODULES_BY_NAME]

# In a checkout the packages lie next to this folder, not inside of it. A copy of the checkout that
# is first on the path must import its own packages, not those of an editable installation.
_CHECKOUT = Path(__file__).resolve().parents[1]
if (_CHECKOUT / "setup.py").is_file() and (_CHECKOUT / "tasks" / "contract").is_dir():
    __path__.append(str(_CHECKOUT))


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name in _MODULES_BY_NAME:
        return getattr(import_module(_MODULES_BY_NAME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES_BY_NAME])
