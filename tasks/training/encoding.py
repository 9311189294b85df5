"""The tokenizer of a file, as every stage opens it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hallmark.tasks.contract import HallmarkError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a file. Special tokens written out in a text are encoded as plain text."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        raise HallmarkError(f"{path} is no tokenizer.json that can be read ({error})") from error
    tokenizer.encode_special_tokens = True
    return tokenizer


def join_token_bytes(
    bytes_by_token: pa.LargeBinaryArray, token_ids: NDArray[np.int32], byte_edges: NDArray[np.int64]
) -> pa.LargeBinaryArray:
    """What tokens spell together, cut at these places (n + 1,), which are in bytes."""
    _, _, joined_bytes = bytes_by_token.take(pa.array(token_ids)).buffers()
    buffers = [None, pa.py_buffer(byte_edges), joined_bytes]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(byte_edges) - 1, buffers)


#: Characters of a text that are encoded together. A tokenizer takes a hundred bytes a character.
MAX_PIECE_CHARACTERS = 1 << 20
_WORD_BOUNDARY = re.compile(r"(?<=\S) (?=\S)")


def split_long_text(text: str, max_characters: int = MAX_PIECE_CHARACTERS) -> list[str]:
    """A text in pieces whose tokens are together those of the whole.

    GPT-2's rule lets a single blank begin a word, and nothing before it reaches beyond it: a text
    may be cut there. One without such a blank stays longer.
    """
    text_pieces = []
    start = 0
    while len(text) - start > max_characters:
        boundary = _WORD_BOUNDARY.search(text, start + max_characters)
        if boundary is None:
            break
        text_pieces.append(text[start : boundary.start()])
        start = boundary.start()
    return [*text_pieces, text[start:]]
