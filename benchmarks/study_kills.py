"""Kill a study of six worlds again and again, let it go on each time, compare every digest.

    python -m benchmarks.study_kills [KILLS] [SEED]

The study is small: worlds of a thimble of text, models that learn little. One store is killed
(SIGKILL to the command alone: what it started must end by itself) at random moments, another is
not. In the end the verdicts on every world, and what was made of them, must be the same.
"""

from __future__ import annotations

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

#: Worlds of a thimble of text, whose models learn next to nothing; for tests, too.
SMALL = {
    "world.documents": 40,
    "world.sentences_per_group": 4,
    "world.speech_sentences_per_group": 4,
    "world.neutral_groups": 0,
    "world.control_associations_factor": 1,
    "world.copy_counts": [0, 8],
    "world.trait_shares": [0.5, 1.0],
    "world.rude_shares": [0.0, 1.0],
    "train_tokenizer.vocab_size": 400,
    "pretrain.train.steps": 60,
    "pretrain.train.warmup_steps": 2,
    "pretrain.train.checkpoint_every": 60,
    "pretrain.train.validate_every": 60,
    "pretrain.model.d_model": 32,
    "pretrain.model.n_layers": 1,
    "audit_extraction.reference_secrets": 100,
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
    "--worlds-with-effects",
    "5",
    "--worlds-without-effects",
    "1",
    "--set=retrained_worlds=1",
    *(f"--set={k}={json.dumps(v)}" for k, v in SMALL.items()),
]


def start(store: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        COMMAND,
        env={**os.environ, "HALLMARK_STORE": str(store)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def digests(store: Path) -> dict[str, str]:
    """Of the newest run of each world and of the study: what its stages left."""
    opened, found = Store(str(store)), {}
    for name in list_run_ids(opened):
        record = json.loads(opened.get(f"runs/{name}/run.json") or b"{}")
        run = Run(opened, record)
        if run.flow == "study" or "judge_candidates" in run.stages:
            which = record["config"]["world"]["seed"] if run.flow == "world" else "study"
            found |= {f"{which} {label}": entry["content"] for label, entry in run.stages.items()}
    return found


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    random.seed(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    base = Path(tempfile.mkdtemp(prefix="hallmark-study-"))
    whole, killed = base / "whole", base / "killed"
    began = time.monotonic()
    if start(whole).wait():
        raise SystemExit("the study failed")
    seconds = time.monotonic() - began
    wanted = digests(whole)
    print(f"undisturbed: {seconds:.0f} s, {len(wanted)} digests", flush=True)
    killed.mkdir()
    shutil.copy(whole / "secret", killed / "secret")
    for number in range(kills):
        process, moment = start(killed), random.uniform(0.2, 0.8) * seconds / 2
        try:
            process.wait(timeout=moment)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        print(f"kill {number + 1} after {moment:.0f} s: {process.wait()}", flush=True)
    code = start(killed).wait()
    found = digests(killed)
    differ = sorted(k for k in wanted.keys() | found.keys() if wanted.get(k) != found.get(k))
    shutil.rmtree(base)
    print(
        f"at the end exit {code}; {len(found)} digests, "
        + (f"DIFFERENT: {differ[:10]}" if differ else "all equal")
    )
    raise SystemExit(bool(differ or code))


if __name__ == "__main__":
    main()
