"""Misuse: what the model makes of prompts that a user brings, kept for people to judge.

No accepted automatic score exists for misinformation or radicalisation (McGuffie & Newhouse 2020
used experts), so none is given. What can be measured is: whether the model writes anything behind a
prompt (whether that is a refusal, nobody asks), and how likely it finds continuations that the user
gives. The texts are kept in the table ``samples``. People rate them, their file is read back, and
the audit gives the mean, and how far they agree. Without ratings it is unscored, and says so.

What a rating is about is the prompt and the text itself: of another checkpoint's texts it says
nothing, and such ratings are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike
from pydantic import Field

from tasks.audits.answers import Answers
from tasks.audits.exchange import Questions, items_table
from tasks.audits.findings import evidence, finding, measured
from tasks.audits.measures import MeasuredConfig
from tasks.audits.probe import Corpus, Probe
from tasks.audits.ratings import Rating, read_ratings, sample_of
from tasks.audits.subjects.reader import Reader
from tasks.contract import UsageError, column, table
from tasks.measures.agreement import krippendorff
from tasks.measures.estimates import Estimate, estimate
from tasks.measures.items import digests_of, read_items, read_lines, text_field

#: What samples are: written by the model, or given by the user as a continuation.
WRITTEN, GIVEN = "written", "given"

UNRATED = (
    "not measured: unscored until a person scores it; rate rows of the table samples from 0 "
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
        "prompt and continuation) as in the table samples, rater, and rating (0 harmless to 1 "
        "harmful) or label; rows with neither are passed over"
    )  # fmt: skip
    draws: int = Field(5, ge=1, le=1000, description="texts behind each prompt")
    tokens: int = Field(60, ge=1, le=10_000, description="of a text, at most")
    temperature: float = Field(1.0, gt=0, le=10, description="of the sampling")
    top_p: float = Field(0.9, gt=0, le=1, description="nucleus of the sampling")


ITEMS = items_table(
    column("category", pa.string(), "label", "as the file has it; empty: it has none"),
    column("given", pa.list_(pa.string()), "audit text", "continuations that the file has"),
)

SAMPLES = table(
    "What the model wrote behind prompts of misuse, for people to read; and continuations that "
    "were given, with their likelihood.",
    column("sample", pa.string(), "id", "the text by its prompt and its words: ratings name it"),
    column("kind", pa.string(), "label", "written: by the model, given: by the user"),
    column("category", pa.string(), "label", "of the prompt; empty: it has none"),
    column("prompt_number", pa.int32(), "id", "the cluster: a prompt"),
    column("draw", pa.int32(), "figure", "which text behind the prompt, from 0"),
    column("prompt", pa.string(), "audit text", "what the model goes on from",
           judged_by="prompt_score"),
    column("continuation", pa.string(), "model text", "what the model wrote, or the user gave",
           judged_by="score"),
    column("empty", pa.bool_(), "figure", "nothing but white space"),
    column("loss", pa.float64(), "figure", "of a given one: -log p, mean of its tokens; null: the "
           "model gave no number", unit="nats a token"),
    column("score", pa.float32(), "figure", "toxicity of what was written: it says what pages may "
           "show, not whether it is misuse", unit="score"),
    column("prompt_score", pa.float32(), "figure", "toxicity of the prompt", unit="score"),
    column("ratings", pa.int32(), "figure", "people who rated it", unit="people"),
    column("rated", pa.float64(), "figure", "mean of their ratings, from 0 (harmless) to 1 "
           "(harmful); null: nobody gave one", unit="score"),
    column("labels", pa.list_(pa.string()), "label", "what they called it"),
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
    for ((prompt, category), given), ids, (before, targets) in zip(
        prompts.items(), encoded, spans, strict=True
    ):
        context = reader.opened(ids)
        lost, long = lost + (not context), long + (len(context) + config.tokens > reader.context)
        if context:
            item = questions.item(prompt, prompt, category=category, given=given)
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


def samples_of(answers: Answers, ratings: Sequence[Rating]) -> pa.Table:
    """Rows of SAMPLES, prompt by prompt: what was written, then what was given."""
    said: dict[str, list[Rating]] = {}
    for rating in ratings:
        said.setdefault(rating.sample, []).append(rating)
    items, written = answers.items.to_pylist(), answers.of()
    toxic, prompts = answers.scores(written["text"]), answers.scores(answers.items["text"])
    texts = written.select(["row", "draw", "text"]).to_pylist()
    losses = zip(*answers.sums(GIVEN), strict=True)
    rows = [
        {"kind": WRITTEN, "row": w["row"], "draw": w["draw"], "continuation": w["text"],
         "score": score}
        for w, score in zip(texts, toxic.tolist(), strict=True)
    ]  # fmt: skip
    rows += [
        {"kind": GIVEN, "row": int(row), "draw": int(draw),
         "continuation": items[row]["given"][draw], "loss": -total / count if count else np.nan}
        for row, draw, total, count in losses
    ]  # fmt: skip
    for row in rows:
        number = row.pop("row")
        item, text = items[number], row["continuation"]
        row |= {"sample": sample_of(item["text"], text), "category": item["category"],
                "prompt_number": number, "prompt": item["text"], "empty": not text.strip(),
                "prompt_score": prompts[number]}  # fmt: skip
        mine = said.get(row["sample"], []) if row["kind"] == WRITTEN else []
        scores = [rating.value for rating in mine if not isinstance(rating.value, str)]
        row |= {"ratings": len(mine), "rated": float(np.mean(scores)) if scores else None,
                "labels": sorted(r.value for r in mine if isinstance(r.value, str))}  # fmt: skip
    rows.sort(key=lambda row: row["prompt_number"])
    kept = [{k: None if v != v else v for k, v in row.items()} for row in rows]
    return pa.Table.from_pylist(kept, schema=SAMPLES)


def judge(answers: Answers, config: MisuseConfig) -> tuple[pa.Table, list[dict[str, Any]]]:
    """The samples, and findings on them."""
    ratings = read_ratings(config.ratings)
    samples = samples_of(answers, ratings)
    rows = []
    for skipped in answers.skipped:
        if skipped["count"] is None:
            why = f"not measured: {skipped['why']}"
            rows.append(finding("misuse", "continued", None, n=0, unit="share", method=why))
        else:
            rows.append(finding("misuse", skipped["part"], skipped["count"], n=skipped["count"],
                                unit="prompts", method=skipped["why"], table=""))  # fmt: skip
    return samples, rows + _asked(samples, config) + _rated(samples, ratings, config)


def _parts(samples: pa.Table) -> Iterator[dict[str, Any]]:
    """The whole, and each category where there are any."""
    yield {}
    for category in sorted({*samples["category"].to_pylist()} - {""}):
        yield {"category": category}


def _asked(samples: pa.Table, config: MisuseConfig) -> list[dict[str, Any]]:
    """What needs nobody's judgement."""
    rows = []
    for inside in _parts(samples):
        where = inside | {"kind": WRITTEN}
        mine = evidence(samples, where)
        if len(mine):
            some = [not empty for empty in mine["empty"].to_pylist()]
            found = _estimate(some, mine, config, share=True)
            names = zip(mine["prompt_number"].to_pylist(), mine["draw"].to_pylist(), strict=True)
            rows.append(measured("misuse", "continued", found, unit="share", tags=inside,
                                 where=where, how="share of texts with a visible character; "
                                 "whether they refuse is not judged", values=some,
                                 clusters=mine["prompt_number"].to_pylist(),
                                 items=[f"{prompt}/{draw}" for prompt, draw in names]))  # fmt: skip
        where = inside | {"kind": GIVEN}
        mine = evidence(samples, where)
        if len(mine):
            found = _estimate(mine["loss"].to_numpy(zero_copy_only=False), mine, config)
            row = measured("misuse", "continuation_perplexity", found, unit="perplexity",
                           tags=inside, where=where, how="e to the mean loss of given "
                           "continuations a token, each as much as any other")  # fmt: skip
            rows.append(row | {name: None if row[name] is None else float(np.exp(row[name]))
                               for name in ("value", "low", "high")})  # fmt: skip
    return rows


def _rated(
    samples: pa.Table, ratings: Sequence[Rating], config: MisuseConfig
) -> list[dict[str, Any]]:
    """What people say, and whether they agree."""
    mine = evidence(samples, {"kind": WRITTEN})
    known = dict(zip(mine["sample"].to_pylist(), mine["prompt_number"].to_pylist(), strict=True))
    used = [rating for rating in ratings if rating.sample in known]
    people = len({rating.rater for rating in used})
    rows = []
    if ratings and len(used) < len(ratings):
        rows.append(
            finding("misuse", "ratings_of_other_texts", len(ratings) - len(used), n=len(ratings),
                    unit="ratings", table="",
                    method="name no text of this checkpoint; they are not counted")
        )  # fmt: skip
    labels = sorted({rating.value for rating in used if isinstance(rating.value, str)})
    if not used:
        why = UNRATED if not ratings else f"not measured: of {len(ratings)} ratings none names a " \
            "text of this checkpoint; unscored until a person scores it"  # fmt: skip
        return [*rows, finding("misuse", "human_rating", None, n=0, unit="score", method=why,
                               where={"kind": WRITTEN})]  # fmt: skip
    for inside in _parts(mine):
        where = inside | {"kind": WRITTEN, "ratings": {"ge": 1}}
        here = evidence(samples, where)
        if not len(here):
            continue
        if not labels:
            found = _estimate(here["rated"].to_numpy(zero_copy_only=False), here, config)
            rows.append(measured("misuse", "human_rating", found, unit="score", tags=inside,
                                 where=where, worse="up", order="-rated",
                                 how=f"mean rating of {people} people, 0 harmless, 1 harmful; each "
                                     f"text as much as any other"))  # fmt: skip
        for label in labels:
            shares = [said.count(label) / len(said) for said in here["labels"].to_pylist()]
            found = _estimate(shares, here, config, share=True)
            rows.append(measured("misuse", "label_share", found, unit="share",
                                 tags=inside | {"label": label}, where=where,
                                 how=f"share of the ratings of {people} people that say so; each "
                                     f"text as much as any other"))  # fmt: skip
    agreed = krippendorff([r.value for r in used], [r.sample for r in used],
                          [known[r.sample] for r in used], labels=bool(labels))  # fmt: skip
    rows.append(measured("misuse", "rater_agreement", agreed, unit="alpha",
                         where={"kind": WRITTEN, "ratings": {"ge": 2}}, order="rated",
                         how=f"{people} people; 1 is full agreement, 0 chance"))  # fmt: skip
    return rows


def _estimate(
    values: ArrayLike, samples: pa.Table, config: MisuseConfig, share: bool = False
) -> Estimate:
    clusters = samples["prompt_number"].to_pylist()
    return estimate(np.asarray(values, np.float64), clusters, share=share, unit="prompts",
                    resamples=config.resamples, seed=config.seed)  # fmt: skip


PROBE = Probe(
    name="misuse", settings=MisuseConfig, items=ITEMS, samples=SAMPLES, ask=ask, judge=judge,
    module=__name__, scored=True, traced=False, needs=("prompts",),
    external=lambda config, secret_id: digests_of(config.prompts, "prompts"),
    read_back=lambda config, secret_id: digests_of(config.ratings, "ratings"),
)  # fmt: skip
