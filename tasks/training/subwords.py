"""Byte-level subword tokenizers of three kinds, trained on batches of texts.

All three write a text as letters, one for each of its UTF-8 bytes, cut it into words by GPT-2's
rule (Radford et al. 2019) and the words into tokens. Each of the 256 letters is a token, so
nothing is unknown and every text decodes to itself. ``special`` are the tokens that stand for no
bytes; they have the first ids, in their order.

What comes out depends on how often each word occurs, not on the order or the batches of the
texts. Memory grows with the distinct words, not the texts.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

Texts = Iterator[list[str]]

BYTES = 256

#: WordPiece's mark of a token inside a word; it is no letter of a byte.
INSIDE = "▁"

#: WordPiece and Unigram cut longer words, in bytes. The search for the longest token takes time
#: quadratic in the word, and words without blanks come with megabytes. Characters of two, three
#: and four bytes fill it without a rest.
LONGEST_WORD = 48

#: Threads that Unigram's sums over words are shared among, whatever the machine has: with another
#: number the floats are added in another order.
SHARDS = 16


def letters() -> list[str]:
    """The 256 letters that stand for bytes, sorted."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def train_bpe(
    texts: Texts, vocab_size: int, min_frequency: int, special: Sequence[str]
) -> Tokenizer:
    """BPE (Sennrich et al. 2016): the most frequent pair of tokens becomes one, again and again."""
    from tokenizers import Tokenizer, decoders, models, trainers

    tokenizer = Tokenizer(models.BPE())
    # Merging is quadratic in the word, too: 200 KB without a blank took 13 s.
    tokenizer.pre_tokenizer = words_of_bounded_length(1000)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(special),
        initial_alphabet=letters(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def train_wordpiece(
    texts: Texts, vocab_size: int, min_frequency: int, special: Sequence[str]
) -> Tokenizer:
    """WordPiece (Schuster & Nakajima 2012): of a word the longest token first, then of the rest.

    Tokens that begin a word and tokens inside it are two sets; both hold all letters. As in the
    tokenizers library the vocabulary comes from merging the most frequent pairs.
    """
    from tokenizers import Tokenizer, decoders, models, trainers

    # The library's own WordPieceTrainer numbers the inner letters as its randomly seeded hash map
    # yields them, and ties between pairs follow the numbers. Given as special tokens of the
    # training, which is all these are to it, they have fixed ones.
    inner = [INSIDE + letter for letter in letters()]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=[*special, *inner],
        initial_alphabet=letters(),
        continuing_subword_prefix=INSIDE,
        show_progress=False,
    )
    merged = Tokenizer(models.BPE(continuing_subword_prefix=INSIDE))
    merged.pre_tokenizer = words_of_bounded_length()
    merged.train_from_iterator(texts, trainer)

    # The unknown token of the library's default is none of the vocabulary: where a letter were
    # missing, it would raise an error and lose nothing silently.
    model = models.WordPiece(
        merged.get_vocab(),
        continuing_subword_prefix=INSIDE,
        max_input_chars_per_word=LONGEST_WORD,
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = words_of_bounded_length()
    tokenizer.decoder = decoders.Sequence([decoders.Replace(INSIDE, ""), decoders.ByteLevel()])
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def train_unigram(texts: Texts, vocab_size: int, special: Sequence[str]) -> Tokenizer:
    """Unigram (Kudo 2018): tokens have probabilities, and a word is cut in its likeliest way.

    The probabilities come from expectation maximisation over a large vocabulary, which is pruned
    to the tokens that are missed the most. Merges count in whole numbers; here floats are summed,
    so the bytes hang on the machine's exp and log too.
    """
    from tokenizers import Tokenizer, decoders, models

    pieces = likely_pieces(count_words(texts), vocab_size - len(special))
    floor = min(pieces.values(), default=0.0) - 10  # of letters that the training text lacks
    alphabet = letters()
    longer = sorted(pieces.keys() - set(alphabet), key=lambda piece: (-pieces[piece], piece))
    vocabulary = [
        *((token, 0.0) for token in special),  # no word spells them: words end at "<|"
        *((letter, pieces.get(letter, floor)) for letter in alphabet),
        *((piece, pieces[piece]) for piece in longer),
    ]
    # No unk_id: where a letter were missing, the library would raise an error.
    tokenizer = Tokenizer(models.Unigram(vocabulary[:vocab_size]))
    tokenizer.pre_tokenizer = words_of_bounded_length()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def words_of_bounded_length(most: int = LONGEST_WORD) -> PreTokenizer:
    """Words of at most ``most`` letters."""
    from tokenizers.pre_tokenizers import ByteLevel, FixedLength, Sequence

    return Sequence([ByteLevel(add_prefix_space=False), FixedLength(most)])


def count_words(texts: Texts) -> Counter[str]:
    """How often each word occurs, spelled in letters of bytes."""
    cutter = words_of_bounded_length()
    counts: Counter[str] = Counter()
    for batch in texts:
        for text in batch:
            counts.update(word for word, _ in cutter.pre_tokenize_str(text))
    return counts


def likely_pieces(words: Counter[str], size: int) -> dict[str, float]:
    """About ``size`` pieces of the words and the logarithms of their probabilities.

    By sentencepiece: the trainer of the tokenizers library sums floats in the order of a randomly
    seeded hash map and gives another vocabulary in every process.
    """
    from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

    if not words:
        return {}
    written = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=(f"{word}\t{count}" for word, count in sorted(words.items())),
        input_format="tsv",
        model_writer=written,
        model_type="unigram",
        vocab_size=size + 1,  # and its own token for what is unknown, left out below
        hard_vocab_limit=False,
        required_chars="".join(letters()),
        character_coverage=1.0,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_by_unicode_script=False,
        split_by_number=False,
        split_by_whitespace=False,
        bos_id=-1,
        eos_id=-1,
        num_threads=SHARDS,
        minloglevel=2,
    )
    model = SentencePieceProcessor(model_proto=written.getvalue())
    numbers = range(1, model.get_piece_size())
    return {model.id_to_piece(number): model.get_score(number) for number in numbers}
