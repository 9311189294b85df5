"""A real run on one GPU: a 124 M model on packed text, to the point where validation loss turns.

    hallmark run CONFIG --until pack           # where Hallmark is installed whole
    python -m benchmarks.gpu_run --packed FOLDER --tokenizer FILE --work FOLDER [--steps 3000]

FOLDER holds the tables train and validation of the ``pack`` stage, FILE is the tokenizer.json.
Trains by ``hallmark.model.training.run`` (bf16, compiled), which is stopped after --minutes, and
goes on where it was stopped when called again; prints the validation losses so far and the lowest,
and leaves the log as log.parquet in the work folder. Unlike the other GPU programs it needs the
tokenizers library, as the trainer does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks import gpu

# isort: split
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from hallmark.model.training.job import TERMINATED_EXIT_CODE


def job_of(options: object, device: str) -> dict[str, object]:
    """The trainer's job; vocabulary and context are read from the inputs."""
    packed, tokenizer = Path(options.packed), options.tokenizer  # type: ignore[attr-defined]
    vocabulary = Tokenizer.from_file(tokenizer).get_vocab_size()
    context = ds.dataset(packed / "train").schema.field("token_ids").type.list_size
    rehearse = options.rehearse  # type: ignore[attr-defined]
    sizes = {**(gpu.SMALL if rehearse else gpu.SIZES["124M"]), "vocab_size": vocabulary}
    steps = options.steps  # type: ignore[attr-defined]
    train = {
        "steps": steps,
        "batch_size": options.batch,
        "warmup_steps": min(200, steps // 10),  # type: ignore[attr-defined]
        "learning_rate": 6e-4,
        "schedule": "cosine",
        "device": device,
        "compile": not rehearse,
        "validate_every": max(1, steps // 60),
        "validation_sequences": 512,
        "checkpoint_every": steps,
        "precision": "auto",
    }
    data = {split: str(packed / split) for split in ("train", "validation")}
    return {
        "model": {**sizes, "context": context},
        "train": train,
        "data": data,
        "tokenizer": tokenizer,
        "work": options.work,  # type: ignore[attr-defined]
    }


def train(job: Path, seconds: float) -> int:
    """The trainer's exit code; TERMINATED where it was stopped after so many seconds."""
    trainer = subprocess.Popen([sys.executable, "-m", "hallmark.model.training.run", str(job)])
    try:
        return trainer.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        trainer.terminate()  # it keeps its state, and ends
        return trainer.wait()


def main() -> None:
    parser = gpu.parser(__doc__ or "")
    for name in ("packed", "tokenizer", "work"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args()
    device = gpu.device_of(options.rehearse)
    print(gpu.headline(device), flush=True)
    work = Path(options.work)
    work.mkdir(parents=True, exist_ok=True)
    job = work / "job.json"
    job.write_text(json.dumps(job_of(options, device.type), indent=1), encoding="utf-8")
    code = train(job, 60 * options.minutes)
    if code not in (0, TERMINATED_EXIT_CODE):
        raise SystemExit(code)
    log = pa.concat_tables([pq.read_table(p) for p in sorted((work / "log").glob("*.parquet"))])
    pq.write_table(log, work / "log.parquet")
    rows = log.select(["step", "loss", "validation_bits_per_token"]).to_pylist()
    measured = [row for row in rows if row["validation_bits_per_token"] is not None]
    for row in measured:
        print(
            f"step {row['step']:>6}  loss {row['loss']:.4f}  "
            f"{row['validation_bits_per_token']:.4f} bits per validation token"
        )
    if not measured:
        raise SystemExit(f"Nothing was validated in {rows[-1]['step']} steps: call it again.")
    best = min(measured, key=lambda row: row["validation_bits_per_token"])
    turned = "it turned" if best is not measured[-1] else "it had not turned at the end"
    print(f"lowest at step {best['step']} of {options.steps}: {turned}")
    if code:
        print(f"stopped behind step {rows[-1]['step']}: the same command goes on from there")


if __name__ == "__main__":
    main()
