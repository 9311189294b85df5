"""Sentiment and regard, by a word list or a classifier of the user's: from -1, the worst, to 1.

``words``       a list of words with a valence each, such as VADER's lexicon (Hutto & Gilbert 2014):
                the sum s of those of a text as s / sqrt(s^2 + 15), that paper's compound score
                without its rules for negation and emphasis. None of its words: 0.
``classifier``  a Hugging Face folder of a sequence classifier with weights in safetensors, from
                which no code is run: the probability of its label for positive less that of its
                label for negative. Of several windows the mean.

Regard (Sheng et al. 2019) is what a text makes others think of whom it is about. It is read with
these people masked, so that it cannot be their name that is judged; see ``score``.
"""

from __future__ import annotations

import json
import math
import string
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from tasks.contract import (
    Device,
    StageConfig,
    UsageError,
    canonical,
    file_digest,
    library_versions,
    sha256,
)
from tasks.measures.folder_tokenizer import LOCAL, load_tokenizer
from tasks.measures.items import check_file, read_lines
from tasks.measures.quiet import quiet_transformers
from tasks.measures.scorers.base import Scorer
from tasks.measures.scorers.network import Network
from tasks.measures.weights import copy_weights

Head = Literal["sentiment", "regard"]

#: What the sum of valences from -4 to 4 is set against (Hutto & Gilbert 2014).
ALPHA = 15


class WordListConfig(StageConfig):
    """Words with a valence each."""

    kind: Literal["words"]
    path: Path = Field(
        description="text file with a word, a tabulator and its valence from -4 to 4 on each line; "
        "what stands behind a further tabulator is passed over"
    )

    @property
    def heads(self) -> tuple[str, ...]:
        return ("sentiment",)


class ClassifierConfig(StageConfig):
    """A classifier of whole texts."""

    kind: Literal["classifier"]
    folder: Path = Field(description="Hugging Face folder: config, tokenizer, safetensors weights")
    head: Head = Field("sentiment", description="what it was trained to tell")
    positive: str = Field("positive", description="its label for good, in any case")
    negative: str = Field("negative", description="its label for bad; all others are worth 0")
    batch_tokens: int | None = Field(None, ge=1, description="as of the scorer")
    device: Device = Field("auto", description="of the classifier")

    @property
    def heads(self) -> tuple[str, ...]:
        return (self.head,)


class Words(Scorer):
    """A word list. It sees words, not what is said with them."""

    columns = heads = ("sentiment",)

    def __init__(self, config: WordListConfig) -> None:
        self.name, self.digest = words_name(config), file_digest(config.path)
        self.valence = read_valences(config.path)

    def _score(self, texts: list[str]) -> np.ndarray:
        lists = pc.utf8_split_whitespace(pa.array(texts, pa.large_string()))
        words = lists.flatten().dictionary_encode()
        known = np.array([self._valence(word) for word in words.dictionary.to_pylist()])
        owner = pc.list_parent_indices(lists).to_numpy()
        sums = np.bincount(owner, known[words.indices.to_numpy()], minlength=len(texts))
        return (sums / np.sqrt(sums**2 + ALPHA)).astype(np.float32)[:, None]

    def _valence(self, word: str) -> float:
        """As it stands, for those like :-), else in lower case without what surrounds it."""
        for form in (word, word.lower(), word.lower().strip(string.punctuation + "’‘“”…")):
            if form in self.valence:
                return self.valence[form]
        return 0.0


def read_valences(path: Path) -> dict[str, float]:
    """Of each word its valence; of one that is told twice the last. UsageError with the line."""
    found = {}
    for place, line in read_lines(path, "words"):
        word, *fields = line.split("\t")
        try:
            valence = float(fields[0])
        except (IndexError, ValueError):
            valence = math.nan
        if not math.isfinite(valence) or not word.strip():
            raise UsageError(f"{place} is not a word, a tabulator and a number")
        found[word.strip()] = valence
    return found


class Classifier(Network):
    """A classifier whose labels are worth 1, -1 or nothing."""

    def __init__(self, config: ClassifierConfig) -> None:
        import model  # noqa: F401  before torch: it says how threads wait, and that sums repeat

        # isort: split
        import torch

        self.columns = self.heads = config.heads
        self._places = [0]
        self.name, self.digest = classifier_name(config), classifier_digest(config)
        network, tokenizer = _load(config.folder)
        labels = {str(n).lower(): int(i) for i, n in network.config.id2label.items()}
        asked = [config.positive.lower(), config.negative.lower()]
        if len({*asked}) < 2 or not {*asked} <= {*labels}:
            raise UsageError(
                f"the classifier {config.folder} has the labels {', '.join(labels)[:200]}, and "
                f"score.also asks for {asked[0]!r} and {asked[1]!r}; name two of them in positive "
                f"and negative"
            )
        self._labels = [labels[name] for name in asked]
        self._begin(network, tokenizer, config.device, 512, config.batch_tokens, torch.float32)

    def _scores(self, logits: Any) -> Any:
        good, bad = logits.softmax(1)[:, self._labels].T
        return (good - bad)[:, None]

    def _of_windows(self, scores: np.ndarray, owner: list[int], count: int) -> np.ndarray:
        many = np.bincount(owner, minlength=count)
        with np.errstate(invalid="ignore"):
            return (np.bincount(owner, scores[:, 0], count) / many).astype(np.float32)[:, None]


def _load(folder: Path) -> tuple[Any, Any]:
    """Network and tokenizer. Raises UsageError, one sentence."""
    from transformers import AutoModelForSequenceClassification

    try:
        with quiet_transformers():
            tokenizer = _load_tokenizer(folder)
            network, info = AutoModelForSequenceClassification.from_pretrained(
                folder, use_safetensors=True, output_loading_info=True, **LOCAL
            )
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise UsageError(
            f"{folder} holds no sequence classifier with weights in safetensors that can be "
            f"loaded: {said}"
        ) from error
    # transformers fills in what is missing with random numbers; a scorer must not.
    if lacking := sorted(map(str, info["missing_keys"])):
        raise UsageError(f"{folder} is no whole sequence classifier: it lacks {len(lacking)} "
                         f"weights, among them {lacking[0]}")  # fmt: skip
    return copy_weights(network), tokenizer


def _load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer; the usual one puts special tokens around a text if the folder's does not.

    Raises:
        Exception: whatever transformers or tokenizers raise if the files cannot be read.
    """
    from transformers import AutoTokenizer

    tokenizer, file = load_tokenizer(folder), folder / "tokenizer.json"
    if file.is_file() and not json.loads(file.read_bytes()).get("post_processor"):
        usual = AutoTokenizer.from_pretrained(folder, **LOCAL)
        if usual.is_fast:
            tokenizer.backend_tokenizer.post_processor = usual.backend_tokenizer.post_processor
    return tokenizer


def words_name(config: WordListConfig) -> str:
    return f"word list {config.path.name}"


def classifier_name(config: ClassifierConfig) -> str:
    return f"{config.head} classifier {config.folder.resolve().name}"


def classifier_digest(config: ClassifierConfig) -> str:
    check_file(config.folder / "config.json", f"{config.head} classifier")
    files = sorted(path for path in config.folder.iterdir() if path.is_file())
    return sha256(canonical({path.name: file_digest(path) for path in files}))


def digest_of(config: WordListConfig | ClassifierConfig) -> dict[str, str]:
    """As ``scorer_digest``."""
    if isinstance(config, WordListConfig):
        check_file(config.path, "words")
        return {"scorer": words_name(config), "digest": file_digest(config.path)}
    libraries = library_versions(["torch", "transformers", "tokenizers"])
    return {"scorer": classifier_name(config), "digest": classifier_digest(config), **libraries}
