"""The public interface of Hallmark: raw text to an audited language model.

``run`` and ``audit`` do what the commands of the same names do, ``open_run`` and ``open_artifact``
read the tables of past runs, ``load_config`` reads a config, and the corpus stages work on plain
tables (``hallmark.stages``). Everything is imported when it is first used, so that
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
    from hallmark.running import audit as audit
    from hallmark.running import run as run
    from hallmark.stages import deduplicate as deduplicate
    from hallmark.stages import deduplicate_near as deduplicate_near
    from hallmark.stages import find_identities as find_identities
    from hallmark.stages import find_personal_data as find_personal_data
    from hallmark.stages import find_repeats as find_repeats
    from hallmark.stages import identify_languages as identify_languages
    from hallmark.stages import import_documents as import_documents
    from hallmark.stages import measure_quality as measure_quality
    from hallmark.stages import redact_spans as redact_spans
    from hallmark.stages import score_toxicity as score_toxicity
    from hallmark.stages import select_documents as select_documents
    from hallmark.stages import split_corpus as split_corpus

_NAMES_BY_MODULE = {
    "hallmark.flows.config": ("load_config",),
    "hallmark.flows.runs": ("open_artifact", "open_run"),
    "hallmark.running": ("audit", "run"),
    "hallmark.stages": (
        "deduplicate",
        "deduplicate_near",
        "find_identities",
        "find_personal_data",
        "find_repeats",
        "identify_languages",
        "import_documents",
        "measure_quality",
        "redact_spans",
        "score_toxicity",
        "select_documents",
        "split_corpus",
    ),
}
_MODULES_BY_NAME = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}

__all__ = sorted(_MODULES_BY_NAME)

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
