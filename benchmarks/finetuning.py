"""Tasks learnt by our own models, by the commands that a user has.

    python -m benchmarks.finetuning FOLDER [--steps 600]

The text is of benchmarks/toy_language.py. Two encoder-decoders learn from scratch to translate and
to summarise, a decoder as a prefix LM to translate; an encoder that was pretrained on unlabelled
sentences learns to say which of two is the bigger and what part of speech each word is, from all
weights and from frozen features, and from scratch. Prints a table, and examples of the test split,
and leaves in FOLDER a picture of what each word of a translation attends to in its source.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import toy_language
from hallmark import open_artifact, open_run
from hallmark.tasks.contract import Artifact

SENTENCES, STORIES, LABELLED = 4000, 4000, 400

CORPUS = """name = "toy"

[[ingest.sources]]
kind = "jsonl"
name = "toy"
path = "{folder}/corpus.jsonl"

[train_tokenizer]
vocab_size = 512
objective = "{tokens}"

[pack]
context = 64

[pretrain.model]
d_model = 96
n_layers = 3
n_heads = 4
architecture = "{architecture}"

[pretrain.train]
objective = "{objective}"
steps = {steps}
batch_size = 32
learning_rate = 2e-3
warmup_steps = {warmup}
checkpoint_every = 100000
validate_every = 200
sample_count = 0
"""

MODELS = {
    "encoder": "mlm",
    "encoder_decoder": "span_corruption",
    "decoder": "prefix",
}

#: name, architecture, the step it begins with ("" is the last), task, data, weights
TASKS: list[tuple[str, str, str, str, str, str]] = [
    ("translation", "encoder_decoder", "@0", 'kind = "pairs"', "pairs.csv", "all"),
    ("translation, prefix LM", "decoder", "@0", 'kind = "pairs"', "pairs.csv", "all"),
    ("summarisation", "encoder_decoder", "@0", 'kind = "pairs"', "stories.jsonl", "all"),
    ("who is bigger", "encoder", "", 'kind = "classification"', "bigger.csv", "all"),
    ("who is bigger, frozen", "encoder", "", 'kind = "classification"', "bigger.csv", "head"),
    (
        "who is bigger, from scratch",
        "encoder",
        "@0",
        'kind = "classification"',
        "bigger.csv",
        "all",
    ),
    ("part of speech", "encoder", "", 'kind = "labelling"', "words.parquet", "all"),
    ("part of speech, frozen", "encoder", "", 'kind = "labelling"', "words.parquet", "head"),
    ("part of speech, from scratch", "encoder", "@0", 'kind = "labelling"', "words.parquet", "all"),
]


#: By what more steps than other tasks these need to be learnt: at half of them what comes out moves
#: with the rounding.
LONGER = {"pairs.csv": 2, "stories.jsonl": 4}


def write_data(folder: Path) -> None:
    """Unlabelled text in documents of a few sentences, and the tables of the tasks."""
    toy = toy_language.sentences(SENTENCES + 8000, 1)
    told, plain = toy[:SENTENCES], [s.text() for s in toy[SENTENCES:]]
    random.Random(2).shuffle(plain)
    texts = [" . ".join(plain[i : i + 8]) + " ." for i in range(0, len(plain), 8)]
    texts += [s.toy() for s in toy[SENTENCES : SENTENCES + 300]]
    with (folder / "corpus.jsonl").open("w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    with (folder / "pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["source", "target"], *((s.text(), s.toy()) for s in told)])
    with (folder / "stories.jsonl").open("w") as file:
        for text, summary in toy_language.stories(STORIES, 3):
            file.write(json.dumps({"source": text, "target": summary}) + "\n")
    # Few labels to learn from, many to test on.
    with (folder / "bigger.csv").open("w", newline="") as file:
        rows = [["text", "label"], *((s.text(), s.bigger()) for s in told[: 3 * LABELLED])]
        csv.writer(file).writerows(rows)
    rows = [s.words() for s in told[: 3 * LABELLED]]
    columns = {
        "words": [[w for w, _ in r] for r in rows],
        "labels": [[t for _, t in r] for r in rows],
    }
    pq.write_table(pa.table(columns), folder / "words.parquet")


def hallmark(folder: Path, *arguments: str) -> str:
    """Run a command; returns the id of its run."""
    command = [
        sys.executable,
        "-m",
        "hallmark.flows.cli",
        *arguments,
        "--store",
        str(folder / "store"),
    ]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return str(json.loads(done.stdout)["run"])


def pretrain(folder: Path, architecture: str, steps: int) -> str:
    objective = MODELS[architecture]
    tokens = objective if objective != "prefix" else "causal"
    config = folder / f"{architecture}.toml"
    config.write_text(
        CORPUS.format(
            folder=folder,
            tokens=tokens,
            architecture=architecture,
            objective=objective,
            steps=steps,
            warmup=steps // 10,
        )
    )
    return hallmark(folder, "run", str(config), "--until", "pretrain")


def finetune(
    folder: Path, checkpoint: str, task: str, data: str, weights: str, steps: int
) -> tuple[Any, float]:
    """The artifact of a fine-tuning, and its seconds."""
    config = folder / "task.toml"
    few = "pairs" not in task  # labels are dear: most are for the test
    rate = 1e-2 if weights == "head" else 2e-3
    config.write_text(
        f'name = "task"\n[finetune]\ntrained_weights = "{weights}"\n[finetune.task]\n{task}\n'
        f'[finetune.data]\npath = "{folder / data}"\ntest_share = {0.6 if few else 0.1}\n'
        f"validation_share = 0.05\n"
        f"[finetune.train]\nsteps = {steps}\nlearning_rate = {rate}\n"
        f"validate_every = 200\ncheckpoint_every = 100000\n"
    )
    start = time.monotonic()
    run = hallmark(folder, "finetune", checkpoint, "--config", str(config))
    return open_run(run, str(folder / "store"))["finetune"], time.monotonic() - start


def draw_cross_attention(store: Path, made: Artifact, picture: Path) -> None:
    """What each token of a translation, the first of the test split, attends to in its source: the
    mean over heads, a panel for each layer."""
    import matplotlib
    from matplotlib.figure import Figure
    from tokenizers import Tokenizer

    from hallmark.model.decoding.activations import extract_attention_weights
    from hallmark.model.interchange.checkpoint import load_checkpoint
    from hallmark.model.special_tokens import END_OF_TEXT_ID

    last = made["checkpoints"].read().to_pylist()[-1]
    folder = Path(open_artifact(last["artifact"], str(store)).fetch_directory())
    row = made["predictions"].read().to_pylist()[0]
    with (store.parent / row["file_name"]).open(newline="") as file:
        source_text = list(csv.DictReader(file))[row["row_number"] - 1]["source"]
    words = Tokenizer.from_file(str(folder / "tokenizer.json"))
    source, target = (
        words.encode(t, add_special_tokens=False) for t in (source_text, row["predicted"])
    )
    # A token's attention is that by which it is chosen: of the token before it.
    reads = [END_OF_TEXT_ID, *target.ids]
    weights = extract_attention_weights(load_checkpoint(folder), reads, source=source.ids)["cross"]
    with matplotlib.rc_context({"font.size": 8}):
        figure = Figure(figsize=(3.2 * len(weights), 3.6), layout="constrained")
        panels = figure.subplots(1, len(weights), squeeze=False)[0]
        spelled = [
            [words.decode([i]).strip() or "·" for i in ids] for ids in (source.ids, target.ids)
        ]
        for layer, (panel, heads) in enumerate(zip(panels, weights, strict=True), 1):
            panel.imshow(heads.mean(0), cmap="Blues", vmin=0, vmax=1)
            panel.set_title(f"layer {layer}, mean of {len(heads)} heads")
            panel.set_xticks(range(len(source.ids)), spelled[0], rotation=90)
            panel.set_yticks(range(len(reads)), [*spelled[1], "(end)"])
        figure.savefig(picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    write_data(folder)
    runs = {
        kind: pretrain(folder, kind, arguments.steps if kind == "encoder" else 1) for kind in MODELS
    }
    print("| task | metric | system | value | 95 % interval | n | seconds |")
    print("|---|---|---|---|---|---|---|")
    examples = []
    for name, kind, step, task, data, weights in TASKS:
        steps = arguments.steps * LONGER.get(data, 1)
        made, seconds = finetune(folder, runs[kind] + step, task, data, weights, steps)
        for row in made["scores"].read().to_pylist():
            if not row["slice"]:
                between = "" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}"
                print(
                    f"| {name} | {row['metric']} | {row['system']} | {row['value']:.3f} | "
                    f"{between} | {row['n']} | {seconds:.0f} |",
                    flush=True,
                )
        if name == "translation":
            draw_cross_attention(folder / "store", made, folder / "cross-attention.svg")
        shown = made["predictions"].read().to_pylist()[:3]
        examples += [f"- {name}: *{r['gold']}*, given: *{r['predicted']}*" for r in shown]
    print("\nExamples, the first three rows of each test split:\n")
    print("\n".join(examples))


if __name__ == "__main__":
    main()
