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

from tasks.contract import Artifact, HallmarkError, UsageError

Ids = list[int]

#: The files of a checkpoint that a reader knows: all but the weights.
READ = ("*.json", "*.txt", "*.model")


class Reader(ABC):
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
    kind: Literal["causal", "masked"]
    context: int
    vocab_size: int
    layers: int | None = None
    bos: int | None
    end: int | None = None
    begin: str

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Token ids of each text, without special tokens."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""

    def encode_with_places(self, text: str) -> tuple[Ids, list[tuple[int, int]]]:
        """Token ids of a text, without special tokens, and the characters [start, end) of it that
        each stands for: several tokens may share one. HallmarkError where it cannot tell."""
        raise HallmarkError("its tokenizer does not tell which characters a token stands for")

    def token_name(self, token: int) -> str:
        """A token as the vocabulary writes it."""
        return self.decode([token])

    def encode(self, text: str) -> Ids:
        return self.encode_batch([text])[0]

    def spellings(self, items: Sequence[Sequence[str]]) -> list[list[Ids]]:
        """Of the texts of each item the token ids, as they begin a document and, where they then
        are others, as they stand behind a space."""
        each = iter(self.encode_batch([f"{space}{text}" for texts in items for text in texts
                                       for space in ("", " ")]))  # fmt: skip
        found: list[list[Ids]] = []
        for texts in items:
            found.append([])
            for _ in texts:
                alone, behind = next(each), next(each)
                same = behind[len(behind) - len(alone) :] == alone  # but for the space itself
                found[-1] += [alone] if same else [alone, behind]
        return found

    def tokens(self, text: str) -> int:
        """How many tokens a text has."""
        return len(self.encode(text))

    def opened(self, ids: Sequence[int]) -> Ids:
        """The ids behind the begin-of-text token, where there is one."""
        return [*([] if self.bos is None else [self.bos]), *ids]

    def behind(
        self, contexts: Sequence[str], texts: Sequence[Sequence[str]]
    ) -> list[tuple[Ids, list[Ids]]]:
        """Of each context and the texts that may stand behind it: the tokens that all of them begin
        with, behind the begin-of-text token, and the rest of each. So all are scored over the same
        span, also where a text joins the last letters of its context in a token."""
        alone = self.encode_batch(contexts)
        whole = iter(self.encode_batch([c + t for c, many in zip(contexts, texts, strict=True)
                                        for t in many]))  # fmt: skip
        found = []
        for ids, many in zip(alone, texts, strict=True):
            each = [next(whole) for _ in many]
            shared = shared_prefix([ids, *each])
            found.append((self.opened(ids[:shared]), [one[shared:] for one in each]))
        return found

    @property
    def opening(self) -> Ids:
        """What stands before a text that is scored from its beginning; nothing where a model is
        masked, or has no begin-of-text token: of a causal one the first token then is not
        scored."""
        return [] if self.kind == "masked" else self.opened([])


def shared_prefix(sequences: Sequence[Sequence[int]]) -> int:
    """How many leading tokens all sequences have in common."""
    count = 0
    for column in zip(*sequences, strict=False):
        if any(token != column[0] for token in column):
            break
        count += 1
    return count


def open_reader(checkpoint: Artifact | Path | str) -> Reader:
    """The reader of a checkpoint folder, whose weights are not looked at.

    Raises UsageError, one sentence, where the folder holds no language model, or one that answers
    sources.
    """
    folder, name = place_of(checkpoint)
    config = read_config(folder)
    if config.get("model_type") == "hallmark":
        from tasks.audits.subjects.own_reader import open_own_reader

        return open_own_reader(folder, name)
    from tasks.audits.subjects.transformers_reader import open_transformers_reader

    return open_transformers_reader(folder, config, name)


def place_of(checkpoint: Artifact | Path | str) -> tuple[Path, str]:
    """The folder of a checkpoint, and its name for messages."""
    if isinstance(checkpoint, Artifact):
        return checkpoint.directory(), checkpoint.name
    return Path(checkpoint), Path(checkpoint).name


def read_config(folder: Path) -> dict[str, Any]:
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
