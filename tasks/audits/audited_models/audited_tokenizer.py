"""Define what audits know of a model without its weights: its tokenizer and facts of its config.

Texts are encoded without special tokens; the name of a special token inside a text is plain text.
Checkpoints of one training share a tokenizer, so they get the same requests.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hallmark.tasks.contract import Artifact, HallmarkError, UsageError

TokenIds = list[int]

#: A causal model sees the text before a token, a masked model the text on both sides.
ModelKind = Literal["causal", "masked"]

#: Files of a checkpoint without its weights.
METADATA_FILES = ("*.json", "*.txt", "*.model")


class EncodedWithSpans(NamedTuple):
    """Hold the tokens of a text, each with its place in the text.

    Attributes:
        token_ids: The token ids.
        char_spans: First character and end (exclusive) of each token; tokens may share characters.
    """

    token_ids: TokenIds
    char_spans: list[tuple[int, int]]


class TokenizedContinuations(NamedTuple):
    """Hold a context and its continuations as tokens.

    Attributes:
        context_ids: The begin-of-text token, then the tokens that all continuations share.
        continuation_ids: The remaining tokens of each continuation.
    """

    context_ids: TokenIds
    continuation_ids: list[TokenIds]


class CheckpointFolder(NamedTuple):
    """Name a checkpoint.

    Attributes:
        path: The folder.
        name: Its name for messages.
    """

    path: Path
    name: str


class AuditedTokenizer(ABC):
    """The tokenizer of a causal or masked language model, with facts from its config.

    Attributes:
        name: Name of the artifact or folder.
        model_kind: "causal" or "masked".
        context_length: Longest sequence that the model attends over, in tokens.
        vocab_size: Number of tokens.
        layer_count: Number of blocks with readable states; None if the config does not say.
        bos_id: The token before every text; None if the tokenizer has none.
        closing_id: The token after every text, for masked models that use one; else None.
        opening_description: A phrase about what is before every text, for a finding's ``method``.
    """

    name: str
    model_kind: ModelKind
    context_length: int
    vocab_size: int
    layer_count: int | None = None
    bos_id: int | None
    closing_id: int | None = None
    opening_description: str

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[TokenIds]:
        """Encode texts without special tokens."""

    @abstractmethod
    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode token ids, without special tokens."""

    def encode_with_char_spans(self, text: str) -> EncodedWithSpans:
        """Encode a text without special tokens, with the characters of each token.

        Raises:
            HallmarkError: The tokenizer does not give character spans.
        """
        raise HallmarkError(
            f"the tokenizer of {self.name} does not report the characters covered by each token"
        )

    def get_token_name(self, token_id: int) -> str:
        """Return a token as the vocabulary writes it."""
        return self.decode([token_id])

    def encode(self, text: str) -> TokenIds:
        return self.encode_batch([text])[0]

    def encode_with_and_without_space(
        self, text_lists: Sequence[Sequence[str]]
    ) -> list[list[TokenIds]]:
        """Encode each item's texts as the start of a document and, if different, after a space."""
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
                # Both are equal except for tokens of the space itself.
                is_same = spaced_ids[len(spaced_ids) - len(initial_ids) :] == initial_ids
                spellings_by_item[-1] += [initial_ids] if is_same else [initial_ids, spaced_ids]
        return spellings_by_item

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a text."""
        return len(self.encode(text))

    def prepend_bos_id(self, token_ids: Sequence[int]) -> TokenIds:
        """Prepend the begin-of-text token, if there is one."""
        return [*([] if self.bos_id is None else [self.bos_id]), *token_ids]

    def tokenize_continuations(
        self, contexts: Sequence[str], continuations: Sequence[Sequence[str]]
    ) -> list[TokenizedContinuations]:
        """Split each context and its continuations into shared tokens and the remaining ones.

        All continuations are then scored over the same span of text, even if one joins the last
        letters of the context in a token.
        """
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
                TokenizedContinuations(
                    self.prepend_bos_id(context_ids[:shared_length]),
                    [sequence[shared_length:] for sequence in full_ids],
                )
            )
        return tokenized

    @property
    def opening_ids(self) -> TokenIds:
        """The tokens before a text that is scored from its beginning.

        Empty for masked models and without a begin-of-text token; a causal model then does not
        score the first token.
        """
        return [] if self.model_kind == "masked" else self.prepend_bos_id([])


def count_shared_prefix_tokens(sequences: Sequence[Sequence[int]]) -> int:
    """Count the leading tokens that all sequences share."""
    count = 0
    for column in zip(*sequences, strict=False):
        if any(token != column[0] for token in column):
            break
        count += 1
    return count


def resolve_checkpoint_folder(checkpoint: Artifact | Path | str) -> CheckpointFolder:
    """Return the folder of a checkpoint; that of an artifact is fetched from its store."""
    if isinstance(checkpoint, Artifact):
        return CheckpointFolder(checkpoint.fetch_directory(), checkpoint.name)
    return CheckpointFolder(Path(checkpoint), Path(checkpoint).name)


def read_checkpoint_config(folder: Path) -> dict[str, Any]:
    """Read the config.json of a checkpoint.

    Raises:
        UsageError: The folder, the file or a JSON object in it is missing.
    """
    path = folder / "config.json"
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; specify the folder of a checkpoint")
    if not path.is_file():
        if (folder / "adapter_config.json").is_file():
            raise UsageError(
                f"{folder} contains an adapter without its base model; merge the adapter into "
                "the base model, and specify the folder of the merged model"
            )
        raise UsageError(f"{folder} has no config.json, so it is not a checkpoint")
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid JSON: {str(error)[:200]}") from error
    if not isinstance(config, dict):
        raise UsageError(f"{path} is not a JSON object, so {folder} is not a checkpoint")
    return config
