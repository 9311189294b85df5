"""Open runs, current or past, and read which artifact each of their stages produced or reused.

``run.json`` is the lock file of a run: config, stages, fingerprints and content digests.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from pydantic_core import from_json

from hallmark.flows.notices import log_which_run_is_latest
from hallmark.flows.run_liveness import find_reason_of_silence
from hallmark.flows.run_order import list_run_ids
from hallmark.flows.run_request import RunRequest
from hallmark.reports.review.statements import CARD_STAGES
from hallmark.tasks.audits.judging.findings import AuditControl
from hallmark.tasks.audits.missing_audits import FAILED
from hallmark.tasks.contract import (
    ARTIFACT_NAME_PATTERN,
    PARALLEL_READERS,
    Artifact,
    HallmarkError,
    Store,
    UsageError,
    check_store_format,
    format_current_time,
    get_current_session,
    map_store_reads,
    table_to_rows,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from hallmark.flows.config import Config

Record = dict[str, Any]

log = logging.getLogger("hallmark")

#: The version of the format of run.json. One without a version is of the time before versions, and
#: has the same format as version 1.
RUN_FORMAT = 1

#: The keys that every run.json has.
REQUIRED_RECORD_KEYS = {
    "run",
    "flow",
    "config_name",
    "config",
    "checkpoint",
    "status",
    "started",
    "ended",
    "host",
    "pid",
    "platform",
    "stages",
    "error",
}

#: The largest number of seconds of a stage in a run.json; a larger one is damage.
MAX_STAGE_SECONDS = 1e10

#: The stages that write cards, which no run gives another label.
CARD_LABELS = set(CARD_STAGES)

#: The stages that write checkpoints.
TRAINING_STAGES = ("pretrain", "finetune")

#: The flow of each trial of a study.
TRIAL_FLOW = "trial"

#: Names in files that become parts of paths: this pattern allows none that leaves its folder.
SAFE_NAME_PATTERN = re.compile(r"\w+")

EMPTY_STORE_NAME = "the store name is empty; specify a folder or a URI"


def resolve_store_uri(store_name: str | None = None) -> str:
    """Resolve the location of the store: the named one, else HALLMARK_STORE, else ./runs.

    Args:
        store_name: A folder, a URI, or the .toml file of a config, which may name a store.

    Raises:
        UsageError: The name is empty, or the config cannot be read.
    """
    if store_name and store_name.endswith(".toml"):
        from hallmark.flows.config_files import get_config_folder, read_config_tree, rebase_path

        config_file, store_name = store_name, read_config_tree(store_name).get("store")
        if not isinstance(store_name, str | None):
            raise UsageError(
                f"config {config_file}: store: must be text, in quotes (given: {store_name!r})"
            )
        store_name = store_name and rebase_path(store_name, get_config_folder(config_file) or "")
    if store_name == "":
        raise UsageError(EMPTY_STORE_NAME)
    uri = store_name or os.environ.get("HALLMARK_STORE") or "runs"
    if "://" in uri:
        from hallmark.flows.config_secrets import check_no_secrets

        check_no_secrets(uri, "store")
    return uri


def is_same_store(store_uri: str, other_uri: str) -> bool:
    def normalize_uri(uri: str) -> str:
        path = uri.removeprefix("file://")
        return path if "://" in path else str(Path(path).absolute())

    return normalize_uri(store_uri) == normalize_uri(other_uri)


def open_store(store_name: str | None = None, create: bool = True) -> Store:
    """Open a store, with the credentials of the config if ``store_name`` is a .toml file.

    Args:
        store_name: See ``resolve_store_uri``.
        create: Whether to create a missing folder.

    Raises:
        UsageError: There is no such store.
        HallmarkError: This version of Hallmark does not read the format of the store.
    """
    if store_name and store_name.endswith(".toml"):
        from hallmark.flows.config_files import read_config_tree
        from hallmark.flows.credentials import export_credentials_of_tree

        export_credentials_of_tree(read_config_tree(store_name))
    store = Store(resolve_store_uri(store_name), create_missing=create)
    check_store_format(store)
    return store


class Run:
    """One execution of a flow, current or past."""

    def __init__(self, store: Store, record: Record) -> None:
        self.store, self.record = store, record
        self._reason_of_silence: str | None = None
        self._is_silence_checked = False
        #: Index page of the site that was built at the end of a run of this process.
        self.site_index: Path | None = None

    def __repr__(self) -> str:
        return f"Run({self.id}, {self.status})"

    def save(self) -> None:
        """Write run.json."""
        text = json.dumps(self.record, indent=1)
        self.store.put(f"runs/{self.id}/run.json", text.encode())

    def update_record(self, **record_fields: Any) -> None:
        """Add fields to run.json immediately, so that they survive a kill in the first stage."""
        self.record |= record_fields
        self.save()

    def record_stop(self, status: Literal["cancelled", "interrupted"], reason: str) -> bool:
        """Record why a run was stopped, unless its run.json records an end already.

        The process that executes the run may call this, and also another process that knows that
        the run was stopped.

        Args:
            status: "cancelled" if somebody stopped it, "interrupted" if its process ended.
            reason: One sentence without a full stop, which says who or what stopped it.

        Returns:
            Whether the reason was recorded.
        """
        stored_record = read_run_record(self.store, self.id)
        self.record |= stored_record
        if stored_record["status"] != "running":
            return False
        self.update_record(status=status, ended=format_current_time(), error=reason)
        return True

    @property
    def id(self) -> str:
        run_id: str = self.record["run"]
        return run_id

    @property
    def flow(self) -> str:
        return str(self.record["flow"])

    @property
    def status(self) -> str:
        """running, completed, failed, cancelled by somebody, or interrupted: its process ended."""
        self._check_silence()
        return "interrupted" if self._reason_of_silence else str(self.record["status"])

    @property
    def reason(self) -> str | None:
        """Why the run is not completed; None if it is, or if it is running."""
        self._check_silence()
        reason: str | None = self._reason_of_silence or self.record["error"]
        return reason

    @property
    def current_record(self) -> Record:
        """The record with the status and the reason that hold now."""
        return self.record | {"status": self.status, "error": self.reason}

    def _check_silence(self) -> None:
        """Find out once whether a run that records no end gives a sign of life."""
        if self.record["status"] != "running" or self._is_silence_checked:
            return
        self._is_silence_checked = True
        reason = find_reason_of_silence(self.store, self.record)
        if reason is None:
            return
        with suppress(HallmarkError):  # its record may have been removed
            # It may have ended after its record was read.
            self.record = read_run_record(self.store, self.id)
        if self.record["status"] == "running":
            self._reason_of_silence = reason

    @property
    def config(self) -> Config:
        from hallmark.flows.config import load_config

        return load_config(self.record["config"])

    def get_settings(self, section: str) -> dict[str, Any]:
        """Return the recorded settings of a section of the config, unchecked; {} without any."""
        settings = self.record["config"].get(section)
        return settings if isinstance(settings, dict) else {}

    @property
    def working_folder(self) -> str:
        """The folder in which its relative paths start.

        This is the folder in which the run was started, or the current one if that is missing.
        """
        folder = self.record.get("folder")
        return folder if folder and os.path.isdir(folder) else os.getcwd()

    @property
    def earlier_run_name(self) -> str | None:
        """The run whose corpus this one extends, None without one."""
        run_name = self.record["config"].get("earlier_run")
        return run_name if isinstance(run_name, str) else None

    @property
    def page(self) -> Path | None:
        """The page of this run in the site that was built at its end, None without one."""
        return self.site_index and self.site_index.parent / "runs" / self.id / "index.html"

    @property
    def request(self) -> RunRequest | None:
        """What was asked for; None for a study, a trial, and the comparison of ``prove``."""
        record = self.record.get("request")
        return None if record is None else RunRequest.from_record(record)

    @property
    def config_file(self) -> str | None:
        """The file or the name of the config that was asked for; None if it had none."""
        config = self.request.config if self.request else None
        return config if isinstance(config, str) else None

    @property
    def experiment_arm(self) -> str | None:
        """The arm that this run is, such as "control arm of mitigate"; None for other runs."""
        request = self.record.get("request") or {}
        return request.get("experiment_arm")

    @property
    def may_be_latest(self) -> bool:
        """Whether "latest" may mean this run: no arm of an experiment and no trial of a study."""
        return self.experiment_arm is None and self.flow != TRIAL_FLOW

    @property
    def stages(self) -> dict[str, Record]:
        """The entries of the stages by label, in the order in which the stages ended."""
        return {entry["label"]: entry for entry in self.record["stages"]}

    def list_committed_checkpoints(self) -> list[Record]:
        """List the checkpoints that the training of this run committed, also while it continues.

        Each has a ``step`` and the name of its ``artifact``; the oldest is first.
        """
        label = next((entry for entry in TRAINING_STAGES if entry in self.stages), None)
        if label is not None:
            rows: list[Record] = self[label]["checkpoints"].read(["step", "artifact"]).to_pylist()
            return rows
        artifact_by_step = {
            entry["step"]: entry["artifact"]  # the last one, if a step was repeated
            for entry in self.record.get("checkpoints", [])
            if entry["label"] in TRAINING_STAGES
        }
        return [
            {"step": step, "artifact": artifact}
            for step, artifact in sorted(artifact_by_step.items())
        ]

    def __getitem__(self, label: str) -> Artifact:
        """Open the artifact of a stage of this run, by the label of the stage."""
        if label not in self.stages:
            stage_list = ", ".join(self.stages) or "none so far"
            raise HallmarkError(f"run {self.id} has no stage {label!r}; its stages: {stage_list}")
        return find_artifact(self.store, self.stages[label]["artifact"])

    @property
    def artifacts(self) -> dict[str, Artifact]:
        return self.open_artifacts(self.stages)

    def open_artifacts(self, labels: Iterable[str]) -> dict[str, Artifact]:
        """Open the artifacts of several stages by their labels; from object storage in parallel."""
        labels = [*labels]
        return dict(zip(labels, map_store_reads(self.store, self.__getitem__, labels), strict=True))

    def read_table(self, table_name: str, stage: str | None = None) -> pa.Table:
        """Read a table of this run; ``.to_pandas()`` converts it to a data frame.

        Tables of this name in several stages are concatenated, with an additional first column
        ``stage``. Findings also get the columns ``run`` and ``checkpoint``, so that those of
        several runs can be concatenated.

        Args:
            table_name: The name of the table.
            stage: The label of a stage; needed if the columns differ between stages.

        Raises:
            HallmarkError: If no stage has the table, or if its columns differ between stages.
        """
        import pyarrow as pa

        if stage is not None:
            return self[stage][table_name].read()
        tables_by_stage = {
            label: artifact[table_name]
            for label, artifact in self.artifacts.items()
            if table_name in artifact.tables
        }
        if not tables_by_stage:
            raise HallmarkError(
                f"no stage of run {self.id} has the {table_name!r} table; hallmark status "
                f"{self.id} lists the tables"
            )
        rows_by_stage = {label: table.read() for label, table in tables_by_stage.items()}
        if len(rows_by_stage) == 1 and table_name != "findings":
            return next(iter(rows_by_stage.values()))
        schemas = [table.schema.remove_metadata() for table in rows_by_stage.values()]
        if any(schema != schemas[0] for schema in schemas):
            raise HallmarkError(
                f"the {table_name!r} tables of run {self.id} differ between stages; choose one: "
                + ", ".join(
                    f"read_table({table_name!r}, stage={label!r})" for label in tables_by_stage
                )
            )
        labelled_tables = [
            table.add_column(0, "stage", pa.array([label] * len(table), pa.string()))
            for label, table in rows_by_stage.items()
        ]
        combined = pa.concat_tables(labelled_tables)
        for column, value in (("checkpoint", self.audited_checkpoint), ("run", self.id)):
            if table_name == "findings":
                value_column = pa.array([value] * len(combined), pa.string())
                combined = combined.add_column(0, column, value_column)
        return combined

    @property
    def audited_checkpoint(self) -> str:
        """The checkpoint that the findings describe: RUN@STEP, or the location of another model."""
        if "pretrain" not in self.stages:
            return str(self.record["checkpoint"] or "")
        steps = self["pretrain"]["checkpoints"].read(["step"])["step"].to_pylist()
        return f"{self.id}@{max(steps)}"

    @property
    def packed_corpus(self) -> Artifact:
        """The packed sequences that the training read."""
        return self["pad_removed_documents" if "pad_removed_documents" in self.stages else "pack"]

    def find_checkpoints(self, training_run: Artifact | None = None) -> list[Artifact]:
        """Find the checkpoints of the run's training, oldest first."""
        training_run = training_run or self["pretrain"]
        artifact_names = training_run["checkpoints"].read(["artifact"])["artifact"].to_pylist()
        return [find_artifact(self.store, name) for name in artifact_names]

    def find_last_checkpoint(self, training_run: Artifact) -> Artifact:
        """Find the last checkpoint of a training that this session ran or reused.

        Checks that the files of all its checkpoints exist, since these are separate artifacts.
        """
        checkpoints = self.find_checkpoints(training_run)
        get_current_session().check_artifact_file_sizes(checkpoints)
        return checkpoints[-1]

    def list_controls(self) -> list[AuditControl]:
        """List the controls of the audits: what they test, verdict, scorer, slice and value.

        Controls of a scorer that several audits repeat are listed once.
        """
        from hallmark.tasks.audits.judging.scorer_controls import remove_repeated_scorer_controls

        columns = ["control", "control_target", "verdict", "scorer", "slice", "method"]
        columns += ["value", "low", "high", "n", "missing"]
        rows_by_audit = {
            label.removeprefix("audit_"): table_to_rows(self[label]["findings"].read(columns))
            for label in self.stages
            if label.startswith("audit_")
        }
        return [
            AuditControl(audit, row)
            for audit, rows in remove_repeated_scorer_controls(rows_by_audit).items()
            for row in rows
            if row["control"]
        ]

    def list_verdicts(self) -> list[dict[str, Any]]:
        """List the verdicts of the policy; none without a policy."""
        if "policy" not in self.stages:
            return []
        return list(table_to_rows(self["policy"]["verdicts"].read()))

    def read_failure_reason_by_audit(self) -> dict[str, str]:
        """Read which audits failed, and the reason for each."""
        if "missing_audits" not in self.stages:
            return {}
        rows = self["missing_audits"]["missing_audits"].read().to_pylist()
        return {row["audit"]: row["reason"] for row in rows if row["outcome"] == FAILED}


def find_artifact(store: Store, artifact_name: str) -> Artifact:
    """Open an artifact by a name such as "pack/0123456789abcdef".

    Raises:
        HallmarkError: If the name is malformed or the store has no such artifact.
    """
    return store.open_artifact(artifact_name)


def read_artifact_seconds(artifact: Artifact) -> float | None:
    """Read how long the stage took that computed an artifact; None if unknown."""
    telemetry_rows = artifact.read_telemetry().to_pylist()
    return next((row["value"] for row in telemetry_rows if row["metric"] == "seconds"), None)


def check_not_purged(failed_action: str, artifacts: Iterable[Artifact]) -> None:
    """Check that artifacts are complete, without purged documents.

    Args:
        failed_action: The beginning of the error: what is impossible with purged documents.
        artifacts: The artifacts that are needed.

    Raises:
        HallmarkError: If a document was purged from one of them.
    """
    for artifact in artifacts:
        for doc_id, purged_at in sorted(artifact.purge_time_by_doc_id.items()):
            remainder = (
                f" and {len(artifact.purge_time_by_doc_id) - 1} more"
                if len(artifact.purge_time_by_doc_id) > 1
                else ""
            )
            raise HallmarkError(
                f"{failed_action}, because it needs the document {doc_id}{remainder}, purged from "
                f"{artifact.name} on {purged_at[:10]}; run the config again to build a corpus "
                "without it"
            )


def get_site_folder(store: Store) -> Path:
    """Return the folder of a store's site: in a local store, else in its cache on this machine."""
    return store.local_folder / "site"


def open_run(
    name: str = "latest", store: Store | str | None = None, *, stage: str | None = None
) -> Run:
    """Open a run.

    Args:
        name: The id of a run, the start of its id, or "latest": the newest run that is no arm of
            an experiment and no trial of a study.
        store: The store; None for the default one.
        stage: With "latest", open the newest run that has this stage.

    Raises:
        UsageError: If no run, or more than one, has this name.
        HallmarkError: If its run.json is damaged.

    >>> run = open_run("latest")                    # doctest: +SKIP
    >>> run.read_table("findings").to_pandas()           # doctest: +SKIP
    """
    store = store if isinstance(store, Store) else open_store(store, create=False)
    run_ids = list_run_ids(store)
    if stage is not None and name == "latest":
        for run in iter_latest_candidates(store):
            if stage in run.stages:
                log_which_run_is_latest(run.id, f"the newest run with the {stage} stage")
                return run
        raise UsageError(
            f"no run in the store {store.uri} has the {stage} stage yet; start one with: hallmark "
            "run CONFIG"
        )
    matches = [run_id for run_id in run_ids if run_id.startswith(name)]
    if name in run_ids:
        matches = [name]
    if name == "latest" or len(matches) != 1:
        newest_ids = [
            *islice((run_id for run_id in reversed(run_ids) if _may_be_latest(store, run_id)), 1)
        ]
        matches = newest_ids if name == "latest" else matches
    if len(matches) > 1:
        raise UsageError(
            f"the store {store.uri} has {len(matches)} runs whose ids begin with {name!r}; specify "
            f"more of the id, such as {matches[-1]}"
        )
    if not matches:
        if name == "latest" and not run_ids:
            raise UsageError(
                f"the store {store.uri} has no runs; start one with: hallmark run CONFIG"
            )
        hint = (
            f"newest: {newest_ids[0]}"
            if newest_ids
            else "the store has no runs; start one with: hallmark run"
        )
        raise UsageError(f"the store {store.uri} has no run named {name!r:.80}; {hint}")
    run = Run(store, read_run_record(store, matches[0]))
    if name == "latest":
        log_which_run_is_latest(run.id, "the newest run")
    return run


def open_artifact(artifact_name: str, store: Store | str | None = None) -> Artifact:
    """Open an artifact by its name, as shown on cards, in run.json and by ``hallmark status``.

    >>> open_artifact("redact_spans/0123456789abcdef")["documents"].to_pandas()    # doctest: +SKIP
    """
    store = store if isinstance(store, Store) else open_store(store, create=False)
    return find_artifact(store, artifact_name)


def read_run_record(store: Store, run_id: str) -> Record:
    """Read the run.json of a run.

    Raises:
        HallmarkError: If it is damaged, or has another format.
    """
    try:
        # With a thousand runs, the parser of the standard library takes most of the time.
        record: Record | None = from_json(store.get(f"runs/{run_id}/run.json") or b"")
    except ValueError:
        record = None
    if isinstance(record, dict):
        _check_run_format(record.get("format", RUN_FORMAT), run_id, store)
    if not _is_valid_record(record) or record["run"] != run_id:
        raise HallmarkError(
            f"run {run_id} is damaged: its run.json in {store.uri}/runs/{run_id} is missing, "
            "incomplete or contradictory; remove that folder (no artifact is lost) and run again"
        )
    _check_request(record, store)
    return record


def _check_run_format(version: Any, run_id: str, store: Store) -> None:
    """Raise HallmarkError if a run.json has a format that this version of Hallmark does not read.

    A newer format may lack keys of this one, so this comes before any other check.
    """
    if version != RUN_FORMAT or type(version) is not int:
        raise HallmarkError(
            f"run {run_id}: its run.json has format {version!r:.40}, but this version of Hallmark "
            f"reads format {RUN_FORMAT}; use the version of Hallmark that wrote it, or remove the "
            f"folder {store.uri}/runs/{run_id} (no artifact is lost) and run again"
        )


def _check_request(record: Record, store: Store) -> None:
    """Raise HallmarkError if the request in a run.json has another format, or is wrong."""
    request_record, run_id = record.get("request"), record["run"]
    if request_record is None:
        return
    try:
        request = RunRequest.from_record(request_record)
        if request.flow != record["flow"]:
            raise HallmarkError(
                f"the request is for the {request.flow} flow, not {record['flow']!r:.80}"
            )
    except HallmarkError as error:
        raise HallmarkError(
            f"run {run_id}: the request in {store.uri}/runs/{run_id}/run.json cannot be used: "
            f"{error}; use the version of Hallmark that wrote it, or remove that folder (no "
            "artifact is lost) and run again"
        ) from error


def _may_be_latest(store: Store, run_id: str) -> bool:
    try:
        return Run(store, read_run_record(store, run_id)).may_be_latest
    except HallmarkError:  # opening the run raises it again
        return True


def _is_valid_record(record: Any) -> TypeGuard[Record]:
    """Return whether a record has all keys of a run.json with the types that readers expect."""
    if not isinstance(record, dict) or not record.keys() >= REQUIRED_RECORD_KEYS:
        return False
    texts = [record[key] for key in ("run", "flow", "config_name", "status", "host")]
    optional_texts = [record[key] for key in ("checkpoint", "started", "ended", "error")]
    optional_texts.append(record.get("folder"))
    arms = record.get("arms", {})
    return (
        all(isinstance(text, str) for text in texts)
        and all(text is None or isinstance(text, str) for text in optional_texts)
        and (record["checkpoint"] is not None or record["flow"] not in ("audit", "finetune"))
        and _is_list_of_texts(record.get("findings") or [])
        and isinstance(arms, dict)
        and _is_list_of_texts([*arms.values()])
        and isinstance(record.get("seeds"), int | None)
        and isinstance(record["config"], dict)
        and isinstance(record.get("unredacted_sites", []), list)
        and isinstance(record["pid"], int)
        and 0 < record["pid"] < 2**31
        and isinstance(record.get("checkpoints", []), list)
        and all(map(_is_valid_checkpoint_entry, record.get("checkpoints", [])))
        and isinstance(record["stages"], list)
        and all(map(_is_valid_stage_entry, record["stages"]))
    )


def _is_list_of_texts(items: Any) -> bool:
    return isinstance(items, list) and all(isinstance(item, str) for item in items)


def _is_valid_stage_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and all(
            isinstance(entry.get(key), str) for key in ("label", "stage", "artifact", "content")
        )
        and all(SAFE_NAME_PATTERN.fullmatch(entry[key]) for key in ("label", "stage"))
        and ARTIFACT_NAME_PATTERN.fullmatch(entry["artifact"]) is not None
        and entry["artifact"].partition("/")[0] == entry["stage"]
        and (entry["label"] == entry["stage"] or not {entry["label"], entry["stage"]} & CARD_LABELS)
        and isinstance(entry.get("cached"), bool)
        and _is_duration(entry.get("seconds"))
    )


def _is_valid_checkpoint_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("label"), str)
        and type(entry.get("step")) is int
        and 0 <= entry["step"] < 1 << 63
        and isinstance(entry.get("artifact"), str)
        and ARTIFACT_NAME_PATTERN.fullmatch(entry["artifact"]) is not None
        and entry["artifact"].startswith("checkpoint/")
    )


def _is_duration(seconds: Any) -> bool:
    # JSON as Python reads it also has infinity and NaN, for which the comparison is false.
    return isinstance(seconds, int | float) and 0 <= seconds <= MAX_STAGE_SECONDS


def read_all_runs(store: Store, include_trials: bool = False) -> list[Run]:
    """Read all runs, oldest first; damaged ones are skipped with a warning.

    Args:
        store: The store.
        include_trials: Whether to include the trials of studies.
    """
    runs, problems = read_runs_and_problems(store)
    _log_problems(problems)
    return [run for run in runs if include_trials or run.flow != TRIAL_FLOW]


def read_runs_and_problems(store: Store) -> tuple[list[Run], list[str]]:
    """Read all runs, oldest first, and return also a sentence about each damaged one."""
    return _read_runs_by_id(store, list_run_ids(store))


def _read_runs_by_id(store: Store, run_ids: Iterable[str]) -> tuple[list[Run], list[str]]:
    """Read runs, and return also a sentence about each damaged one."""

    def try_read_run(run_id: str) -> Run | str:
        try:
            return Run(store, read_run_record(store, run_id))
        except HallmarkError as error:
            return f"skipped: {error}"

    outcomes = map_store_reads(store, try_read_run, run_ids)
    runs = [outcome for outcome in outcomes if isinstance(outcome, Run)]
    return runs, [outcome for outcome in outcomes if isinstance(outcome, str)]


def iter_latest_candidates(store: Store) -> Iterator[Run]:
    """Read the runs that "latest" may mean, newest first, as far as they are needed.

    Damaged ones are skipped with a warning.
    """
    run_ids = list_run_ids(store)[::-1]
    for start in range(0, len(run_ids), PARALLEL_READERS):
        runs, problems = _read_runs_by_id(store, run_ids[start : start + PARALLEL_READERS])
        _log_problems(problems)
        yield from (run for run in runs if run.may_be_latest)


def _log_problems(problems: Iterable[str]) -> None:
    for problem in problems:
        log.warning(problem)
