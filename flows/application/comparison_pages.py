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
    build_finding_linker,
    find_compared_runs,
    find_trainings_with_several_audits,
)
from hallmark.flows.runs import Run
from hallmark.reports.artifact_lookup import find_artifact_by_name
from hallmark.reports.page.document import Document
from hallmark.reports.page.redaction import escape_invisible
from hallmark.reports.run_comparison import RunComparison, build_comparison_document
from hallmark.reports.sections.checkpoint_comparison import TrainingCheckpoint
from hallmark.reports.trajectory import AuditedTraining, build_trajectory
from hallmark.reports.view.templating import render_view_page
from hallmark.tasks.contract import PURGED_DOCUMENTS_FILE, Artifact, HallmarkError

#: How many comparisons and trajectories are kept in memory.
MAX_COMPARISONS, MAX_TRAJECTORIES = 32, 8


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
        self._trajectories: RecentValues[Trajectory] = RecentValues(MAX_TRAJECTORIES)
        self._trainings: RecentValues[list[AuditedTraining]] = RecentValues(1)

    def show_comparison(self, request: Request) -> Response:
        """Show the form for two runs or checkpoints, and their comparison if both are named."""
        before, after = (request.query_params.get(name, "").strip() for name in ("before", "after"))
        runs, _ = self.reader.read_runs()
        document, problem, status_code = None, "", 200
        if before and after:
            try:
                key = (before, after, *self._identify_store(runs))
                document = self._comparisons.get(key, lambda: self._compare(before, after))
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
                problem=escape_invisible(problem),
            ),
            status_code,
        )

    def _identify_store(self, runs: list[Run]) -> tuple[Hashable, ...]:
        """Return what a comparison depends on: a name may mean another run after the next one."""
        purges = self.reader.store.get(PURGED_DOCUMENTS_FILE)
        return purges, *((run.id, len(run.stages)) for run in runs)

    def _compare(self, before: str, after: str) -> Document:
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
        key = (training.first_run_id, *self._identify_store(runs))
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
