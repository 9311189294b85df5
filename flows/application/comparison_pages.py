"""Compare two runs, and show how findings changed between the checkpoints of a training."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote, urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from hallmark.flows.application.card_pages import link_figure
from hallmark.flows.application.requests import CONTENT_SECURITY_POLICY
from hallmark.flows.application.store_reader import RecentValues, StoreReader
from hallmark.flows.checkpoint_comparison import (
    CheckpointAudits,
    build_finding_linker,
    find_compared_runs,
    find_trainings_with_several_audits,
)
from hallmark.flows.runs import Run
from hallmark.reports.artifact_lookup import find_artifact_by_name
from hallmark.reports.page.document import Document
from hallmark.reports.page.redaction import Redactor
from hallmark.reports.run_comparison import RunComparison, build_comparison_document
from hallmark.reports.sections.checkpoint_comparison import TrainingCheckpoint
from hallmark.reports.trajectory import AuditedTraining, build_trajectory
from hallmark.reports.view.templating import render_view_page
from hallmark.tasks.contract import PURGED_DOCUMENTS_FILE, Artifact, HallmarkError, UsageError

#: How many comparisons and trajectories are kept in memory.
MAX_COMPARISONS, MAX_TRAJECTORIES = 32, 8

#: Largest number of digits of the step in RUN@STEP.
MAX_STEP_DIGITS = 18


@dataclass(frozen=True)
class Trajectory:
    """The pages of a trajectory.

    Attributes:
        html: The main page.
        folder: The folder with the pages of pairs; it is removed with this object.
    """

    html: str
    folder: TemporaryDirectory[str]


class ComparisonPages:
    """The pages that compare results."""

    def __init__(self, reader: StoreReader) -> None:
        self.reader = reader
        self._comparisons: RecentValues[Document] = RecentValues(MAX_COMPARISONS)
        self._artifact_names: RecentValues[list[str]] = RecentValues(MAX_COMPARISONS)
        self._trajectories: RecentValues[Trajectory] = RecentValues(MAX_TRAJECTORIES)
        self._trainings: RecentValues[list[AuditedTraining]] = RecentValues(1)

    def show_comparison(self, request: Request) -> Response:
        """Show the form for two runs or checkpoints, and their comparison if both are named."""
        before, after = (request.query_params.get(name, "").strip() for name in ("before", "after"))
        runs, _ = self.reader.read_runs()
        document, problem, status_code = None, "", 200
        if before and after:
            try:
                document = self._compare(runs, before, after)
            except HallmarkError as error:
                problem, status_code = f"{str(error)[:1].upper()}{str(error)[1:]}.", 400
        return HTMLResponse(
            render_view_page(
                "compare.html",
                runs=runs,
                before=before,
                after=after,
                swapped="/compare?" + urlencode({"before": after, "after": before}),
                document=document,
                problem=Redactor().redact_full_text(problem),
            ),
            status_code,
        )

    def _identify_store(self, runs: list[Run]) -> tuple[Hashable, ...]:
        """Return what a comparison depends on: a name may mean another run after the next one."""
        purges = self.reader.store.get(PURGED_DOCUMENTS_FILE)
        return purges, *((run.id, len(run.stages)) for run in runs)

    def _compare(self, runs: list[Run], before: str, after: str) -> Document:
        names = [self._resolve_name(runs, name) for name in (before, after)]
        key = (*names, *self._identify_store(runs))
        artifact_names = self._artifact_names.get(key, lambda: self._list_artifacts(*names))
        return self._comparisons.get(
            (*key, self.reader.identify_files(artifact_names)), lambda: self._build(*names)
        )

    def _resolve_name(self, runs: list[Run], name: str) -> str:
        """Return the complete name of a run or checkpoint of the store.

        A page must not tell which files exist on this machine, so paths are not looked up.

        Args:
            runs: The runs of the store, newest first.
            name: RUN or RUN@STEP, where RUN is "latest" or the start of an id, or checkpoint/….

        Raises:
            UsageError: If the store has no such run or checkpoint, or if several runs match.
        """
        if name.startswith("checkpoint/") and find_artifact_by_name(self.reader.store, name):
            return name
        run_name, separator, step = name.partition("@")
        is_step = step.isascii() and step.isdecimal() and len(step) <= MAX_STEP_DIGITS
        run_ids = [run.id for run in runs if run.id.startswith(run_name)]
        if run_name == "latest":
            run_ids = [run.id for run in runs if run.may_be_latest and "pretrain" in run.stages][:1]
        elif run_name in run_ids:
            run_ids = [run_name]
        if not run_ids or not run_name or (separator and not is_step):
            raise UsageError(
                f"the store has no run or checkpoint {name!r:.80}; specify RUN, RUN@STEP or the "
                "name of an artifact (checkpoint/…)"
            )
        if len(run_ids) > 1:
            raise UsageError(
                f"{len(run_ids)} runs have ids that begin with {run_name!r:.80}; specify more of "
                "the id"
            )
        return f"{run_ids[0]}{separator}{step}"

    def _list_artifacts(self, before: str, after: str) -> list[str]:
        """List the names of the artifacts that a comparison reads."""
        compared_runs = find_compared_runs(self.reader.store, before, after)
        audit_runs = [
            run
            for compared_run in compared_runs
            if isinstance(compared_run.audits, CheckpointAudits)
            for run in (compared_run.audits.audit_run, *compared_run.audits.earlier_runs)
        ]
        return [
            *(artifact.name for run in compared_runs for artifact in run.corpus_artifacts.values()),
            *(entry["artifact"] for run in audit_runs for entry in run.stages.values()),
        ]

    def _build(self, before: str, after: str) -> Document:
        runs = find_compared_runs(self.reader.store, before, after)
        link_finding = build_finding_linker(
            lambda run_id, figure: f"/runs/{quote(run_id)}/model_card/{link_figure(figure)}"
        )
        return build_comparison_document(RunComparison.from_runs(*runs), link_finding)

    def find_training(self, run_id: str) -> AuditedTraining | None:
        """Return the training of a run, if several of its checkpoints were audited."""
        runs, _ = self.reader.read_runs()
        trainings = self._trainings.get(
            self._identify_store(runs), lambda: find_trainings_with_several_audits(runs[::-1])
        )
        return next((training for training in trainings if run_id in training.run_ids), None)

    def show_trajectory(self, run: str) -> Response:
        """Show how the findings of a training changed."""
        return HTMLResponse(self._open_trajectory(run).html)

    def show_pairs(self, run: str, page: str) -> Response:
        """Show the pairs of rows that a change is computed from."""
        folder = Path(self._open_trajectory(run).folder.name, "rows")
        if page not in {path.name for path in folder.glob("*.html")}:
            raise HTTPException(404)
        html = (folder / page).read_text(encoding="utf-8")
        headers = {"Content-Security-Policy": allow_style_of_page(html)}
        return HTMLResponse(html, headers=headers)

    def _open_trajectory(self, run: str) -> Trajectory:
        training = self.find_training(run)
        if training is None:
            raise HTTPException(404)
        runs, _ = self.reader.read_runs()
        artifact_names = [
            entry["artifact"]
            for run in runs
            if run.id in training.run_ids
            for entry in run.stages.values()
        ]
        files = self.reader.identify_files(artifact_names)
        key = (training.first_run_id, files, *self._identify_store(runs))
        return self._trajectories.get(key, lambda: self._build_trajectory(training, runs))

    def _build_trajectory(self, training: AuditedTraining, runs: list[Run]) -> Trajectory:
        runs_by_id = {run.id: run for run in runs}

        def open_artifacts(run_id: str) -> dict[str, Artifact | None]:
            return {
                label: find_artifact_by_name(self.reader.store, entry["artifact"])
                for label, entry in runs_by_id[run_id].stages.items()
            }

        checkpoints = [
            TrainingCheckpoint(step, {run_id: open_artifacts(run_id) for run_id in run_ids})
            for step, run_ids in sorted(training.audit_runs_by_step.items())
        ]
        training_artifacts = {
            label: artifact
            for label, artifact in open_artifacts(training.first_run_id).items()
            if artifact is not None
        }
        folder = TemporaryDirectory(prefix="hallmark-")
        document, _ = build_trajectory(
            training.first_run_id, checkpoints, training_artifacts, Path(folder.name), link_figure
        )
        html = render_view_page(
            "view_trajectory.html", document=document, run=training.first_run_id
        )
        return Trajectory(html, folder)


def allow_style_of_page(html: str) -> str:
    """Return the content security policy that allows the style element of a static page."""
    style = re.search(r"(?s)<style>(.*?)</style>", html)
    digest = hashlib.sha256((style[1] if style else "").encode()).digest()
    allowed = f"style-src 'self' 'sha256-{base64.b64encode(digest).decode()}'"
    return f"{CONTENT_SECURITY_POLICY}; {allowed}"
