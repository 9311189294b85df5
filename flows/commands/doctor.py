"""What this machine has, and what to do about what it lacks."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flows.commands.shared import InStore, Json, show
from flows.runs import default_store, store_uri
from tasks.contract import HallmarkError

Finding = dict[str, Any]


def doctor(*, store: InStore = None, json_: Json = False) -> None:
    """Show what this machine has: device, scorers, Prefect server, store, disk."""
    findings = examine_machine(store)
    show(findings, json_, render)
    if not all(f["ok"] for f in findings):
        raise SystemExit(1)


def examine_machine(store: str | None = None) -> list[Finding]:
    """One finding a line: what, whether it is fit for use, and a sentence."""
    checks = (_python, _libraries, _device, _scorers, _prefect)
    return [*map(_guarded, checks), _guarded(_store, store)]


def _guarded(check: Callable[..., Finding], *arguments: Any) -> Finding:
    try:
        return check(*arguments)
    except (HallmarkError, OSError, ImportError) as error:
        return {"what": check.__name__.strip("_"), "ok": False, "says": str(error)}


def _python() -> Finding:
    import platform

    says = f"{platform.python_version()} on {platform.platform()}, {os.cpu_count()} cores"
    return {"what": "python", "ok": True, "says": says}


def _libraries() -> Finding:
    wanted = ("torch", "prefect", "datasets", "tokenizers", "transformers", "detoxify", "pyarrow")
    found, missing = [], []
    for name in wanted:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    says = ", ".join(found) + (f"; missing: {', '.join(missing)}" if missing else "")
    return {"what": "libraries", "ok": not missing, "says": says}


def _device() -> Finding:
    import torch

    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        count = torch.cuda.device_count()
        says = f"{count} GPU: {properties.name}, {properties.total_memory >> 30} GiB each"
    else:
        capability = torch.backends.cpu.get_cpu_capability()
        says = f"CPU ({capability}, {torch.get_num_threads()} threads); no GPU found"
    return {"what": "device", "ok": True, "says": says}


def _scorers() -> Finding:
    from tasks.measures.scorers import ScorerConfig, downloaded, scorer_digest

    digests = scorer_digest(ScorerConfig(), "")
    says = f"embedded linear scorer {digests['scorer']}, digest {digests['digest'][:16]}"
    says += f"; Detoxify weights: {', '.join(downloaded()) or 'none downloaded'}"
    return {"what": "scorers", "ok": True, "says": says}


def _prefect() -> Finding:
    from flows.deployments import HOW, server_answers

    url = os.environ.get("PREFECT_API_URL", "")
    if not url:
        return {
            "what": "prefect",
            "ok": True,
            "says": f"a server for each command; for schedules {HOW}",
        }
    ok = server_answers(url)
    says = f"server at {url} " + ("answers" if ok else f"does not answer; {HOW}")
    return {"what": "prefect", "ok": ok, "says": says}


def _store(named: str | None) -> Finding:
    uri = store_uri(named).removeprefix("file://")
    place = Path(uri).absolute()
    if "://" not in uri and not place.exists():  # looking must not leave a store behind
        folder, what = next(above for above in place.parents if above.exists()), "made"
    else:
        store = default_store(named)
        if store.root is None:
            store.put("doctor", b"")
            store.delete(["doctor"])
            return {"what": "store", "ok": True, "says": f"{store.uri} can be written"}
        folder, what = store.root, "written"
    tempfile.TemporaryFile(dir=folder).close()
    free = shutil.disk_usage(folder).free
    says = f"{place} can be {what}, {free / 1e9:.0f} GB free"
    ok = free > 2e9
    return {"what": "store", "ok": ok, "says": says + ("" if ok else "; free at least 2 GB")}


def render(findings: list[Finding]) -> str:
    return "\n".join(f"{'ok ' if f['ok'] else 'BAD'} {f['what']:<10} {f['says']}" for f in findings)
