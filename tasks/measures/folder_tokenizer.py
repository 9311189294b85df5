"""Load the tokenizer of a Hugging Face folder, from which no code is run.

Where the folder has a tokenizer.json, its token ids count: transformers rebuilds some tokenizers as
the class that is usual for the model type, and their ids can differ. A special token counts only if
the vocabulary of the folder holds it: transformers adds the missing ones that its classes expect.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOCAL = {"local_files_only": True, "trust_remote_code": False}

#: The special tokens, as the files of a folder call them.
SPECIAL_TOKENS = (
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
)

#: The form of a special token that its vocabulary does not mark as one; not a byte such as <0x0A>.
_SPECIAL_FORM = re.compile(r"<(?!0x)[^<>\s]+>|\[[A-Z_]+\]")


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of a folder that has config.json and the files of a tokenizer.

    Returns:
        A tokenizer of transformers. Its special tokens are in the vocabulary of the folder; one
        that no file names, or that the vocabulary does not hold, is None.

    Raises:
        Exception: whatever transformers or tokenizers raise if the files cannot be read.
    """
    declared = _DeclaredTokens.from_folder(folder)
    if (folder / "tokenizer.json").is_file():
        return _load_tokenizer_json(folder / "tokenizer.json", declared)
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **LOCAL)
    _replace_added_tokens(tokenizer, declared, folder)
    return tokenizer


@dataclass(frozen=True)
class _DeclaredTokens:
    """The special tokens that the files of a folder declare."""

    names: Mapping[str, str | None]
    """From the tokenizer's files; None where they say that there is none."""
    ids: Mapping[str, tuple[int, ...]]
    """From config.json and generation_config.json."""
    usual: Mapping[str, str]
    """From the class that transformers uses for such a folder."""
    others: frozenset[str]
    """The special tokens besides SPECIAL_TOKENS."""

    @classmethod
    def from_folder(cls, folder: Path) -> _DeclaredTokens:
        settings = _read_object(folder / "tokenizer_config.json")
        legacy = _read_object(folder / "special_tokens_map.json")
        # transformers, too, prefers the older file only if the newer one lists no added tokens.
        merged = legacy | settings if "added_tokens_decoder" in settings else settings | legacy
        names = {name: _read_content(merged[name]) for name in SPECIAL_TOKENS if name in merged}
        config = _read_object(folder / "config.json")
        ids: dict[str, tuple[int, ...]] = {}
        for source in (config, _read_object(folder / "generation_config.json")):
            for name in SPECIAL_TOKENS:
                value = source.get(f"{name}_id")
                listed = value if isinstance(value, list) else [value]
                ids[name] = (*ids.get(name, ()), *(id for id in listed if type(id) is int))
        others = [token for key in ("additional_special_tokens", "extra_special_tokens")
                  for token in _list_values(merged.get(key))]  # fmt: skip
        added = _list_values(settings.get("added_tokens_decoder"))
        others += [token for token in added if isinstance(token, dict) and token.get("special")]
        named_class = settings.get("tokenizer_class") or config.get("tokenizer_class")
        usual = _usual_tokens(named_class, config.get("model_type"))
        return cls(names, ids, usual, frozenset(filter(None, map(_read_content, others))))

    def choose(self, name: str, held: Collection[str], special: Mapping[int, str]) -> str | None:
        """Choose one special token.

        Args:
            name: which one, of SPECIAL_TOKENS.
            held: the tokens of the folder's vocabulary.
            special: those of them that can be special, by id.
        """
        if self.names.get(name, "") is None:
            return None
        from_ids = (special.get(id) for id in self.ids[name])
        candidates = (self.names.get(name), *from_ids, self.usual.get(name))
        return next((token for token in candidates if token in held), None)


def _load_tokenizer_json(path: Path, declared: _DeclaredTokens) -> Any:
    """Load tokenizer.json as it is, with the special tokens that the folder declares."""
    from tokenizers import AddedToken, Tokenizer
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer.from_file(str(path))
    vocabulary = backend.get_vocab(with_added_tokens=True)
    added = backend.get_added_tokens_decoder()
    marked = {id: token.content for id, token in added.items() if token.special}
    special = _find_special(marked, vocabulary)
    chosen = {name: declared.choose(name, vocabulary, special) for name in SPECIAL_TOKENS}
    denied = declared.names.get("pad_token", "") is None
    if chosen["pad_token"] is None and backend.padding is not None and not denied:
        padding = backend.padding["pad_token"]
        chosen["pad_token"] = padding if padding in vocabulary else None
    backend.no_padding()  # transformers would take its token though the folder denies it
    tokens = {name: token for name, token in chosen.items() if token is not None}
    unmarked = ({*tokens.values()} | declared.others & {*vocabulary}) - {*marked.values()}
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in sorted(unmarked)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, **tokens)


def _find_special(marked: Mapping[int, str], vocabulary: Mapping[str, int]) -> dict[int, str]:
    """Find the tokens that can be special, by id: the marked ones and those of their form."""
    formed = {id: token for token, id in vocabulary.items() if _SPECIAL_FORM.fullmatch(token)}
    return formed | dict(marked)


def _replace_added_tokens(tokenizer: Any, declared: _DeclaredTokens, folder: Path) -> None:
    """Replace the special tokens that transformers added to the vocabulary of a folder.

    The mask token of a SentencePiece model stays: its file has no place for one, so the class adds
    it after the last piece, for the model's training as well.
    """
    models = [path.read_bytes()[:1] for path in folder.glob("*.model")]
    if (folder / "tekken.json").is_file() or any(start != b"\n" for start in models):
        return  # formats of tiktoken, which keep the special tokens apart from the vocabulary
    vocabulary = _read_vocabulary(tokenizer, folder)
    special = _find_special({}, vocabulary)
    for name in SPECIAL_TOKENS:
        token = getattr(tokenizer, name)
        if token is None or token in vocabulary or (name == "mask_token" and models):
            continue
        setattr(tokenizer, name, declared.choose(name, vocabulary, special))


def _read_vocabulary(tokenizer: Any, folder: Path) -> dict[str, int]:
    """The tokens by id that the files of a folder hold, without those that transformers added."""
    added = _read_object(folder / "tokenizer_config.json").get("added_tokens_decoder")
    listed = {*_read_object(folder / "added_tokens.json").items()}
    for id, token in added.items() if isinstance(added, dict) else ():
        listed.add((_read_content(token) or "", int(id)))
    if tokenizer.is_fast:
        base = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)
    else:
        size = tokenizer.vocab_size
        base = {token: id for token, id in tokenizer.get_vocab().items() if id < size}
    return base | dict(listed & {*tokenizer.get_vocab().items()})


def _usual_tokens(named_class: Any, model_type: Any) -> dict[str, str]:
    """The special tokens that a tokenizer class of transformers expects unless told otherwise.

    Args:
        named_class: the class that the folder names, if it does.
        model_type: the model type, which has a usual class; only without a named one.
    """
    from transformers.models.auto import tokenization_auto

    if not isinstance(named_class, str):
        named_class = tokenization_auto.TOKENIZER_MAPPING_NAMES.get(str(model_type))
    try:
        found = tokenization_auto.tokenizer_class_from_name(named_class) if named_class else None
    except ImportError:  # a class of a library that is not installed
        found = None
    if found is None:
        return {}
    parameters = inspect.signature(found.__init__).parameters
    defaults = {name: parameters[name].default for name in SPECIAL_TOKENS if name in parameters}
    return {name: str(token) for name, token in defaults.items() if isinstance(token, str)}


def _list_values(value: Any) -> list[Any]:
    """The values of a list or of an object; nothing of anything else."""
    if isinstance(value, dict):
        return [*value.values()]
    return value if isinstance(value, list) else []


def _read_content(token: Any) -> str | None:
    """A token as the files write it: a string, an object with its content, or null."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object; an empty one where there is no such file, or it holds something else."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
