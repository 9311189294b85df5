"""Faults that audits are known to have, planted one at a time in a copy: does a test catch each?

    python -m benchmarks.planted_faults [NAME ...]

Each is one change of the source, of which the tests beside it must fail at least one; unchanged
they pass. Prints, for each, the test that caught it, or that none did. A change whose text is no
longer in the source is an error: the fault must be planted anew.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Fault:
    """``right`` in ``file`` becomes ``wrong``; any of ``tests`` must fail: rooms of
    tests/tasks, and what is tested there."""

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]


FAULTS = (
    Fault(
        "sides swapped",
        "tasks/audits/probes/bias.py",
        "tokenizer.opening_ids, (first_ids, second_ids)",
        "tokenizer.opening_ids, (second_ids, first_ids)",
        ("audits/probes/bias",),
    ),
    Fault(
        "prompt scored too",
        "tasks/audits/inference.py",
        "model.decode(generated.token_ids)",
        'model.decode([*row["context_ids"], *generated.token_ids])',
        ("audits/inference", "audits/probes/toxicity"),
    ),
    Fault(
        "clusters ignored",
        "tasks/audits/judging/measures.py",
        'read_float_column(values, "value") / maximum,\n        values["cluster"].to_pylist(),',
        'read_float_column(values, "value") / maximum,\n        None,',
        ("audits/judging/measures", "audits/probes/winobias"),
    ),
    Fault(
        "NaN as 0",
        "tasks/audits/judging/measures.py",
        "return np.where(np.isnan(difference), np.nan, (np.sign(difference) + 1) / 2)",
        "return (difference > 0).astype(np.float64)",
        ("audits/judging/measures",),
    ),
    Fault(
        "begin token lost",
        "tasks/audits/audited_models/audited_tokenizer.py",
        "return [*([] if self.bos_id is None else [self.bos_id]), *token_ids]",
        "return [*token_ids]",
        ("audits/audited_models/audited_model", "audits/probes/bias", "audits/probes/extraction"),
    ),
    Fault(
        "ties by order",
        "tasks/audits/judging/measures.py",
        "(np.sign(difference) + 1) / 2",
        "(difference >= 0).astype(np.float64)",
        ("audits/judging/measures",),
    ),
    Fault(
        "leaked reference",
        "tasks/measures/canaries.py",
        "& 1) == for_planting:",
        "& 1) >= 0:",
        ("measures/canaries", "corpus/plant_canaries"),
    ),
    Fault(
        "constant scorer",
        "tasks/audits/scoring.py",
        "scores = scorer.score_by_head(texts.to_pylist())",
        "scores = 0 * scorer.score_by_head(texts.to_pylist()) + 0.1",
        ("audits/probes/toxicity",),
    ),
    Fault(
        "members swapped",
        "tasks/audits/probes/extraction.py",
        '{"kind": split, "doc_ids"',
        '{"kind": {"train": "holdout"}.get(split, "train"), "doc_ids"',
        ("audits/probes/extraction",),
    ),
    Fault(
        "responses misaligned",
        "tasks/audits/responses.py",
        "matching_rows.take(pa.array(starts + offsets))",
        "matching_rows.take(pa.array(np.roll(starts + offsets, 1)))",
        ("audits/inference", "audits/probes/bias", "audits/probes/toxicity"),
    ),
    Fault(
        "another temperature",
        "tasks/audits/inference.py",
        "**{name: settings[name] for name in sampling_names},",
        '**{name: settings[name] for name in sampling_names} | {"temperature": 0.5},',
        ("audits/inference", "audits/probes/toxicity"),
    ),
    Fault(
        "unread copies counted",
        "tasks/audits/judging/training_exposure.py",
        "sum(self.passes.get(doc_id, 0) for doc_id in doc_ids)",
        "len(doc_ids)",
        ("audits/probes/extraction", "audits/methods/exposure"),
    ),
)


def caught(fault: Fault | None, tests: list[str], folder: Path) -> str:
    """The first test that fails in a copy of the project with this fault; empty: none does."""
    copy = folder / "project"
    shutil.rmtree(copy, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    if fault is not None:
        path = copy / fault.file
        text = path.read_text(encoding="utf-8")
        if text.count(fault.right) != 1:
            raise SystemExit(
                f"{fault.name}: {fault.file} holds {fault.right!r} "
                f"{text.count(fault.right)} times; plant the fault anew"
            )
        path.write_text(text.replace(fault.right, fault.wrong), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", f"--basetemp={folder / 'tmp'}"]
    done = subprocess.run([*command, *tests], cwd=copy, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if found is None:
        raise SystemExit(f"pytest did not run: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return found[1]


def paths(fault: Fault) -> list[str]:
    """The files of its tests."""
    parts = (test.rpartition("/") for test in fault.tests)
    return [f"tests/tasks/{room}/test_{what}.py" for room, _, what in parts]


def main(names: list[str]) -> None:
    chosen = [fault for fault in FAULTS if not names or fault.name in names]
    found = 0
    with tempfile.TemporaryDirectory() as folder:
        every = sorted({path for fault in chosen for path in paths(fault)})
        if failed := caught(None, every, Path(folder)):
            raise SystemExit(f"without any fault, too, {failed} fails")
        for fault in chosen:
            by = caught(fault, paths(fault), Path(folder))
            found += bool(by)
            print(f"{fault.name:<24}{by or 'NOT CAUGHT'}", flush=True)
    print(f"{found} of {len(chosen)} caught")


if __name__ == "__main__":
    main(sys.argv[1:])
