"""Compare Hallmark's log-likelihoods with lm-evaluation-harness: same small model, same files.

    python -m benchmarks.harness --data FOLDER --python INTERPRETER [--limit N]

FOLDER holds CrowS-Pairs, Winogender and BBQ (crows_pairs_anonymized.csv, winogender_sentences.tsv,
bbq_age.jsonl.gz). INTERPRETER is the Python of an environment with lm_eval 0.4
(``pip install "lm_eval[hf]"``).

A random model of two layers is exported as GPT-2 and as Llama. The harness reads the files through
its multiple-choice task; Hallmark sends the requests of its probes. Both begin with the same token.
In float64 the log-likelihoods of the probes' requests are computed by a plain forward pass, in
float32 by the code of an audit. Prints, for each set, the number of texts compared, the largest
difference, and the number of items for which both prefer the same choice.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from hallmark.model.architecture import Transformer
from hallmark.model.batch import Batch
from hallmark.model.config import ModelConfig
from hallmark.model.interchange.checkpoint import save_checkpoint
from hallmark.model.interchange.transformers_checkpoint import export_transformers
from hallmark.tasks.audits.audit_tables import Request, RequestBuilder
from hallmark.tasks.audits.audited_models.audited_tokenizer import AuditedTokenizer
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.probe import CorpusTables
from hallmark.tasks.audits.probes import bbq, bias, winogender

HARNESS_SCRIPT = Path(__file__).parent / "opponents/lm_eval_answers.py"
BEGIN_TOKEN = "<|endoftext|>"
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"activation": "gelu_tanh"},
    "llama": {"norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "bias": False},
}
PRONOUNS = {"male": "he him his", "female": "she her hers", "neutral": "they them their"}

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

#: Log-likelihood by (context, choice).
LogLikelihoods = dict[tuple[str, str], float]


class Item(NamedTuple):
    """An item of a test set."""

    context: str
    choices: list[str]


def read_items_by_set(data: Path, limit: int | None) -> dict[str, list[Item]]:
    """Read the items of each set, independently of the code of the probes.

    Args:
        data: Folder with the files of the sets.
        limit: Number of items of each set; None for all.
    """
    with (data / "crows_pairs_anonymized.csv").open(newline="", encoding="utf-8") as file:
        crows = [Item("", [row["sent_more"], row["sent_less"]]) for row in csv.DictReader(file)]
    winogender_items = []
    with (data / "winogender_sentences.tsv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            occupation, participant, _, gender, _ = row["sentid"].split(".")
            pronouns = PRONOUNS[gender].split()
            words = [word.strip(".,;").lower() for word in row["sentence"].split()]
            pronoun = next(word for word in words if word in pronouns)
            context = f"{row['sentence']} '{pronoun.capitalize()}' refers to the"
            winogender_items.append(Item(context, [occupation, participant]))
    with gzip.open(data / "bbq_age.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    bbq_items = [
        Item(f"{r['context']}\n\nQ: {r['question']}\nA:", [r[f"ans{n}"] for n in range(3)])
        for r in rows
    ]
    return {
        "crows": crows[:limit],
        "winogender": winogender_items[:limit],
        "bbq": bbq_items[:limit],
    }


def write_random_model(folder: Path, texts: list[str], family: dict[str, Any]) -> None:
    """Write a random model in Hallmark's and in transformers' format.

    Its weights are so large that its preferences are clear.

    Args:
        folder: Gets the folders ``hallmark`` and ``transformers``.
        texts: Texts from which the tokenizer is trained.
        family: Settings of the architecture.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=[BEGIN_TOKEN, "<|pad|>"],
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
    save_checkpoint(model, folder / "hallmark", tokenizer_path=folder / "tokenizer.json")
    export_transformers(model, folder / "transformers", tokenizer_path=folder / "tokenizer.json")


class HarnessResults(NamedTuple):
    """What lm-evaluation-harness computed."""

    version: str
    log_likelihoods_by_set: dict[str, list[list[float]]]
    """For each set, the log-likelihoods of the choices of each item, in the order of the items."""


def run_harness(
    python: str, model: Path, dtype: str, items_by_set: dict[str, list[Item]]
) -> HarnessResults:
    """Compute log-likelihoods with lm-evaluation-harness, in the interpreter ``python``."""
    with tempfile.TemporaryDirectory() as scratch:
        tasks_folder = Path(scratch)
        for name, items in items_by_set.items():
            rows = [
                {
                    "context": BEGIN_TOKEN + item.context if item.context else "",
                    "choices": item.choices,
                }
                for item in items
            ]
            path = tasks_folder / f"{name}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            delimiter = " " if items[0].context else ""
            task = TASK.format(name=name, path=path, delimiter=delimiter)
            (tasks_folder / f"{name}.yaml").write_text(task)
        results_path = tasks_folder / "results.json"
        subprocess.run(
            [python, str(HARNESS_SCRIPT), str(model), dtype, str(tasks_folder), str(results_path)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        results = json.loads(results_path.read_text())
    return HarnessResults(results["version"], results["log_likelihoods"])


class ProbeRequest(NamedTuple):
    """A request of a probe, with the texts from which it was built."""

    context: str
    choices: list[str]
    row: Request
    """The request itself."""


def build_probe_requests(data: Path, tokenizer: AuditedTokenizer) -> Iterator[ProbeRequest]:
    """Yield the requests of the three probes."""
    settings = {
        "bias": bias.BiasConfig(pairs=data / "crows_pairs_anonymized.csv"),
        "winogender": winogender.WinogenderConfig(sentences=data / "winogender_sentences.tsv"),
        "bbq": bbq.BbqConfig(items=(data / "bbq_age.jsonl.gz",)),
    }
    for probe in (bias.PROBE, winogender.PROBE, bbq.PROBE):
        builder = RequestBuilder()
        probe.build_requests(builder, tokenizer, CorpusTables(), settings[probe.name])
        for row in builder.requests:
            item = builder.items[row.item]
            if probe is bias.PROBE:
                if not row.part:
                    yield ProbeRequest("", [item.text, item.tags["second_text"]], row)
            else:
                choices = [tokenizer.decode(target).strip() for target in row.target_ids or ()]
                yield ProbeRequest(item.text, choices, row)


def compute_log_likelihoods_directly(
    model: Transformer, context: Sequence[int], targets: Sequence[Sequence[int]]
) -> list[float]:
    """Compute the log-likelihood of each target by forward passes in the weights' precision."""
    log_likelihoods = []
    for target in targets:
        ids = torch.tensor([[*context, *target]])
        with torch.inference_mode():
            logits = model.compute_logits(model(Batch(ids[:, :-1])))[0]
        log_probs = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        log_likelihoods.append(float(log_probs[len(context) - 1 :].sum()))
    return log_likelihoods


def compute_hallmark_log_likelihoods(
    folder: Path, data: Path, dtype: str, compared_texts: set[tuple[str, str]]
) -> LogLikelihoods:
    """Compute log-likelihoods of the probes' requests.

    Args:
        folder: Checkpoint folder of the model.
        data: Folder with the files of the sets.
        dtype: "float64" for direct forward passes, "float32" for the code of an audit.
        compared_texts: (context, choice) of the items to compare; other requests are skipped.
    """
    audited_model = open_audited_model(folder, device="cpu")
    requests = [
        request
        for request in build_probe_requests(data, audited_model)
        if any((request.context, choice) in compared_texts for choice in request.choices)
    ]
    log_likelihoods: LogLikelihoods = {}
    if dtype == "float64":
        model = audited_model.model.double()
        for context, choices, row in requests:
            values = compute_log_likelihoods_directly(model, row.context_ids, row.target_ids)
            log_likelihoods |= {(context, c): v for c, v in zip(choices, values, strict=True)}
        return log_likelihoods
    contexts = [r.row.context_ids for r in requests for _ in r.row.target_ids]
    targets = [target for r in requests for target in r.row.target_ids]
    log_probs = iter(audited_model.compute_target_log_probs(contexts, targets))
    for context, choices, _ in requests:
        log_likelihoods |= {
            (context, choice): float(next(log_probs).sum(dtype=np.float64)) for choice in choices
        }
    return log_likelihoods


def print_comparison(
    items_by_set: dict[str, list[Item]],
    hallmark_values: LogLikelihoods,
    harness_results: HarnessResults,
) -> None:
    """Print the largest difference and the number of equal preferences for each set."""
    for name, items in items_by_set.items():
        differences, same_count, tie_count = [], 0, 0
        harness_rows = harness_results.log_likelihoods_by_set[name]
        for item, harness_row in zip(items, harness_rows, strict=True):
            hallmark_row = [hallmark_values[item.context, choice] for choice in item.choices]
            differences += [abs(a - b) for a, b in zip(hallmark_row, harness_row, strict=True)]
            second, highest = sorted(harness_row)[-2:]
            is_tie = highest - second < 1e-4
            tie_count += is_tie
            same_count += is_tie or int(np.argmax(hallmark_row)) == int(np.argmax(harness_row))
        print(
            f"  {name:<11} {len(items):>5,} items, {len(differences):>6,} texts, largest "
            f"difference {max(differences):.1e}, same preference in {same_count:,} items "
            f"({tie_count} ties)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the public sets")
    parser.add_argument("--python", required=True, help="interpreter that has lm_eval")
    parser.add_argument("--limit", type=int, help="items of each set; default: all")
    options = parser.parse_args()
    items_by_set = read_items_by_set(options.data, options.limit)
    items = [item for items in items_by_set.values() for item in items]
    texts = [text for item in items for text in (item.context, *item.choices)]
    compared_texts = {(item.context, choice) for item in items for choice in item.choices}
    for family, settings in FAMILIES.items():
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            write_random_model(folder, texts, settings)
            for dtype in ("float64", "float32"):
                harness_results = run_harness(
                    options.python, folder / "transformers", dtype, items_by_set
                )
                print(f"{family}, {dtype}, lm_eval {harness_results.version}")
                hallmark_values = compute_hallmark_log_likelihoods(
                    folder / "hallmark", options.data, dtype, compared_texts
                )
                print_comparison(items_by_set, hallmark_values, harness_results)


if __name__ == "__main__":
    main()
