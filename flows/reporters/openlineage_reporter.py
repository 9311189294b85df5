"""Send OpenLineage events about a run and its stages.

A stage is a job, one execution of it is a run whose parent is the run of Hallmark. Each table of an
artifact is a dataset whose version is the table's SHA-256. The other files of an artifact, such as
those of a checkpoint, are one dataset whose version is the fingerprint. The events contain names,
digests and counts, and no text.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID, uuid5

from hallmark.flows.reporter_settings import OpenLineageConfig
from hallmark.tasks.contract import Artifact, Event, Table

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import InputDataset, OutputDataset, RunEvent
    from openlineage.client.generated.tags_run import TagsRunFacetFields
    from openlineage.client.transport import Transport

    from hallmark.flows.runs import Run

PRODUCER = "https://pypi.org/project/hallmark"

#: Namespace of the ids of runs, which OpenLineage requires to be UUIDs.
RUN_ID_NAMESPACE = UUID("5c6f9f43-2a0c-5d0e-9c39-6a5d7f1f4f0b")

#: Name of the environment variable with the key of the server's API, as in OpenLineage's client.
API_KEY_VARIABLE = "OPENLINEAGE_API_KEY"

#: Seconds after which a request to the server fails.
REQUEST_TIMEOUT_SECONDS = 5.0

#: Errors that mean that somebody stopped the run.
STOPPING_ERRORS = ("KeyboardInterrupt", "TerminationSignal", "CancelledError", "Pause")

STATE_BY_STATUS = {"completed": "COMPLETE", "cancelled": "ABORT", "interrupted": "ABORT"}


class _Dataset(NamedTuple):
    """A table, or the other files of an artifact, as OpenLineage describes them."""

    namespace: str
    name: str
    digest: str
    row_count: int | None
    byte_size: int
    file_count: int


class OpenLineageReporter:
    """Send an event when a run or one of its stages starts, completes or fails."""

    def __init__(self, settings: OpenLineageConfig, run: Run) -> None:
        self.settings, self.run = settings, run
        self.job_name = f"{run.record['config_name']}.{run.flow}"
        self.client: OpenLineageClient | None = None
        #: Number of executions by label; a stage that Prefect retries starts again.
        self.start_counts: dict[str, int] = {}
        #: The inputs of the running stages, by label.
        self.inputs_by_label: dict[str, list[InputDataset]] = {}

    def __call__(self, event: Event) -> None:
        match event.kind:
            case "run_started":
                self._emit_run_event("START")
            case "run_ended":
                self._emit_run_event(STATE_BY_STATUS.get(event.description, "FAIL"))
            case "start" | "cached":
                self.start_counts[event.label] = self.start_counts.get(event.label, 0) + 1
                self.inputs_by_label[event.label] = [*_to_input_datasets(event.inputs)]
                self._emit_stage_event("START", event)
                if event.kind == "cached":
                    self._emit_stage_event("COMPLETE", event)
            case "child":
                self._emit_stage_event("RUNNING", event)
            case "done":
                self._emit_stage_event("COMPLETE", event)
            case "failed":
                is_stopped = event.description in STOPPING_ERRORS
                self._emit_stage_event("ABORT" if is_stopped else "FAIL", event)

    def _emit_run_event(self, state: str) -> None:
        self._emit(self._build_event(state, self._get_run_uuid(), self.job_name, "RUN"))

    def _emit_stage_event(self, state: str, event: Event) -> None:
        from openlineage.client.facet_v2 import error_message_run, parent_run, tags_run

        label = event.label
        lineage_event = self._build_event(
            state,
            str(uuid5(UUID(self._get_run_uuid()), f"{label} {self.start_counts.get(label, 0)}")),
            f"{self.job_name}.{label}",
            "STAGE",
        )
        facets = lineage_event.run.facets
        assert facets is not None
        facets["parent"] = parent_run.ParentRunFacet(
            run=parent_run.Run(self._get_run_uuid()),
            job=parent_run.Job(self.settings.namespace, self.job_name),
        )
        if event.kind == "failed":
            # The sentence of an error may quote a text, so only the record of the run has it.
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
                f"{event.description}; for the reason, see run.json of run {self.run.id}", "python"
            )
        if event.kind == "cached":
            tags = facets["tags"]
            assert isinstance(tags, tags_run.TagsRunFacet) and tags.tags is not None
            tags.tags.append(_make_tag("cached", "true"))
        lineage_event.inputs = self.inputs_by_label.get(label, [])
        if event.artifact is not None and state != "START":
            lineage_event.outputs = [*_to_output_datasets(event.artifact)]
        self._emit(lineage_event)

    def _build_event(self, state: str, run_uuid: str, job_name: str, job_type: str) -> RunEvent:
        from openlineage.client.event_v2 import Job, RunEvent, RunState
        from openlineage.client.event_v2 import Run as LineageRun
        from openlineage.client.facet_v2 import job_type_job, processing_engine_run, tags_run

        return RunEvent(
            eventTime=datetime.now(UTC).isoformat(),
            producer=PRODUCER,
            eventType=RunState[state],
            run=LineageRun(
                run_uuid,
                {
                    "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
                        version("hallmark"), "Hallmark", version("openlineage-python")
                    ),
                    "tags": tags_run.TagsRunFacet([_make_tag("hallmark_run", self.run.id)]),
                },
            ),
            job=Job(
                self.settings.namespace,
                job_name,
                {
                    "jobType": job_type_job.JobTypeJobFacet(
                        processingType="BATCH", integration="HALLMARK", jobType=job_type
                    )
                },
            ),
        )

    def _get_run_uuid(self) -> str:
        return str(uuid5(RUN_ID_NAMESPACE, f"{self.run.store.compute_secret_id()} {self.run.id}"))

    def _emit(self, lineage_event: RunEvent) -> None:
        from openlineage.client import OpenLineageClient

        if self.client is None:
            self.client = OpenLineageClient(transport=create_transport(self.settings.uri or ""))
        self.client.emit(lineage_event)


def create_transport(uri: str) -> Transport:
    """Create the transport for a file or for the address of a server."""
    from openlineage.client.transport.file import FileConfig, FileTransport
    from openlineage.client.transport.http import (
        ApiKeyTokenProvider,
        HttpConfig,
        HttpTransport,
        TokenProvider,
    )

    if not uri.startswith(("http://", "https://")):
        path = Path(uri.removeprefix("file://")).expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileTransport(FileConfig(str(path), append=True))
    parts = urlsplit(uri)
    api_key = os.environ.get(API_KEY_VARIABLE)
    return HttpTransport(
        HttpConfig(
            url=f"{parts.scheme}://{parts.netloc}",
            endpoint=parts.path.strip("/") or "api/v1/lineage",
            timeout=REQUEST_TIMEOUT_SECONDS,
            auth=ApiKeyTokenProvider({"apiKey": api_key}) if api_key else TokenProvider({}),
        )
    )


def _make_tag(key: str, value: str) -> TagsRunFacetFields:
    from openlineage.client.facet_v2 import tags_run

    return tags_run.TagsRunFacetFields(key, value, "HALLMARK")


def _list_datasets(artifact: Artifact, table_name: str | None = None) -> Iterator[_Dataset]:
    """List the named table of an artifact; without a name, all tables and the other files."""
    namespace = _get_namespace(artifact)
    tables, files = artifact.manifest["tables"], artifact.manifest["files"]
    for name in tables if table_name is None else (table_name,):
        entry = tables[name]
        sizes = [part["size"] for part in entry["parts"]]
        yield _Dataset(
            namespace,
            f"{artifact.name}#{name}",
            entry["sha256"],
            entry["rows"],
            sum(sizes),
            len(sizes),
        )
    if files and table_name is None:
        # The content digest would be another one where a stage reads only some of the files.
        sizes = [entry["size"] for entry in files.values()]
        yield _Dataset(namespace, artifact.name, artifact.fingerprint, None, sum(sizes), len(sizes))


def _get_namespace(artifact: Artifact) -> str:
    if artifact.store is None:
        return "file"
    root_folder = artifact.store.root_folder
    return artifact.store.uri if root_folder is None else root_folder.as_uri()


def _to_input_datasets(inputs: Iterable[Artifact | Table]) -> Iterator[InputDataset]:
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.facet_v2 import input_statistics_input_dataset
    from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet

    for stage_input in inputs:
        table_name, artifacts = (
            (stage_input.name, stage_input.artifacts)
            if isinstance(stage_input, Table)
            else (None, (stage_input,))
        )
        for artifact in artifacts:
            for dataset in _list_datasets(artifact, table_name):
                statistics = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
                    dataset.row_count, dataset.byte_size, dataset.file_count
                )
                yield InputDataset(
                    namespace=dataset.namespace,
                    name=dataset.name,
                    facets={"version": DatasetVersionDatasetFacet(dataset.digest)},
                    inputFacets={"inputStatistics": statistics},
                )


def _to_output_datasets(artifact: Artifact) -> Iterator[OutputDataset]:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import output_statistics_output_dataset
    from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet

    for dataset in _list_datasets(artifact):
        statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            dataset.row_count, dataset.byte_size, dataset.file_count
        )
        yield OutputDataset(
            namespace=dataset.namespace,
            name=dataset.name,
            facets={"version": DatasetVersionDatasetFacet(dataset.digest)},
            outputFacets={"outputStatistics": statistics},
        )
