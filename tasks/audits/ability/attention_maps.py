"""Record the attention weights of a model on chosen texts, by layer and head, as a table.

The model reads each text once after its begin-of-text token, up to ``max_tokens`` and its context
length. A decoder sees only earlier tokens, an encoder sees both sides. In an encoder-decoder both
read the whole text, and the attention of the decoder to the encoder is "cross". Attention weights
need not explain the output of the model (Jain and Wallace 2019).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pydantic import Field, field_validator, model_validator

from hallmark.tasks.audits.audited_models.audited_model import (
    AUDIT_LIBRARIES,
    AuditedModel,
    Float32,
    ModelDtype,
    check_finite_values,
)
from hallmark.tasks.audits.audited_models.audited_tokenizer import TokenIds
from hallmark.tasks.audits.audited_models.opening import DTYPE_DESCRIPTION, open_audited_model
from hallmark.tasks.contract import (
    Artifact,
    DeviceName,
    HallmarkError,
    StageConfig,
    StageContext,
    column,
    stage,
    table_schema,
)


class AttentionText(StageConfig):
    """A text, and the word whose attention the model card shows."""

    text: str = Field(max_length=2_000, description="text for the model to read")
    word: str | None = Field(
        None,
        description="word in the text; the card shows the attention weights of the word's last "
        "token or, if no word is set, of the text's last token",
    )

    @field_validator("text", "word")
    @classmethod
    def _check_not_blank(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("is empty; enter some text or omit the setting")
        return value

    @model_validator(mode="after")
    def _check_word_in_text(self) -> AttentionText:
        if self.word is not None and self.word not in self.text:
            raise ValueError(
                f"the word {self.word!r:.80} does not occur in the text; choose a word from the "
                "text"
            )
        return self

    @property
    def char_span(self) -> tuple[int, int]:
        """The characters [start, end) of the word, or of the whole text if no word is set.

        The first occurrence as a whole word is preferred.
        """
        if self.word is None:
            return 0, len(self.text)
        standalone_match = re.search(rf"(?<!\w){re.escape(self.word)}(?!\w)", self.text)
        start = standalone_match.start() if standalone_match else self.text.index(self.word)
        return start, start + len(self.word)


#: The example of Uszkoreit (2017); a variant in which "it" is the other noun, which a decoder can
#: know because the decisive words come first; and a verb that agrees with a distant noun.
DEFAULT_TEXTS = (
    AttentionText(text="The animal didn't cross the street because it was too tired.", word="it"),
    AttentionText(
        text="Too wide for the animal, the street frightened it, so it turned.", word="it"
    ),
    AttentionText(text="The keys to the old cabinet are on the table.", word="are"),
)


class AttentionMapsConfig(StageConfig):
    """Settings of the recorded attention weights."""

    texts: tuple[AttentionText, ...] = Field(
        DEFAULT_TEXTS,
        max_length=16,
        description="texts for which to record attention weights; the card shows the first three",
    )
    max_tokens: int = Field(
        64,
        ge=4,
        le=256,
        description="maximum number of tokens read per text, including special tokens; the table "
        "has one row for each layer, head and pair of tokens",
    )
    device: DeviceName = Field("auto", description="device on which the audited model runs")
    dtype: ModelDtype = Field("auto", description=DTYPE_DESCRIPTION)


TEXTS = table_schema(
    "Recorded texts, one row per text. Texts, layers and heads are numbered from 1, and positions "
    "from 0.",
    column("text_id", pa.int32(), "id", "text number"),
    column("sentence", pa.string(), "audit text", "text read by the model"),
    column("word", pa.string(), "audit text", "the chosen word; null if no word was chosen"),
    column(
        "query_position",
        pa.int32(),
        "figure",
        "position of the chosen word's last token, or of the token shown instead; null if the "
        "model read no tokens from the text",
    ),
    column(
        "omitted_tokens",
        pa.int32(),
        "figure",
        "number of tokens omitted from the end of the text because the text exceeds the limit",
        unit="tokens",
    ),
    column(
        "note",
        pa.string(),
        "project text",
        "reason why a token other than the chosen word is shown, or why there are no "
        "weights; empty otherwise",
    ),
)

TOKENS = table_schema(
    "Tokens read by the model, one row per token.",
    column("text_id", pa.int32(), "id", "text number"),
    column("position", pa.int32(), "figure", "position in the text"),
    column("token_id", pa.int32(), "id", "the token"),
    column(
        "token",
        pa.string(),
        "audit text",
        "characters in the text that the token covers, or the token's name if it is a special "
        "token",
    ),
    column(
        "char_start",
        pa.int32(),
        "figure",
        "index of the token's first character in the text, identical for tokens that are "
        "parts of the same character; null for a special token",
        unit="characters",
    ),
    column(
        "char_end",
        pa.int32(),
        "figure",
        "index of the first character after the token; null for a special token",
        unit="characters",
    ),
)

WEIGHTS = table_schema(
    "Attention weights, one row for each layer, head and pair of positions. For each layer, head "
    "and query position, the weights sum to 1.",
    column("text_id", pa.int32(), "id", "text number"),
    column(
        "stack",
        pa.string(),
        "label",
        "type of attention: decoder, encoder, or cross (from decoder to encoder)",
    ),
    column("layer", pa.int32(), "figure", "the layer"),
    column("head", pa.int32(), "figure", "the head"),
    column("query_position", pa.int32(), "figure", "position that attends (query)"),
    column("key_position", pa.int32(), "figure", "position that the query attends to (key)"),
    column("weight", pa.float32(), "figure", "attention weight", unit="share"),
)


@dataclass(frozen=True)
class EncodedText:
    """Hold the tokens of one text.

    Attributes:
        token_ids: The tokens, with the special ones.
        char_spans: Characters [start, end) of the text of each token; None: a special token.
        omitted_tokens: Number of tokens at the end of the text that exceed the limits.
    """

    token_ids: TokenIds
    char_spans: list[tuple[int, int] | None]
    omitted_tokens: int

    def find_last_token(self, target_span: tuple[int, int]) -> int | None:
        """Return the position of the last token within characters [start, end), None if unread."""
        matching_positions = [
            position
            for position, char_span in enumerate(self.char_spans)
            if char_span is not None
            and char_span[0] < target_span[1]
            and char_span[1] > target_span[0]
        ]
        return matching_positions[-1] if matching_positions else None


def encode_text_with_special_tokens(model: AuditedModel, text: str, max_tokens: int) -> EncodedText:
    """Encode a text between the model's opening and closing tokens, truncated to the limits."""
    text_ids, text_spans = model.encode_with_char_spans(text)
    opening_ids, closing_ids = (
        [] if token_id is None else [token_id] for token_id in (model.bos_id, model.closing_id)
    )
    max_text_tokens = max(
        0, min(max_tokens, model.context_length) - len(opening_ids) - len(closing_ids)
    )
    token_ids = [*opening_ids, *text_ids[:max_text_tokens], *closing_ids]
    char_spans = [
        *(None for _ in opening_ids),
        *text_spans[:max_text_tokens],
        *(None for _ in closing_ids),
    ]
    return EncodedText(token_ids, char_spans, len(text_ids) - len(text_ids[:max_text_tokens]))


def build_token_table(
    text_id: int, text: str, encoded: EncodedText, model: AuditedModel
) -> pa.Table:
    """Build the rows of TOKENS of one text."""
    token_count = len(encoded.token_ids)
    return pa.table(
        {
            "text_id": np.full(token_count, text_id),
            "position": np.arange(token_count),
            "token_id": encoded.token_ids,
            "token": [
                model.get_token_name(token_id) if char_span is None else text[slice(*char_span)]
                for token_id, char_span in zip(encoded.token_ids, encoded.char_spans, strict=True)
            ],
            "char_start": pa.array(
                [char_span and char_span[0] for char_span in encoded.char_spans], pa.int32()
            ),
            "char_end": pa.array(
                [char_span and char_span[1] for char_span in encoded.char_spans], pa.int32()
            ),
        }
    )


def iter_weight_tables(
    text_id: int, weights_by_stack: dict[str, list[Float32]]
) -> Iterator[pa.Table]:
    """Yield the rows of WEIGHTS of one text, one table per layer.

    ``weights_by_stack`` has for each stack the weights of each layer, (heads, Tq, Tk).
    """
    for stack, layer_weights in weights_by_stack.items():
        for layer, weights in enumerate(layer_weights, start=1):
            head, query, key = (axis.ravel() for axis in np.indices(weights.shape, np.int32))
            pair_count = weights.size
            yield pa.table(
                {
                    "text_id": np.full(pair_count, text_id),
                    "stack": pa.repeat(stack, pair_count),
                    "layer": np.full(pair_count, layer),
                    "head": head + 1,
                    "query_position": query,
                    "key_position": key,
                    "weight": weights.ravel(),
                }
            )


def write_attention_rows(
    text_id: int,
    attention_text: AttentionText,
    model: AuditedModel,
    max_tokens: int,
    context: StageContext,
) -> None:
    """Write the rows of one text; if the model gives no weights, a note says why."""
    query_position, omitted_tokens, note = None, 0, ""
    try:
        encoded = encode_text_with_special_tokens(model, attention_text.text, max_tokens)
        attention = model.compute_attention_by_stack(encoded.token_ids) if encoded.token_ids else {}
    except HallmarkError as error:
        note = str(error)
    else:
        check_finite_values(
            weights for layer_weights in attention.values() for weights in layer_weights
        )
        omitted_tokens, query_position = (
            encoded.omitted_tokens,
            encoded.find_last_token(attention_text.char_span),
        )
        if query_position is None:
            query_position = encoded.find_last_token((0, len(attention_text.text)))
            note = (
                "none of the text was read"
                if query_position is None
                else "the chosen word was not read, so the last token read is shown instead"
            )
        context.get_table_writer("tokens").write(
            build_token_table(text_id, attention_text.text, encoded, model)
        )
        for weight_table in iter_weight_tables(text_id, attention):
            context.get_table_writer("weights").write(weight_table)
    row = {
        "text_id": text_id,
        "sentence": attention_text.text,
        "word": attention_text.word,
        "query_position": query_position,
    }
    row |= {"omitted_tokens": omitted_tokens, "note": note}
    context.get_table_writer("texts").write(pa.Table.from_pylist([row], schema=TEXTS))


@stage(
    name="attention_maps",
    tables={"texts": TEXTS, "tokens": TOKENS, "weights": WEIGHTS},
    libraries=AUDIT_LIBRARIES,
    determinism="machine",
)
def attention_maps(
    checkpoint: Artifact, config: AttentionMapsConfig, context: StageContext
) -> None:
    model = open_audited_model(checkpoint, config.device, dtype=config.dtype)
    for text_id, attention_text in enumerate(config.texts, start=1):
        context.report_progress(text_id - 1, len(config.texts), "texts")
        write_attention_rows(text_id, attention_text, model, config.max_tokens, context)
