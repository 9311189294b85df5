"""Train a 124 M model on packed text on one GPU until its validation loss rises.

    hallmark run CONFIG --until pack           # where Hallmark is fully installed
    python -m benchmarks.gpu_run --packed FOLDER --tokenizer FILE --work FOLDER [--steps 3000]

FOLDER holds the tables train and validation of the stage ``pack``, FILE is the tokenizer.json. The
model is trained by ``hallmark.model.training.run`` (bf16, compiled), which is stopped after
--minutes; the same command continues the training. Prints the validation losses so far and the
lowest, and writes the log to log.parquet in the folder of --work. Unlike the other GPU benchmarks,
it needs the tokenizers library, as the trainer does.
"""

from __future__ import annotations

import argparse
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


def build_job(options: argparse.Namespace, device: str) -> dict[str, object]:
    """Build the trainer's job; vocabulary and context are read from the inputs."""
    vocab_size = Tokenizer.from_file(options.tokenizer).get_vocab_size()
    train_dataset = ds.dataset(options.packed / "train")
    context = train_dataset.schema.field("token_ids").type.list_size
    size = gpu.REHEARSAL_SIZE if options.rehearse else gpu.SIZES["124M"]
    train_config = {
        "steps": options.steps,
        "batch_size": options.batch,
        "warmup_steps": min(200, options.steps // 10),
        "learning_rate": 6e-4,
        "schedule": "cosine",
        "device": device,
        "compile": not options.rehearse,
        "validate_every": max(1, options.steps // 60),
        "validation_sequences": 512,
        "checkpoint_every": options.steps,
        "precision": "auto",
    }
    return {
        "model": {**size, "vocab_size": vocab_size, "context": context},
        "train": train_config,
        "data": {split: str(options.packed / split) for split in ("train", "validation")},
        "tokenizer": options.tokenizer,
        "work": str(options.work),
    }


def train_until(job_path: Path, max_seconds: float) -> int:
    """Run the trainer, and terminate it after some seconds.

    Returns:
        Its exit code; TERMINATED_EXIT_CODE if it was terminated.
    """
    trainer = subprocess.Popen([sys.executable, "-m", "hallmark.model.training.run", str(job_path)])
    try:
        return trainer.wait(timeout=max_seconds)
    except subprocess.TimeoutExpired:
        trainer.terminate()  # the trainer saves its state and ends
        return trainer.wait()


def main() -> None:
    parser = gpu.build_parser(__doc__ or "")
    parser.add_argument("--packed", type=Path, required=True, help="folder of the packed tables")
    parser.add_argument("--tokenizer", required=True, help="the tokenizer.json")
    parser.add_argument("--work", type=Path, required=True, help="folder of the training's state")
    parser.add_argument("--steps", type=int, default=3000, help="steps of the whole training")
    parser.add_argument("--batch", type=int, default=64, help="rows of a batch")
    options = parser.parse_args()
    device = gpu.choose_device(use_cpu=options.rehearse)
    print(gpu.describe_environment(device), flush=True)
    options.work.mkdir(parents=True, exist_ok=True)
    job_path = options.work / "job.json"
    job_path.write_text(json.dumps(build_job(options, device.type), indent=1), encoding="utf-8")
    exit_code = train_until(job_path, 60 * options.minutes)
    if exit_code not in (0, TERMINATED_EXIT_CODE):
        raise SystemExit(exit_code)
    log_files = sorted((options.work / "log").glob("*.parquet"))
    log = pa.concat_tables([pq.read_table(path) for path in log_files])
    pq.write_table(log, options.work / "log.parquet")
    rows = log.select(["step", "loss", "validation_bits_per_token"]).to_pylist()
    validated_rows = [row for row in rows if row["validation_bits_per_token"] is not None]
    for row in validated_rows:
        print(
            f"step {row['step']:>6}  loss {row['loss']:.4f}  "
            f"{row['validation_bits_per_token']:.4f} bits per validation token"
        )
    if not validated_rows:
        raise SystemExit(
            f"There was no validation in {rows[-1]['step']} steps. Run the same command again."
        )
    best_row = min(validated_rows, key=lambda row: row["validation_bits_per_token"])
    trend = "rose after it" if best_row is not validated_rows[-1] else "did not rise yet"
    print(f"lowest validation loss at step {best_row['step']} of {options.steps}; the loss {trend}")
    if exit_code:
        print(f"stopped after step {rows[-1]['step']}; run the same command again to continue")


if __name__ == "__main__":
    main()
