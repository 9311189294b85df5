"""Fine-tune Hallmark's own models on several tasks, with the commands that a user has.

    python -m benchmarks.finetuning FOLDER [--steps 600]

The text comes from benchmarks/toy_language.py. An encoder-decoder learns from random weights to
translate and to summarise; a decoder learns as a prefix LM to translate. An encoder that was
pretrained on unlabelled sentences learns which of two animals is bigger and the part of speech of
each word: with all weights trained, with frozen features, and from random weights. Prints a table
and examples of the test split, and writes a figure of the attention of a translation's tokens to
its source into FOLDER.
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
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import toy_language
from hallmark import open_artifact, open_run
from hallmark.tasks.contract import Artifact

SENTENCE_COUNT, STORY_COUNT, LABELLED_COUNT = 4000, 4000, 1200
UNLABELLED_COUNT, UNLABELLED_TRANSLATION_COUNT = 8000, 300

CORPUS = """name = "toy"

[[ingest.sources]]
kind = "jsonl"
name = "toy"
path = "{folder}/corpus.jsonl"

[train_tokenizer]
vocab_size = 512
objective = "{tokenizer_objective}"

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

OBJECTIVE_BY_ARCHITECTURE = {
    "encoder": "mlm",
    "encoder_decoder": "span_corruption",
    "decoder": "prefix",
}

PAIRS, CLASSIFICATION, LABELLING = (
    f'kind = "{kind}"' for kind in ("pairs", "classification", "labelling")
)


class Task(NamedTuple):
    """A fine-tuning."""

    name: str
    architecture: str
    task: str
    """Settings of the task."""
    data: str
    """File of the rows."""
    pretrained: bool = False
    """Whether it starts with pretrained weights instead of random ones."""
    trained_weights: str = "all"
    step_factor: int = 1
    """Multiple of the usual steps: with half of these the scores depend on rounding."""


TASKS = [
    Task("translation", "encoder_decoder", PAIRS, "pairs.csv", step_factor=2),
    Task("translation, prefix LM", "decoder", PAIRS, "pairs.csv", step_factor=2),
    Task("summarisation", "encoder_decoder", PAIRS, "stories.jsonl", step_factor=4),
    Task("bigger animal", "encoder", CLASSIFICATION, "bigger.csv", pretrained=True),
    Task(
        "bigger animal, frozen",
        "encoder",
        CLASSIFICATION,
        "bigger.csv",
        pretrained=True,
        trained_weights="head",
    ),
    Task("bigger animal, from scratch", "encoder", CLASSIFICATION, "bigger.csv"),
    Task("part of speech", "encoder", LABELLING, "words.parquet", pretrained=True),
    Task(
        "part of speech, frozen",
        "encoder",
        LABELLING,
        "words.parquet",
        pretrained=True,
        trained_weights="head",
    ),
    Task("part of speech, from scratch", "encoder", LABELLING, "words.parquet"),
]


def write_data(folder: Path) -> None:
    """Write unlabelled text in documents of a few sentences, and the tables of the tasks."""
    all_sentences = toy_language.generate_sentences(SENTENCE_COUNT + UNLABELLED_COUNT, 1)
    sentences, unlabelled = all_sentences[:SENTENCE_COUNT], all_sentences[SENTENCE_COUNT:]
    plain = [sentence.to_text() for sentence in unlabelled]
    random.Random(2).shuffle(plain)
    texts = [" . ".join(plain[i : i + 8]) + " ." for i in range(0, len(plain), 8)]
    texts += [sentence.translate() for sentence in unlabelled[:UNLABELLED_TRANSLATION_COUNT]]
    with (folder / "corpus.jsonl").open("w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    with (folder / "pairs.csv").open("w", newline="") as file:
        rows = [["source", "target"], *([s.to_text(), s.translate()] for s in sentences)]
        csv.writer(file).writerows(rows)
    with (folder / "stories.jsonl").open("w") as file:
        for story in toy_language.generate_stories(STORY_COUNT, 3):
            file.write(json.dumps({"source": story.text, "target": story.summary}) + "\n")
    labelled = sentences[:LABELLED_COUNT]
    with (folder / "bigger.csv").open("w", newline="") as file:
        rows = [["text", "label"], *([s.to_text(), s.name_bigger_role()] for s in labelled)]
        csv.writer(file).writerows(rows)
    tagged_sentences = [sentence.tag_words() for sentence in labelled]
    columns = {
        "words": [[word for word, _ in tagged] for tagged in tagged_sentences],
        "labels": [[tag for _, tag in tagged] for tagged in tagged_sentences],
    }
    pq.write_table(pa.table(columns), folder / "words.parquet")


def run_hallmark(folder: Path, *arguments: str) -> str:
    """Run a command with the store in this folder, and return the id of its run."""
    store = str(folder / "store")
    command = [sys.executable, "-m", "hallmark.flows.cli", *arguments, "--store", store, "--json"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(result.stderr)
    return str(json.loads(result.stdout)["run"])


def pretrain(folder: Path, architecture: str, steps: int) -> str:
    """Pretrain a model on the unlabelled text, and return the id of its run."""
    objective = OBJECTIVE_BY_ARCHITECTURE[architecture]
    config = folder / f"{architecture}.toml"
    config.write_text(
        CORPUS.format(
            folder=folder,
            tokenizer_objective="causal" if objective == "prefix" else objective,
            architecture=architecture,
            objective=objective,
            steps=steps,
            warmup=steps // 10,
        )
    )
    return run_hallmark(folder, "run", str(config), "--until", "pretrain")


class Finetuning(NamedTuple):
    """The result of a fine-tuning."""

    artifact: Artifact
    seconds: float


def finetune(folder: Path, checkpoint: str, task: Task, steps: int) -> Finetuning:
    """Fine-tune a checkpoint on a task."""
    config = folder / "task.toml"
    # Where labels are expensive, most rows are for the test.
    test_share = 0.1 if task.task == PAIRS else 0.6
    learning_rate = 1e-2 if task.trained_weights == "head" else 2e-3
    config.write_text(
        f'name = "task"\n[finetune]\ntrained_weights = "{task.trained_weights}"\n'
        f"[finetune.task]\n{task.task}\n"
        f'[finetune.data]\npath = "{folder / task.data}"\ntest_share = {test_share}\n'
        f"validation_share = 0.05\n"
        f"[finetune.train]\nsteps = {steps}\nlearning_rate = {learning_rate}\n"
        f"validate_every = 200\ncheckpoint_every = 100000\n"
    )
    start = time.monotonic()
    run = run_hallmark(folder, "finetune", checkpoint, "--config", str(config))
    artifact = open_run(run, str(folder / "store"))["finetune"]
    return Finetuning(artifact, time.monotonic() - start)


def draw_cross_attention(store: Path, finetuned: Artifact, picture: Path) -> None:
    """Draw the attention of each token of a translation to its source.

    The translation is the first of the test split. There is a panel for each layer, with the mean
    over heads.

    Args:
        store: Folder of the store; the file of the rows is next to it.
        finetuned: The artifact of the fine-tuning.
        picture: The file that is written.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from tokenizers import Tokenizer

    from hallmark.model.decoding.activations import extract_attention_weights
    from hallmark.model.interchange.checkpoint import load_checkpoint
    from hallmark.model.special_tokens import END_OF_TEXT_ID

    checkpoint = finetuned["checkpoints"].read().to_pylist()[-1]
    artifact = open_artifact(checkpoint["artifact"], str(store))
    folder = Path(artifact.fetch_directory())
    row = finetuned["predictions"].read().to_pylist()[0]
    with (store.parent / row["file_name"]).open(newline="") as file:
        source_text = list(csv.DictReader(file))[row["row_number"] - 1]["source"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    source, target = (
        tokenizer.encode(t, add_special_tokens=False) for t in (source_text, row["predicted"])
    )
    # The attention that selects a token is that of the position before it.
    input_ids = [END_OF_TEXT_ID, *target.ids]
    model = load_checkpoint(folder)
    weights = extract_attention_weights(model, input_ids, source=source.ids)["cross"]
    with matplotlib.rc_context({"font.size": 8}):
        figure = Figure(figsize=(3.2 * len(weights), 3.6), layout="constrained")
        panels = figure.subplots(1, len(weights), squeeze=False)[0]
        token_texts = [
            [tokenizer.decode([i]).strip() or "·" for i in ids] for ids in (source.ids, target.ids)
        ]
        for layer, (panel, heads) in enumerate(zip(panels, weights, strict=True), 1):
            panel.imshow(heads.mean(0), cmap="Blues", vmin=0, vmax=1)
            panel.set_title(f"layer {layer}, mean of {len(heads)} heads")
            panel.set_xticks(range(len(source.ids)), token_texts[0], rotation=90)
            panel.set_yticks(range(len(input_ids)), [*token_texts[1], "(end)"])
        figure.savefig(picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="folder of data, store and figure")
    parser.add_argument("--steps", type=int, default=600, help="steps of most trainings")
    options = parser.parse_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    write_data(folder)
    run_by_architecture = {
        architecture: pretrain(
            folder, architecture, options.steps if architecture == "encoder" else 1
        )
        for architecture in OBJECTIVE_BY_ARCHITECTURE
    }
    print("| task | metric | system | value | 95 % interval | n | seconds |")
    print("|---|---|---|---|---|---|---|")
    examples = []
    for task in TASKS:
        checkpoint = run_by_architecture[task.architecture] + ("" if task.pretrained else "@0")
        finetuning = finetune(folder, checkpoint, task, options.steps * task.step_factor)
        for row in finetuning.artifact["scores"].read().to_pylist():
            if not row["slice"]:
                interval = "" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}"
                print(
                    f"| {task.name} | {row['metric']} | {row['system']} | {row['value']:.3f} | "
                    f"{interval} | {row['n']} | {finetuning.seconds:.0f} |",
                    flush=True,
                )
        if task.name == "translation":
            draw_cross_attention(
                folder / "store", finetuning.artifact, folder / "cross-attention.svg"
            )
        first_rows = finetuning.artifact["predictions"].read().to_pylist()[:3]
        examples += [
            f"- {task.name}: expected *{row['gold']}*, predicted *{row['predicted']}*"
            for row in first_rows
        ]
    print("\nExamples, the first three rows of each test split:\n")
    print("\n".join(examples))


if __name__ == "__main__":
    main()
