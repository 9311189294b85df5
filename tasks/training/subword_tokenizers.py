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

TextBatches = Iterator[list[str]]

BYTE_COUNT = 256

#: WordPiece's mark of a token inside a word; it is no letter of a byte.
CONTINUATION_PREFIX = "▁"

#: WordPiece and Unigram cut longer words, in bytes. The search for the longest token takes time
#: quadratic in the word, and words without blanks come with megabytes. Characters of two, three
#: and four bytes fill it without a rest.
MAX_WORD_BYTES = 48

#: Threads that Unigram's sums over words are shared among, whatever the machine has: with another
#: number the floats are added in another order.
UNIGRAM_THREADS = 16


def list_byte_letters() -> list[str]:
    """The 256 letters that stand for bytes, sorted."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def train_bpe_tokenizer(
    text_batches: TextBatches, vocab_size: int, min_frequency: int, special_tokens: Sequence[str]
) -> Tokenizer:
    """BPE (Sennrich et al. 2016): the most frequent pair of tokens becomes one, again and again."""
    from tokenizers import Tokenizer, decoders, models, trainers

    tokenizer = Tokenizer(models.BPE())
    # Merging is quadratic in the word, too: 200 KB without a blank took 13 s.
    tokenizer.pre_tokenizer = make_word_splitter(1000)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(special_tokens),
        initial_alphabet=list_byte_letters(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text_batches, trainer)
    return tokenizer


def train_wordpiece_tokenizer(
    text_batches: TextBatches, vocab_size: int, min_frequency: int, special_tokens: Sequence[str]
) -> Tokenizer:
    """WordPiece (Schuster & Nakajima 2012): of a word the longest token first, then of the rest.

    Tokens that begin a word and tokens inside it are two sets; both hold all letters. As in the
    tokenizers library the vocabulary comes from merging the most frequent pairs.
    """
    from tokenizers import Tokenizer, decoders, models, trainers

    # The library's own WordPieceTrainer numbers the inner letters as its randomly seeded hash map
    # yields them, and ties between pairs follow the numbers. Given as special tokens of the
    # training, which is all these are to it, they have fixed ones.
    continuation_letters = [CONTINUATION_PREFIX + letter for letter in list_byte_letters()]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=[*special_tokens, *continuation_letters],
        initial_alphabet=list_byte_letters(),
        continuing_subword_prefix=CONTINUATION_PREFIX,
        show_progress=False,
    )
    bpe_tokenizer = Tokenizer(models.BPE(continuing_subword_prefix=CONTINUATION_PREFIX))
    bpe_tokenizer.pre_tokenizer = make_word_splitter()
    bpe_tokenizer.train_from_iterator(text_batches, trainer)

    # The unknown token of the library's default is none of the vocabulary: where a letter were
    # missing, it would raise an error and lose nothing silently.
    model = models.WordPiece(
        bpe_tokenizer.get_vocab(),
        continuing_subword_prefix=CONTINUATION_PREFIX,
        max_input_chars_per_word=MAX_WORD_BYTES,
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = make_word_splitter()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(CONTINUATION_PREFIX, ""), decoders.ByteLevel()]
    )
    tokenizer.add_special_tokens(list(special_tokens))
    return tokenizer


def train_unigram_tokenizer(
    text_batches: TextBatches, vocab_size: int, special_tokens: Sequence[str]
) -> Tokenizer:
    """Unigram (Kudo 2018): tokens have probabilities, and a word is cut in its likeliest way.

    The probabilities come from expectation maximisation over a large vocabulary, which is pruned
    to the tokens that are missed the most. Merges count in whole numbers; here floats are summed,
    so the bytes hang on the machine's exp and log too.
    """
    from tokenizers import Tokenizer, decoders, models

    piece_log_probs = estimate_piece_log_probs(
        count_words(text_batches), vocab_size - len(special_tokens)
    )
    min_log_prob = (
        min(piece_log_probs.values(), default=0.0) - 10
    )  # of letters that the training text lacks
    alphabet = list_byte_letters()
    longer_pieces = sorted(
        piece_log_probs.keys() - set(alphabet), key=lambda piece: (-piece_log_probs[piece], piece)
    )
    vocabulary = [
        *((token, 0.0) for token in special_tokens),  # no word spells them: words end at "<|"
        *((letter, piece_log_probs.get(letter, min_log_prob)) for letter in alphabet),
        *((piece, piece_log_probs[piece]) for piece in longer_pieces),
    ]
    # No unk_id: where a letter were missing, the library would raise an error.
    tokenizer = Tokenizer(models.Unigram(vocabulary[:vocab_size]))
    tokenizer.pre_tokenizer = make_word_splitter()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special_tokens))
    return tokenizer


def make_word_splitter(max_letters: int = MAX_WORD_BYTES) -> PreTokenizer:
    """Words of at most ``most`` letters."""
    from tokenizers.pre_tokenizers import ByteLevel, FixedLength, Sequence

    return Sequence([ByteLevel(add_prefix_space=False), FixedLength(max_letters)])


def count_words(text_batches: TextBatches) -> Counter[str]:
    """How often each word occurs, spelled in letters of bytes."""
    word_splitter = make_word_splitter()
    word_counts: Counter[str] = Counter()
    for batch in text_batches:
        for text in batch:
            word_counts.update(word for word, _ in word_splitter.pre_tokenize_str(text))
    return word_counts


def estimate_piece_log_probs(word_counts: Counter[str], piece_count: int) -> dict[str, float]:
    """About ``size`` pieces of the words and the logarithms of their probabilities.

    By sentencepiece: the trainer of the tokenizers library sums floats in the order of a randomly
    seeded hash map and gives another vocabulary in every process.
    """
    from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

    if not word_counts:
        return {}
    model_buffer = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=(f"{word}\t{count}" for word, count in sorted(word_counts.items())),
        input_format="tsv",
        model_writer=model_buffer,
        model_type="unigram",
        vocab_size=piece_count + 1,  # and its own token for what is unknown, left out below
        hard_vocab_limit=False,
        required_chars="".join(list_byte_letters()),
        character_coverage=1.0,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_by_unicode_script=False,
        split_by_number=False,
        split_by_whitespace=False,
        bos_id=-1,
        eos_id=-1,
        num_threads=UNIGRAM_THREADS,
        minloglevel=2,
    )
    processor = SentencePieceProcessor(model_proto=model_buffer.getvalue())
    piece_ids = range(1, processor.get_piece_size())
    return {
        processor.id_to_piece(piece_id): processor.get_score(piece_id) for piece_id in piece_ids
    }
