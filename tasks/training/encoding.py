"""The tokenizer of a file, as every stage opens it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

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


def token_bytes(tokenizer: Tokenizer) -> pa.LargeBinaryArray:
    """What each token of a byte-level vocabulary spells, (V,); special ones nothing. Letters stand
    for bytes as in GPT-2 (Radford et al. 2019): printable ones for themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    letters |= {chr(256 + n): byte for n, byte in enumerate(others)}
    special = tokenizer.get_added_tokens_decoder()
    # WordPiece marks tokens inside a word, and the mark stands for no byte.
    mark = getattr(tokenizer.model, "continuing_subword_prefix", None) or ""
    spelled = [b""] * tokenizer.get_vocab_size()
    for token, number in tokenizer.get_vocab().items():
        if number not in special:
            spelled[number] = bytes(letters[letter] for letter in token.removeprefix(mark))
    return pa.array(spelled, pa.large_binary())


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
