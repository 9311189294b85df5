"""lm-evaluation-harness over local files: MODEL DTYPE TASKS ANSWERS, in its own environment.

TASKS is a folder with a YAML file a task; ANSWERS gets, by task, the log-likelihoods of each
document's choices, in the documents' order.
"""

import json
import sys
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager


def main(folder: str, dtype: str, tasks: str, answers: str) -> None:
    names = sorted(path.stem for path in Path(tasks).glob("*.yaml"))
    found = lm_eval.simple_evaluate(
        model="hf",
        model_args=f"pretrained={folder},dtype={dtype},max_length=512",
        tasks=names,
        task_manager=TaskManager(include_path=tasks, include_defaults=False),
        batch_size=32,
        device="cpu",
        log_samples=True,
        bootstrap_iters=0,
    )
    told = {}
    for name in names:
        samples = sorted(found["samples"][name], key=lambda sample: sample["doc_id"])
        told[name] = [[float(choice[0][0]) for choice in s["resps"]] for s in samples]
    Path(answers).write_text(json.dumps({"version": lm_eval.__version__, "answers": told}))


if __name__ == "__main__":
    main(*sys.argv[1:])
