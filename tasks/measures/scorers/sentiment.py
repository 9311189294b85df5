"""Score sentiment and regard with a user's word list or classifier, from -1 (worst) to 1.

`words`       a list of words with valences, such as VADER's lexicon (Hutto & Gilbert 2014). The sum
              s of a text's valences becomes s / sqrt(s^2 + 15), that paper's compound score without
              its rules for negation and emphasis. A text without any of the words scores 0.
`classifier`  a Hugging Face folder of a sequence classifier with weights in safetensors; no code
              from it is run. The score is the probability of the positive label minus that of the
              negative label, averaged over the windows of a long text.

Regard (Sheng et al. 2019) is the attitude that a text conveys towards the people it is about. Their
names are masked before scoring, so that the names themselves do not affect the score; see the
`score` stage.
"""

from __future__ import annotations

import json
import logging
import math
import string
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from hallmark.tasks.contract import (
    DeviceName,
    StageConfig,
    UsageError,
    hash_file,
    read_library_versions,
    sha256_hex,
    to_canonical_json,
)
from hallmark.tasks.measures.folder_tokenizer import LOCAL_ONLY_OPTIONS, load_tokenizer
from hallmark.tasks.measures.item_files import check_file_exists, read_nonempty_lines
from hallmark.tasks.measures.scorers.base import Scorer, TextsByColumns, VersionByKey
from hallmark.tasks.measures.scorers.network import TransformerScorer
from hallmark.tasks.measures.transformers_logging import silence_transformers_output
from hallmark.tasks.measures.weights import detach_weights_from_files

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SentimentHead = Literal["sentiment", "regard"]

#: Normalises the sum of valences, which are from -4 to 4 (Hutto & Gilbert 2014).
COMPOUND_ALPHA = 15

#: Maximum number of words that a warning names.
MAX_LISTED_WORDS = 3

log = logging.getLogger("hallmark")


class WordListConfig(StageConfig):
    """Configure a list of words with valences."""

    kind: Literal["words"]
    path: Path = Field(
        description="text file in which each line contains a word, a tab and the word's valence "
        "from -4 to 4; anything after a second tab is ignored"
    )

    @property
    def heads(self) -> tuple[str, ...]:
        return ("sentiment",)


class ClassifierConfig(StageConfig):
    """Configure a sequence classifier."""

    kind: Literal["classifier"]
    folder: Path = Field(
        description=(
            "folder that contains a Hugging Face model with its config, tokenizer and safetensors "
            "weights"
        )
    )
    head: SentimentHead = Field(
        "sentiment", description="categories that the classifier was trained to predict"
    )
    positive_label: str = Field(
        "positive",
        description=("label that the classifier assigns to positive texts; case is ignored"),
    )
    negative_label: str = Field(
        "negative",
        description=(
            "label that the classifier assigns to negative texts; labels other than "
            "`positive_label` and `negative_label` are treated as 0"
        ),
    )
    batch_tokens: int | None = Field(
        None,
        ge=1,
        description="maximum number of tokens per batch, including padding; a longer window forms "
        "its own batch. Default: 1,024, or 16,384 on a GPU",
    )
    device: DeviceName = Field("auto", description="device that runs the classifier")

    @property
    def heads(self) -> tuple[str, ...]:
        return (self.head,)


class WordListScorer(Scorer):
    """Score texts by the valences of their words, without regard to grammar."""

    kind = "words"
    config_class = WordListConfig
    columns = heads = ("sentiment",)

    @classmethod
    def from_config(cls, config: WordListConfig) -> WordListScorer:
        return cls(config)

    @classmethod
    def read_versions(cls, config: WordListConfig) -> VersionByKey:
        check_file_exists(config.path, "words")
        return {"scorer": word_list_scorer_name(config), "digest": hash_file(config.path)}

    @classmethod
    def check_files(cls, config: WordListConfig) -> None:
        read_word_list(config.path)

    def __init__(self, config: WordListConfig) -> None:
        self.name, self.digest = word_list_scorer_name(config), hash_file(config.path)
        word_list = read_word_list(config.path)
        self.valences = word_list.valences
        if word_list.contradictions:
            log.warning(
                "%s lists more than one valence for %s of its words, such as %s; using the last "
                "valence for each word",
                config.path,
                format(len(word_list.contradictions), ","),
                ", ".join(word_list.contradictions[:MAX_LISTED_WORDS]),
            )

    def _score_distinct_texts(self, texts: list[str]) -> TextsByColumns:
        word_lists = pc.utf8_split_whitespace(pa.array(texts, pa.large_string()))
        words = word_lists.flatten().dictionary_encode()
        distinct_valences = np.array(
            [self._lookup_valence(word) for word in words.dictionary.to_pylist()]
        )
        text_indices = pc.list_parent_indices(word_lists).to_numpy()
        valence_sums = np.bincount(
            text_indices, distinct_valences[words.indices.to_numpy()], minlength=len(texts)
        )
        return (valence_sums / np.sqrt(valence_sums**2 + COMPOUND_ALPHA)).astype(np.float32)[
            :, None
        ]

    def _lookup_valence(self, word: str) -> float:
        """Look up a word as it is (such as `:-)`), in lower case, then without punctuation."""
        for form in (word, word.lower(), word.lower().strip(string.punctuation + "’‘“”…")):
            if form in self.valences:
                return self.valences[form]
        return 0.0


class WordList(NamedTuple):
    """Hold the words of a list.

    Attributes:
        valences: The valence of each word; the last one if it has several.
        contradictions: The words with different valences.
    """

    valences: dict[str, float]
    contradictions: list[str]


def read_word_list(path: Path) -> WordList:
    """Read words and valences.

    Raises:
        UsageError: A line is not a word, a tab and a number.
    """
    valences: dict[str, float] = {}
    contradictions: dict[str, None] = {}
    for location, line in read_nonempty_lines(path, "words"):
        word, *fields = line.split("\t")
        try:
            valence = float(fields[0])
        except (IndexError, ValueError):
            valence = math.nan
        if not math.isfinite(valence) or not word.strip():
            raise UsageError(
                f"{location} does not consist of a word, a tab and a number; correct or remove "
                "the line"
            )
        if valences.setdefault(word.strip(), valence) != valence:
            contradictions[word.strip()] = None
        valences[word.strip()] = valence
    return WordList(valences, [*contradictions])


class ClassifierScorer(TransformerScorer):
    """Score texts by the probabilities of a positive and a negative label."""

    kind = "classifier"
    config_class = ClassifierConfig

    @classmethod
    def from_config(cls, config: ClassifierConfig) -> ClassifierScorer:
        return cls(config)

    @classmethod
    def read_versions(cls, config: ClassifierConfig) -> VersionByKey:
        libraries = read_library_versions(["torch", "transformers", "tokenizers"])
        return {
            "scorer": classifier_scorer_name(config),
            "digest": classifier_digest(config),
            **libraries,
        }

    def __init__(self, config: ClassifierConfig) -> None:
        import hallmark.model  # noqa: F401  before torch: sets thread and determinism options

        # isort: split
        import torch

        self.columns = self.heads = config.heads
        self._score_columns = [0]
        self.name, self.digest = classifier_scorer_name(config), classifier_digest(config)
        network, tokenizer = _load_classifier_and_tokenizer(config.folder)
        column_by_label = {
            str(label).lower(): int(column) for column, label in network.config.id2label.items()
        }
        requested_labels = [config.positive_label.lower(), config.negative_label.lower()]
        if len({*requested_labels}) < 2 or not {*requested_labels} <= {*column_by_label}:
            raise UsageError(
                f"the classifier {config.folder} has the labels "
                f"{', '.join(column_by_label)[:200]}, but score.additional_scorers specifies "
                f"{requested_labels[0]!r} and {requested_labels[1]!r}; set positive_label and "
                "negative_label to two different classifier labels"
            )
        self._label_columns = [column_by_label[name] for name in requested_labels]
        self._attach_network(
            network, tokenizer, config.device, 512, config.batch_tokens, torch.float32
        )

    def _logits_to_score_columns(self, logits: Tensor) -> Tensor:
        positive, negative = logits.softmax(1)[:, self._label_columns].T
        scores: Tensor = (positive - negative)[:, None]
        return scores

    def _aggregate_window_scores(
        self, window_scores: np.ndarray, text_indices: list[int], text_count: int
    ) -> np.ndarray:
        window_counts = np.bincount(text_indices, minlength=text_count)
        score_sums = np.bincount(text_indices, window_scores[:, 0], text_count)
        with np.errstate(invalid="ignore"):
            return (score_sums / window_counts).astype(np.float32)[:, None]


def _load_classifier_and_tokenizer(
    folder: Path,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load network and tokenizer; raise UsageError if the folder has no complete classifier."""
    from transformers import AutoModelForSequenceClassification

    try:
        with silence_transformers_output():
            tokenizer = _load_classifier_tokenizer(folder)
            network, info = AutoModelForSequenceClassification.from_pretrained(
                folder, use_safetensors=True, output_loading_info=True, **LOCAL_ONLY_OPTIONS
            )
    except Exception as error:
        message = " ".join(str(error).split())[:200]
        raise UsageError(
            f"{folder} contains no loadable sequence classifier with safetensors weights: {message}"
        ) from error
    # transformers initialises missing weights at random, which would give random scores.
    if missing_weights := sorted(map(str, info["missing_keys"])):
        raise UsageError(
            f"the sequence classifier in {folder} is incomplete: it lacks {len(missing_weights)} "
            f"weights, for example {missing_weights[0]}"
        )
    detach_weights_from_files(network)
    return network, tokenizer


def _load_classifier_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer; if its file adds no special tokens, add those usual for the model type.

    Raises:
        Exception: whatever transformers or tokenizers raise if the files cannot be read.
    """
    from transformers import AutoTokenizer

    tokenizer, tokenizer_file = load_tokenizer(folder), folder / "tokenizer.json"
    if tokenizer_file.is_file() and not json.loads(tokenizer_file.read_bytes()).get(
        "post_processor"
    ):
        default_tokenizer = AutoTokenizer.from_pretrained(folder, **LOCAL_ONLY_OPTIONS)
        if default_tokenizer.is_fast:
            tokenizer.backend_tokenizer.post_processor = (
                default_tokenizer.backend_tokenizer.post_processor
            )
    return tokenizer


def word_list_scorer_name(config: WordListConfig) -> str:
    return f"word list {config.path.name}"


def classifier_scorer_name(config: ClassifierConfig) -> str:
    return f"{config.head} classifier {config.folder.resolve().name}"


def classifier_digest(config: ClassifierConfig) -> str:
    check_file_exists(config.folder / "config.json", f"{config.head} classifier")
    files = sorted(path for path in config.folder.iterdir() if path.is_file())
    return sha256_hex(to_canonical_json({path.name: hash_file(path) for path in files}))
