"""Flows, deployments, the command line and configs: everything that a person runs or schedules.

This is the top package: it may import all others, and none of them imports it.
"""

import os

# Prefect reads these when it is imported: it sends no usage data of Hallmark's users.
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")
