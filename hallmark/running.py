"""Run flows from Python, as the commands of the same names do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hallmark.flows.runs import Run, open_run

if TYPE_CHECKING:
    from hallmark.flows.run_request import RunRequest


def run(
    config: str | Mapping[str, Any] = "demo",
    overrides: Sequence[str] = (),
    *,
    until: str | None = None,
    start: str | None = None,
    store: str | None = None,
    only: Sequence[str] | None = None,
    skip: Sequence[str] | None = None,
) -> Run:
    """Curate a corpus, train a model on it and audit the model.

    Args:
        config: A config file, the name of a bundled config, or the config itself.
        overrides: Settings that replace those of the config: "pretrain.train.steps=100".
        until: The last stage to run; by default all run.
        start: The checkpoint to continue training from, as ``audit`` takes it.
        store: The store to use instead of the config's.
        only: The audits to run; by default all.
        skip: The audits not to run.

    Returns:
        The run, with its tables and artifacts.
    """
    from hallmark.flows.audit_selection import select_audits
    from hallmark.flows.run_request import RunRequest

    parameters = {"config": config, "overrides": overrides, "until": until, "start": start}
    parameters |= {"store": store, "audits": select_audits(only, skip)}
    return _run(RunRequest.parse("pipeline", parameters))


def audit(
    checkpoint: str,
    config: str | None = None,
    overrides: Sequence[str] = (),
    *,
    store: str | None = None,
    only: Sequence[str] | None = None,
    skip: Sequence[str] | None = None,
) -> Run:
    """Audit a checkpoint of Hallmark's, or a Hugging Face folder of a language model.

    Args:
        checkpoint: RUN, RUN@STEP, the name of a checkpoint artifact, or a folder.
        config: A config with the settings of the audits; by default that of the run that trained
            the checkpoint.
        overrides: Settings that replace those of the config.
        store: The store to use instead of the config's.
        only: The audits to run; by default all.
        skip: The audits not to run.

    Returns:
        The run, with its tables and artifacts.
    """
    from hallmark.flows.audit_selection import select_audits
    from hallmark.flows.checkpoint_resolution import check_corpus_known
    from hallmark.flows.run_recording import resolve_request
    from hallmark.flows.run_request import RunRequest

    parameters = {"checkpoint": checkpoint, "config": config, "overrides": overrides}
    parameters |= {"store": store, "audits": select_audits(only, skip)}
    request = RunRequest.parse("audit", parameters)
    check_corpus_known(resolve_request(request).store, checkpoint, only)
    return _run(request)


def _run(request: RunRequest) -> Run:
    from hallmark.flows.flow_registry import get_flow
    from hallmark.flows.run_recording import resolve_request

    opened_store = resolve_request(request).store
    return open_run(get_flow(request.flow)(**request.parameters), opened_store)
