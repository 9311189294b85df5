"""The tokenizer of a file, as every stage opens it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.contract import HallmarkError

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


def spelled(
    known: pa.LargeBinaryArray, ids: NDArray[np.int32], edges: NDArray[np.int64]
) -> pa.LargeBinaryArray:
    """What tokens spell together, cut at these places (n + 1,), which are in bytes."""
    _, _, letters = known.take(pa.array(ids)).buffers()
    buffers = [None, pa.py_buffer(edges), letters]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(edges) - 1, buffers)


#: Characters of a text that are encoded together. A tokenizer takes a hundred bytes a character.
PIECE = 1 << 20
_CUT = re.compile(r"(?<=\S) (?=\S)")


def pieces(text: str, most: int = PIECE) -> list[str]:
    """A text in pieces whose tokens are together those of the whole.

    GPT-2's rule lets a single blank begin a word, and nothing before it reaches beyond it: a text
    may be cut there. One without such a blank stays longer.
    """
    found = []
    start = 0
    while len(text) - start > most:
        cut = _CUT.search(text, start + most)
        if cut is None:
            break
        found.append(text[start : cut.start()])
        start = cut.start()
    return [*found, text[start:]]
