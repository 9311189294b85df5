"""Run flows from Python, as the commands of the same names do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hallmark.flows.runs import Run, open_run


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
    return _call_flow(
        "pipeline",
        store,
        {"config": config, "overrides": overrides, "until": until, "start": start},
        only,
        skip,
    )


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
    parameters = {"checkpoint": checkpoint, "config": config, "overrides": overrides}
    return _call_flow("audit", store, parameters, only, skip)


def _call_flow(
    name: str,
    store: str | None,
    parameters: dict[str, Any],
    only: Sequence[str] | None,
    skip: Sequence[str] | None,
) -> Run:
    from hallmark.flows.audit_selection import check_corpus_known, select_audits
    from hallmark.flows.flow_registry import get_flow
    from hallmark.flows.run_recording import resolve_flow_arguments

    audit_names = select_audits(only, skip)
    resolved = resolve_flow_arguments(**parameters, store=store)
    if name == "audit":
        check_corpus_known(resolved.store, parameters["checkpoint"], only)
    run_id = get_flow(name)(**parameters, only=audit_names, store=store)
    return open_run(run_id, resolved.store)
