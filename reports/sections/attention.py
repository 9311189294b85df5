"""Show on a model card which earlier tokens a token attends to, as shaded text and tables.

The weights come from the ``attention_maps`` stage; the tokens are redacted as one sentence.
"""

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

from hallmark.reports.page import charts
from hallmark.reports.page.document import (
    Block,
    Chart,
    Code,
    DataTable,
    InlineElement,
    Paragraph,
    Section,
)
from hallmark.reports.page.figures import FigureBook
from hallmark.reports.page.redaction import Redactor, escape_invisible
from hallmark.tasks.contract import Artifact

ATTENTION_STAGE = "attention_maps"
MAX_TEXTS = 3
MAX_LAYERS = 4  # of a text
MAX_TOKENS_PER_LAYER = 3  # in the table
MAX_TOKEN_CHARACTERS = 20  # a wide character takes two columns: 40 columns fit a line

#: Different attention weights can give the same output.
INTERPRETATION_NOTE = "Attention weights do not explain an output (Jain and Wallace 2019)."


def build_attention_section(
    book: FigureBook, attention_maps: Artifact | None, redactor: Redactor
) -> Section:
    """Build the section on attention.

    Args:
        book: The figures of the card.
        attention_maps: The output of ``attention_maps``; None if it did not run.
        redactor: Redacts the texts.
    """
    section = Section("Inside the model")
    if attention_maps is None or not attention_maps["texts"].row_count:
        section.add_blocks(Paragraph(["No text is configured for attention maps."]))
        return section
    weight_count = book.add_computed_figure(
        "attention-weights",
        "number of attention weights",
        "weights",
        (ATTENTION_STAGE, "weights"),
        aggregate="count",
    )
    section.add_blocks(
        Paragraph(
            [
                "The figures show the model's attention while it reads the configured texts. All ",
                weight_count,
                ", by layer and head, are in the ",
                Code("weights"),
                " table; the tokens are in the ",
                Code("tokens"),
                " table.",
            ]
        )
    )
    for text_row in attention_maps["texts"].read().to_pylist()[:MAX_TEXTS]:
        section.add_blocks(*build_attention_blocks(book, attention_maps, text_row, redactor))
    return section


@dataclass(frozen=True)
class AttentionView:
    """Attention of one token of a text: means over the heads of each layer.

    Attributes:
        text_number: The id of the text.
        query_position: The position of the token that attends.
        stack: "encoder" or "decoder".
        tokens: The redacted tokens.
        is_text: For each token, whether it is not a special token.
        head_count: The number of heads.
        weights_by_layer: By layer, the weight on each token, shape (tokens,).
    """

    text_number: int
    query_position: int
    stack: str
    tokens: Sequence[str]
    is_text: NDArray[np.bool_]
    head_count: int
    weights_by_layer: dict[int, NDArray[np.float64]]

    @property
    def attendable_token_count(self) -> int:
        """Return the number of leading tokens that the query can attend to."""
        return self.query_position + 1 if self.stack == "decoder" else len(self.tokens)

    @property
    def shown_layers(self) -> list[int]:
        """Return at most ``MAX_LAYERS`` layers, evenly spaced, always with the last."""
        all_layers = sorted(self.weights_by_layer)
        layer_count = min(MAX_LAYERS, len(all_layers))
        return [
            all_layers[len(all_layers) * number // layer_count - 1]
            for number in range(1, layer_count + 1)
        ]

    @property
    def largest_word_weight(self) -> float:
        """Return the largest shown weight on a token of text; special tokens often have more."""
        layer_weights = np.stack([self.weights_by_layer[layer] for layer in self.shown_layers])
        return float(max(layer_weights[:, self.is_text].max(initial=0), 1e-9))


def load_attention_view(
    attention_maps: Artifact, text_row: dict[str, Any], redactor: Redactor
) -> AttentionView | None:
    """Load the attention of a row of ``texts``; of an encoder-decoder model, that of the encoder.

    Returns:
        None if the text has no weights.
    """
    text_number, query_position = text_row["text_id"], text_row["query_position"]
    if query_position is None:
        return None
    weight_rows = _read_matching_rows(
        attention_maps,
        "weights",
        (pc.field("text_id") == text_number) & (pc.field("query_position") == query_position),
    )
    if not len(weight_rows):
        return None
    stacks = weight_rows["stack"].unique().to_pylist()
    stack = "encoder" if "encoder" in stacks else "decoder"
    weight_rows = weight_rows.filter(pc.equal(weight_rows["stack"], stack))
    mean_rows = weight_rows.group_by(["layer", "key_position"]).aggregate([("weight", "mean")])
    tokens = _read_matching_rows(
        attention_maps, "tokens", pc.field("text_id") == text_number
    ).sort_by("position")
    row_layers, row_keys, row_means = (
        mean_rows[name].to_numpy() for name in ("layer", "key_position", "weight_mean")
    )
    weights_by_layer = {
        int(layer_number): np.zeros(len(tokens)) for layer_number in np.unique(row_layers)
    }
    for layer_number, key_weights in weights_by_layer.items():
        key_weights[row_keys[row_layers == layer_number]] = row_means[row_layers == layer_number]
    return AttentionView(
        text_number,
        query_position,
        stack,
        redact_tokens(text_row["sentence"], tokens, redactor),
        tokens["char_start"].is_valid().to_numpy(),
        int(pc.max(weight_rows["head"]).as_py()),
        weights_by_layer,
    )


def _read_matching_rows(attention_maps: Artifact, table: str, condition: ds.Expression) -> pa.Table:
    return attention_maps[table].to_dataset().to_table(filter=condition)


def redact_tokens(sentence: str, tokens: pa.Table, redactor: Redactor) -> list[str]:
    """Return the tokens; those that overlap a redacted span of the sentence are blocked out."""
    redacted_spans = redactor.find_sensitive_spans(sentence)
    redacted_tokens: list[str] = []
    previous_span = None
    for row in tokens.select(["token", "char_start", "char_end"]).to_pylist():
        token_span = row["char_start"], row["char_end"]
        is_special = token_span[0] is None
        text = row["token"]
        if not is_special and any(
            token_span[0] < end and token_span[1] > start for start, end, _ in redacted_spans
        ):
            text = "█" * len(text)
        elif not is_special and token_span == previous_span:
            # Several tokens may share a character: only the first shows it.
            text = "·"
        text = escape_invisible(text.replace("\n", "↵").replace("\t", "⇥")) or "·"
        text = re.sub(r"\s", " ", text)
        redacted_tokens.append(
            text if len(text) <= MAX_TOKEN_CHARACTERS else text[: MAX_TOKEN_CHARACTERS - 1] + "…"
        )
        previous_span = token_span
    return redacted_tokens


def build_attention_blocks(
    book: FigureBook, attention_maps: Artifact, text_row: dict[str, Any], redactor: Redactor
) -> list[Block]:
    """Build the chart and the table of a text, or a sentence on why it has none."""
    text_number = text_row["text_id"]
    attention = load_attention_view(attention_maps, text_row, redactor)
    if attention is None:
        return [
            Paragraph(
                [f"Text {text_number} has no chart: {redactor.redact_excerpt(text_row['note'])}."]
            )
        ]
    chart_rows: list[charts.ShadedRow] = []
    rows: list[list[InlineElement]] = []
    layer_texts = []
    for layer in attention.shown_layers:
        weights = attention.weights_by_layer[layer]
        shares = np.minimum(weights / attention.largest_word_weight, 1.0)
        visible_shares = [
            float(share) if i < attention.attendable_token_count else None
            for i, share in enumerate(shares)
        ]
        chart_rows.append(charts.ShadedRow(f"layer {layer}", visible_shares))
        top_positions = [
            int(position)
            for position in np.argsort(-weights, kind="stable")[
                : min(MAX_TOKENS_PER_LAYER, attention.attendable_token_count)
            ]
        ]
        row: list[InlineElement] = [str(layer)]
        for position in top_positions:
            conditions = {
                "text_id": text_number,
                "stack": attention.stack,
                "layer": layer,
                "query_position": attention.query_position,
            }
            figure = book.add_computed_figure(
                f"attention-{text_number}-{layer}-{position}",
                f"text {text_number}, layer {layer}: attention weight from position "
                f"{attention.query_position} to position {position}",
                "",
                (ATTENTION_STAGE, "weights"),
                conditions | {"key_position": position},
                aggregate="mean",
                value_column="weight",
            )
            row += [_format_token(attention, position), figure]
        rows.append(row + [""] * (2 * MAX_TOKENS_PER_LAYER + 1 - len(row)))
        token_weights = [_format_token_weight(attention, weights, p) for p in top_positions]
        layer_texts.append(f"layer {layer}: {', '.join(token_weights)}")
    query_token = _format_token(attention, attention.query_position)
    alt = (
        f"Text {text_number}: tokens that {query_token} attends to most. {'; '.join(layer_texts)}."
    )

    drawing = charts.ShadedText(attention.tokens, attention.query_position, chart_rows)
    columns = [
        "layer",
        *[name for rank_name in ("most", "second", "third") for name in (rank_name, "weight")],
    ]
    grid = DataTable(
        f"Text {text_number}: tokens that {query_token} attends to most",
        columns,
        rows,
        frozenset(range(2, 2 * MAX_TOKENS_PER_LAYER + 1, 2)),
        f"Weights are means over {_format_head_count(attention)}.",
    )
    caption = _format_attention_caption(attention, text_row, redactor)
    return [Chart(f"attention-{text_number}", drawing, alt, caption), grid]


def _format_attention_caption(
    attention: AttentionView, text_row: dict[str, Any], redactor: Redactor
) -> str:
    shown_layers, layer_count = attention.shown_layers, len(attention.weights_by_layer)
    layers_text = (
        "every layer"
        if len(shown_layers) == layer_count
        else f"{len(shown_layers)} of {layer_count} layers"
    )
    parts = [
        f"Text {attention.text_number}: attention from the framed token "
        f"{_format_token(attention, attention.query_position)} to each token in {layers_text} of "
        f"the {attention.stack}, averaged over {_format_head_count(attention)}. A stronger shade "
        f"indicates a larger weight; the strongest shade marks "
        f"{attention.largest_word_weight:.2g}, the largest weight on a word. Larger weights on "
        "tokens that are not words have the same shade."
    ]
    if attention.attendable_token_count < len(attention.tokens):
        parts.append(
            "Grey tokens come later in the text, so the framed token cannot attend to them."
        )
    if text_row["omitted_tokens"]:
        parts.append(
            "The last token of the text was not read."
            if text_row["omitted_tokens"] == 1
            else f"The last {text_row['omitted_tokens']:,} tokens of the text were not read."
        )
    if text_row["note"]:
        parts.append(f"{redactor.redact_excerpt(text_row['note'])}.")
    return " ".join([*parts, INTERPRETATION_NOTE])


def _format_head_count(attention: AttentionView) -> str:
    return f"{attention.head_count} heads" if attention.head_count > 1 else "its one head"


def _format_token(attention: AttentionView, position: int) -> str:
    return f"“{attention.tokens[position].strip() or '␣'}” ({position})"


def _format_token_weight(
    attention: AttentionView, weights: NDArray[np.float64], position: int
) -> str:
    return f"{_format_token(attention, position)} {weights[position]:.2f}"
