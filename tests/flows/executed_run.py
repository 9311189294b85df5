"""Execute a run in a process of its own, on a host with a name and a clock of its own.

    python -m tests.flows.executed_run STORE WORK_FOLDER HOST CLOCK_OFFSET_SECONDS

Two hosts have different work folders, and so do not see each other's locks. The process prints the
id of the run and executes it until its stdin is closed.
"""

import socket
import sys
from datetime import datetime, timedelta
from pathlib import Path

from hallmark.flows import run_progress, run_recording
from hallmark.flows.config import load_config
from hallmark.flows.run_recording import record_run
from hallmark.tasks.contract import Store, commit

#: Seconds between two signs of life of the process.
RENEWAL_SECONDS = 0.1


def main(store: str, work_folder: str, host: str, clock_offset: str) -> None:
    class HostTime(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(seconds=float(clock_offset))

    run_recording.datetime = commit.datetime = HostTime
    run_recording.RENEWAL_SECONDS = RENEWAL_SECONDS
    run_progress.WRITE_INTERVAL_SECONDS = 0
    socket.gethostname = lambda: host
    opened_store = Store(store, Path(work_folder))
    with record_run("pipeline", load_config("smoke"), opened_store) as run:
        print(run.id, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
