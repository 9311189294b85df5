"""Stop a training that continues although the audit of one of its checkpoints failed the policy.

The audit writes ``runs/RUN/stop.json`` into the store, for each run that is training this
checkpoint. The training looks for this file at its steps, so the audit may run on another host.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass

from hallmark.flows.runs import Run, read_all_runs
from hallmark.reports.page.redaction import escape_invisible
from hallmark.tasks.audits.judging.policy_outcome import judge_policy
from hallmark.tasks.contract import Artifact, HallmarkError, Store

#: Seconds between two looks at the store.
CHECK_INTERVAL_SECONDS = 0.5

#: Size of a request; a larger one is damaged.
MAX_REQUEST_BYTES = 1 << 16

#: The id of a run in a file that anyone who writes to the store may have written.
RUN_ID_PATTERN = re.compile(r"[\w-]{1,100}")


@dataclass(frozen=True)
class TrainingStop:
    """The request of an audit to stop a training.

    Attributes:
        audit_run: The id of the run that audited a checkpoint of the training.
        step: The step of this checkpoint.
        failed_rules: The rules of the policy that failed.
    """

    audit_run: str
    step: int
    failed_rules: tuple[str, ...]

    def describe(self) -> str:
        """Say in one sentence why the training stops, and how it can continue."""
        rules = ", ".join(map(escape_invisible, self.failed_rules))
        noun = "rule" if len(self.failed_rules) == 1 else "rules"
        return (
            f"training was stopped because its checkpoint at step {self.step} failed the policy "
            f"{noun} {rules} in audit run {self.audit_run}; its checkpoints remain in the store; "
            "to continue training, run the same command again"
        )


def request_training_stops(audit_run: Run, checkpoint: Artifact) -> None:
    """Request to stop the runs that are training an audited checkpoint, if its policy says so.

    Args:
        audit_run: A run whose audits and policy are complete.
        checkpoint: The checkpoint that it audited.
    """
    failed_rules = judge_policy(audit_run.list_verdicts()).failed_rules
    if not failed_rules or not audit_run.config.policy.stop_training:
        return
    store = audit_run.store
    for run in read_all_runs(store):
        for entry in run.record.get("checkpoints", []):
            if entry["artifact"] == checkpoint.name and run.status == "running":
                stop = TrainingStop(audit_run.id, entry["step"], failed_rules)
                store.put(format_stop_key(run.id), json.dumps(asdict(stop)).encode())


class TrainingStopReader:
    """Read whether a run was requested to stop its training, at most every half second."""

    def __init__(self, store: Store, run_id: str) -> None:
        self.store, self.key = store, format_stop_key(run_id)
        self._last_check = time.monotonic()

    def find_stop_reason(self) -> str | None:
        """Return the reason for stopping the training, or None.

        A store that does not answer does not stop the training.
        """
        if time.monotonic() - self._last_check < CHECK_INTERVAL_SECONDS:
            return None
        self._last_check = time.monotonic()
        try:
            request = self.store.get(self.key)
        except (HallmarkError, OSError):
            return None
        if request is None:
            return None
        stop = parse_training_stop(request)
        if stop is None:
            return (
                f"training was stopped because the file {self.store.uri}/{self.key} requests it, "
                "but this file is damaged; find out who wrote the file; to continue training, run "
                "the same command again"
            )
        return stop.describe()


def parse_training_stop(request: bytes) -> TrainingStop | None:
    """Parse a request that was read from a store; None if it is damaged."""
    if len(request) > MAX_REQUEST_BYTES:
        return None
    try:
        fields = json.loads(request)
        rules = fields["failed_rules"]
        stop = TrainingStop(
            fields["audit_run"], fields["step"], tuple(rules) if isinstance(rules, list) else ()
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    is_valid = (
        isinstance(stop.audit_run, str)
        and RUN_ID_PATTERN.fullmatch(stop.audit_run) is not None
        and type(stop.step) is int
        and 0 <= stop.step < 1 << 63
        and stop.failed_rules != ()
        and all(isinstance(rule, str) and len(rule.splitlines()) == 1 for rule in stop.failed_rules)
    )
    return stop if is_valid else None


def format_stop_key(run_id: str) -> str:
    """Return the key of the request to stop the training of a run."""
    return f"runs/{run_id}/stop.json"
