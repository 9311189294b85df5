"""Trace any text: find its spans that occur in the training text of a checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, Response

from hallmark.flows.application.requests import FormFields
from hallmark.flows.application.store_reader import StoreReader
from hallmark.flows.checkpoint_resolution import resolve_checkpoint
from hallmark.flows.runs import Run
from hallmark.flows.text_trace import MAX_TRACED_CHARACTERS, TextTracer, check_traceable
from hallmark.reports.page.redaction import escape_invisible
from hallmark.reports.view.templating import render_view_page
from hallmark.tasks.contract import HallmarkError, UsageError

#: How long a request waits for the index of a training text, in seconds.
INDEX_TIMEOUT_SECONDS = 20.0

#: Number of spans of a text that are shown, the rarest first.
MAX_SPANS = 20


@dataclass(frozen=True)
class TextPart:
    """A part of a traced text.

    Attributes:
        text: The part.
        span: The number of the span that it belongs to, from 1; 0 outside of all spans.
    """

    text: str
    span: int


class TracePages:
    """The pages that trace texts. The training text of a run is indexed once."""

    def __init__(self, reader: StoreReader) -> None:
        self.reader = reader
        #: What identified the files of a run when its training text was opened, and the result.
        self._tracers: dict[str, tuple[Hashable, Future[TextTracer]]] = {}
        self._lock = threading.Lock()
        self._indexer = ThreadPoolExecutor(1, thread_name_prefix="text index")

    def show_form(self, request: Request) -> Response:
        """Show the form; indexing starts meanwhile, if it is necessary."""
        trained_runs = self._list_trained_runs()
        run_id = request.query_params.get("run") or (trained_runs[0].id if trained_runs else "")
        for run in trained_runs:
            if run.id == run_id:
                self._start_indexing(run)
        return self._render(trained_runs, run_id)

    def trace_text(self, request: Request, fields: FormFields) -> Response:
        """Trace the text of the form."""
        run_id, text = fields.get("run", [""])[0], fields.get("text", [""])[0]
        trained_runs = self._list_trained_runs()
        try:
            run = next((run for run in trained_runs if run.id == run_id), None)
            if run is None:
                raise UsageError(f"there is no run {run_id!r:.80} that trained a model")
            check_traceable(text)
            tracer = self._start_indexing(run).result(INDEX_TIMEOUT_SECONDS)
            report = tracer.trace_text(text, MAX_SPANS)
        except TimeoutError:
            problem = "The training text is still being indexed. Try again in a minute."
            return self._render(trained_runs, run_id, text, problem=problem, status_code=503)
        except HallmarkError as error:
            problem = f"{str(error)[:1].upper()}{str(error)[1:]}."
            return self._render(trained_runs, run_id, text, problem=problem, status_code=400)
        return self._render(trained_runs, run_id, text, report=report)

    def _list_trained_runs(self) -> list[Run]:
        runs, _ = self.reader.read_runs()
        return [run for run in runs if "pretrain" in run.stages]

    def _start_indexing(self, run: Run) -> Future[TextTracer]:
        """Open the training text of a run, unless it is open and nothing was purged or changed."""
        files = self.reader.identify_files(entry["artifact"] for entry in run.stages.values())
        with self._lock:
            known_files, tracer = self._tracers.get(run.id, (None, None))
            # A failed attempt is repeated: what was missing may be there again.
            has_failed = tracer is not None and tracer.done() and tracer.exception() is not None
            if tracer is None or known_files != files or has_failed:
                tracer = self._indexer.submit(self._open_tracer, run.id)
                self._tracers[run.id] = files, tracer
            return tracer

    def _open_tracer(self, run_id: str) -> TextTracer:
        return TextTracer.from_checkpoint(
            resolve_checkpoint(self.reader.store, run_id), redact=True
        )

    def _render(
        self,
        trained_runs: Sequence[Run],
        run_id: str,
        text: str = "",
        *,
        report: dict[str, Any] | None = None,
        problem: str = "",
        status_code: int = 200,
    ) -> Response:
        return HTMLResponse(
            render_view_page(
                "trace.html",
                runs=trained_runs,
                run_id=run_id,
                text=text,
                report=report,
                parts=split_into_parts(text, report["spans"]) if report else [],
                problem=escape_invisible(problem),
                max_characters=MAX_TRACED_CHARACTERS,
            ),
            status_code,
        )


def split_into_parts(text: str, spans: Sequence[dict[str, Any]]) -> list[TextPart]:
    """Split a text at its spans; where spans overlap, a character belongs to the first of them."""
    numbers = [0] * len(text)
    for number, span in reversed([*enumerate(spans, 1)]):
        length = span["char_end"] - span["char_start"]
        numbers[span["char_start"] : span["char_end"]] = [number] * length
    parts: list[TextPart] = []
    start = 0
    for position in range(1, len(text) + 1):
        if position == len(text) or numbers[position] != numbers[start]:
            parts.append(TextPart(text[start:position], numbers[start]))
            start = position
    return parts
