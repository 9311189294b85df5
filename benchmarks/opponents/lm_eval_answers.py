"""Compute log-likelihoods of local files with lm-evaluation-harness, for ``benchmarks.harness``.

    python lm_eval_answers.py MODEL DTYPE TASKS RESULTS

It runs in its own environment. TASKS is a folder with one YAML file for each task. RESULTS gets,
for each task, the log-likelihoods of each document's choices, in the order of the documents.
"""

import json
import sys
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager


def main(model_folder: str, dtype: str, tasks_folder: str, results_path: str) -> None:
    names = sorted(path.stem for path in Path(tasks_folder).glob("*.yaml"))
    evaluation = lm_eval.simple_evaluate(
        model="hf",
        model_args=f"pretrained={model_folder},dtype={dtype},max_length=512",
        tasks=names,
        task_manager=TaskManager(include_path=tasks_folder, include_defaults=False),
        batch_size=32,
        device="cpu",
        log_samples=True,
        bootstrap_iters=0,
    )
    log_likelihoods = {}
    for name in names:
        samples = sorted(evaluation["samples"][name], key=lambda sample: sample["doc_id"])
        log_likelihoods[name] = [[float(choice[0][0]) for choice in s["resps"]] for s in samples]
    results = {"version": lm_eval.__version__, "log_likelihoods": log_likelihoods}
    Path(results_path).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
