"""Compare what two versions of Hallmark compute, table by table and column by column.

    python -m benchmarks.content_comparison record FOLDER [--checkout PATH] [--set KEY=VALUE]
    python -m benchmarks.content_comparison show FOLDER
    python -m benchmarks.content_comparison compare BEFORE AFTER [--names NAMES.toml]

``record`` runs ``hallmark run smoke`` with the code of a checkout, and an audit of a small Hugging
Face folder (a GPT-2 with random weights from a seed), and keeps the store in FOLDER. Two recordings
can be compared only if they are from the same machine, because training and audits use floating
point. ``show`` prints a digest of every column. ``compare`` pairs the tables and columns of two
recordings, and prints each difference in content. It exits with 1 if a column differs, is missing
or is new, unless NAMES.toml explains it.

NAMES.toml lists what the later version renamed, and what it changed on purpose:

    [stages]                        # label of a stage in a run
    old_label = "new_label"
    [tables]
    "old_label.old_table" = "new_table"
    [columns]
    "old_label.old_table.old_column" = "new_column"
    "*.*.old_column" = "new_column"         # in all tables
    [values]
    "*.*.old_column" = {old = "new"}        # values of a text column
    [changed]
    "old_label.old_table.old_column" = "why this differs, is missing or is new"

Keys are the earlier version's names; for a new table or column, the later version's. Names of
artifacts and fingerprints in values change with every change of the code, and are replaced by the
stage's label before the comparison. Rows are compared in their order; if columns differ, both
tables are first sorted by the columns that have the same values. A column in which all values were
replaced one to one is reported as "relabelled", with examples, and counts as a difference unless
NAMES.toml lists the values or the change. Only tables are compared, not other files.
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

#: The same in all recordings, because the hashes in ledgers are keyed by it.
SECRET = "6b" * 32
RUN_NAMES = ("run", "audit")
#: Exit code of a run that fails the acceptance policy of its config.
POLICY_FAILED = 3

#: A fingerprint, or the name of an artifact, which is stage/fingerprint.
FINGERPRINT = re.compile(r"(?:\w+/)?\b([0-9a-f]{16,64})\b")

#: The content of NAMES.toml: for each section, a value by name.
Names = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class RecordedTable:
    """One table of a recording.

    Attributes:
        run: "run" (smoke) or "audit" (the Hugging Face folder).
        stage: Label of the stage in its run.
        name: Name of the table.
        columns: Values of each column, in the order of the rows.
    """

    run: str
    stage: str
    name: str
    columns: dict[str, list[Any]]

    @property
    def row_count(self) -> int:
        return len(next(iter(self.columns.values()), []))


# Recording -----------------------------------------------------------------------------------


def record_runs(folder: Path, checkout: Path, overrides: Sequence[str] = ()) -> None:
    """Run smoke and audit a Hugging Face folder with the code of a checkout.

    Args:
        folder: Gets the model and the store; it must not exist.
        checkout: The root of a checkout of the project.
        overrides: Settings of smoke, as KEY=VALUE.
    """
    folder.mkdir(parents=True)
    model = folder / "model"
    write_random_model(model)
    store = folder / "store"
    store.mkdir()
    (store / "secret").write_text(SECRET)
    (store / "secret").chmod(0o600)
    options = [f"--set={override}" for override in overrides]
    commands = {
        "run": ["run", "smoke", *options],
        "audit": ["audit", str(model), "--config", "smoke"],
    }
    run_ids = {}
    for name, arguments in commands.items():
        process = subprocess.run(
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
        if process.returncode not in (0, POLICY_FAILED):
            raise SystemExit(
                f"hallmark {' '.join(arguments)} ended with exit code {process.returncode}"
            )
        run_ids[name] = json.loads(process.stdout)["run"]
    (folder / "runs.json").write_text(json.dumps(run_ids, indent=1))


def write_random_model(folder: Path) -> None:
    """Write a small GPT-2 with random weights, and a byte-level tokenizer without merges."""
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
    """Yield every table of a recording except telemetry, with normalised names of artifacts.

    Only JSON and parquet files are read, so that recordings of all versions can be read.

    Args:
        folder: The folder of the recording.
        rename_stage: Returns the label that replaces artifacts of a stage in values.
    """
    runs = json.loads((folder / "runs.json").read_text())
    for run in RUN_NAMES:
        record = json.loads((folder / "store/runs" / runs[run] / "run.json").read_text())
        # Checkpoints are artifacts, too, but not stages of the run.
        label_by_fingerprint = {
            artifact.name: rename_stage(artifact.parent.name)
            for artifact in (folder / "store/artifacts").glob("*/*")
        }
        for entry in record["stages"]:
            label_by_fingerprint[entry["artifact"].split("/")[1]] = rename_stage(entry["label"])
        for entry in record["stages"]:
            artifact_folder = folder / "store/artifacts" / entry["artifact"]
            manifest = json.loads((artifact_folder / "manifest.json").read_text())
            for name, table in sorted(manifest["tables"].items()):
                parts = [pq.read_table(artifact_folder / part["path"]) for part in table["parts"]]
                rows = pa.concat_tables(parts)
                columns = {
                    column: [
                        normalise_value(value, label_by_fingerprint, runs[run])
                        for value in values.to_pylist()
                    ]
                    for column, values in zip(rows.column_names, rows.columns, strict=True)
                }
                yield RecordedTable(run, entry["label"], name, columns)


def normalise_value(value: Any, label_by_fingerprint: Mapping[str, str], run_id: str) -> Any:
    """Replace fingerprints by labels, bytes by hexadecimal digits, and sort the keys of maps."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, str):
        value = value.replace(run_id, "RUN")

        def replace_fingerprint(match: re.Match[str]) -> str:
            label = label_by_fingerprint.get(match[1][:16])
            return match[0] if label is None else f"<{label}>"

        return FINGERPRINT.sub(replace_fingerprint, value)
    if isinstance(value, dict):
        return {
            key: normalise_value(item, label_by_fingerprint, run_id)
            for key, item in sorted(value.items())
        }
    if isinstance(value, list | tuple):
        return [normalise_value(item, label_by_fingerprint, run_id) for item in value]
    return value


def compute_digest(values: Sequence[Any]) -> str:
    """Compute the SHA-256 of values in their order, with all digits of floats."""
    text = json.dumps(values, ensure_ascii=False, default=str, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def number_values(values: Sequence[Any]) -> list[int]:
    """Replace equal values by equal numbers from 0, in the order of first occurrence."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(json.dumps(v, default=str), len(numbers)) for v in values]


# Comparing -----------------------------------------------------------------------------------


class Renaming:
    """The names of an earlier version's stages, tables, columns and values in a later version."""

    def __init__(self, names: Names) -> None:
        unknown = set(names) - {"stages", "tables", "columns", "values", "changed"}
        if unknown:
            raise SystemExit(f"unknown sections in NAMES.toml: {', '.join(unknown)}")
        self.names = names
        self.used_entries: set[tuple[str, str]] = set()
        """(section, key) of the entries that applied to something."""

    def rename_stage(self, label: str) -> str:
        return self._look_up("stages", label, label)

    def rename_table(self, stage: str, table: str) -> str:
        return self._look_up("tables", f"{stage}.{table}", table)

    def rename_column(self, stage: str, table: str, column: str) -> str:
        return self._look_up("columns", f"{stage}.{table}.{column}", column)

    def rename_values(self, stage: str, table: str, column: str, values: list[Any]) -> list[Any]:
        renamed = self._look_up("values", f"{stage}.{table}.{column}", {})
        if not renamed:
            return values
        return [renamed.get(v, v) if isinstance(v, str) else v for v in values]

    def get_reason(self, *names: str) -> str:
        """Return why a table or a column was changed on purpose, or an empty string."""
        return self._look_up("changed", ".".join(names), "")

    def list_unused_entries(self) -> list[str]:
        """List the entries that applied to nothing: they are wrong or outdated."""
        entries = ((section, key) for section, keys in self.names.items() for key in keys)
        return [
            f"{section}: {key}"
            for section, key in entries
            if (section, key) not in self.used_entries
        ]

    def _look_up(self, section: str, name: str, default: Any) -> Any:
        for key, value in self.names.get(section, {}).items():
            if key == name or fnmatchcase(name, key):
                self.used_entries.add((section, key))
                return value
        return default


@dataclass
class TableComparison:
    """The comparison of one table.

    Attributes:
        name: "run: stage.table", in the earlier version's names.
        equal_count: Number of columns with equal content.
        differences: For each other column, by its name, a description of the difference.
        reasons: For columns that were changed on purpose, by name, the reason.
    """

    name: str
    equal_count: int = 0
    differences: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def unexplained_columns(self) -> list[str]:
        return [column for column in self.differences if column not in self.reasons]


def compare_recordings(before: Path, after: Path, renaming: Renaming) -> list[TableComparison]:
    """Compare two recordings, table by table."""
    later_tables = {(t.run, t.stage, t.name): t for t in read_tables(after, lambda label: label)}
    comparisons = []
    for table in read_tables(before, renaming.rename_stage):
        key = (
            table.run,
            renaming.rename_stage(table.stage),
            renaming.rename_table(table.stage, table.name),
        )
        comparisons.append(compare_tables(table, later_tables.pop(key, None), renaming))
    for table in later_tables.values():
        comparison = TableComparison(f"{table.run}: {table.stage}.{table.name}")
        add_difference(comparison, "*", "is a new table", renaming, table.stage, table.name)
        comparisons.append(comparison)
    return comparisons


def compare_tables(
    before: RecordedTable, after: RecordedTable | None, renaming: Renaming
) -> TableComparison:
    """Compare a table with the one that a later version computed."""
    names = before.stage, before.name
    title = f"{before.run}: {before.stage}.{before.name}"
    if after is None:
        comparison = TableComparison(title)
        add_difference(comparison, "*", "is missing", renaming, *names)
        return comparison
    comparison = TableComparison(title)
    old_by_new_name = {renaming.rename_column(*names, column): column for column in before.columns}
    earlier = {
        new: renaming.rename_values(*names, old, before.columns[old])
        for new, old in old_by_new_name.items()
    }
    later = dict(after.columns)
    for column in later.keys() - earlier.keys():
        add_difference(comparison, column, "is a new column", renaming, *names, column)
    for column in earlier.keys() - later.keys():
        old = old_by_new_name[column]
        add_difference(comparison, old, "is missing", renaming, *names, old)
    common_columns = [column for column in earlier if column in later]
    if before.row_count != after.row_count:
        add_difference(
            comparison, "*", f"{before.row_count} rows, now {after.row_count}", renaming, *names
        )
        return comparison
    if any(compute_digest(earlier[c]) != compute_digest(later[c]) for c in common_columns):
        equal_columns = [
            c
            for c in common_columns
            if Counter(map(str, earlier[c])) == Counter(map(str, later[c]))
        ]
        earlier, later = sort_rows(earlier, equal_columns), sort_rows(later, equal_columns)
    for column in common_columns:
        if compute_digest(earlier[column]) == compute_digest(later[column]):
            comparison.equal_count += 1
            continue
        description = describe_difference(earlier[column], later[column])
        add_difference(
            comparison,
            old_by_new_name[column],
            description,
            renaming,
            *names,
            old_by_new_name[column],
        )
    return comparison


def add_difference(
    comparison: TableComparison, column: str, difference: str, renaming: Renaming, *names: str
) -> None:
    """Add a difference and its reason, if there is one.

    Args:
        comparison: The comparison of the table, which is changed.
        column: Name of the column; "*" for the table.
        difference: Description of the difference.
        renaming: Has the reasons of changes.
        names: Stage, table, and column if there is one, by which the reason is looked up.
    """
    comparison.differences[column] = difference
    if reason := renaming.get_reason(*names):
        comparison.reasons[column] = reason


def sort_rows(columns: dict[str, list[Any]], keys: Sequence[str]) -> dict[str, list[Any]]:
    """Sort rows by some columns; rows that are equal in all of these stay in their order."""
    count = len(next(iter(columns.values()), []))
    order = sorted(range(count), key=lambda i: [str(columns[key][i]) for key in keys])
    return {name: [values[i] for i in order] for name, values in columns.items()}


def describe_difference(before: Sequence[Any], after: Sequence[Any]) -> str:
    """Describe the difference of the values of two columns."""
    pairs = Counter(
        (json.dumps(a, default=str), json.dumps(b, default=str))
        for a, b in zip(before, after, strict=True)
        if a != b
    )
    examples = ", ".join(show_excerpts(*pair) for pair, _ in pairs.most_common(3))
    if number_values(before) == number_values(after):
        return f"relabelled: {len(pairs)} of {len(set(number_values(before)))} values, {examples}"
    return f"{sum(pairs.values())} of {len(before)} values differ: {examples}"


def show_excerpts(before: str, after: str, width: int = 60) -> str:
    """Show two values, from shortly before the first character that differs."""
    pairs = enumerate(zip(before, after, strict=False))
    differs_at = next((index for index, (a, b) in pairs if a != b), min(len(before), len(after)))
    start = max(0, differs_at - width // 3)
    ellipsis = "…" if start else ""
    return " → ".join(f"{ellipsis}{text[start : start + width]}" for text in (before, after))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="run smoke and an audit, and keep the store")
    record.add_argument("folder", type=Path)
    record.add_argument("--checkout", type=Path, default=Path(__file__).parents[1])
    record.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    show = commands.add_parser("show", help="print a digest of every column")
    show.add_argument("folder", type=Path)
    compare = commands.add_parser("compare", help="print the differences of two recordings")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    compare.add_argument("--names", type=Path, metavar="NAMES.toml")
    options = parser.parse_args()
    if options.command == "record":
        record_runs(options.folder, options.checkout, options.set)
    elif options.command == "show":
        for table in read_tables(options.folder, lambda label: label):
            for column, values in table.columns.items():
                name = f"{table.run} {table.stage}.{table.name}.{column}"
                print(f"{compute_digest(values)[:16]}  {table.row_count:>7,} rows  {name}")
    else:
        names = tomllib.loads(options.names.read_text()) if options.names else {}
        raise SystemExit(print_comparison(options.before, options.after, Renaming(names)))


def print_comparison(before: Path, after: Path, renaming: Renaming) -> int:
    """Print the differences of two recordings and a summary, and return the exit code."""
    tables = compare_recordings(before, after, renaming)
    for table in tables:
        for column, difference in table.differences.items():
            reason = f" [{table.reasons[column]}]" if column in table.reasons else ""
            print(f"{table.name}.{column}: {difference}{reason}")
    unexplained = sum(len(table.unexplained_columns) for table in tables)
    explained = sum(len(table.reasons) for table in tables)
    print(
        f"{len(tables)} tables, {sum(table.equal_count for table in tables):,} columns with equal "
        f"content, {explained} changed on purpose, {unexplained} other differences"
    )
    for entry in renaming.list_unused_entries():
        print(f"an entry of NAMES.toml applies to nothing: {entry}")
    return int(bool(unexplained or renaming.list_unused_entries()))


if __name__ == "__main__":
    main()
