"""Tell the user something that is no problem, such as which run ``latest`` means.

A notice is a log record between an information and a warning. The command line prints each notice
once, to stderr.
"""

from __future__ import annotations

import logging

#: Level of the log records that are notices.
NOTICE = 25
logging.addLevelName(NOTICE, "NOTICE")

log = logging.getLogger("hallmark")


def log_which_run_is_latest(run_id: str, description: str) -> None:
    """Tell which run ``latest`` means.

    Args:
        run_id: The id of the run.
        description: Which run it is, such as "the newest run".
    """
    log.log(NOTICE, "latest refers to run %s, %s", run_id, description)
