"""Load the tokenizer of a Hugging Face folder without running code from it.

If the folder has a tokenizer.json, its token ids are used: transformers rebuilds some tokenizers as
the usual class of the model type, whose ids can differ. A special token is used only if it is in
the vocabulary of the folder: transformers adds missing ones that its classes expect.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

LOCAL_ONLY_OPTIONS = {"local_files_only": True, "trust_remote_code": False}

#: The special tokens, as the files of a folder call them.
SPECIAL_TOKENS = (
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
)

#: How special tokens look that are not marked as special; excludes bytes such as <0x0A>.
_SPECIAL_TOKEN_FORM = re.compile(r"<(?!0x)[^<>\s]+>|\[[A-Z_]+\]")


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder that has config.json and the files of a tokenizer.

    Returns:
        A tokenizer whose special tokens are in the vocabulary of the folder; a special token that
            no file names, or that is not in the vocabulary, is None.

    Raises:
        Exception: whatever transformers or tokenizers raise if the files cannot be read.
    """
    declared = _DeclaredTokens.from_folder(folder)
    if (folder / "tokenizer.json").is_file():
        return _load_tokenizer_json(folder / "tokenizer.json", declared)
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **LOCAL_ONLY_OPTIONS)
    _replace_added_tokens(tokenizer, declared, folder)
    return tokenizer


@dataclass(frozen=True)
class _DeclaredTokens:
    """The special tokens that the files of a folder declare."""

    tokens_by_name: Mapping[str, str | None]
    """From the tokenizer's files; None where they declare that there is none."""
    ids_by_name: Mapping[str, tuple[int, ...]]
    """From config.json and generation_config.json."""
    class_defaults: Mapping[str, str]
    """From the class that transformers uses for such a folder."""
    additional_tokens: frozenset[str]
    """The special tokens besides SPECIAL_TOKENS."""

    @classmethod
    def from_folder(cls, folder: Path) -> _DeclaredTokens:
        settings = _try_read_json_object(folder / "tokenizer_config.json")
        legacy = _try_read_json_object(folder / "special_tokens_map.json")
        # Like transformers, prefer the older file only if the newer one lists no added tokens.
        merged = legacy | settings if "added_tokens_decoder" in settings else settings | legacy
        tokens_by_name = {
            name: _parse_token_content(merged[name]) for name in SPECIAL_TOKENS if name in merged
        }
        config = _try_read_json_object(folder / "config.json")
        ids_by_name: dict[str, tuple[int, ...]] = {}
        for source in (config, _try_read_json_object(folder / "generation_config.json")):
            for name in SPECIAL_TOKENS:
                value = source.get(f"{name}_id")
                listed_ids = value if isinstance(value, list) else [value]
                ids_by_name[name] = (
                    *ids_by_name.get(name, ()),
                    *(id for id in listed_ids if type(id) is int),
                )
        additional_tokens = [
            token
            for key in ("additional_special_tokens", "extra_special_tokens")
            for token in _list_json_values(merged.get(key))
        ]
        added = _list_json_values(settings.get("added_tokens_decoder"))
        additional_tokens += [
            token for token in added if isinstance(token, dict) and token.get("special")
        ]
        class_name = settings.get("tokenizer_class") or config.get("tokenizer_class")
        class_defaults = _get_default_tokens_by_name(class_name, config.get("model_type"))
        return cls(
            tokens_by_name,
            ids_by_name,
            class_defaults,
            frozenset(filter(None, map(_parse_token_content, additional_tokens))),
        )

    def choose_token(
        self, name: str, vocabulary: Collection[str], special_tokens_by_id: Mapping[int, str]
    ) -> str | None:
        """Choose one special token; None if there is none in the vocabulary.

        Args:
            name: Which one of SPECIAL_TOKENS.
            vocabulary: Tokens of the folder's vocabulary.
            special_tokens_by_id: Those tokens that can be special.
        """
        if self.tokens_by_name.get(name, "") is None:
            return None
        from_ids = (special_tokens_by_id.get(id) for id in self.ids_by_name[name])
        candidates = (self.tokens_by_name.get(name), *from_ids, self.class_defaults.get(name))
        return next((token for token in candidates if token in vocabulary), None)


def _load_tokenizer_json(path: Path, declared: _DeclaredTokens) -> PreTrainedTokenizerFast:
    """Load tokenizer.json unchanged, with the special tokens that the folder declares."""
    from tokenizers import AddedToken, Tokenizer
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer.from_file(str(path))
    vocabulary = backend.get_vocab(with_added_tokens=True)
    added = backend.get_added_tokens_decoder()
    marked_tokens = {id: token.content for id, token in added.items() if token.special}
    special_tokens = _find_special_tokens_by_id(marked_tokens, vocabulary)
    chosen_tokens = {
        name: declared.choose_token(name, vocabulary, special_tokens) for name in SPECIAL_TOKENS
    }
    padding_denied = declared.tokens_by_name.get("pad_token", "") is None
    if chosen_tokens["pad_token"] is None and backend.padding is not None and not padding_denied:
        padding = backend.padding["pad_token"]
        chosen_tokens["pad_token"] = padding if padding in vocabulary else None
    backend.no_padding()  # Otherwise transformers uses its token even if the folder declares none.
    tokens = {name: token for name, token in chosen_tokens.items() if token is not None}
    unmarked_tokens = ({*tokens.values()} | declared.additional_tokens & {*vocabulary}) - {
        *marked_tokens.values()
    }
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in sorted(unmarked_tokens)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, **tokens)


def _find_special_tokens_by_id(
    marked_tokens_by_id: Mapping[int, str], ids_by_token: Mapping[str, int]
) -> dict[int, str]:
    """Return the tokens that can be special, by id: the marked ones and those that look special."""
    tokens_of_special_form = {
        id: token for token, id in ids_by_token.items() if _SPECIAL_TOKEN_FORM.fullmatch(token)
    }
    return tokens_of_special_form | dict(marked_tokens_by_id)


def _replace_added_tokens(
    tokenizer: PreTrainedTokenizerBase, declared: _DeclaredTokens, folder: Path
) -> None:
    """Replace the special tokens that transformers added to the vocabulary of a folder.

    The mask token of a SentencePiece model is kept: the file cannot hold one, so the class adds it
    after the last piece, also when the model is trained.
    """
    model_file_starts = [path.read_bytes()[:1] for path in folder.glob("*.model")]
    if (folder / "tekken.json").is_file() or any(start != b"\n" for start in model_file_starts):
        return  # tiktoken formats keep special tokens outside the vocabulary.
    vocabulary = _read_folder_ids_by_token(tokenizer, folder)
    special_tokens = _find_special_tokens_by_id({}, vocabulary)
    for name in SPECIAL_TOKENS:
        token = getattr(tokenizer, name)
        if token is None or token in vocabulary or (name == "mask_token" and model_file_starts):
            continue
        setattr(tokenizer, name, declared.choose_token(name, vocabulary, special_tokens))


def _read_folder_ids_by_token(tokenizer: PreTrainedTokenizerBase, folder: Path) -> dict[str, int]:
    """Return the ids by token in the files of a folder, without tokens that transformers added."""
    added = _try_read_json_object(folder / "tokenizer_config.json").get("added_tokens_decoder")
    listed_tokens = {*_try_read_json_object(folder / "added_tokens.json").items()}
    for id, token in added.items() if isinstance(added, dict) else ():
        listed_tokens.add((_parse_token_content(token) or "", int(id)))
    if tokenizer.is_fast:
        base = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)
    else:
        size = tokenizer.vocab_size
        base = {token: id for token, id in tokenizer.get_vocab().items() if id < size}
    vocabulary: dict[str, int] = base | dict(listed_tokens & {*tokenizer.get_vocab().items()})
    return vocabulary


def _get_default_tokens_by_name(class_name: Any, model_type: Any) -> dict[str, str]:
    """Return the special tokens that a tokenizer class of transformers uses by default.

    Args:
        class_name: The class that the folder names, if it does.
        model_type: The model type, whose usual class is used if no class is named.
    """
    from transformers.models.auto import tokenization_auto

    if not isinstance(class_name, str):
        class_name = tokenization_auto.TOKENIZER_MAPPING_NAMES.get(str(model_type))
    try:
        tokenizer_class = (
            tokenization_auto.tokenizer_class_from_name(class_name) if class_name else None
        )
    except ImportError:  # The class needs a library that is not installed.
        tokenizer_class = None
    if tokenizer_class is None:
        return {}
    parameters = inspect.signature(tokenizer_class.__init__).parameters
    defaults = {name: parameters[name].default for name in SPECIAL_TOKENS if name in parameters}
    return {name: str(token) for name, token in defaults.items() if isinstance(token, str)}


def _list_json_values(value: Any) -> list[Any]:
    """Return the values of a list or an object; an empty list for anything else."""
    if isinstance(value, dict):
        return [*value.values()]
    return value if isinstance(value, list) else []


def _parse_token_content(token: Any) -> str | None:
    """Parse a token from a file: a string, an object with its content, or null."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _try_read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; return an empty one if the file is missing or has something else."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
