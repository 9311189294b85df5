"""What a person runs or schedules: flows, deployments, the command line, configs.

The last of the packages: it may import all others, and none of them imports it.
"""

from typing import Any

__all__ = ["open_artifact", "open_run"]


def __getattr__(name: str) -> Any:
    """Imported when asked for, so that the command line is there at once."""
    if name in __all__:
        from hallmark.flows import runs

        return getattr(runs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
