"""Inside the model, on its card: which earlier words a word attends to, shown as shades."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray

from reports.page import charts
from reports.page.document import Block, Chart, Code, Grid, Inline, Paragraph, Section
from reports.page.figures import Book
from reports.page.masking import Masker, Say, visible
from tasks.contract import Artifact

STAGE = "attention_maps"
PICTURES, LINES, NAMED = 3, 4, 3  # texts shown, layers of each, tokens of each layer in the table
LONGEST = 20  # characters of a token: twice as many columns, if they are wide, fit a line

#: Attention weights and what an output rests on can be told apart: other weights, same output.
NO_EXPLANATION = "Attention weights are no explanation of what is said (Jain and Wallace 2019)."


def inside(book: Book, maps: Artifact | None, masker: Masker) -> Section:
    """``maps``: what the stage attention_maps left, None if it did not run."""
    section = Section("Inside the model")
    if maps is None or not maps["texts"].rows:
        section.add(Paragraph(["No text was chosen to look at what the model attends to."]))
        return section
    rows = book.figure(
        "attention-weights", "attention weights", "weights", (STAGE, "weights"), aggregate="count"
    )
    section.add(
        Paragraph(
            [
                "What the model attends to while it reads a few chosen texts. All ", rows,
                ", by layer and head, are in the table ", Code("weights"), ", the tokens in ",
                Code("tokens"), ".",
            ]
        )
    )  # fmt: skip
    for text in maps["texts"].read().to_pylist()[:PICTURES]:
        section.add(*picture(book, maps, text, masker))
    return section


@dataclass(frozen=True)
class View:
    """What the token at ``query`` of one text attends to: means over the heads of each layer."""

    number: int
    query: int
    stack: str
    tokens: Sequence[str]  # masked
    is_text: NDArray[np.bool_]  # not a special token
    heads: int
    weights: dict[int, NDArray[np.float64]]  # by layer, (keys,)

    @property
    def seen(self) -> int:
        """The first so many tokens can be attended to."""
        return self.query + 1 if self.stack == "decoder" else len(self.tokens)

    @property
    def layers(self) -> list[int]:
        """At most LINES of them, evenly, the last always."""
        every = sorted(self.weights)
        count = min(LINES, len(every))
        return [every[len(every) * number // count - 1] for number in range(1, count + 1)]

    @property
    def strongest(self) -> float:
        """The largest weight shown on a word: special tokens often have more."""
        shown = np.stack([self.weights[layer] for layer in self.layers])
        return float(max(shown[:, self.is_text].max(initial=0), 1e-9))


def view(maps: Artifact, text: dict[str, Any], masker: Masker) -> View | None:
    """The view of a row of ``texts``; of an encoder-decoder the encoder's. None without weights."""
    number, query = text["text"], text["query"]
    if query is None:
        return None
    found = _rows(maps, "weights", (pc.field("text") == number) & (pc.field("query") == query))
    if not len(found):
        return None
    stacks = found["stack"].unique().to_pylist()
    stack = "encoder" if "encoder" in stacks else "decoder"
    found = found.filter(pc.equal(found["stack"], stack))
    means = found.group_by(["layer", "key"]).aggregate([("weight", "mean")])
    tokens = _rows(maps, "tokens", pc.field("text") == number).sort_by("position")
    layer, key, mean = (means[name].to_numpy() for name in ("layer", "key", "weight_mean"))
    weights = {int(n): np.zeros(len(tokens)) for n in np.unique(layer)}
    for n, line in weights.items():
        line[key[layer == n]] = mean[layer == n]
    return View(
        number, query, stack, shown_tokens(text["sentence"], tokens, masker),
        tokens["char_start"].is_valid().to_numpy(), int(pc.max(found["head"]).as_py()), weights,
    )  # fmt: skip


def _rows(maps: Artifact, table: str, condition: ds.Expression) -> pa.Table:
    return maps[table].dataset().to_table(filter=condition)


def shown_tokens(sentence: str, tokens: pa.Table, masker: Masker) -> list[str]:
    """The tokens as they may be shown: what the sentence as a whole hides is blocks in each."""
    spans = masker.spans(sentence)
    shown: list[str] = []
    before = None
    for row in tokens.select(["token", "char_start", "char_end"]).to_pylist():
        place = row["char_start"], row["char_end"]
        special = place[0] is None
        text = row["token"]
        if not special and any(place[0] < end and place[1] > start for start, end, _ in spans):
            text = "█" * len(text)
        elif not special and place == before:  # of several that share a character: the first
            text = "·"
        text = visible(text.replace("\n", "↵").replace("\t", "⇥")) or "·"
        text = re.sub(r"\s", " ", text)
        shown.append(text if len(text) <= LONGEST else text[: LONGEST - 1] + "…")
        before = place
    return shown


def picture(book: Book, maps: Artifact, text: dict[str, Any], masker: Masker) -> list[Block]:
    """The picture of a text with its table; a sentence where there is none."""
    number = text["text"]
    found = view(maps, text, masker)
    if found is None:
        return [Paragraph([f"Text {number} has no picture: {masker.text(text['note'])}."])]
    lines: list[tuple[str, list[float | None]]] = []
    rows: list[list[Inline]] = []
    said = []
    for layer in found.layers:
        weights = found.weights[layer]
        shares = np.minimum(weights / found.strongest, 1.0)
        line = [float(w) if i < found.seen else None for i, w in enumerate(shares)]
        lines.append((f"layer {layer}", line))
        best = [int(key) for key in np.argsort(-weights, kind="stable")[: min(NAMED, found.seen)]]
        row: list[Inline] = [str(layer)]
        for key in best:
            where = {"text": number, "stack": found.stack, "layer": layer, "query": found.query}
            figure = book.figure(
                f"attention-{number}-{layer}-{key}",
                f"text {number}, layer {layer}: weight of position {found.query} on {key}",
                "", (STAGE, "weights"), where | {"key": key}, aggregate="mean", column="weight",
            )  # fmt: skip
            row += [_name(found, key), figure]
        rows.append(row + [""] * (2 * NAMED + 1 - len(row)))
        said.append(f"layer {layer}: {', '.join(_said(found, weights, key) for key in best)}")
    word = _name(found, found.query)
    alt = f"Text {number}, what {word} attends to most. {'; '.join(said)}."

    def draw(_: Say) -> str:  # the tokens are masked as the sentence they are of
        return charts.shades(found.tokens, found.query, lines)

    columns = ["layer", *[name for nth in ("most", "second", "third") for name in (nth, "weight")]]
    grid = Grid(
        f"Text {number}: what {word} attends to most", columns, rows,
        frozenset(range(2, 2 * NAMED + 1, 2)), f"Weights are means over {_heads(found)}.",
    )  # fmt: skip
    caption = _caption(found, text, masker)
    return [Chart(f"attention-{number}", draw, alt, caption), grid]


def _caption(found: View, text: dict[str, Any], masker: Masker) -> str:
    shown, every = found.layers, len(found.weights)
    layers = "every layer" if len(shown) == every else f"{len(shown)} of {every} layers"
    parts = [
        f"Text {found.number}: how much {_name(found, found.query)}, framed, attends to each "
        f"token in {layers} of the {found.stack}, mean over {_heads(found)}. The stronger the "
        f"shade, the larger the weight; the strongest shade stands for {found.strongest:.2g}, the "
        f"largest weight on a word, and for all above it."
    ]
    if found.seen < len(found.tokens):
        parts.append("Grey tokens come later and cannot be seen.")
    if text["left_out"]:
        parts.append(f"The last {text['left_out']:,} tokens of the text were not read.")
    if text["note"]:
        parts.append(f"{masker.text(text['note'])}.")
    return " ".join([*parts, NO_EXPLANATION])


def _heads(found: View) -> str:
    return f"{found.heads} heads" if found.heads > 1 else "its one head"


def _name(found: View, key: int) -> str:
    return f"“{found.tokens[key].strip() or '␣'}” ({key})"


def _said(found: View, weights: NDArray[np.float64], key: int) -> str:
    return f"{_name(found, key)} {weights[key]:.2f}"
