"""Define the settings that several probes share.

The estimators that use them are in other modules, so an edit of an estimator rebuilds no requests.
"""

from __future__ import annotations

from pydantic import Field

from hallmark.tasks.contract import Seed, StageConfig


class SeededConfig(StageConfig):
    """Settings that all probes with measures share."""

    seed: Seed = Field(default=0, description="seed for all random choices")
