"""Small trainings in processes of their own, and how two of them are compared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds

from model.training.trainer import LOG_SCHEMA, TIMING_COLUMNS

ROOT = Path(__file__).resolve().parents[3]
MODEL = {"vocab_size": 40, "context": 16, "d_model": 32, "n_layers": 2, "n_heads": 2}
TRAIN = {
    "steps": 40,
    "batch_size": 8,
    "warmup": 4,
    "learning_rate": 0.01,
    "checkpoint_every": 10,
    "validate_every": 15,
    "device": "cpu",
    "threads": 1,
}


def write_job(inputs, work, name="job", model=None, **train):
    job = {
        "model": {**MODEL, **(model or {})},
        "train": {**TRAIN, **train},
        "data": {
            "train": str(inputs / "train.parquet"),
            "validation": str(inputs / "validation.parquet"),
        },
        "tokenizer": str(inputs / "tokenizer.json"),
        "work": str(work),
    }
    path = work.parent / f"{work.name}-{name}.json"
    path.write_text(json.dumps(job))
    return path


def start(job):
    return subprocess.Popen(
        [sys.executable, "-m", "model.training.train", str(job), "--watch-stdin"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """Wait for the trainer; returns (exit code, events). Its stdin stays open to the end."""
    events = [json.loads(line) for line in process.stdout]
    code = process.wait(timeout=60)
    assert "Traceback" not in process.stderr.read()
    return code, events


def run(job):
    return finish(start(job))


def follow(process, wanted):
    """Read events until ``wanted(event)``; returns it."""
    for line in process.stdout:
        event = json.loads(line)
        if wanted(event):
            return event
    raise AssertionError(f"the trainer ended early: {process.stderr.read()}")


def log(work, columns=None):
    files = sorted(map(str, (work / "log").glob("*.parquet")))
    return ds.dataset(files).to_table(columns=columns)


CONTENT = [name for name in LOG_SCHEMA.names if name not in TIMING_COLUMNS]


def assert_same_run(work, reference):
    assert log(work, CONTENT).equals(log(reference, CONTENT))
    for name in ("validation", "samples"):
        one, other = (ds.dataset(w / name).to_table() for w in (work, reference))
        assert one.num_rows and one.equals(other)
    names = [sorted(p.name for p in (w / "checkpoints").iterdir()) for w in (work, reference)]
    assert names[0] == names[1]
    for name in names[0]:
        for file in ("model.safetensors", "config.json"):
            one, other = (w / "checkpoints" / name / file for w in (work, reference))
            assert one.read_bytes() == other.read_bytes()
