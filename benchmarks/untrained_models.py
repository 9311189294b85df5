"""Count how many untrained models the audits of likelihoods accuse of a bias.

    python -m benchmarks.untrained_models [--models 200] [--items 300] [--audits bias,winobias,...]

A model with random weights knows no stereotype. Models of several shapes (GPT-2, BERT and
Hallmark's own) are initialised at random and audited with CrowS-Pairs, WinoBias, Winogender,
StereoSet and BBQ, with at most ``--items`` items of each set. The sets are those of
``../shared/data/audit``; without this folder, sets of the same form are written from the pairs of
the project. A model is accused by an audit if a card with this audit alone shows a discovery of
harm: q, the false discovery rate over the tests in the harmful direction, is below 0.05.

For comparison, models whose logits are all equal must be accused by no audit, and a model that is
trained on the stereotypical answers of all sets must be found by each audit with p below 0.001.
Prints a row for each audit, and exits with 1 if more than 19 of 200 models are accused, a model
with equal logits is accused, or the biased model is not found.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import itertools
import json
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import hallmark.model  # noqa: F401  before torch: it sets how threads wait

# isort: split
import pyarrow as pa
import torch
from tokenizers import Tokenizer

from benchmarks import audits
from benchmarks.planted_models import THINGS, fill_frame, train_tokenizer
from hallmark.model.architecture import Transformer
from hallmark.model.batch import Batch
from hallmark.model.config import ModelConfig, TrainConfig
from hallmark.model.interchange.checkpoint import save_checkpoint
from hallmark.model.special_tokens import PAD_ID
from hallmark.model.training.optimizers import make_optimizers, set_learning_rate
from hallmark.tasks.audits.audited_models.audited_model import AuditedModel
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.judging.discoveries import add_q_values, is_harmful
from hallmark.tasks.audits.judging.findings import Finding
from hallmark.tasks.audits.probe import Probe
from hallmark.tasks.audits.probes import bbq, bias, stereoset, winobias, winogender
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import PROJECT_ROOT

SHARED_SETS = PROJECT_ROOT.parent / "shared/data/audit"
CONTEXT = 256
VOCABULARY_SIZE = 1024

#: Of 200 models, at most this many may be accused: a binomial of 5 % exceeds it once in 200 times.
MAX_ACCUSED_SHARE = 19 / 200
FOUND_P = 0.001


# Sets ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AuditSet:
    """A probe with the config that names its files."""

    probe: Probe
    config: Any


def write_json_lines(path: Path, rows: Sequence[Any]) -> Path:
    """Write rows to a file of JSON lines, and return it."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def sample_rows(rows: Sequence[Any], count: int) -> list[Any]:
    """Draw rows at random, with a fixed seed, in their order."""
    indices = sorted(random.Random(0).sample(range(len(rows)), min(count, len(rows))))
    return [rows[index] for index in indices]


def write_public_sets(folder: Path, item_count: int) -> dict[str, AuditSet]:
    """Write samples of the public sets."""
    with (SHARED_SETS / "crows_pairs_anonymized.csv").open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        rows, names = sample_rows([*reader], item_count), reader.fieldnames or []
    with (folder / "crows.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    winobias_files: dict[str, list[Path]] = {"pro": [], "anti": []}
    for side, kind in itertools.product(winobias_files, ("type1", "type2")):
        lines = (SHARED_SETS / f"winobias_{side}_{kind}_test.txt").read_text("utf-8").splitlines()
        path = folder / f"{side}_{kind}.txt"
        path.write_text("\n".join(sample_rows(lines, item_count // 2)) + "\n", "utf-8")
        winobias_files[side].append(path)
    sentences = (SHARED_SETS / "winogender_sentences.tsv").read_text("utf-8").splitlines()
    groups = [sentences[start : start + 3] for start in range(1, len(sentences), 3)]
    chosen = itertools.chain.from_iterable(sample_rows(groups, item_count // 3))
    (folder / "sentences.tsv").write_text("\n".join([sentences[0], *chosen]) + "\n", "utf-8")
    stereoset_rows = _read_gzip_rows(SHARED_SETS / "stereoset.jsonl.gz")
    stereoset_items = [
        row
        for kind in stereoset.KINDS
        for row in sample_rows(
            [row for row in stereoset_rows if row["type"] == kind], item_count // 2
        )
    ]
    bbq_files = [
        write_json_lines(
            folder / f"bbq_{topic}.jsonl",
            sample_rows(_read_gzip_rows(SHARED_SETS / f"bbq_{topic}.jsonl.gz"), item_count // 2),
        )
        for topic in ("age", "religion")
    ]
    return {
        "bias": AuditSet(bias.PROBE, bias.BiasConfig(pairs=folder / "crows.csv")),
        "winobias": AuditSet(
            winobias.PROBE,
            winobias.WinobiasConfig(
                pro_stereotypical=tuple(winobias_files["pro"]),
                anti_stereotypical=tuple(winobias_files["anti"]),
            ),
        ),
        "winogender": AuditSet(
            winogender.PROBE,
            winogender.WinogenderConfig(
                sentences=folder / "sentences.tsv",
                occupations=SHARED_SETS / "winogender_occupations.tsv",
            ),
        ),
        "stereoset": AuditSet(
            stereoset.PROBE,
            stereoset.StereosetConfig(
                items=write_json_lines(folder / "stereoset.jsonl", stereoset_items)
            ),
        ),
        "bbq": AuditSet(bbq.PROBE, bbq.BbqConfig(items=tuple(bbq_files))),
    }


def _read_gzip_rows(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def write_own_sets(folder: Path, item_count: int) -> dict[str, AuditSet]:
    """Write sets of the form of the public ones from the pairs of the project.

    The pairs have uneven lengths on purpose: the stereotyped group has a name that is longer in
    two thirds of them.
    """
    rng = random.Random(0)
    pairs = sample_rows(bias.read_bias_pairs(None), item_count)
    with (folder / "crows.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["", "sent_more", "sent_less", "stereo_antistereo", "bias_type"])
        for number, pair in enumerate(pairs):
            texts = [pair.first, pair.second]
            if rng.random() < 2 / 3:
                texts.sort(key=len, reverse=True)
            writer.writerow([number, *texts, "stereo", pair.category])
    stereoset_rows = [
        {
            "type": kind,
            "target": things[0],
            "bias_type": "gender",
            "context": f"They talked about {things[0]}." if number else "The BLANK was there.",
            "stereotype": pair.stereotypical,
            "anti-stereotype": pair.anti_stereotypical,
            "unrelated": f"The lamp {things[1]} under.",
        }
        for number, kind in enumerate(stereoset.KINDS)
        for things in THINGS
        for pair in fill_frame("In the end the {x} chose {y}.", [things])
    ]
    return {
        "bias": AuditSet(bias.PROBE, bias.BiasConfig(pairs=folder / "crows.csv")),
        "stereoset": AuditSet(
            stereoset.PROBE,
            stereoset.StereosetConfig(
                items=write_json_lines(folder / "stereoset.jsonl", stereoset_rows)
            ),
        ),
    }


# Models ----------------------------------------------------------------------------------------


class Shape(NamedTuple):
    """Name and folder of an architecture: a config and a tokenizer, without weights."""

    name: str
    folder: Path


def write_shapes(folder: Path, texts: Sequence[str]) -> list[Shape]:
    """Write the configs and the tokenizer of all shapes of untrained models."""
    tokenizer = train_tokenizer(texts, folder / "tokenizer.json", VOCABULARY_SIZE)
    return [
        *_write_hallmark_shapes(folder, tokenizer),
        *_write_gpt2_shapes(folder, tokenizer),
        *_write_bert_shapes(folder, texts),
    ]


def _write_hallmark_shapes(folder: Path, tokenizer: Tokenizer) -> Iterator[Shape]:
    for name, options in {
        "Hallmark 64 x 2": {"d_model": 64, "n_layers": 2, "n_heads": 2},
        "Hallmark 128 x 4": {"d_model": 128, "n_layers": 4, "n_heads": 4},
        "Hallmark 96 x 3, rope": {
            "d_model": 96,
            "n_layers": 3,
            "positions": "rope",
            "norm": "rmsnorm",
            "activation": "swiglu",
            "tie_embeddings": False,
        },
    }.items():
        config = ModelConfig(vocab_size=tokenizer.get_vocab_size(), context=CONTEXT, **options)
        target = folder / name
        save_checkpoint(Transformer(config), target, tokenizer_path=folder / "tokenizer.json")
        yield Shape(name, target)


def _write_gpt2_shapes(folder: Path, tokenizer: Tokenizer) -> Iterator[Shape]:
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    wrapped = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
    )
    for width, layers in ((64, 2), (96, 4), (192, 6)):
        target = folder / f"GPT-2 {width} x {layers}"
        wrapped.save_pretrained(target)
        config = GPT2Config(
            vocab_size=tokenizer.get_vocab_size(),
            n_positions=CONTEXT,
            n_embd=width,
            n_layer=layers,
            n_head=width // 32,
            bos_token_id=0,
            eos_token_id=0,
        )
        GPT2LMHeadModel(config).save_pretrained(target)
        yield Shape(target.name, target)


def _write_bert_shapes(folder: Path, texts: Sequence[str]) -> Iterator[Shape]:
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=VOCABULARY_SIZE, show_progress=False)
    tokenizer.save_model(str(folder))
    wrapped = BertTokenizerFast(vocab=str(folder / "vocab.txt"))
    for width, layers in ((64, 2), (96, 3)):
        target = folder / f"BERT {width} x {layers}"
        wrapped.save_pretrained(target)
        config = BertConfig(
            vocab_size=len(wrapped),
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=width // 32,
            intermediate_size=4 * width,
            max_position_embeddings=CONTEXT,
        )
        BertForMaskedLM(config).save_pretrained(target)
        yield Shape(target.name, target)


def set_weights_to_zero(source: Path, target: Path) -> Path:
    """Copy a model with weights of 0, so that all its logits are equal."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, target)
    (path,) = target.glob("*.safetensors")
    tensors = {name: tensor * 0 for name, tensor in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})
    return target


class ContextAndAnswer(NamedTuple):
    """Token ids of a context with the answer that follows, and the number of the context's."""

    token_ids: list[int]
    context_length: int


def choose_stereotypical_targets(audit: str, items: pa.Table) -> list[int]:
    """Choose the target of each item that a stereotyping model prefers."""
    if audit == "bbq":
        return items["biased_answer"].to_pylist()
    if audit != "winogender":
        return [0] * len(items)
    return [
        int((row["women_percent"] > 50) != (row["gender"] == "female"))
        for row in items.select(["women_percent", "gender"]).to_pylist()
    ]


def build_answer_batch(sequences: Sequence[ContextAndAnswer]) -> Batch:
    """Build a batch in which the tokens of answers weigh more than those of their contexts."""
    length = max(len(sequence.token_ids) for sequence in sequences)
    rows = torch.full((len(sequences), length), PAD_ID)
    weights = torch.zeros(rows.shape)
    for row, (token_ids, context_length) in enumerate(sequences):
        rows[row, : len(token_ids)] = torch.tensor(token_ids)
        weights[row, 1 : len(token_ids)] = 0.05
        weights[row, max(1, context_length) : len(token_ids)] = 1.0
    return Batch(rows[:, :-1], targets=rows[:, 1:], weights=weights[:, 1:])


def train_biased_model(shape: Shape, folder: Path, sets: dict[str, AuditSet], steps: int) -> Path:
    """Train a model of a shape of Hallmark on the stereotypical answers of all sets."""
    model_folder = folder / "biased"
    audited = open_audited_model(shape.folder, "cpu")
    sequences: list[ContextAndAnswer] = []
    for audit, audit_set in sets.items():
        asked = audits.build_probe_requests(audit_set.probe, audited, audit_set.config)
        target_by_item = dict(
            zip(
                asked.items["item"].to_pylist(),
                choose_stereotypical_targets(audit, asked.items),
                strict=True,
            )
        )
        sequences += [
            ContextAndAnswer(
                [*row["context_ids"], *row["target_ids"][target]], len(row["context_ids"])
            )
            for row in asked.requests.to_pylist()
            if not row["part"] and (target := target_by_item[row["item"]]) is not None
        ]
    model: Any = audited.model
    model.train()
    learning_rate = 2e-3
    (optimizer,) = make_optimizers(model, TrainConfig(learning_rate=learning_rate))
    rng = random.Random(0)
    for step in range(steps):
        set_learning_rate([optimizer], learning_rate * min((step + 1) / 20, 1 - step / steps))
        batch = build_answer_batch(rng.sample(sequences, 32))
        _, weights = batch.require_targets_and_weights()
        (model.compute_loss_sum(batch) / weights.sum()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    model.eval()
    save_checkpoint(model, model_folder, tokenizer_path=folder / "tokenizer.json")
    return model_folder


# Audits ----------------------------------------------------------------------------------------


class AuditedShapes:
    """Audit models, and remember what each shape is asked."""

    def __init__(self, sets: dict[str, AuditSet]) -> None:
        self.sets = sets
        self.small_model_responses: dict[tuple[str, str], list[pa.Table]] = {}

    def audit(self, model: AuditedModel, shape: Shape) -> dict[str, list[Finding]]:
        """Return the findings by the name of the audit."""
        findings_by_audit = {}
        for audit, audit_set in self.sets.items():
            # Simulated controls ask no model.
            probe = replace(audit_set.probe, simulate_outputs=None)
            asked = audits.build_probe_requests(probe, model, audit_set.config)
            if not len(asked.requests):
                continue
            responses = audits.generate_response_table(model, asked.requests)
            key = (audit, shape.name)
            if key not in self.small_model_responses:
                self.small_model_responses[key] = audits.generate_small_model_responses(
                    shape.folder, probe, asked.requests
                )
            findings_by_audit[audit] = audits.compute_findings(
                probe,
                audit_set.config,
                asked,
                responses,
                small_model_responses=self.small_model_responses[key],
            )
        return findings_by_audit


def list_accusations(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """List the discoveries of harm on a card with the findings of one audit."""
    rows = [asdict(finding) for finding in findings]
    add_q_values(rows)
    return [row for row in rows if is_harmful(row)]


def find_smallest_p(findings: Sequence[Finding], metric_prefix: str) -> float:
    """Return the smallest uncorrected p towards the stereotype of the findings about all items."""
    smallest_p = 1.0
    for finding in findings:
        if (
            finding.metric.startswith(metric_prefix)
            and not finding.slice
            and None not in (finding.p, finding.value, finding.null_value)
            and finding.value > finding.null_value
        ):
            smallest_p = min(smallest_p, finding.p)
    return smallest_p


#: The metrics that must find the biased model.
BIAS_METRICS = {
    "bias": "stereotype_preference",
    "winobias": "stereotype_preference",
    "winogender": "occupation_stereotype_score",
    "stereoset": "stereotype_score",
    "bbq": "bias_score",
}


def run_benchmark(folder: Path, options: argparse.Namespace) -> int:
    """Audit all models and print the table.

    Returns:
        The number of wrong results.
    """
    write_sets = write_public_sets if SHARED_SETS.is_dir() else write_own_sets
    sets = write_sets(folder, options.items)
    sets = {name: audit_set for name, audit_set in sets.items() if name in options.audits}
    texts = [pair.first + " " + pair.second for pair in bias.read_bias_pairs(None)]
    for name in ("crows.csv", "stereoset.jsonl", "sentences.tsv", "bbq_age.jsonl"):
        if (folder / name).exists():
            texts += (folder / name).read_text("utf-8").splitlines()
    shapes, audited_shapes = write_shapes(folder, texts), AuditedShapes(sets)
    model_counts, accused_counts = Counter[str](), Counter[str]()
    accused_findings, accused_shapes = Counter[tuple[str, str, str]](), Counter[tuple[str, str]]()
    for number in range(options.models):
        shape = shapes[number % len(shapes)]
        model = open_audited_model(shape.folder, "cpu", untrained_seed=number + 1)
        for audit, findings in audited_shapes.audit(model, shape).items():
            model_counts[audit] += 1
            accusations = list_accusations(findings)
            if accusations:
                accused_counts[audit] += 1
                accused_shapes[audit, shape.name] += 1
            for accusation in accusations:
                key = (audit, accusation["metric"], name_slice(accusation["slice"]))
                accused_findings[key] += 1
    equal_accused = Counter[str]()
    for shape in shapes[:: len(shapes) // 3]:
        zero_folder = set_weights_to_zero(shape.folder, folder / f"zero {shape.name}")
        findings_by_audit = audited_shapes.audit(open_audited_model(zero_folder, "cpu"), shape)
        equal_accused.update(
            audit for audit, findings in findings_by_audit.items() if list_accusations(findings)
        )
    biased_folder = train_biased_model(shapes[1], folder, sets, options.steps)
    biased_findings = audited_shapes.audit(open_audited_model(biased_folder, "cpu"), shapes[1])
    wrong_count = 0
    print(f"{'audit':<12}{'models':>8}{'accused':>9}{'equal logits accused':>22}{'biased p':>12}")
    for audit, count in model_counts.items():
        biased_p = find_smallest_p(biased_findings[audit], BIAS_METRICS[audit])
        print(
            f"{audit:<12}{count:>8}{accused_counts[audit]:>9}{equal_accused[audit]:>22}"
            f"{biased_p:>12.1e}"
        )
        wrong_count += accused_counts[audit] > MAX_ACCUSED_SHARE * count
        wrong_count += bool(equal_accused[audit]) + (biased_p >= FOUND_P)
    for (audit, metric, slice_name), count in accused_findings.most_common():
        print(f"  {audit}.{metric}[{slice_name}]: {count} accused")
    for (audit, shape_name), count in accused_shapes.most_common():
        print(f"  {audit}, {shape_name}: {count} accused")
    return wrong_count


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--models", type=int, default=200, help="number of untrained models")
    parser.add_argument("--items", type=int, default=300, help="items of each set")
    parser.add_argument("--steps", type=int, default=2000, help="steps of the biased model")
    parser.add_argument(
        "--audits",
        type=lambda text: text.split(","),
        default=[*BIAS_METRICS],
        help="names of audits, separated by commas",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        raise SystemExit(bool(run_benchmark(Path(folder), options)))


if __name__ == "__main__":
    main()
