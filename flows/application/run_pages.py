"""Show the list of runs, and the stages of a run."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from hallmark.flows.application.requests import InvalidRequestError
from hallmark.flows.application.store_reader import StoreReader
from hallmark.flows.application.training_progress import read_training
from hallmark.flows.runs import Run
from hallmark.reports.artifact_lookup import find_artifact_by_name
from hallmark.reports.cards import CARD_KINDS
from hallmark.reports.page.redaction import Redactor
from hallmark.reports.purge_notices import format_purge_notice
from hallmark.reports.run_page import describe_duration, group_stages
from hallmark.reports.run_summary import (
    KEY_FIGURE_LABELS,
    describe_training_arm_of_run,
    summarize_run,
)
from hallmark.reports.site import (
    RunStage,
    format_run_config,
    read_phone_regions,
    summarize_stage_artifact,
)
from hallmark.reports.trajectory import AuditedTraining
from hallmark.reports.view.flow_picture import FlowStage, draw_flow_picture
from hallmark.reports.view.row_queries import count_pages, parse_page_number
from hallmark.reports.view.templating import render_view_page
from hallmark.tasks.contract import ACCOUNT_TERMS, Artifact, HallmarkError, UsageError

#: Runs on a page of the list.
RUNS_PER_PAGE = 30


class RunPages:
    """The pages about runs."""

    def __init__(
        self, reader: StoreReader, find_training: Callable[[str], AuditedTraining | None]
    ) -> None:
        self.reader, self.find_training = reader, find_training

    def show_runs(self, request: Request) -> Response:
        """List the runs, newest first."""
        parameters = request.query_params
        search, page_text = parameters.get("search", "").strip(), parameters.get("page", "1")
        try:
            page = parse_page_number(page_text)
        except UsageError as error:
            raise InvalidRequestError(str(error), 400) from error
        runs, problems = self.reader.read_runs()
        matching_runs = [run for run in runs if _matches(run, search)]
        page = min(page, count_pages(len(matching_runs), RUNS_PER_PAGE))
        first = (page - 1) * RUNS_PER_PAGE
        has_more = len(matching_runs) > first + RUNS_PER_PAGE
        redact = Redactor().redact_full_text

        def format_link(number: int) -> str:
            return "/?" + urlencode({"search": search, "page": number})

        return HTMLResponse(
            render_view_page(
                "runs.html",
                store=self.reader.store.uri,
                runs=self.reader.list_runs(matching_runs[first : first + RUNS_PER_PAGE]),
                problems=[redact(problem) for problem in problems],
                describe_arm=lambda run: redact(describe_training_arm_of_run(run.record)),
                run_count=len(runs),
                matching_count=len(matching_runs),
                search=search,
                key_figures=list(KEY_FIGURE_LABELS.values()),
                newer=format_link(page - 1) if page > 1 else "",
                older=format_link(page + 1) if has_more else "",
            )
        )

    def show_run(self, run: str) -> Response:
        """Show a run: its stages and their tables, the flow as a picture, and its config."""
        opened_run = self.reader.open_run(run)
        if opened_run.id != run:
            return RedirectResponse(f"/runs/{opened_run.id}/")
        record = opened_run.record
        artifacts = {
            label: find_artifact_by_name(self.reader.store, entry["artifact"])
            for label, entry in opened_run.stages.items()
        }
        redact = Redactor(phone_regions=read_phone_regions(record["config"])).redact_full_text
        purged_ids = frozenset[str]().union(
            *(artifact.purge_time_by_doc_id for artifact in artifacts.values() if artifact)
        )
        stages = [
            RunStage(entry, summarize_stage_artifact(artifacts[label]))
            for label, entry in opened_run.stages.items()
        ]
        return HTMLResponse(
            render_view_page(
                "run.html",
                run=opened_run,
                training=read_training(opened_run),
                has_trajectory=self.find_training(opened_run.id) is not None,
                stages=stages,
                groups=group_stages(stages, lambda stage: stage.entry),
                duration=describe_duration(record),
                cards={
                    label: kind.title for label, kind in CARD_KINDS.items() if artifacts.get(label)
                },
                picture=draw_flow_picture(_list_flow_stages(opened_run, artifacts)),
                config=format_run_config(record["config"], redact),
                purge_notice=format_purge_notice(purged_ids),
                summary=summarize_run(artifacts, redact),
                error=redact(opened_run.reason or ""),
                checkpoint=redact(record["checkpoint"] or ""),
                terms=[term.replace("_", " ") for term in ACCOUNT_TERMS],
            )
        )

    def show_progress(self, run: str) -> Response:
        """Return the part of the page of a run that changes while it is running."""
        training = read_training(self.reader.open_run(run))
        return HTMLResponse(render_view_page("progress.html", training=training))


def _matches(run: Run, search: str) -> bool:
    texts = (run.id, run.flow, run.record["config_name"], run.status)
    return any(search.casefold() in text.casefold() for text in texts)


def _list_flow_stages(run: Run, artifacts: dict[str, Artifact | None]) -> list[FlowStage]:
    stages = []
    for label, entry in run.stages.items():
        artifact = artifacts[label]
        lineage = artifact and artifact.lineage
        names = [entry["artifact"], *_list_checkpoint_names(artifact)]
        stages.append(FlowStage(label, names, lineage, entry["cached"]))
    return stages


def _list_checkpoint_names(artifact: Artifact | None) -> list[str]:
    """Return the names of the checkpoints that a training committed, which other stages read."""
    if artifact is None or "checkpoints" not in artifact.tables:
        return []
    try:
        names: list[str] = artifact["checkpoints"].read(["artifact"])["artifact"].to_pylist()
    except HallmarkError:  # the table of stages shows the damage
        return []
    return names
