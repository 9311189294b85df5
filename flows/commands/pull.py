"""Copy runs with everything they refer to from another store into the store."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from hallmark.flows.commands.options import JsonOption, StoreOption, print_result
from hallmark.flows.commands.push import render_copy, split_runs_and_store
from hallmark.flows.runs import open_store, resolve_store_uri
from hallmark.flows.store_copy import copy_runs, open_target_store


def pull(
    *runs_and_source: Annotated[str, Parameter(name="RUN... SOURCE", negative="")],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy runs from another store with everything they refer to: artifacts, checkpoints, reviews,
    releases and purge records.

    Only what is missing here is fetched. The command can be repeated if it was stopped.

    Parameters
    ----------
    runs_and_source
        The ids of one or more runs, or "latest", and last the other store: a folder, a URI such as
        s3://bucket/prefix, or the .toml file of a config that specifies a store.
    """
    runs, source = split_runs_and_store("pull", "source", runs_and_source)
    opened_source = open_store(source, create=False)
    report = copy_runs(opened_source, open_target_store(resolve_store_uri(store)), runs)
    print_result(asdict(report), as_json, render_copy)
