"""The tokenizer of a file, as every stage opens it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

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
