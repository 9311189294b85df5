"""Compare the speed of scoring texts with ``Detoxify.predict``: same network, same texts.

    python -m benchmarks.scoring [--texts 256] [--turns 3] [--bf16] [--layers 12]

The network has the size of BERT-base and random weights, saved in Detoxify's checkpoint format; its
vocabulary is taken from the texts. The texts are distinct passages of Python's manual of mixed
lengths (log-normal, median 40 words, at most 350). ``Detoxify.predict`` gets them in batches of 32
in their order; Hallmark gets all of them at once, as in a stage. The implementations run in
alternation.

Scores must agree to 1e-4 for texts that fit in the network's context: of longer texts Detoxify
reads the beginning, Hallmark reads all of it in windows. With ``--bf16`` Hallmark scores the texts
in bf16, too, and the difference is printed. Prints median wall and processor seconds, ratios, and
the number of tokens that each implementation computes, including padding.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import hallmark.model  # noqa: F401  before torch: it sets how threads wait

# isort: split
import numpy as np
import torch
import transformers

from hallmark.tasks.measures.scorers import TOXICITY_HEADS, ScorerConfig
from hallmark.tasks.measures.scorers.detoxify import DetoxifyScorer
from hallmark.tasks.measures.scorers.network import batch_by_length

CLASSES = ["toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate"]
BATCH_SIZE = 32  # texts in a call of Detoxify.predict


def sample_manual_passages(count: int, seed: int) -> list[str]:
    """Sample distinct passages of Python's manual, of mixed lengths in words."""
    from pydoc_data.topics import topics

    words = " ".join(topics[name] for name in sorted(topics)).split()
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(np.log(40), 1.0, count), 2, 350).astype(int)
    starts = rng.choice(len(words) - 350, count, replace=False)
    return [" ".join(words[start : start + n]) for start, n in zip(starts, lengths, strict=True)]


class RandomCheckpoint(NamedTuple):
    """The files of a scorer with random weights."""

    path: Path
    """Checkpoint in Detoxify's format."""
    base_folder: Path
    """Folder of its base model, with config and tokenizer."""


def write_random_checkpoint(folder: Path, texts: list[str], layers: int) -> RandomCheckpoint:
    """Write a BERT of base width with random weights in Detoxify's format.

    Args:
        folder: Where the files are written.
        texts: Texts whose words and characters become the vocabulary.
        layers: Number of layers.
    """
    word_counts = Counter(re.findall(r"\w+|[^\w\s]", " ".join(texts).lower()))
    special_tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = sorted({letter for word in word_counts for letter in word})
    tokens = dict.fromkeys(
        [*special_tokens, *letters, *(f"##{letter}" for letter in letters), *word_counts]
    )
    base_folder = folder / "base"
    tokenizer = transformers.BertTokenizer(vocab={token: n for n, token in enumerate(tokens)})
    tokenizer.model_max_length = 512
    tokenizer.save_pretrained(base_folder)
    config = transformers.BertConfig(num_hidden_layers=layers, initializer_range=0.05)
    config.save_pretrained(base_folder)
    config.num_labels = len(CLASSES)
    torch.manual_seed(0)
    state = transformers.BertForSequenceClassification(config).state_dict()
    arguments = {
        "model_type": str(base_folder),
        "model_name": "BertForSequenceClassification",
        "tokenizer_name": "BertTokenizer",
        "num_classes": len(CLASSES),
    }
    training_config = {"arch": {"args": arguments}, "dataset": {"args": {"classes": CLASSES}}}
    torch.save({"config": training_config, "state_dict": state}, folder / "model.ckpt")
    return RandomCheckpoint(folder / "model.ckpt", base_folder)


class TimedScores(NamedTuple):
    """Scores, (n, heads), and the seconds that computing them took."""

    scores: np.ndarray
    wall_seconds: float
    cpu_seconds: float


def time_scoring(score: Callable[[], np.ndarray]) -> TimedScores:
    wall_start, cpu_start = time.perf_counter(), time.process_time()
    scores = score()
    return TimedScores(scores, time.perf_counter() - wall_start, time.process_time() - cpu_start)


class TokenCounts(NamedTuple):
    """Numbers of tokens of all texts."""

    unpadded: int
    detoxify: int
    """With the padding of Detoxify's batches."""
    hallmark: int
    """With the padding of Hallmark's batches."""


def count_computed_tokens(lengths: np.ndarray, scorer: DetoxifyScorer) -> TokenCounts:
    """Count the tokens that each implementation computes for texts of these lengths.

    Args:
        lengths: Tokens of each text, at most the network's context.
        scorer: The scorer that batches the texts for Hallmark.
    """
    detoxify_batches = [lengths[i : i + BATCH_SIZE] for i in range(0, len(lengths), BATCH_SIZE)]
    hallmark_batches = [lengths[batch] for batch in batch_by_length(lengths, scorer.batch_tokens)]
    padded = [
        sum(int(batch.max()) * len(batch) for batch in batches)
        for batches in (detoxify_batches, hallmark_batches)
    ]
    return TokenCounts(int(lengths.sum()), *padded)


def run_benchmark(options: argparse.Namespace, folder: Path) -> None:
    """Time the implementations and compare their scores."""
    from detoxify import Detoxify

    texts = sample_manual_passages(options.texts, seed=0)
    checkpoint = write_random_checkpoint(folder, texts, options.layers)
    config = ScorerConfig(
        kind="detoxify", checkpoint=checkpoint.path, base_model_folder=checkpoint.base_folder
    )
    detoxify = Detoxify(checkpoint=str(checkpoint.path))

    def score_with_detoxify() -> np.ndarray:
        rows = [
            detoxify.predict(texts[i : i + BATCH_SIZE]) for i in range(0, len(texts), BATCH_SIZE)
        ]
        return np.array(
            [np.concatenate([np.atleast_1d(row[head]) for row in rows]) for head in heads]
        ).T

    scorer = DetoxifyScorer(config)
    heads = scorer.heads
    columns = [TOXICITY_HEADS.index(head) for head in heads]
    implementations = {
        "Detoxify.predict": score_with_detoxify,
        "fp32": lambda: scorer.score_by_head(texts)[:, columns],
    }
    if options.bf16:
        bf16_scorer = DetoxifyScorer(config.model_copy(update={"precision": "bf16"}))
        implementations["bf16"] = lambda: bf16_scorer.score_by_head(texts)[:, columns]
    print(
        f"torch {torch.__version__}, transformers {version('transformers')}, tokenizers "
        f"{version('tokenizers')}, detoxify {version('detoxify')}; {torch.get_num_threads()} "
        f"threads, {torch.backends.cpu.get_cpu_capability()}"
    )
    lengths = np.array([len(ids) for ids in scorer._tokenizer(texts, verbose=False)["input_ids"]])
    max_length = scorer._tokenizer.model_max_length
    fits_context = lengths <= max_length
    token_counts = count_computed_tokens(lengths.clip(max=max_length), scorer)
    print(
        f"{options.texts} texts of {token_counts.unpadded:,} tokens; with padding Detoxify.predict "
        f"computes {token_counts.detoxify:,}, Hallmark {token_counts.hallmark:,}; "
        f"{fits_context.sum()} texts fit in the network's context"
    )
    times: dict[str, list[TimedScores]] = {name: [] for name in implementations}
    for turn in range(options.turns):
        for name, score in implementations.items():
            times[name].append(time_scoring(score))
            print(
                f"turn {turn + 1}: {name} {times[name][-1].wall_seconds:.1f} s, processor "
                f"{times[name][-1].cpu_seconds:.1f} s",
                flush=True,
            )
    detoxify_wall, detoxify_cpu = compute_median_seconds(times["Detoxify.predict"])
    expected_scores = times["Detoxify.predict"][-1].scores
    for name, turns in times.items():
        wall, cpu = compute_median_seconds(turns)
        error = np.abs(turns[-1].scores - expected_scores)[fits_context]
        print(
            f"{name}: median {wall:.1f} s, processor {cpu:.1f} s; {detoxify_wall / wall:.2f} and "
            f"{detoxify_cpu / cpu:.2f} times as fast as Detoxify.predict; scores differ by at most "
            f"{error.max():.1e}, {error.mean():.1e} on average"
        )
    assert np.abs(times["fp32"][-1].scores - expected_scores)[fits_context].max() < 1e-4


class MedianSeconds(NamedTuple):
    """Median wall and processor seconds."""

    wall: float
    cpu: float


def compute_median_seconds(turns: list[TimedScores]) -> MedianSeconds:
    return MedianSeconds(
        statistics.median(turn.wall_seconds for turn in turns),
        statistics.median(turn.cpu_seconds for turn in turns),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=256, help="number of texts")
    parser.add_argument("--turns", type=int, default=3, help="runs of each implementation")
    parser.add_argument("--layers", type=int, default=12, help="layers of the network")
    parser.add_argument("--bf16", action="store_true", help="also measure Hallmark in bf16")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_benchmark(options, Path(folder))


if __name__ == "__main__":
    main()
