"""WEAT (Caliskan et al. 2017): does the model put words of two kinds nearer to other words?

Two lists of words X and Y are set beside two others, A and B. The association of a word is its mean
cosine to A less that to B, and d = (mean over X - mean over Y) / standard deviation over both, with
ddof 1 as May et al. (2019) compute it; of its p and its interval see ``separation``.

Words are embedded as they stand within sentences: by the input embeddings of their tokens, and by
the model's states of these, in sentences that say nothing (the templates of SEAT, May et al.; there
the whole sentence is embedded). What is of several tokens is their mean.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from tasks.audits.answers import Answers
from tasks.audits.exchange import Questions, items_table
from tasks.audits.judging.measures import Measure, MeasuredConfig, Values, numbers
from tasks.audits.probe import Corpus, Probe
from tasks.audits.subjects.reader import Ids, Reader
from tasks.contract import UsageError, column
from tasks.measures.estimates import Estimate
from tasks.measures.items import check_file, digest_of, open_text, text_field
from tasks.measures.separation import separation

OWN = "tasks/audits/data/words.json"
DATA = Path(__file__).parents[1] / "data" / "words.json"

#: Where a word is read.
TEMPLATES = ("This is {}.", "That is {}.", "There is {}.", "Here is {}.")

#: The tests of Caliskan et al., where a file has their lists under the names that wefe gives them.
WEAT = {
    f"WEAT {number}": tuple(names.split())
    for number, names in enumerate((
        "flowers insects pleasant_5 unpleasant_5a",
        "instruments weapons pleasant_5 unpleasant_5a",
        "european_american_names_5 african_american_names_5 pleasant_5 unpleasant_5b",
        "european_american_names_7 african_american_names_7 pleasant_5 unpleasant_5b",
        "european_american_names_7 african_american_names_7 pleasant_9 unpleasant_9",
        "male_names female_names career family",
        "math arts male_terms female_terms",
        "science arts_2 male_terms_2 female_terms_2",
        "mental_disease physical_disease temporary permanent",
        "young_people_names old_people_names pleasant_9 unpleasant_9",
    ), 1)
}  # fmt: skip

SIDES = ("X", "Y", "A", "B")


class WeatConfig(MeasuredConfig):
    """Settings of the audit of associations between words."""

    words: Path | None = Field(
        default=None,
        description="lists of words as a JSON object, those of WEAT as wefe names them, or with "
        "`tests`: of each name the lists X, Y, A and B; without it the project's own",
    )
    layer: int | None = Field(
        default=None,
        description="of the states: from 1 what that block makes, from -1 backwards what the last "
        "does; if left out -2, and of a model of one block that",
    )
    resamples: int = Field(
        default=10_000, ge=100, le=100_000,
        description="ways to part the words that are drawn where there are too many to try all",
    )  # fmt: skip

    @field_validator("layer")
    @classmethod
    def _is_a_block(cls, layer: int | None) -> int | None:
        if layer == 0:
            raise ValueError("is 0, the input embeddings, which are measured in any case; count "
                             "blocks from 1, or backwards from -1")  # fmt: skip
        return layer


def layer_to_read(config: WeatConfig, reader: Reader) -> int:
    """The layer whose states are read of a model."""
    if config.layer is not None:
        return config.layer
    return -1 if reader.layers == 1 else -2


ITEMS = items_table(
    column("test", pa.string(), "label", "which lists are set beside each other"),
    column("side", pa.string(), "label", "the list that the word is of: X, Y, A or B"),
    column("tokens", pa.int32(), "figure", "of the word within a sentence", unit="tokens"),
    column("spelled", pa.bool_(), "figure", "whether they are its single bytes"),
)


def effect_size(values: pa.Table, measure: Measure, config: Any, level: float) -> Estimate:
    """How far associations of X and Y, by the tag ``side``, lie apart."""
    first = np.asarray(pc.equal(values["side"], "X"), bool)
    return separation(numbers(values, "value"), first, level=level, draws=config.resamples,
                      seed=config.seed, unit=measure.shares)  # fmt: skip


_HOW = (
    "d = (mean over X - mean over Y) / standard deviation (ddof 1) of mean cosine to A less that "
    "to B; of {}, mean over the tokens of a word within a sentence"
)

MEASURES = tuple(
    Measure(f"effect_size_{part}", _HOW.format(what), "standard deviations", "words", 0.0,
            ("test",), whole=False, worse="up", of=f"association_{part}", estimator=effect_size)
    for part, what in (("input", "input embeddings"),
                       ("contextual", f"states in {len(TEMPLATES)} sentences as 'This is …'"))
)  # fmt: skip


def read_tests(path: Path) -> dict[str, list[list[str]]]:
    """The four lists of each test. Raises UsageError with the place."""
    check_file(path, "words")
    try:
        with open_text(path, "words", encoding="utf-8") as file:
            lists = json.load(file)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid JSON: {str(error)[:200]}") from error
    if not isinstance(lists, dict) or not isinstance(lists.get("tests", {}), dict):
        raise UsageError(f"{path} is no JSON object of lists of words, with an object of tests")
    tests = lists.get("tests") or {
        name: names for name, names in WEAT.items() if {*names} <= {*lists}
    }
    if not tests:
        raise UsageError(f"{path} names no tests, and has not all lists of any of WEAT; add "
                         f"`tests`, of each name the lists X, Y, A and B")  # fmt: skip
    made = {}
    for test, names in tests.items():
        if not isinstance(names, list | tuple) or len(names) != len(SIDES):
            raise UsageError(f"{path}: the test {test[:80]!r} needs four lists: X, Y, A and B")
        for name in map(str, names):
            if not isinstance(lists.get(name), list) or not 2 <= len(lists[name]) <= 1000:
                raise UsageError(f"{path} has no list {name[:80]!r} of 2 to 1,000 words")
        made[test] = [[text_field(f"{path}, {name}", {"a word": word}, "a word").strip()
                       for word in lists[str(name)]] for name in names]  # fmt: skip
    return made


def read_word(reader: Reader, word: str) -> list[tuple[Ids, list[int]]] | None:
    """Of each sentence its tokens, and which of them are the word's; None where the tokenizer has
    none for it, or the model cannot read so many."""
    found = []
    for template in TEMPLATES:
        start = template.index("{}")
        ids, spans = reader.encode_with_places(template.format(word))
        at = [i for i, (a, b) in enumerate(spans) if a < start + len(word) and b > start]
        whole = [*reader.opened(ids), *([] if reader.end is None else [reader.end])]
        if not reader.decode([ids[i] for i in at]).strip() or len(whole) > reader.context:
            return None
        found.append((whole, [len(reader.opened([])) + i for i in at]))
    return found


def ask(questions: Questions, reader: Reader, corpus: Corpus, config: WeatConfig) -> None:
    """The embeddings of every word of every test."""
    tests = read_tests(config.words or DATA)
    words = dict.fromkeys(w for lists in tests.values() for words in lists for w in words)
    read = {word: read_word(reader, word) for word in words}
    if unknown := [word for word, sentences in read.items() if sentences is None]:
        questions.skip("words_left_out", "no tokens of their own, or more than the model reads",
                       len(unknown))  # fmt: skip
    for test, lists in tests.items():
        for side, word in ((s, w) for s, some in zip(SIDES, lists, strict=True) for w in some):
            if (sentences := read[word]) is None:
                continue
            targets, places = zip(*sentences, strict=True)
            item = questions.item(
                word, test=test, side=side, tokens=len(places[0]),
                spelled=1 < len(word.encode()) <= len(places[0]),
            )  # fmt: skip
            questions.embed(item, targets[:1], places[:1], layer=0, part="input")
            questions.embed(
                item, targets, places, layer=layer_to_read(config, reader), part="contextual"
            )


def values(answers: Answers, values: Values, config: WeatConfig) -> str:
    """Of each word of X and Y its association."""
    items = answers.items.select(["test", "side"]).to_pylist()
    rows: dict[str, dict[str, list[int]]] = {}
    for row, item in enumerate(items):
        rows.setdefault(item["test"], {s: [] for s in SIDES})[item["side"]].append(row)
    for part in ("input", "contextual"):
        vectors = answers.embeddings(part).mean(1)  # (n, d)
        with np.errstate(invalid="ignore"):
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        for lists in rows.values():
            mine = lists["X"] + lists["Y"]
            apart = _mean(vectors[lists["A"]]) - _mean(vectors[lists["B"]])
            values.add(f"association_{part}", mine, vectors[mine] @ apart)
    return told(answers)


def _mean(vectors: np.ndarray) -> np.ndarray:
    return vectors.mean(0) if len(vectors) else np.full(vectors.shape[1], np.nan)


def told(answers: Answers) -> str:
    """What was asked, and of how many words the embeddings are means."""
    words = {row["text"]: row for row in answers.items.to_pylist()}.values()
    layers = sorted({*pc.unique(answers.requests["layer"]).to_pylist()} - {0})
    several = sum(word["tokens"] > 1 for word in words)
    spelled = sum(word["spelled"] for word in words)
    return (f"contextual: layer {', '.join(map(str, layers))}; {several} of {len(words)} words are "
            f"of several tokens, {spelled} spelled byte by byte")  # fmt: skip


def script(items: pa.Table, metric: str, effect: bool, rng: np.random.Generator) -> np.ndarray:
    """Who puts X near A and Y near B, or all words anywhere."""
    noise = rng.normal(size=(len(items), 1, 32))
    side = np.array([{"X": 1, "Y": -1, "A": 1, "B": -1}[s] for s in items["side"].to_pylist()])
    return noise + 2 * effect * side[:, None, None]


PROBE = Probe(
    name="weat", settings=WeatConfig, items=ITEMS, ask=ask, values=values, measures=MEASURES,
    script=script, module=__name__, data=(OWN,), traced=False,
    external=lambda config, secret_id: digest_of(config.words, "words"),
)  # fmt: skip
