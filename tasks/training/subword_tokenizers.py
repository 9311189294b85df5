"""Train byte-level subword tokenizers of three kinds on batches of texts.

Each writes a text as letters, one per UTF-8 byte, splits it into words by GPT-2's rule (Radford et
al. 2019) and the words into tokens. Each of the 256 letters is a token, so nothing is unknown and
every text decodes to itself. Special tokens represent no bytes and have the first ids, in the given
order.

The result depends on word counts, not on the order or the batches of the texts. Memory grows with
the number of distinct words, not with the texts.
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

#: WordPiece's prefix of a token inside a word; it is not one of the byte letters.
CONTINUATION_PREFIX = "▁"

#: Longer words are cut for WordPiece and Unigram. The search for the longest token takes quadratic
#: time in the length of the word, and a text without spaces can have megabytes. The limit is a
#: multiple of the bytes of characters of two, three and four bytes.
MAX_WORD_BYTES = 48

#: Number of threads for Unigram's sums over words. It is fixed on all machines, because another
#: number would add the floats in another order.
UNIGRAM_THREADS = 16


def list_byte_letters() -> list[str]:
    """Return the 256 letters that represent bytes, sorted."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def train_bpe_tokenizer(
    text_batches: TextBatches, vocab_size: int, min_frequency: int, special_tokens: Sequence[str]
) -> Tokenizer:
    """Train BPE (Sennrich et al. 2016): merge the most frequent pair of tokens repeatedly."""
    from tokenizers import Tokenizer, decoders, models, trainers

    tokenizer = Tokenizer(models.BPE())
    # Merging is quadratic in the length of a word: 200 KB without a space took 13 s.
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
    """Train WordPiece (Schuster & Nakajima 2012), which splits a word greedily into longest tokens.

    Tokens at the beginning of a word and tokens inside it are separate; both include all letters.
    As in the tokenizers library, the vocabulary comes from merging the most frequent pairs.
    """
    from tokenizers import Tokenizer, decoders, models, trainers

    # The library's own WordPieceTrainer numbers the inner letters in the order of a randomly seeded
    # hash map, and breaks ties between pairs by these numbers. Passing them as special tokens gives
    # them fixed numbers and changes nothing else.
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

    # The library's default unknown token is not in the vocabulary: if a letter were missing, the
    # library would raise an error instead of losing it silently.
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
    """Train Unigram (Kudo 2018), which splits a word in its most likely way.

    Token probabilities come from expectation maximisation over a large vocabulary, which is pruned
    to the most useful tokens. The other kinds count in integers; here floats are summed, so the
    result also depends on the machine's exp and log.
    """
    from tokenizers import Tokenizer, decoders, models

    piece_log_probs = estimate_log_probs_by_piece(
        count_words(text_batches), vocab_size - len(special_tokens)
    )
    # For letters that do not occur in the training text.
    min_log_prob = min(piece_log_probs.values(), default=0.0) - 10
    alphabet = list_byte_letters()
    longer_pieces = sorted(
        piece_log_probs.keys() - set(alphabet), key=lambda piece: (-piece_log_probs[piece], piece)
    )
    vocabulary = [
        *((token, 0.0) for token in special_tokens),  # Never matched: words end at "<|".
        *((letter, piece_log_probs.get(letter, min_log_prob)) for letter in alphabet),
        *((piece, piece_log_probs[piece]) for piece in longer_pieces),
    ]
    # Without unk_id the library would raise an error if a letter were missing.
    tokenizer = Tokenizer(models.Unigram(vocabulary[:vocab_size]))
    tokenizer.pre_tokenizer = make_word_splitter()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special_tokens))
    return tokenizer


def make_word_splitter(max_letters: int = MAX_WORD_BYTES) -> PreTokenizer:
    """Return a pre-tokenizer that splits texts into words of at most `max_letters` letters."""
    from tokenizers.pre_tokenizers import ByteLevel, FixedLength, Sequence

    return Sequence([ByteLevel(add_prefix_space=False), FixedLength(max_letters)])


def count_words(text_batches: TextBatches) -> Counter[str]:
    """Count the occurrences of each word, spelled in byte letters."""
    word_splitter = make_word_splitter()
    word_counts: Counter[str] = Counter()
    for batch in text_batches:
        for text in batch:
            word_counts.update(word for word, _ in word_splitter.pre_tokenize_str(text))
    return word_counts


def estimate_log_probs_by_piece(word_counts: Counter[str], piece_count: int) -> dict[str, float]:
    """Estimate log-probabilities of about `piece_count` pieces of the words with sentencepiece.

    The trainer of the tokenizers library is not used: it sums floats in the order of a randomly
    seeded hash map, so every process gets another vocabulary.
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
        vocab_size=piece_count + 1,  # Plus its unknown token, which is dropped below.
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
