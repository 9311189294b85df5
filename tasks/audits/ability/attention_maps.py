"""What each token of chosen texts attends to: attention weights by layer and head, as a table.

The model reads each text behind its begin-of-text token, once, as far as ``max_tokens`` and its
context reach. A decoder reads from the left, an encoder sees both sides. Of an encoder-decoder
both read the whole text, the decoder as its target, and its attention to the encoder is "cross".

Attention weights show what a layer looked at, which need not be why the model said what it said
(Jain and Wallace 2019).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pydantic import Field, field_validator, model_validator

from tasks.audits.subjects.reader import Ids
from tasks.audits.subjects.subject import (
    AUDIT_LIBRARIES,
    Float32,
    Subject,
    check_finite,
    open_subject,
)
from tasks.contract import Artifact, Device, HallmarkError, StageConfig, Work, column, stage, table


class ChosenText(StageConfig):
    """A text to look into, and the word whose attention the model card shows."""

    text: str = Field(max_length=2_000, description="what the model reads")
    word: str | None = Field(
        None, description="a word of it, whose last token the card shows; else the last token"
    )

    @field_validator("text", "word")
    @classmethod
    def _says_something(cls, text: str | None) -> str | None:
        if text is not None and not text.strip():
            raise ValueError("is empty; write a sentence, or leave it out")
        return text

    @model_validator(mode="after")
    def _word_is_there(self) -> ChosenText:
        if self.word is not None and self.word not in self.text:
            raise ValueError(f"the word {self.word!r:.80} does not stand in the text")
        return self

    @property
    def span(self) -> tuple[int, int]:
        """The characters [start, end) of the word, first of all where it stands by itself; else
        of the whole text."""
        if self.word is None:
            return 0, len(self.text)
        whole = re.search(rf"(?<!\w){re.escape(self.word)}(?!\w)", self.text)
        start = whole.start() if whole else self.text.index(self.word)
        return start, start + len(self.word)


#: The classic picture (Uszkoreit 2017), and a twin in which "it" is the other noun, known before it
#: is read, for a decoder sees no later word; a verb that agrees with a noun across another.
TEXTS = (
    ChosenText(text="The animal didn't cross the street because it was too tired.", word="it"),
    ChosenText(text="Too wide for the animal, the street frightened it, so it turned.", word="it"),
    ChosenText(text="The keys to the old cabinet are on the table.", word="are"),
)


class AttentionMapsConfig(StageConfig):
    texts: tuple[ChosenText, ...] = Field(
        TEXTS, max_length=16, description="what to look into; the card shows the first three"
    )
    max_tokens: int = Field(
        64,
        ge=4,
        le=256,
        description="most tokens read of a text, special ones included; the rest is left out. "
        "Each head of each layer leaves a row for each pair of them",
    )
    device: Device = Field("auto", description="of the subject")


CHOSEN = table(
    "The texts that were looked into. Texts, layers and heads are counted from 1, positions from "
    "0.",
    column("text", pa.int32(), "id", "number of the text"),
    column("sentence", pa.string(), "audit text", "what the model reads"),
    column("word", pa.string(), "audit text", "the word of interest; null: none was named"),
    column("query", pa.int32(), "figure",
           "position of its last token; null: nothing was read"),
    column("left_out", pa.int32(), "figure", "tokens at the end that were not read",
           unit="tokens"),
    column("note", pa.string(), "project text",
           "why another token is shown, or why there are no weights; else empty"),
)  # fmt: skip

TOKENS = table(
    "The tokens that were read, one a row.",
    column("text", pa.int32(), "id", "number of the text"),
    column("position", pa.int32(), "figure", "place among its tokens"),
    column("token_id", pa.int32(), "id", "the token"),
    column("token", pa.string(), "audit text",
           "what it stands for in the text; of a special token its name"),
    column("char_start", pa.int32(), "figure", "its first character in the text, null for a "
           "special token; several tokens that share one character name the same",
           unit="characters"),
    column("char_end", pa.int32(), "figure", "the character behind its last", unit="characters"),
)  # fmt: skip

WEIGHTS = table(
    "Attention weights, one row a pair of positions; those of one query, layer and head sum to 1.",
    column("text", pa.int32(), "id", "number of the text"),
    column("stack", pa.string(), "label", "decoder, encoder, or cross: from decoder to encoder"),
    column("layer", pa.int32(), "figure", "the layer"),
    column("head", pa.int32(), "figure", "the head"),
    column("query", pa.int32(), "figure", "the position that attends"),
    column("key", pa.int32(), "figure", "the position that is attended to"),
    column("weight", pa.float32(), "figure", "how much", unit="share"),
)


@dataclass(frozen=True)
class Reading:
    """What the model reads of one text; ``places`` are characters, None for a special token."""

    ids: Ids
    places: list[tuple[int, int] | None]
    left_out: int

    def query(self, span: tuple[int, int]) -> int | None:
        """Position of the last token of the characters [start, end), None where it was not read."""
        inside = [
            position
            for position, place in enumerate(self.places)
            if place is not None and place[0] < span[1] and place[1] > span[0]
        ]
        return inside[-1] if inside else None


def read(subject: Subject, text: str, max_tokens: int) -> Reading:
    """The text between the subject's opening and closing token, cut where it is too long."""
    ids, places = subject.encode_with_places(text)
    before, after = ([] if token is None else [token] for token in (subject.bos, subject.end))
    room = max(0, min(max_tokens, subject.context) - len(before) - len(after))
    kept = [*before, *ids[:room], *after]
    where = [*(None for _ in before), *places[:room], *(None for _ in after)]
    return Reading(kept, where, len(ids) - len(ids[:room]))


def token_table(number: int, text: str, reading: Reading, subject: Subject) -> pa.Table:
    """TOKENS of one text."""
    count = len(reading.ids)
    return pa.table(
        {
            "text": np.full(count, number),
            "position": np.arange(count),
            "token_id": reading.ids,
            "token": [
                subject.token_name(token) if place is None else text[slice(*place)]
                for token, place in zip(reading.ids, reading.places, strict=True)
            ],
            "char_start": pa.array([place and place[0] for place in reading.places], pa.int32()),
            "char_end": pa.array([place and place[1] for place in reading.places], pa.int32()),
        }
    )


def weight_tables(number: int, found: dict[str, list[Float32]]) -> Iterator[pa.Table]:
    """WEIGHTS of one text, a table a layer; ``found`` holds one (H, Tq, Tk) per stack and layer."""
    for stack, layers in found.items():
        for layer, weights in enumerate(layers, start=1):
            head, query, key = (axis.ravel() for axis in np.indices(weights.shape, np.int32))
            rows = weights.size
            yield pa.table(
                {
                    "text": np.full(rows, number),
                    "stack": pa.repeat(stack, rows),
                    "layer": np.full(rows, layer),
                    "head": head + 1,
                    "query": query,
                    "key": key,
                    "weight": weights.ravel(),
                }
            )


def write_text(
    number: int, chosen: ChosenText, subject: Subject, max_tokens: int, work: Work
) -> None:
    """Rows of one text; where the model gives no weights, a note that says why."""
    query, left_out, note = None, 0, ""
    try:
        reading = read(subject, chosen.text, max_tokens)
        found = subject.attention(reading.ids) if reading.ids else {}
    except HallmarkError as error:
        note = str(error)
    else:
        check_finite(weights for layers in found.values() for weights in layers)
        left_out, query = reading.left_out, reading.query(chosen.span)
        if query is None:
            query = reading.query((0, len(chosen.text)))
            note = "none of it was read" if query is None else (
                "the chosen word was not read: the last token that was is shown"
            )  # fmt: skip
        work.table("tokens").write(token_table(number, chosen.text, reading, subject))
        for table in weight_tables(number, found):
            work.table("weights").write(table)
    row = {"text": number, "sentence": chosen.text, "word": chosen.word, "query": query}
    row |= {"left_out": left_out, "note": note}
    work.table("texts").write(pa.Table.from_pylist([row], schema=CHOSEN))


@stage(
    tables={"texts": CHOSEN, "tokens": TOKENS, "weights": WEIGHTS},
    libraries=AUDIT_LIBRARIES,
    determinism="machine",
)
def attention_maps(checkpoint: Artifact, config: AttentionMapsConfig, work: Work) -> None:
    subject = open_subject(checkpoint, config.device)
    for number, chosen in enumerate(config.texts, start=1):
        work.progress(number - 1, len(config.texts), "texts")
        write_text(number, chosen, subject, config.max_tokens, work)
