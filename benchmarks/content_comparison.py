"""Compare what two versions of Hallmark compute, table by table and column by column.

    python -m benchmarks.content_comparison record FOLDER [--checkout PATH] [--set KEY=VALUE]
    python -m benchmarks.content_comparison show FOLDER
    python -m benchmarks.content_comparison compare BEFORE AFTER [--names NAMES.toml]

``record`` runs ``hallmark run smoke`` with the code of a checkout, and an audit of a small Hugging
Face folder (a GPT-2 whose weights are drawn from a seed), and keeps the store in FOLDER. Both
recordings must be of one machine: training and audits compute in floating point. ``show`` prints a
digest of every column. ``compare`` pairs the tables and columns of two recordings and prints for
each table whether its content is equal. It exits with 1 where a column differs, is missing or new,
unless NAMES.toml says so.

NAMES.toml says what the later version calls differently, and what it changes on purpose:

    [stages]                        # label of a stage in a run
    old_label = "new_label"
    [tables]
    "old_label.old_table" = "new_table"
    [columns]
    "old_label.old_table.old_column" = "new_column"
    "*.*.old_column" = "new_column"         # wherever it occurs
    [values]
    "*.*.old_column" = {old = "new"}        # values of a column of text
    [changed]
    "old_label.old_table.old_column" = "why this differs, is gone or is new"

Keys are the earlier version's names; for a new table or column, the later version's. Names of
artifacts and fingerprints inside values are replaced by the stage's label before they are compared,
since they change with every change of the code. Rows are compared in their order; where that
fails, after sorting both tables by the columns that hold the same values. A column of which every
value was renamed one to one is reported as "relabelled", with examples, and counts as a difference
until NAMES.toml names the values or the change. Files that are no tables are listed by name alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SECRET = "6b" * 32  # the key of hashes in ledgers; the same in all recordings
RUNS = ("run", "audit")

#: A fingerprint, or the name of an artifact: stage/fingerprint.
FINGERPRINT = re.compile(r"(?:\w+/)?\b([0-9a-f]{16,64})\b")

Names = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class RecordedTable:
    """One table of a recording.

    Attributes:
        run: "run" (smoke) or "audit" (the Hugging Face folder).
        stage: Label of the stage in its run.
        name: Name of the table.
        columns: Values by column, in the order of the rows; nested values as Python has them.
    """

    run: str
    stage: str
    name: str
    columns: dict[str, list[Any]]

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values()), []))


# Recording -----------------------------------------------------------------------------------


def record(folder: Path, checkout: Path, overrides: Sequence[str] = ()) -> None:
    """Run smoke and audit a Hugging Face folder with the code of a checkout.

    Args:
        folder: Where the store goes; it must not exist.
        checkout: The root of a checkout of the project.
        overrides: Settings of smoke, as KEY=VALUE.
    """
    folder.mkdir(parents=True)
    model = folder / "model"
    write_model(model)
    store = folder / "store"
    store.mkdir()
    (store / "secret").write_text(SECRET)
    (store / "secret").chmod(0o600)
    options = [f"--set={override}" for override in overrides]
    commands = {
        "run": ["run", "smoke", *options],
        "audit": ["audit", str(model), "--config", "smoke"],
    }
    ids = {}
    for name, arguments in commands.items():
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "hallmark.flows.cli",
                *arguments,
                "--store",
                str(store),
                "--json",
            ],
            cwd=checkout,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        if done.returncode not in (0, 3):  # 3: the policy of the config is not held
            raise SystemExit(f"hallmark {' '.join(arguments)} ended with {done.returncode}")
        ids[name] = json.loads(done.stdout)["run"]
    (folder / "runs.json").write_text(json.dumps(ids, indent=1))


def write_model(folder: Path) -> None:
    """A small GPT-2 with weights from a seed, and a byte-level tokenizer without merges."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(["<|endoftext|>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    end = "<|endoftext|>"
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=end, eos_token=end, unk_token=end
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(vocabulary),
        n_positions=256,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)


# Reading a recording -------------------------------------------------------------------------


def read_tables(folder: Path, rename_stage: Callable[[str], str]) -> Iterator[RecordedTable]:
    """Every table of a recording but those of telemetry, with artifacts' names normalised.

    Args:
        folder: What ``record`` wrote. Only JSON and parquet are read, so that the version of the
            code that reads it does not matter.
        rename_stage: From a stage's label to the label that stands for it inside of values.
    """
    runs = json.loads((folder / "runs.json").read_text())
    for run in RUNS:
        record = json.loads((folder / "store/runs" / runs[run] / "run.json").read_text())
        labels = {  # of checkpoints, too, which are no stage of the run
            artifact.name: rename_stage(artifact.parent.name)
            for artifact in (folder / "store/artifacts").glob("*/*")
        }
        for entry in record["stages"]:
            labels[entry["artifact"].split("/")[1]] = rename_stage(entry["label"])
        for entry in record["stages"]:
            place = folder / "store/artifacts" / entry["artifact"]
            manifest = json.loads((place / "manifest.json").read_text())
            for name, table in sorted(manifest["tables"].items()):
                parts = [pq.read_table(place / part["path"]) for part in table["parts"]]
                whole = pa.concat_tables(parts)
                columns = {
                    column: [normalise(value, labels, runs[run]) for value in values.to_pylist()]
                    for column, values in zip(whole.column_names, whole.columns, strict=True)
                }
                yield RecordedTable(run, entry["label"], name, columns)


def normalise(value: Any, labels: Mapping[str, str], run: str) -> Any:
    """A value in which fingerprints stand as labels, bytes as digits, and maps in order."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, str):
        value = value.replace(run, "RUN")

        def replace(match: re.Match[str]) -> str:
            label = labels.get(match[1][:16])
            return match[0] if label is None else f"<{label}>"

        return FINGERPRINT.sub(replace, value)
    if isinstance(value, dict):
        return {key: normalise(item, labels, run) for key, item in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [normalise(item, labels, run) for item in value]
    return value


def digest(values: Sequence[Any]) -> str:
    """SHA-256 of values in their order; floats by all of their digits."""
    text = json.dumps(values, ensure_ascii=False, default=str, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def codes(values: Sequence[Any]) -> list[int]:
    """For each value the number of distinct values before its first occurrence."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(json.dumps(v, default=str), len(numbers)) for v in values]


# Comparing -----------------------------------------------------------------------------------


class Renaming:
    """What a later version calls the stages, tables, columns and values of an earlier one."""

    def __init__(self, names: Names) -> None:
        unknown = set(names) - {"stages", "tables", "columns", "values", "changed"}
        if unknown:
            raise SystemExit(f"the names have sections that mean nothing: {', '.join(unknown)}")
        self.names = names
        self.used: set[tuple[str, str]] = set()

    def stage(self, label: str) -> str:
        return self._look_up("stages", label, label)

    def table(self, stage: str, table: str) -> str:
        return self._look_up("tables", f"{stage}.{table}", table)

    def column(self, stage: str, table: str, column: str) -> str:
        return self._look_up("columns", f"{stage}.{table}.{column}", column)

    def values(self, stage: str, table: str, column: str, values: list[Any]) -> list[Any]:
        renamed = self._look_up("values", f"{stage}.{table}.{column}", {})
        if not renamed:
            return values
        return [renamed.get(v, v) if isinstance(v, str) else v for v in values]

    def reason(self, *names: str) -> str:
        """Why a table or a column is changed on purpose; empty where nothing is said."""
        return self._look_up("changed", ".".join(names), "")

    def unused(self) -> list[str]:
        """Entries that named nothing: they are wrong, or of a change that was taken back."""
        given = ((section, key) for section, keys in self.names.items() for key in keys)
        return [f"{section}: {key}" for section, key in given if (section, key) not in self.used]

    def _look_up(self, section: str, name: str, default: Any) -> Any:
        for key, value in self.names.get(section, {}).items():
            if key == name or fnmatchcase(name, key):
                self.used.add((section, key))
                return value
        return default


@dataclass
class TableComparison:
    """How one table compares.

    Attributes:
        name: "run: stage.table", in the earlier version's names.
        rows: Rows before and after; None where the table is missing.
        equal: Number of columns with equal content.
        differences: A sentence for each other column, by its name.
        reasons: Of these, why they were changed on purpose.
    """

    name: str
    rows: tuple[int | None, int | None]
    equal: int = 0
    differences: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def unexplained(self) -> list[str]:
        return [column for column in self.differences if column not in self.reasons]


def compare_recordings(before: Path, after: Path, renaming: Renaming) -> list[TableComparison]:
    """Compare two recordings, table by table."""
    later = {(t.run, t.stage, t.name): t for t in read_tables(after, lambda label: label)}
    found = []
    for table in read_tables(before, renaming.stage):
        key = table.run, renaming.stage(table.stage), renaming.table(table.stage, table.name)
        found.append(compare_tables(table, later.pop(key, None), renaming))
    for table in later.values():
        comparison = TableComparison(f"{table.run}: {table.stage}.{table.name}", (None, table.rows))
        explain(comparison, "*", "is a new table", renaming, table.stage, table.name)
        found.append(comparison)
    return found


def compare_tables(
    before: RecordedTable, after: RecordedTable | None, renaming: Renaming
) -> TableComparison:
    """Compare a table with the one that a later version computed."""
    place = before.stage, before.name
    title = f"{before.run}: {before.stage}.{before.name}"
    if after is None:
        comparison = TableComparison(title, (before.rows, None))
        explain(comparison, "*", "is missing", renaming, *place)
        return comparison
    comparison = TableComparison(title, (before.rows, after.rows))
    renamed = {renaming.column(*place, column): column for column in before.columns}
    ours = {new: renaming.values(*place, old, before.columns[old]) for new, old in renamed.items()}
    theirs = dict(after.columns)
    for column in theirs.keys() - ours.keys():
        explain(comparison, column, "is a new column", renaming, *place, column)
    for column in ours.keys() - theirs.keys():
        old = renamed[column]
        explain(comparison, old, "is missing", renaming, *place, old)
    shared = [column for column in ours if column in theirs]
    if before.rows != after.rows:
        explain(comparison, "*", f"{before.rows} rows, now {after.rows}", renaming, *place)
        return comparison
    if any(digest(ours[c]) != digest(theirs[c]) for c in shared):
        same = [c for c in shared if Counter(map(str, ours[c])) == Counter(map(str, theirs[c]))]
        ours, theirs = sort_rows(ours, same), sort_rows(theirs, same)
    for column in shared:
        if digest(ours[column]) == digest(theirs[column]):
            comparison.equal += 1
            continue
        said = describe_difference(ours[column], theirs[column])
        explain(comparison, renamed[column], said, renaming, *place, renamed[column])
    return comparison


def explain(
    comparison: TableComparison, column: str, difference: str, renaming: Renaming, *names: str
) -> None:
    """Add a difference, with the reason that the names give for it."""
    comparison.differences[column] = difference
    if reason := renaming.reason(*names):
        comparison.reasons[column] = reason


def sort_rows(columns: dict[str, list[Any]], keys: Sequence[str]) -> dict[str, list[Any]]:
    """The rows in the order of these columns; rows that agree in all of them keep theirs."""
    count = len(next(iter(columns.values()), []))
    order = sorted(range(count), key=lambda i: [str(columns[key][i]) for key in keys])
    return {name: [values[i] for i in order] for name, values in columns.items()}


def describe_difference(before: Sequence[Any], after: Sequence[Any]) -> str:
    """A sentence about the values of two columns that differ."""
    pairs = Counter(
        (json.dumps(a, default=str), json.dumps(b, default=str))
        for a, b in zip(before, after, strict=True)
        if a != b
    )
    examples = ", ".join(excerpt(*pair) for pair, _ in pairs.most_common(3))
    if codes(before) == codes(after):
        return f"relabelled: {len(pairs)} of {len(set(codes(before)))} values, {examples}"
    return f"{sum(pairs.values())} of {len(before)} values differ: {examples}"


def excerpt(before: str, after: str, width: int = 60) -> str:
    """Two values, from shortly before the first character in which they differ."""
    pairs = enumerate(zip(before, after, strict=False))
    differs_at = next((place for place, (a, b) in pairs if a != b), min(len(before), len(after)))
    start = max(0, differs_at - width // 3)
    cut = "…" if start else ""
    return " → ".join(f"{cut}{text[start : start + width]}" for text in (before, after))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recorded = commands.add_parser("record")
    recorded.add_argument("folder", type=Path)
    recorded.add_argument("--checkout", type=Path, default=Path(__file__).parents[1])
    recorded.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    commands.add_parser("show").add_argument("folder", type=Path)
    compared = commands.add_parser("compare")
    compared.add_argument("before", type=Path)
    compared.add_argument("after", type=Path)
    compared.add_argument("--names", type=Path)
    given = parser.parse_args()
    if given.command == "record":
        record(given.folder, given.checkout, given.set)
    elif given.command == "show":
        for table in read_tables(given.folder, lambda label: label):
            for column, values in table.columns.items():
                place = f"{table.run} {table.stage}.{table.name}.{column}"
                print(f"{digest(values)[:16]}  {table.rows:>7,} rows  {place}")
    else:
        names = tomllib.loads(given.names.read_text()) if given.names else {}
        raise SystemExit(print_comparison(given.before, given.after, Renaming(names)))


def print_comparison(before: Path, after: Path, renaming: Renaming) -> int:
    """Print a line a table that differs, and a summary; the exit code."""
    tables = compare_recordings(before, after, renaming)
    for table in tables:
        for column, difference in table.differences.items():
            why = f" [{table.reasons[column]}]" if column in table.reasons else ""
            print(f"{table.name}.{column}: {difference}{why}")
    unexplained = sum(len(table.unexplained) for table in tables)
    explained = sum(len(table.reasons) for table in tables)
    print(
        f"{len(tables)} tables, {sum(table.equal for table in tables):,} columns with equal "
        f"content, {explained} changed on purpose, {unexplained} other differences"
    )
    for entry in renaming.unused():
        print(f"the names say something of what is not there: {entry}")
    return int(bool(unexplained or renaming.unused()))


if __name__ == "__main__":
    main()
