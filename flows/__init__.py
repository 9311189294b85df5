"""What a person runs or schedules: flows, deployments, the command line, configs."""

from flows.runs import open_artifact, open_run

__all__ = ["open_artifact", "open_run"]
