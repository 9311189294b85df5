"""Define how often, and after which delay, stages that failed are executed again."""

from __future__ import annotations

from pydantic import Field

from hallmark.tasks.contract import RetryPolicy, StageConfig

#: The largest number of further executions, and of seconds between two.
MAX_COUNT, MAX_DELAY_SECONDS = 20, 86_400


class StageRetryConfig(StageConfig):
    """The retry policy of one stage."""

    count: int | None = Field(
        None,
        ge=0,
        le=MAX_COUNT,
        description="number of retries of this stage; defaults to retry.count",
    )
    delay_seconds: float | None = Field(
        None,
        ge=0,
        le=MAX_DELAY_SECONDS,
        description="delay in seconds before a retry of this stage; defaults to "
        "retry.delay_seconds",
    )


class RetryConfig(StageConfig):
    """The retry policies of the stages of a run."""

    count: int = Field(
        1,
        ge=0,
        le=MAX_COUNT,
        description="number of retries of a stage that failed for a possibly temporary reason",
    )
    delay_seconds: float = Field(
        0.0, ge=0, le=MAX_DELAY_SECONDS, description="delay in seconds before a retry"
    )
    stages: dict[str, StageRetryConfig] = Field(
        {}, description="overrides for individual stages, keyed by the name of the stage's section"
    )

    def get_policy(self, label: str, stage_name: str) -> RetryPolicy:
        """Return the policy of a stage.

        Args:
            label: The label of the stage in the run.
            stage_name: Its name, which several labels may share.
        """
        own = self.stages.get(label) or self.stages.get(stage_name) or StageRetryConfig()
        return RetryPolicy(
            self.count if own.count is None else own.count,
            self.delay_seconds if own.delay_seconds is None else own.delay_seconds,
        )
