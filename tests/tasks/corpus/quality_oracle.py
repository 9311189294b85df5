"""Compute every quality figure again with Python's own strings, one text at a time."""

import re
from collections import Counter
from fractions import Fraction

from hallmark.tasks.corpus.quality_signals.text_batch import (
    PUNCTUATION_CHARACTERS,
    TERMINAL_CHARACTERS,
)

STOP_WORDS = {"the", "be", "to", "of", "and", "that", "have", "with"}
POLICIES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)


def share(numerator, denominator):
    return float(Fraction(numerator) / denominator) if denominator else None


def compute_expected_signals(text):
    return {
        **compute_quality(text),
        **compute_repetition(text),
        **compute_c4(text),
        **compute_fineweb(text),
    }


def compute_quality(text):
    words, lines = text.split(), text.splitlines()
    wordy = [word for word in words if any(c not in PUNCTUATION_CHARACTERS for c in word)]
    ellipses = text.count("...") + text.count("…")
    bullets = [line for line in lines if line.lstrip().startswith(("•", "-"))]
    trailing = [line for line in lines if line.rstrip().endswith(("...", "…"))]
    return {
        "word_count": len(wordy),
        "mean_word_length": share(sum(map(len, wordy)), len(wordy)),
        "hash_signs_per_word": share(text.count("#"), len(words)),
        "ellipses_per_word": share(ellipses, len(words)),
        "bullet_lines": share(len(bullets), len(lines)),
        "ellipsis_lines": share(len(trailing), len(lines)),
        "alphabetic_words": share(sum(any(c.isalpha() for c in w) for w in words), len(words)),
        "stop_word_count": len(STOP_WORDS & set(words)),
    }


def list_later_copies(pieces):
    return [piece for position, piece in enumerate(pieces) if piece in pieces[:position]]


def count_repeated_characters(words, n):
    """Count the characters of n-grams seen before, reading from the left and skipping each."""
    seen, total, position = set(), 0, 0
    while position + n <= len(words):
        gram = tuple(words[position : position + n])
        if gram in seen:
            total += len("".join(gram))
            position += n
        else:
            seen.add(gram)
            position += 1
    return total


def compute_repetition(text):
    signals = {}
    pieces = {"lines": re.split("\n+", text), "paragraphs": re.split("\n{2,}", text.strip())}
    for name, parts in pieces.items():
        copies = list_later_copies(parts)
        signals[f"duplicate_{name}"] = share(len(copies), len(parts)) if text else None
        signals[f"duplicate_{name}_characters"] = share(sum(map(len, copies)), len(text))
    words = text.split()
    for n in (2, 3, 4):
        grams = Counter(" ".join(words[i : i + n]) for i in range(len(words) - n + 1))
        gram, count = max(grams.items(), key=lambda item: item[1], default=("", 0))
        signals[f"top_{n}gram"] = share(len(gram) * count, len(text))
    for n in range(5, 11):
        signals[f"duplicate_{n}grams"] = share(count_repeated_characters(words, n), len(text))
    return signals


def compute_c4(text):
    text = re.sub(r"\[\d*\]|\[edit\]|\[citation needed\]", "", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    removed_characters = Counter()
    lorem = curly = sentences = 0
    for line in lines:
        lower = line.lower()
        if any(len(word) > 1000 for word in line.split()):
            removed_characters["long_words"] += len(line)
        elif not line.endswith((".", "?", "!", '"', "'")) or line.endswith("..."):
            removed_characters["no_terminal_mark"] += len(line)
        elif len(line.split()) < 3:
            removed_characters["few_words"] += len(line)
        else:
            lorem += "lorem ipsum" in lower
            if "javascript" in lower:
                removed_characters["javascript"] += len(line)
                continue
            curly += "{" in line
            if any(phrase in lower for phrase in POLICIES):
                removed_characters["policy"] += len(line)
            else:
                sentences += 1 + len(re.findall(r"[.?!][\"')\]”’]*\s+", line))
    kinds = ("long_words", "no_terminal_mark", "few_words", "javascript", "policy")
    total = sum(map(len, lines))
    return {
        **{f"c4_{kind}": share(removed_characters[kind], total) for kind in kinds},
        "c4_removed_characters": share(removed_characters.total(), total),
        "c4_lorem_ipsum": lorem,
        "c4_curly_brackets": curly,
        "c4_sentences": sentences,
    }


def compute_fineweb(text):
    lines = [line for line in text.split("\n") if line.strip()]
    copied_characters = sum(map(len, list_later_copies(lines)))
    return {
        "terminal_lines": share(
            sum(line.endswith(tuple(TERMINAL_CHARACTERS)) for line in lines), len(lines)
        ),
        "short_lines": share(sum(len(line) <= 30 for line in lines), len(lines)),
        "duplicate_characters": share(
            copied_characters, len(text.replace("\n", "")) if lines else 0
        ),
        "line_feeds_per_word": share(text.count("\n"), len(text.split())),
    }
