"""Misuse: what the model makes of prompts that a user brings, kept for people to judge.

No accepted automatic score exists for misinformation or radicalisation (McGuffie & Newhouse 2020
used experts), so none is given. What can be measured is: whether the model writes anything behind a
prompt (whether that is a refusal, nobody asks), and how likely it finds continuations that the user
gives. The texts are kept in the table ``values``. People rate them, their file is read back, and
the audit gives the mean, and how far they agree. Without ratings it is unscored, and says so.

What a rating is about is the prompt and the text itself: of another checkpoint's texts it says
nothing, and such ratings are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from tasks.audits.answers import Answers
from tasks.audits.exchange import Questions, items_table
from tasks.audits.judging.findings import evidence, finding
from tasks.audits.judging.measures import (
    Drawn,
    Measure,
    MeasuredConfig,
    Part,
    Values,
    mean,
    numbers,
    sliced_by,
)
from tasks.audits.judging.tags import WHOLE_ONLY, SliceTags
from tasks.audits.methods.ratings import read_ratings, sample_of
from tasks.audits.probe import Corpus, Probe
from tasks.audits.subjects.reader import Reader
from tasks.contract import UsageError, column
from tasks.measures.agreement import krippendorff
from tasks.measures.estimates import Estimate, estimate
from tasks.measures.items import digests_of, read_items, read_lines, text_field

#: What texts are: written by the model, or given by the user as a continuation.
WRITTEN, GIVEN = "written", "given"

UNRATED = (
    "not measured: unscored until a person scores it; rate the texts in the table values from 0 "
    "(harmless) to 1 (harmful) and name the file in audit_misuse.ratings"
)


class MisuseConfig(MeasuredConfig):
    """Settings of the audit of misuse. Without prompts it does not run."""

    prompts: tuple[Path, ...] = Field(
        (), description="files of prompts: txt with one a line; jsonl, csv or tsv with the field "
        "prompt and, where there are any, category, continuation (a text whose likelihood is "
        "measured, behind a space unless it brings its own) and continuations (jsonl: several)"
    )  # fmt: skip
    ratings: tuple[Path, ...] = Field(
        (), description="files of what people say of the texts, jsonl, csv or tsv: sample (or "
        "prompt and continuation) as in the table values, rater, and rating (0 harmless to 1 "
        "harmful) or label; rows with neither are passed over"
    )  # fmt: skip
    draws: int = Field(5, ge=1, le=1000, description="texts behind each prompt")
    tokens: int = Field(60, ge=1, le=10_000, description="of a text, at most")
    temperature: float = Field(1.0, gt=0, le=10, description="of the sampling")
    top_p: float = Field(0.9, gt=0, le=1, description="nucleus of the sampling")


ITEMS = items_table(
    column("category", pa.string(), "label", "as the file has it; empty: it has none"),
    column("given", pa.list_(pa.string()), "personal", "continuations that the file has"),
)

#: What values tell beside their items.
TOLD = (
    column("sample", pa.string(), "id", "the text by its prompt and its words: ratings name it"),
    column("kind", pa.string(), "label", "written: by the model, given: by the user"),
    column("draw", pa.int32(), "figure", "which text behind the prompt, from 0"),
    column("continuation", pa.large_string(), "model text", "what the model wrote, or the user "
           "gave", judged_by="score"),
    column("score", pa.float32(), "figure", "toxicity of what was written: it says what pages may "
           "show, not whether it is misuse", unit="score"),
    column("prompt_score", pa.float32(), "figure", "toxicity of the prompt", unit="score"),
    column("ratings", pa.int32(), "figure", "people who rated it", unit="people"),
    column("rated", pa.float64(), "figure", "mean of their ratings, from 0 (harmless) to 1 "
           "(harmful); null: nobody gave one", unit="score"),
    column("label", pa.string(), "label", "what people called it"),
    column("person", pa.int32(), "personal", "who rated it, as a number"),
)  # fmt: skip


def read_prompts(paths: Sequence[Path]) -> dict[tuple[str, str], list[str]]:
    """Continuations by prompt and category, each prompt once, without white space at its end.
    Raises UsageError with the line."""
    found: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        if path.suffix == ".txt":
            for _, line in read_lines(path, "prompts"):
                found.setdefault((line, ""), [])
            continue
        for place, row in read_items(path, "prompts"):
            prompt = text_field(place, row, "prompt").rstrip()
            category = row.get("category") or ""
            if not isinstance(category, str) or len(category) > 100 or not category.isprintable():
                raise UsageError(
                    f"{place} has {repr(category)[:60]} in 'category', which names none; write at "
                    f"most 100 characters that can be printed"
                )
            known = found.setdefault((prompt, category), [])
            known += (text for text in _given(place, row) if text not in known)
    return found


def _given(place: str, row: dict[str, Any]) -> Iterator[str]:
    """Continuations of a row, each as it stands behind its prompt."""
    several = row.get("continuations") or []
    if not isinstance(several, list):
        raise UsageError(f"{place} has no list in 'continuations', but {repr(several)[:60]}; a "
                         f"single text is a 'continuation'")  # fmt: skip
    one = row.get("continuation")
    for text in several if one in (None, "") else [one, *several]:
        checked = text_field(place, {"continuation": text}, "continuation")
        yield checked if checked[0].isspace() else f" {checked}"


def ask(questions: Questions, reader: Reader, corpus: Corpus, config: MisuseConfig) -> None:
    """Texts behind each prompt, and how likely those are that were given."""
    prompts = read_prompts(config.prompts)
    read_ratings(config.ratings)  # what is wrong there is said before a model is asked
    if reader.kind == "masked":
        questions.skip("", "the subject is a masked language model")
        return
    sampling: dict[str, Any] = {"tokens": config.tokens, "temperature": config.temperature,
                                "top_p": config.top_p, "seed": config.seed}  # fmt: skip
    encoded = reader.encode_batch([prompt for prompt, _ in prompts])
    spans = reader.behind([prompt for prompt, _ in prompts], list(prompts.values()))
    lost = long = 0
    numbered: dict[str, int] = {}
    for ((prompt, category), given), ids, (before, targets) in zip(
        prompts.items(), encoded, spans, strict=True
    ):
        context = reader.opened(ids)
        lost, long = lost + (not context), long + (len(context) + config.tokens > reader.context)
        if context:
            number = numbered.setdefault(prompt, len(numbered))
            item = questions.item(prompt, f"prompt {number}", category=category, given=given)
            questions.write(item, context, draws=config.draws, **sampling)
            if given:
                questions.read(item, before, targets, part=GIVEN)
    for part, why, count in (
        ("prompts_without_a_token", "the tokenizer makes nothing of them, so they are not asked",
         lost),
        ("prompts_beyond_the_context", f"with {config.tokens} tokens behind them they exceed the "
         f"{reader.context} that the model sees; their beginning is lost", long),
    ):  # fmt: skip
        if count:
            questions.skip(part, why, count)


def values(answers: Answers, values: Values, config: MisuseConfig) -> str:
    """Of each text whether there is anything, of each given one its loss a token, and what people
    say of the texts."""
    items, written = answers.items, answers.of()
    prompts, row = items["text"].to_pylist(), written["row"].to_numpy()
    texts = written["text"].to_pylist()
    names = [sample_of(prompts[r], text) for r, text in zip(row, texts, strict=True)]
    said: dict[str, list[float | str]] = {name: [] for name in names}
    ratings = [rating for rating in read_ratings(config.ratings) if rating.sample in said]
    for one in ratings:
        said[one.sample].append(one.value)
    mine = [said[name] for name in names]
    judged = answers.scores(items["text"])
    told = pa.table(
        {
            "sample": pa.array(names, pa.string()), "draw": written["draw"],
            "continuation": written["text"],
            "score": pa.array(answers.scores(written["text"]), from_pandas=True),
            "prompt_score": pa.array(judged[row], from_pandas=True),
            "ratings": pa.array(map(len, mine), pa.int32()),
            "rated": pa.array(map(_mean, mine), pa.float64()),
        }
    )  # fmt: skip
    values.add("continued", row, [bool(text.strip()) for text in texts], kind=WRITTEN,
               **_columns(told))  # fmt: skip
    rows, draws, sums, counts = answers.sums(GIVEN)
    given = [items["given"][int(r)][int(d)].as_py() for r, d in zip(rows, draws, strict=True)]
    known = counts > 0
    values.add(
        "continuation_loss", rows, np.where(known, -sums / np.where(known, counts, 1), np.nan),
        kind=GIVEN, draw=draws, continuation=given, prompt_score=judged[rows],
        sample=[sample_of(prompts[r], text) for r, text in zip(rows, given, strict=True)],
    )  # fmt: skip
    # Of texts that are alike the first: a rating counts once.
    first = {name: place for place, name in reversed([*enumerate(names)])}
    for label in sorted({r.value for r in ratings if isinstance(r.value, str)}):
        at = np.array(sorted({first[one.sample] for one in ratings}), np.int64)
        shares = [mine[n].count(label) / len(mine[n]) for n in at]
        values.add("label_share", row[at], shares, kind=WRITTEN, label=label,
                   **_columns(told.take(pa.array(at))))  # fmt: skip
    at = np.array([first[one.sample] for one in ratings], np.int64)
    people = {name: number for number, name in enumerate(dict.fromkeys(r.rater for r in ratings))}
    values.add(
        "rating", row[at], [np.nan if isinstance(r.value, str) else r.value for r in ratings],
        label=[r.value if isinstance(r.value, str) else None for r in ratings], kind=WRITTEN,
        person=[people[r.rater] for r in ratings], **_columns(told.take(pa.array(at))),
    )  # fmt: skip
    return ""


def _mean(ratings: Sequence[float | str]) -> float | None:
    scores = [value for value in ratings if not isinstance(value, str)]
    return float(np.mean(scores)) if scores else None


def _columns(rows: pa.Table) -> dict[str, pa.ChunkedArray]:
    return {name: rows[name] for name in rows.column_names}


@sliced_by(SliceTags((("category",),), of_items=("category",)))
def by_category(values: pa.Table) -> list[Part]:
    """Each category, where there are any."""
    found = sorted({*values["category"].to_pylist()} - {""})
    return [({"category": name}, {"category": name}) for name in found]


@sliced_by(SliceTags((("label",), ("category", "label")), of_items=("category",)))
def by_label(values: pa.Table) -> list[Part]:
    """Each label, in all and by category."""
    labels = sorted({*values["label"].to_pylist()})
    parts = [({}, {}), *by_category(values)]
    return [(tags | {"label": name}, where | {"label": name})
            for tags, where in parts for name in labels]  # fmt: skip


def some(values: pa.Table, measure: Measure, config: Drawn, level: float) -> Estimate | None:
    """The mean, or share; None where there are no values."""
    return mean(values, measure, config, level) if len(values) else None


def perplexity(values: pa.Table, measure: Measure, config: Drawn, level: float) -> Estimate | None:
    """e to the mean of losses; None where there are none."""
    found = some(values, measure, config, level)
    if found is None:
        return None
    value, low, high = np.exp([found.value, found.low, found.high])
    return replace(found, value=float(value), low=float(low), high=float(high))


def rating(values: pa.Table, measure: Measure, config: Drawn, level: float) -> Estimate | None:
    """The mean over texts of what people say of each; None where nobody gave a number."""
    if values["value"].null_count == len(values):
        return None
    texts = values.group_by("sample", use_threads=False).aggregate(
        [("rated", "first"), ("cluster", "first")]
    )
    return estimate(numbers(texts, "rated_first"), texts["cluster_first"].to_pylist(), level=level,
                    unit=measure.shares)  # fmt: skip


def agreed(values: pa.Table, measure: Measure, config: Drawn, level: float) -> Estimate | None:
    """Krippendorff's alpha; None where nobody rated anything."""
    if not len(values):
        return None
    labels = values["label"].null_count < len(values)
    said = values["label"].to_pylist() if labels else numbers(values, "value")
    return krippendorff(said, values["sample"].to_pylist(), values["cluster"].to_pylist(),
                        labels=labels, level=level)  # fmt: skip


def _by_people(how: str) -> Callable[[pa.Table, Any], str]:
    return lambda values, config: how.format(people=f"{len(pc.unique(values['person']))} people")


MEASURES = (
    Measure("continued", "share of texts with a visible character; whether they refuse is not "
            "judged", "share", "prompts", slices=(by_category,), worse="", scripted=False,
            estimator=some),
    Measure("continuation_perplexity", "e to the mean loss of given continuations a token, each as "
            "much as any other", "perplexity", "prompts", slices=(by_category,), worse="",
            scripted=False, of="continuation_loss", estimator=perplexity),
    Measure("human_rating", _by_people("mean rating of {people}, 0 harmless, 1 harmful; each text "
            "as much as any other"), "score", "prompts", slices=(by_category,), worse="up",
            scripted=False, of="rating", order="-rated", estimator=rating),
    Measure("label_share", "share of the ratings of people that say so; each text as much as any "
            "other", "share", "prompts", slices=(by_label,), whole=False, worse="",
            scripted=False, estimator=some),
    Measure("rater_agreement", _by_people("{people}; 1 is full agreement, 0 chance"), "alpha",
            "prompts", worse="", scripted=False, of="rating", order="rated", estimator=agreed),
)  # fmt: skip


def derived(
    found: Sequence[Mapping[str, Any]], values: pa.Table, config: MisuseConfig
) -> list[dict[str, Any]]:
    """Ratings that are of no text of this checkpoint; and that nobody has rated its texts."""
    ratings = len(read_ratings(config.ratings))
    used = len(evidence(values, {"measure": "rating"}))
    rows = []
    if used < ratings:
        rows.append(
            finding("misuse", "ratings_of_other_texts", ratings - used, n=ratings, unit="ratings",
                    table="", method="name no text of this checkpoint; they are not counted")
        )  # fmt: skip
    if not used:
        why = UNRATED if not ratings else f"not measured: of {ratings} ratings none names a text " \
            "of this checkpoint; unscored until a person scores it"  # fmt: skip
        rows.append(finding("misuse", "human_rating", None, n=0, unit="score", method=why,
                            table="values", where={"measure": "continued"}))  # fmt: skip
    return rows


PROBE = Probe(
    name="misuse", settings=MisuseConfig, items=ITEMS, told=TOLD, ask=ask, values=values,
    measures=MEASURES, derived=derived, also={"ratings_of_other_texts": WHOLE_ONLY},
    without_interval=("ratings_of_other_texts",),
    module=__name__, scored=True, traced=False, needs=("prompts",),
    external=lambda config, secret_id: digests_of(config.prompts, "prompts"),
    read_back=lambda config, secret_id: digests_of(config.ratings, "ratings"),
)  # fmt: skip
