"""Load the project's tokenizers, and split texts and decoded bytes for them."""

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
    """Load a tokenizer.json; special tokens written out in a text are encoded as plain text.

    Raises:
        HallmarkError: The file cannot be read.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # The library raises bare Exceptions.
        raise HallmarkError(
            f"{path} is not a valid tokenizer file ({error}); use a complete checkpoint that "
            "includes its tokenizer.json"
        ) from error
    tokenizer.encode_special_tokens = True
    return tokenizer


def join_token_bytes(
    bytes_by_token: pa.LargeBinaryArray, token_ids: NDArray[np.int32], byte_edges: NDArray[np.int64]
) -> pa.LargeBinaryArray:
    """Concatenate the bytes of tokens and cut them at the given byte positions, (n + 1,)."""
    _, _, joined_bytes = bytes_by_token.take(pa.array(token_ids)).buffers()
    buffers = [None, pa.py_buffer(byte_edges), joined_bytes]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(byte_edges) - 1, buffers)


#: Maximum characters encoded together: a tokenizer needs a hundred bytes of memory per character.
MAX_PIECE_CHARACTERS = 1 << 20
_WORD_BOUNDARY = re.compile(r"(?<=\S) (?=\S)")


def split_long_text(text: str, max_characters: int = MAX_PIECE_CHARACTERS) -> list[str]:
    """Split a text into pieces whose tokens together are the tokens of the whole text.

    By GPT-2's rule a single space begins a word, and nothing before it affects later tokens, so a
    text can be split there. A piece without such a space stays longer.
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
