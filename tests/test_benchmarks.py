"""The GPU benchmarks run where there is no GPU, too: rehearsed, or with a word on why not; and what
the others print."""

from __future__ import annotations

import ast
import importlib
import os
import re
import runpy
import sys
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
import pytest
import torch

from benchmarks.planted_faults import FAULTS
from tasks.contract import ROOT
from tests.model.oracles import toy_rows, write_rows, write_tokenizer
from tests.model.training.training import FORKS


def bench(name, *options):
    """As ``python -m`` runs it, in a fork of a process that has imported torch."""
    with TemporaryDirectory() as folder:
        said = [Path(folder) / stream for stream in ("stdout", "stderr")]
        process = FORKS.Process(target=_bench, args=(name, options, *said))
        process.start()
        process.join()
        return CompletedProcess([name, *options], process.exitcode, *(p.read_text() for p in said))


def _bench(name, options, *said):
    for number, path in enumerate(said, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = [name, *options]
    runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
@pytest.mark.parametrize("name", ["gpu_train", "gpu_decode", "gpu_objectives", "gpu_waits"])
def test_without_a_gpu_they_say_so(name, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(SystemExit, match=r"^There is no CUDA device here, so nothing was measured"):
        importlib.import_module(f"benchmarks.{name}").main()


def test_training_speed_is_a_table():
    done = bench("gpu_train", "--rehearse")
    assert done.returncode == 0, done.stderr
    row = done.stdout.splitlines()[-1].strip("| ").split(" | ")
    assert row[1:4] == ["64", "4", "no"] and float(row[5].rstrip("%")) > 0


def test_what_the_minutes_leave_undone_is_said():
    done = bench("gpu_objectives", "--rehearse", "--minutes", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("0 minutes are over; not measured: masked LM")


def test_what_is_spared_changes_no_loss():
    done = bench("gpu_objectives", "--rehearse")
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[3:]]
    assert [row[0] for row in rows] == [
        "masked LM, logits", "documents, blocks", "documents or none", "padded vocabulary",
    ]  # fmt: skip
    losses = {row[0]: [float(loss) for loss in row[4].split(", ")] for row in rows}
    for name in ("masked LM, logits", "documents, blocks"):
        assert losses[name][0] == pytest.approx(losses[name][1], abs=0.02)


def test_what_training_waits_for_is_switched_on_one_at_a_time():
    done = bench("gpu_waits", "--rehearse")
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[3:]]
    names = ["nothing", "batches", "memory", "figures", "what is kept"]
    assert [row[0] for row in rows] == names
    assert all(float(row[1].replace(",", "")) > 0 for row in rows)
    assert rows[0][2] == "1.000"


def test_decoding_gives_equal_texts():
    done = bench("gpu_decode", "--rehearse", "--prompts", "6")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"(\d+) of 6 texts equal", done.stdout)[:2] == ["6", "6"]


def test_the_real_run_leaves_its_log_and_says_where_the_loss_was_lowest(tmp_path):
    for split, rows, seed in (("train", 60, 1), ("validation", 12, 2)):
        (tmp_path / split).mkdir()
        write_rows(tmp_path / split / "00000.parquet", toy_rows(rows, 16, 40, seed=seed))
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json", 40)
    options = ["--packed", tmp_path, "--tokenizer", tokenizer, "--work", tmp_path / "work"]
    done = bench("gpu_run", "--rehearse", "--steps", "20", "--batch", "8", *map(str, options))
    assert done.returncode == 0, done.stderr
    assert re.search(r"lowest at step \d+ of 20: it (had not )?turned", done.stdout)
    assert "stopped" not in done.stdout
    assert pq.read_table(tmp_path / "work" / "log.parquet").num_rows == 20


def test_a_size_that_was_run_more_than_once_stands_with_its_median(tmp_path):
    """A real corpus, twice as large the second time, the stages of which take what they take."""
    words = "the harbour is full of lamps and every boat that comes in brings another one to hang"
    lines = [f"{words} in street {number}, {words[number % 40 :]}" for number in range(400)]
    (tmp_path / "letters.txt").write_text("\n\n".join(lines))
    given = ["--data", str(tmp_path), "--times", "1", "2", "1", "--until", "deduplicate"]
    out = bench("curation", *given).stdout
    runs = re.findall(r"^(\d+) documents, .*peak", out, re.M)
    assert runs == ["400", "800", "400"]
    head, *rows = out[out.index("stage ") :].splitlines()
    assert head.split() == ["stage", "x1", "x2", "growth"]
    assert [row.split()[0] for row in rows] == ["ingest", "deduplicate"]
    for row in rows:
        assert re.fullmatch(r"\w+ +\d+\.\ds +\d+\.\ds +\d+\.\d\d", row)


def test_growth_is_of_medians_over_bytes(capsys):
    from benchmarks.curation import print_table

    once = [[{"seconds": {"ingest": s}} for s in taken] for taken in ((1.0, 9.0, 2.0), (10.0, 8.0))]
    print_table({1: 100, 3: 300}, dict(zip((1, 3), once, strict=True)))
    assert capsys.readouterr().out.splitlines()[1].split() == ["ingest", "2.0s", "9.0s", "1.50"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_planted_where_the_code_stands(fault):
    """Once, and in a way that Python still reads."""
    text = (ROOT / fault.file).read_text()
    assert text.count(fault.right) == 1 and fault.wrong not in text
    ast.parse(text.replace(fault.right, fault.wrong))
