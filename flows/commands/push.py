"""Copy runs with everything they refer to from the store into another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from hallmark.flows.commands.options import JsonOption, StoreOption, print_result
from hallmark.flows.commands.purge import join_first_names
from hallmark.flows.runs import open_store
from hallmark.flows.store_copy import copy_runs, open_target_store
from hallmark.tasks.contract import UsageError, format_count


def push(
    *runs_and_destination: Annotated[str, Parameter(name="RUN... DESTINATION", negative="")],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy runs to another store with everything they refer to: artifacts, checkpoints, reviews,
    releases and purge records.

    Only what is missing there is sent. The command can be repeated if it was stopped.

    Parameters
    ----------
    runs_and_destination
        The ids of one or more runs, or "latest", and last the other store: a folder, a URI such as
        s3://bucket/prefix, or the .toml file of a config that specifies a store.
    """
    runs, destination = split_runs_and_store("push", "destination", runs_and_destination)
    report = copy_runs(open_store(store, create=False), open_target_store(destination), runs)
    print_result(asdict(report), as_json, render_copy)


def split_runs_and_store(
    command: str, role: str, arguments: Sequence[str]
) -> tuple[Sequence[str], str]:
    """Split the arguments of push or pull into the runs and the other store.

    Args:
        command: The name of the command.
        role: What the other store is: "destination" or "source".
        arguments: The arguments.

    Raises:
        UsageError: If there are fewer than two.
    """
    if len(arguments) < 2:
        raise UsageError(
            f"specify one or more runs followed by the {role} store, for example: hallmark "
            f"{command} latest s3://bucket/prefix"
        )
    return arguments[:-1], arguments[-1]


def render_copy(report: dict[str, Any]) -> str:
    """Format the report of a copy for a terminal."""
    source, target = report["source"], report["target"]
    lines = [
        f"{format_count(len(report['runs']), 'run')} copied from {source} to {target}: "
        f"{', '.join(report['runs'])}",
        f"{format_count(report['copied_artifacts'], 'artifact')} copied, "
        f"{report['present_artifacts']:,} already present; "
        f"{format_count(report['copied_files'], 'file')} sent, {report['copied_bytes'] / 1e6:,.1f} "
        f"MB; {format_count(report['reviews'], 'review')}",
    ]
    if report["purged_documents"]:
        lines.append(
            f"now also recorded as purged in {target}: "
            f"{join_first_names(report['purged_documents'])}; if other runs there might "
            "contain these documents, complete the purge with: hallmark purge DOC_ID --store "
            f"{target}"
        )
    if report["missing_inputs"]:
        lines.append(
            f"not copied, because they are missing from {source}: "
            f"{join_first_names(report['missing_inputs'])}"
        )
    lines += [
        f"now also treated as equivalent in {target}: {sentence}"
        for sentence in report["equivalent_versions"]
    ]
    if report["has_other_secret"]:
        lines.append(
            f"{target} and {source} have different secrets, so runs in {target} recompute the "
            "stages whose ledgers contain hashes of personal data"
        )
    return "\n".join(lines)
