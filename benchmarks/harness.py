"""Log-likelihoods item by item beside lm-evaluation-harness: the same small model, the same files.

    python -m benchmarks.harness --data FOLDER --python ITS_PYTHON [--limit N]

FOLDER holds CrowS-Pairs, Winogender and BBQ (crows_pairs_anonymized.csv, winogender_sentences.tsv,
bbq_age.jsonl.gz); ITS_PYTHON is the interpreter of an environment with lm_eval 0.4 (``pip install
"lm_eval[hf]"``). A random model of two layers is exported as GPT-2 and as Llama. The harness reads
the files through its multiple choice task, and Hallmark asks what its probes ask, behind the same
begin-of-text token. In float64 the model is run by hand over the probes' requests, in float32 as an
audit does. Prints, by set, how many texts were compared, the largest difference, and on how many
items both prefer the same.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from hallmark.model.architecture import Transformer
from hallmark.model.batch import Batch
from hallmark.model.config import ModelConfig
from hallmark.model.interchange.checkpoint import save_checkpoint
from hallmark.model.interchange.transformers_checkpoint import export_transformers
from hallmark.tasks.audits.audit_tables import RequestBuilder
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.probe import CorpusTables
from hallmark.tasks.audits.probes import bbq, bias, winogender

OPPONENT = Path(__file__).parent / "opponents/lm_eval_answers.py"
BEGIN = "<|endoftext|>"
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"activation": "gelu_tanh"},
    "llama": {"norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "bias": False},
}

TASK = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {path}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: 0
target_delimiter: "{delimiter}"
metric_list:
  - metric: acc
"""

Choices = tuple[str, list[str]]


def read_files(data: Path, limit: int | None) -> dict[str, list[Choices]]:
    """By set the context and the choices of each item, as its own files say it: read here and not
    by the probes."""
    with (data / "crows_pairs_anonymized.csv").open(newline="", encoding="utf-8") as file:
        crows = [("", [row["sent_more"], row["sent_less"]]) for row in csv.DictReader(file)]
    told = []
    with (data / "winogender_sentences.tsv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            occupation, other, _, gender, _ = row["sentid"].split(".")
            spoken = {"male": "he him his", "female": "she her hers", "neutral": "they them their"}[
                gender
            ].split()
            words = [word.strip(".,;").lower() for word in row["sentence"].split()]
            pronoun = next(word for word in words if word in spoken)
            told.append(
                (f"{row['sentence']} '{pronoun.capitalize()}' refers to the", [occupation, other])
            )
    with gzip.open(data / "bbq_age.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    asked = [
        (f"{r['context_ids']}\n\nQ: {r['question']}\nA:", [r[f"ans{n}"] for n in range(3)])
        for r in rows
    ]
    return {"crows": crows[:limit], "winogender": told[:limit], "bbq": asked[:limit]}


def make_model(folder: Path, texts: list[str], family: dict[str, Any]) -> Path:
    """A random checkpoint of ours with opinions, and beside it its export."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=[BEGIN, "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=tokenizer.get_vocab_size(),
        context=512,
        d_model=64,
        n_layers=2,
        n_heads=4,
        **family,
    )
    model = Transformer(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    save_checkpoint(model, folder / "ours", tokenizer_path=folder / "tokenizer.json")
    export_transformers(model, folder / "theirs", tokenizer_path=folder / "tokenizer.json")
    return folder / "ours"


def harness(python: str, model: Path, dtype: str, sets: dict[str, list[Choices]]) -> Any:
    """The log-likelihoods that the harness gives, by set and item."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        for name, items in sets.items():
            rows = [
                {"context": BEGIN + context if context else "", "choices": choices}
                for context, choices in items
            ]
            path = work / f"{name}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            delimiter = " " if items[0][0] else ""
            task = TASK.format(name=name, path=path, delimiter=delimiter)
            (work / f"{name}.yaml").write_text(task)
        answers = work / "answers.json"
        subprocess.run(
            [python, str(OPPONENT), str(model), dtype, str(work), str(answers)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return json.loads(answers.read_text())


def requests(data: Path, reader: Any) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
    """Context as text, request and choices as text, as the probes ask them."""
    settings = {
        "bias": bias.BiasConfig(pairs=data / "crows_pairs_anonymized.csv"),
        "winogender": winogender.WinogenderConfig(sentences=data / "winogender_sentences.tsv"),
        "bbq": bbq.BbqConfig(items=(data / "bbq_age.jsonl.gz",)),
    }
    for probe in (bias.PROBE, winogender.PROBE, bbq.PROBE):
        questions = RequestBuilder()
        probe.build_requests(questions, reader, CorpusTables(), settings[probe.name])
        for row in questions.requests:
            item = questions.items[row["item"]]
            if probe is bias.PROBE:
                if not row["part"]:
                    yield "", row, [item["text"], item["second_text"]]
            else:
                choices = [reader.decode(target).strip() for target in row["target_ids"]]
                yield item["text"], row, choices


def by_hand(model: Transformer, context: list[int], targets: list[list[int]]) -> list[float]:
    """Sums of log p in the precision of the weights."""
    found = []
    for target in targets:
        ids = torch.tensor([[*context, *target]])
        with torch.inference_mode():
            logits = model.compute_logits(model(Batch(ids[:, :-1])))[0]
        chosen = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        found.append(float(chosen[len(context) - 1 :].sum()))
    return found


def ours(folder: Path, data: Path, dtype: str, wanted: set[tuple[str, str]]) -> dict[Any, float]:
    """The log-likelihood of each choice behind its context."""
    subject = open_audited_model(folder, device="cpu")
    asked = [
        entry
        for entry in requests(data, subject)
        if any((entry[0], choice) in wanted for choice in entry[2])
    ]
    found: dict[Any, float] = {}
    if dtype == "float64":
        model = subject.model.double()
        for context, row, choices in asked:
            values = by_hand(model, row["context_ids"], row["target_ids"])
            found |= {(context, c): v for c, v in zip(choices, values, strict=True)}
        return found
    contexts = [row["context_ids"] for _, row, _ in asked for _ in row["target_ids"]]
    targets = [target for _, row, _ in asked for target in row["target_ids"]]
    read = iter(subject.compute_target_log_probs(contexts, targets))
    for context, _, choices in asked:
        found |= {(context, choice): float(next(read).sum(dtype=np.float64)) for choice in choices}
    return found


def compare(sets: dict[str, list[Choices]], mine: dict[Any, float], theirs: Any) -> None:
    for name, items in sets.items():
        differences, same, ties = [], 0, 0
        for (context, choices), values in zip(items, theirs["answers"][name], strict=True):
            own = [mine[context, choice] for choice in choices]
            differences += [abs(a - b) for a, b in zip(own, values, strict=True)]
            best = sorted(values)[-2:]
            tie = best[1] - best[0] < 1e-4
            ties += tie
            same += tie or int(np.argmax(own)) == int(np.argmax(values))
        print(
            f"  {name:<11} {len(items):>5,} items, {len(differences):>6,} texts, at most "
            f"{max(differences):.1e} apart, same preference in {same:,} ({ties} ties)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--limit", type=int)
    options = parser.parse_args()
    sets = read_files(options.data, options.limit)
    texts = [
        text
        for items in sets.values()
        for context, choices in items
        for text in (context, *choices)
    ]
    wanted = {
        (context, choice)
        for items in sets.values()
        for context, choices in items
        for choice in choices
    }
    for family, config in FAMILIES.items():
        with tempfile.TemporaryDirectory() as scratch:
            folder = make_model(Path(scratch), texts, config)
            for dtype in ("float64", "float32"):
                theirs = harness(options.python, folder.parent / "theirs", dtype, sets)
                print(f"{family}, {dtype}, lm_eval {theirs['version']}")
                compare(sets, ours(folder, options.data, dtype, wanted), theirs)


if __name__ == "__main__":
    main()
