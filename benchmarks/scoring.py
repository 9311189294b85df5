"""Scoring speed beside ``Detoxify.predict``: one network, the same texts, in turns.

    python -m benchmarks.scoring [--texts 256] [--turns 3] [--bf16] [--layers 12]

The network has BERT-base's size and random weights, saved in Detoxify's checkpoint format; its
words are those of the texts, which are passages of Python's manual of mixed lengths (log-normal,
median 40 words, at most 350), none twice. Detoxify's own ``predict`` takes them in batches of 32 as
they come, Hallmark as a stage gives them: all at once. Scores must agree to 1e-4, of texts that the
network reads whole: of longer ones Detoxify reads the beginning, Hallmark all, in windows. With
``--bf16`` Hallmark scores once more in bf16, and the difference is printed. Prints medians of wall
and processor seconds, ratios, and the tokens that each side computed, padding counted.
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

import hallmark.model  # noqa: F401  before torch: it says how threads wait

# isort: split
import numpy as np
import torch
import transformers

from hallmark.tasks.measures.scorers import TOXICITY_HEADS, ScorerConfig
from hallmark.tasks.measures.scorers.detoxify import DetoxifyScorer
from hallmark.tasks.measures.scorers.network import batch_by_length

CLASSES = ["toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate"]
BATCH = 32  # texts that Detoxify.predict is given at a time


def passages(count: int, seed: int) -> list[str]:
    """Distinct passages of Python's manual, of mixed lengths in words."""
    from pydoc_data.topics import topics

    words = " ".join(topics[name] for name in sorted(topics)).split()
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(np.log(40), 1.0, count), 2, 350).astype(int)
    starts = rng.choice(len(words) - 350, count, replace=False)
    return [" ".join(words[start : start + n]) for start, n in zip(starts, lengths, strict=True)]


def make_checkpoint(folder: Path, texts: list[str], layers: int) -> tuple[Path, Path]:
    """A random BERT of base size in Detoxify's format, and the folder of its base model."""
    found = Counter(re.findall(r"\w+|[^\w\s]", " ".join(texts).lower()))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = sorted({letter for word in found for letter in word})
    tokens = dict.fromkeys([*special, *letters, *(f"##{x}" for x in letters), *found])
    base = folder / "base"
    tokenizer = transformers.BertTokenizer(vocab={token: n for n, token in enumerate(tokens)})
    tokenizer.model_max_length = 512
    tokenizer.save_pretrained(base)
    config = transformers.BertConfig(num_hidden_layers=layers, initializer_range=0.05)
    config.save_pretrained(base)
    config.num_labels = len(CLASSES)
    torch.manual_seed(0)
    state = transformers.BertForSequenceClassification(config).state_dict()
    arguments = {
        "model_type": str(base),
        "model_name": "BertForSequenceClassification",
        "tokenizer_name": "BertTokenizer",
        "num_classes": len(CLASSES),
    }
    trained = {"arch": {"args": arguments}, "dataset": {"args": {"classes": CLASSES}}}
    torch.save({"config": trained, "state_dict": state}, folder / "model.ckpt")
    return folder / "model.ckpt", base


def timed(score: Callable[[], np.ndarray]) -> tuple[np.ndarray, float, float]:
    """What it returns, wall and processor seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = score()
    return found, time.perf_counter() - wall, time.process_time() - cpu


def computed(lengths: np.ndarray, scorer: DetoxifyScorer) -> tuple[int, int, int]:
    """Tokens of the texts, and how many each side computes, Detoxify's and ours, where none is read
    in windows."""
    theirs = [lengths[i : i + BATCH] for i in range(0, len(lengths), BATCH)]
    ours = [lengths[batch] for batch in batch_by_length(lengths, scorer.batch_tokens)]
    padded = [sum(int(b.max()) * len(b) for b in side) for side in (theirs, ours)]
    return int(lengths.sum()), padded[0], padded[1]


def run(count: int, turns: int, layers: int, bf16: bool, folder: Path) -> None:
    from detoxify import Detoxify

    texts = passages(count, seed=0)
    checkpoint, base = make_checkpoint(folder, texts, layers)
    config = ScorerConfig(kind="detoxify", checkpoint=checkpoint, base_model_folder=base)
    peer = Detoxify(checkpoint=str(checkpoint))

    def predict() -> np.ndarray:
        rows = [peer.predict(texts[i : i + BATCH]) for i in range(0, len(texts), BATCH)]
        return np.array(
            [np.concatenate([np.atleast_1d(r[head]) for r in rows]) for head in known]
        ).T

    scorer = DetoxifyScorer(config)
    known = scorer.heads
    columns = [TOXICITY_HEADS.index(head) for head in known]
    sides = {"Detoxify.predict": predict, "fp32": lambda: scorer.score_by_head(texts)[:, columns]}
    if bf16:
        halved = DetoxifyScorer(config.model_copy(update={"precision": "bf16"}))
        sides["bf16"] = lambda: halved.score_by_head(texts)[:, columns]
    print(
        f"torch {torch.__version__}, transformers {version('transformers')}, tokenizers "
        f"{version('tokenizers')}, detoxify {version('detoxify')}; {torch.get_num_threads()} "
        f"threads, {torch.backends.cpu.get_cpu_capability()}"
    )
    lengths = np.array([len(ids) for ids in scorer._tokenizer(texts, verbose=False)["input_ids"]])
    whole = lengths <= (most := scorer._tokenizer.model_max_length)
    tokens, theirs, ours = computed(lengths.clip(max=most), scorer)
    print(
        f"{count} texts of {tokens:,} tokens; with padding Detoxify.predict computes {theirs:,}, "
        f"Hallmark {ours:,}; the network reads {whole.sum()} of them whole"
    )
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    scores = {}
    for turn in range(turns):
        for name, side in sides.items():
            scores[name], *seconds = timed(side)
            taken[name].append((seconds[0], seconds[1]))
            print(
                f"turn {turn + 1}: {name} {seconds[0]:.1f} s, processor {seconds[1]:.1f} s",
                flush=True,
            )
    base_wall, base_cpu = (
        statistics.median(column) for column in zip(*taken["Detoxify.predict"], strict=True)
    )
    for name, seconds in taken.items():
        wall, cpu = (statistics.median(column) for column in zip(*seconds, strict=True))
        error = np.abs(scores[name] - scores["Detoxify.predict"])[whole]
        print(
            f"{name}: median {wall:.1f} s, processor {cpu:.1f} s; {base_wall / wall:.2f} and "
            f"{base_cpu / cpu:.2f} times Detoxify.predict; scores differ by at most "
            f"{error.max():.1e}, {error.mean():.1e} on average"
        )
    assert np.abs(scores["fp32"] - scores["Detoxify.predict"])[whole].max() < 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--bf16", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(given.texts, given.turns, given.layers, given.bf16, Path(folder))


if __name__ == "__main__":
    main()
