"""Plant faults that audits are known to have, one at a time, and check that a test fails.

    python -m benchmarks.planted_faults [NAME ...]

Each fault is one change of the source in a copy of the project. At least one of its tests must fail
with the fault, and all of them must pass without it. Prints for each fault the first test that
failed, or that none did. It is an error if the text that a fault replaces is no longer in the
source: then the fault must be adapted.
"""

from __future__ import annotations

import argparse
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
    """A change of the source that a test must notice.

    Attributes:
        name: Name of the fault.
        file: The changed file.
        right: The text that is replaced; it occurs once in the file.
        wrong: The text that replaces it.
        tests: Tests of which at least one must fail, as paths in tests/tasks without ``test_``.
    """

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
        '"kind": split,',
        '"kind": {"train": "holdout"}.get(split, "train"),',
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


def find_failing_test(fault: Fault | None, tests: list[str], folder: Path) -> str | None:
    """Find the first test that fails in a copy of the project.

    Args:
        fault: The fault in the copy, if any.
        tests: Files of the tests that run.
        folder: Where the copy is written.

    Returns:
        The name of the test; None if all tests pass.
    """
    copy = folder / "project"
    shutil.rmtree(copy, ignore_errors=True)
    tracked_files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in tracked_files:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    if fault is not None:
        path = copy / fault.file
        text = path.read_text(encoding="utf-8")
        if text.count(fault.right) != 1:
            raise SystemExit(
                f"{fault.name}: {fault.file} contains {fault.right!r} "
                f"{text.count(fault.right)} times; adapt the fault to the source"
            )
        path.write_text(text.replace(fault.right, fault.wrong), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", f"--basetemp={folder / 'tmp'}"]
    result = subprocess.run([*command, *tests], cwd=copy, capture_output=True, text=True)
    if result.returncode == 0:
        return None
    failure = re.search(r"^(?:FAILED|ERROR) (\S+)", result.stdout, re.MULTILINE)
    if failure is None:
        raise SystemExit(f"pytest did not run: {result.stdout[-2000:]}{result.stderr[-2000:]}")
    return failure[1]


def list_test_files(fault: Fault) -> list[str]:
    """List the files of a fault's tests."""
    parts = (test.rpartition("/") for test in fault.tests)
    return [f"tests/tasks/{folder}/test_{module}.py" for folder, _, module in parts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults to plant; default: all")
    names = parser.parse_args().names
    faults = [fault for fault in FAULTS if not names or fault.name in names]
    caught_count = 0
    with tempfile.TemporaryDirectory() as folder:
        test_files = sorted({path for fault in faults for path in list_test_files(fault)})
        if failing_test := find_failing_test(None, test_files, Path(folder)):
            raise SystemExit(f"{failing_test} fails without any fault")
        for fault in faults:
            failing_test = find_failing_test(fault, list_test_files(fault), Path(folder))
            caught_count += failing_test is not None
            print(f"{fault.name:<24}{failing_test or 'NOT CAUGHT'}", flush=True)
    print(f"{caught_count} of {len(faults)} caught")


if __name__ == "__main__":
    main()
