"""Check whether this machine can run Hallmark, and say what to correct."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hallmark.flows.commands.options import JsonOption, StoreOption, print_result
from hallmark.flows.runs import open_store, resolve_store_uri
from hallmark.tasks.contract import HallmarkError, Store, format_count

CheckResult = dict[str, Any]


def doctor(*, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Check this machine: libraries, device, scorers, Prefect server, store and disk.

    Ends with exit code 1 if a check fails.
    """
    results = check_machine(store)
    print_result(results, as_json, render_check_results)
    if not all(result["is_ok"] for result in results):
        raise SystemExit(1)


def check_machine(store: str | None = None) -> list[CheckResult]:
    """Run all checks. Each result has ``check`` (its name), ``is_ok`` and a ``message``."""
    checks = (_check_python, _check_libraries, _check_device, _check_scorers, _check_prefect)
    return [
        *map(_run_check_catching_errors, checks),
        _run_check_catching_errors(_check_store, store),
    ]


def _run_check_catching_errors(check: Callable[..., CheckResult], *arguments: Any) -> CheckResult:
    try:
        return check(*arguments)
    except (HallmarkError, OSError, ImportError) as error:
        return {
            "check": check.__name__.removeprefix("_check_"),
            "is_ok": False,
            "message": str(error),
        }


def _check_python() -> CheckResult:
    import platform

    core_count = format_count(os.cpu_count() or 1, "core")
    message = f"{platform.python_version()} on {platform.platform()}, {core_count}"
    return {"check": "python", "is_ok": True, "message": message}


def _check_libraries() -> CheckResult:
    required_names = (
        "torch",
        "prefect",
        "datasets",
        "tokenizers",
        "transformers",
        "detoxify",
        "pyarrow",
    )
    installed, missing = [], []
    for name in required_names:
        try:
            installed.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    message = ", ".join(installed) + (f"; missing: {', '.join(missing)}" if missing else "")
    return {"check": "libraries", "is_ok": not missing, "message": message}


def _check_device() -> CheckResult:
    import torch

    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        count = torch.cuda.device_count()
        prefix = "1 GPU: " if count == 1 else f"{count} GPUs; first GPU: "
        message = f"{prefix}{properties.name}, {properties.total_memory >> 30} GiB"
    else:
        capability = torch.backends.cpu.get_cpu_capability()
        message = (
            f"CPU ({capability}, {format_count(torch.get_num_threads(), 'thread')}); no GPU found"
        )
    return {"check": "device", "is_ok": True, "message": message}


def _check_scorers() -> CheckResult:
    from hallmark.tasks.audits.judging.scorer_controls import (
        build_scorer_control_findings,
        collect_scorer_limits,
    )
    from hallmark.tasks.audits.scoring import ScoreConfig, score_control_texts
    from hallmark.tasks.measures.scorers import open_scorer
    from hallmark.tasks.measures.scorers.detoxify import list_downloaded_checkpoints

    parts = []
    for config in ScoreConfig().all_scorers:
        scorer = open_scorer(config)
        controls = build_scorer_control_findings("", score_control_texts(scorer).table)
        limits = collect_scorer_limits(map(asdict, controls)).values()
        description = "".join(f"; it {each.describe()}" for each in limits)
        parts.append(f"{scorer.name}, digest {scorer.digest[:16]}{description}")
    parts.append(
        f"Detoxify weights: {', '.join(list_downloaded_checkpoints()) or 'none downloaded'}"
    )
    return {"check": "scorers", "is_ok": True, "message": ". ".join(parts)}


def _check_prefect() -> CheckResult:
    from hallmark.flows.prefect_server import START_SERVER_HINT, is_prefect_server_reachable

    server_url = os.environ.get("PREFECT_API_URL", "")
    if not server_url:
        return {
            "check": "prefect",
            "is_ok": True,
            "message": "each command starts its own server, but scheduled runs need a permanent "
            f"one; {START_SERVER_HINT}",
        }
    is_answering = is_prefect_server_reachable(server_url)
    message = f"server at {server_url} " + (
        "responds" if is_answering else f"does not respond; {START_SERVER_HINT}"
    )
    return {"check": "prefect", "is_ok": is_answering, "message": message}


def _check_remote_store(store: Store) -> CheckResult:
    """Check that a store can be written, and that it writes on conditions.

    Without conditional creation two machines could both commit the same artifact. Without
    conditional replacement both could lease the same work.
    """
    key = f"doctor-{secrets.token_hex(8)}"
    store.put(key, b"first")
    try:
        # The content differs, so that the store cannot take it for a repeated request.
        is_creation_conditional = not store.create_if_absent(key, b"second")
        earlier = store.get_versioned(key)
        store.put(key, b"third")
        is_replacement_conditional = (
            earlier is not None
            and store.replace_if_unchanged(key, b"fourth", earlier.version) is None
        )
    finally:
        store.delete([key])
    if not is_creation_conditional:
        message = (
            f"{store.uri} overwrites an existing object even if a conditional write should "
            "prevent this, so two machines could overwrite each other's artifacts; use an object "
            "store that supports conditional writes (the If-None-Match header)"
        )
    elif not is_replacement_conditional:
        message = (
            f"{store.uri} overwrites a changed object even if a conditional write should prevent "
            "this, so two machines could do the same work and lose each other's training states; "
            "use an object store that supports conditional writes (the If-Match header)"
        )
    else:
        message = f"{store.uri} is writable"
    is_ok = is_creation_conditional and is_replacement_conditional
    return {"check": "store", "is_ok": is_ok, "message": message}


def _check_store(store_name: str | None) -> CheckResult:
    uri = resolve_store_uri(store_name).removeprefix("file://")
    path = Path(uri).absolute()
    if "://" not in uri and not path.exists():  # a check must not create the store
        existing_folder = next(parent for parent in path.parents if parent.exists())
        state = "can be created"
    else:
        store = open_store(store_name)
        if store.root_folder is None:
            return _check_remote_store(store)
        existing_folder, state = store.root_folder, "is writable"
    tempfile.TemporaryFile(dir=existing_folder).close()
    free_bytes = shutil.disk_usage(existing_folder).free
    message = f"{path} {state} ({free_bytes / 1e9:.0f} GB free)"
    has_space = free_bytes > 2e9
    return {
        "check": "store",
        "is_ok": has_space,
        "message": message + ("" if has_space else "; free at least 2 GB"),
    }


def render_check_results(results: list[CheckResult]) -> str:
    return "\n".join(
        f"{'ok ' if result['is_ok'] else 'BAD'} {result['check']:<10} {result['message']}"
        for result in results
    )
