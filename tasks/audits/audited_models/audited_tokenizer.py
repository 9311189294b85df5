"""The reader: what a model under audit reads and writes, its tokens, without any of its weights.

Texts are encoded without special tokens; a special token's name inside a text is plain text.
Checkpoints of one training have one reader, so what is asked of them is the same.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from hallmark.tasks.contract import Artifact, HallmarkError, UsageError

TokenIds = list[int]

#: The files of a checkpoint that a reader knows: all but the weights.
METADATA_FILES = ("*.json", "*.txt", "*.model")


class AuditedTokenizer(ABC):
    """A causal or masked language model as its tokenizer and its config tell of it.

    name     of the artifact or folder
    kind     "causal" or "masked"
    context  longest sequence the model attends over, in tokens
    layers   blocks of the stack whose states can be read, None where its config does not say
    bos      the token that stands before every text, None where the tokenizer has none
    end      the token that stands behind every text, None but for masked models that want one
    begin    a phrase that says what stands before every text, for a finding's ``method``
    """

    name: str
    model_kind: Literal["causal", "masked"]
    context_length: int
    vocab_size: int
    layer_count: int | None = None
    bos_id: int | None
    closing_id: int | None = None
    opening_description: str

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[TokenIds]:
        """Token ids of each text, without special tokens."""

    @abstractmethod
    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""

    def encode_with_char_spans(self, text: str) -> tuple[TokenIds, list[tuple[int, int]]]:
        """Token ids of a text, without special tokens, and the characters [start, end) of it that
        each stands for: several tokens may share one. HallmarkError where it cannot tell."""
        raise HallmarkError("its tokenizer does not tell which characters a token stands for")

    def get_token_name(self, token_id: int) -> str:
        """A token as the vocabulary writes it."""
        return self.decode([token_id])

    def encode(self, text: str) -> TokenIds:
        return self.encode_batch([text])[0]

    def encode_with_and_without_space(
        self, text_lists: Sequence[Sequence[str]]
    ) -> list[list[TokenIds]]:
        """Of the texts of each item the token ids, as they begin a document and, where they then
        are others, as they stand behind a space."""
        encodings = iter(
            self.encode_batch(
                [f"{space}{text}" for texts in text_lists for text in texts for space in ("", " ")]
            )
        )
        spellings_by_item: list[list[TokenIds]] = []
        for texts in text_lists:
            spellings_by_item.append([])
            for _ in texts:
                initial_ids, spaced_ids = next(encodings), next(encodings)
                is_same = (
                    spaced_ids[len(spaced_ids) - len(initial_ids) :] == initial_ids
                )  # but for the space itself
                spellings_by_item[-1] += [initial_ids] if is_same else [initial_ids, spaced_ids]
        return spellings_by_item

    def count_tokens(self, text: str) -> int:
        """How many tokens a text has."""
        return len(self.encode(text))

    def prepend_bos_id(self, token_ids: Sequence[int]) -> TokenIds:
        """The ids behind the begin-of-text token, where there is one."""
        return [*([] if self.bos_id is None else [self.bos_id]), *token_ids]

    def tokenize_continuations(
        self, contexts: Sequence[str], continuations: Sequence[Sequence[str]]
    ) -> list[tuple[TokenIds, list[TokenIds]]]:
        """Of each context and the texts that may stand behind it: the tokens that all of them begin
        with, behind the begin-of-text token, and the rest of each. So all are scored over the same
        span, also where a text joins the last letters of its context in a token."""
        encoded_contexts = self.encode_batch(contexts)
        full_sequences = iter(
            self.encode_batch(
                [
                    context + continuation
                    for context, context_continuations in zip(contexts, continuations, strict=True)
                    for continuation in context_continuations
                ]
            )
        )
        tokenized = []
        for context_ids, context_continuations in zip(encoded_contexts, continuations, strict=True):
            full_ids = [next(full_sequences) for _ in context_continuations]
            shared_length = count_shared_prefix_tokens([context_ids, *full_ids])
            tokenized.append(
                (
                    self.prepend_bos_id(context_ids[:shared_length]),
                    [sequence[shared_length:] for sequence in full_ids],
                )
            )
        return tokenized

    @property
    def opening_ids(self) -> TokenIds:
        """What stands before a text that is scored from its beginning; nothing where a model is
        masked, or has no begin-of-text token: of a causal one the first token then is not
        scored."""
        return [] if self.model_kind == "masked" else self.prepend_bos_id([])


def count_shared_prefix_tokens(sequences: Sequence[Sequence[int]]) -> int:
    """How many leading tokens all sequences have in common."""
    count = 0
    for column in zip(*sequences, strict=False):
        if any(token != column[0] for token in column):
            break
        count += 1
    return count


def resolve_checkpoint_folder(checkpoint: Artifact | Path | str) -> tuple[Path, str]:
    """The folder of a checkpoint, and its name for messages."""
    if isinstance(checkpoint, Artifact):
        return checkpoint.fetch_directory(), checkpoint.name
    return Path(checkpoint), Path(checkpoint).name


def read_checkpoint_config(folder: Path) -> dict[str, Any]:
    """config.json of a checkpoint. Raises UsageError, one sentence."""
    path = folder / "config.json"
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; give the folder of a checkpoint")
    if not path.is_file():
        raise UsageError(f"{folder} has no config.json: it is not a checkpoint")
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid JSON: {str(error)[:200]}") from error
    if not isinstance(config, dict):
        raise UsageError(f"{path} is not a JSON object: {folder} is not a checkpoint")
    return config
