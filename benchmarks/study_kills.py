"""Kill a study of six trials several times, continue it each time, and compare all digests.

    python -m benchmarks.study_kills [KILLS] [SEED]

The study is small: its trials have little text, and their models learn little. One study is not
disturbed. Another, with its own store, is killed at random moments: SIGKILL to the command alone,
whose child processes must end by themselves. At the end both must have the same verdicts on every
trial, and the same results of the study.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hallmark.flows.runs import Run, list_run_ids
from hallmark.tasks.contract import Store

#: Settings of trials with little text, whose models learn almost nothing. Tests use them, too. Of
#: 120 documents, none is in the validation split in 2 of 1,000 trials.
SMALL_TRIAL = {
    "synthetic_corpus.documents": 120,
    "synthetic_corpus.sentences_per_group": 4,
    "synthetic_corpus.speech_sentences_per_group": 4,
    "synthetic_corpus.neutral_groups": 0,
    "synthetic_corpus.control_associations_factor": 1,
    "synthetic_corpus.copy_counts": [0, 8],
    "synthetic_corpus.trait_shares": [0.5, 1.0],
    "synthetic_corpus.rude_shares": [0.0, 1.0],
    "synthetic_corpus.negative_shares": [0.0, 1.0],
    "train_tokenizer.vocab_size": 400,
    "pretrain.train.steps": 60,
    "pretrain.train.warmup_steps": 2,
    "pretrain.train.checkpoint_every": 60,
    "pretrain.train.validate_every": 60,
    "pretrain.model.d_model": 32,
    "pretrain.model.n_layers": 1,
    "audit_extraction.reference_secrets": 160,
    "audit_extraction.max_windows": 2,
    "audit_associations.unplanted_sentences": 2,
    "audit_counterfactual.grammar_prompts": 2,
    "audit_counterfactual.continuations_per_prompt": 1,
    "audit_counterfactual.max_new_tokens": 2,
    "audit_counterfactual.permutations": 99,
    "full_audits.grammar_sentences": 3,
    "full_audits.reference_secrets_factor": 2,
    "full_audits.stride_tokens": 16,
}

COMMAND = [
    sys.executable,
    "-m",
    "hallmark.flows.cli",
    "study",
    "--name",
    "killed",
    "--trials-with-effects",
    "5",
    "--trials-without-effects",
    "1",
    "--set=retrained_trials=1",
    *(f"--set={k}={json.dumps(v)}" for k, v in SMALL_TRIAL.items()),
]


def start_study(store: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        COMMAND,
        env={**os.environ, "HALLMARK_STORE": str(store)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def collect_digests(folder: Path) -> dict[str, str]:
    """Collect the content digests of the stages of the study and of each trial's newest run."""
    store, digests = Store(str(folder)), {}
    for run_id in list_run_ids(store):
        record = json.loads(store.get(f"runs/{run_id}/run.json") or b"{}")
        run = Run(store, record)
        if run.flow == "study" or "judge_candidates" in run.stages:
            title = record["config"]["synthetic_corpus"]["seed"] if run.flow == "trial" else "study"
            digests |= {f"{title} {label}": stage["content"] for label, stage in run.stages.items()}
    return digests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kills", nargs="?", type=int, default=5)
    parser.add_argument("seed", nargs="?", type=int, default=0)
    options = parser.parse_args()
    random.seed(options.seed)
    folder = Path(tempfile.mkdtemp(prefix="hallmark-study-"))
    undisturbed, killed = folder / "undisturbed", folder / "killed"
    start = time.monotonic()
    if start_study(undisturbed).wait():
        raise SystemExit("the study failed")
    seconds = time.monotonic() - start
    expected = collect_digests(undisturbed)
    print(f"undisturbed: {seconds:.0f} s, {len(expected)} digests", flush=True)
    killed.mkdir()
    shutil.copy(undisturbed / "secret", killed / "secret")
    for number in range(options.kills):
        process, moment = start_study(killed), random.uniform(0.2, 0.8) * seconds / 2
        try:
            process.wait(timeout=moment)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        print(f"kill {number + 1} after {moment:.0f} s: exit code {process.wait()}", flush=True)
    exit_code = start_study(killed).wait()
    digests = collect_digests(killed)
    different = sorted(
        k for k in expected.keys() | digests.keys() if expected.get(k) != digests.get(k)
    )
    shutil.rmtree(folder)
    print(
        f"last run: exit code {exit_code}; {len(digests)} digests, "
        + (f"DIFFERENT: {different[:10]}" if different else "all equal")
    )
    raise SystemExit(bool(different or exit_code))


if __name__ == "__main__":
    main()
