"""Every figure of quality once more, a text at a time, with Python's own strings."""

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


def share(part, whole):
    return float(Fraction(part) / whole) if whole else None


def expected(text):
    """All signals of a text, by name."""
    return {**quality(text), **repetition(text), **c4(text), **fineweb(text)}


def quality(text):
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


def later_copies(pieces):
    return [piece for place, piece in enumerate(pieces) if piece in pieces[:place]]


def scanned(words, n):
    """Characters of the n-grams that were met before, read from the left, leaping over each."""
    seen, total, place = set(), 0, 0
    while place + n <= len(words):
        gram = tuple(words[place : place + n])
        if gram in seen:
            total += len("".join(gram))
            place += n
        else:
            seen.add(gram)
            place += 1
    return total


def repetition(text):
    found = {}
    pieces = {"lines": re.split("\n+", text), "paragraphs": re.split("\n{2,}", text.strip())}
    for name, parts in pieces.items():
        again = later_copies(parts)
        found[f"duplicate_{name}"] = share(len(again), len(parts)) if text else None
        found[f"duplicate_{name}_characters"] = share(sum(map(len, again)), len(text))
    words = text.split()
    for n in (2, 3, 4):
        grams = Counter(" ".join(words[i : i + n]) for i in range(len(words) - n + 1))
        gram, count = max(grams.items(), key=lambda item: item[1], default=("", 0))
        found[f"top_{n}gram"] = share(len(gram) * count, len(text))
    for n in range(5, 11):
        found[f"duplicate_{n}grams"] = share(scanned(words, n), len(text))
    return found


def c4(text):
    text = re.sub(r"\[\d*\]|\[edit\]|\[citation needed\]", "", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    taken = Counter()
    lorem = curly = sentences = 0
    for line in lines:
        lower = line.lower()
        if any(len(word) > 1000 for word in line.split()):
            taken["long_words"] += len(line)
        elif not line.endswith((".", "?", "!", '"', "'")) or line.endswith("..."):
            taken["no_terminal_mark"] += len(line)
        elif len(line.split()) < 3:
            taken["few_words"] += len(line)
        else:
            lorem += "lorem ipsum" in lower
            if "javascript" in lower:
                taken["javascript"] += len(line)
                continue
            curly += "{" in line
            if any(phrase in lower for phrase in POLICIES):
                taken["policy"] += len(line)
            else:
                sentences += 1 + len(re.findall(r"[.?!][\"')\]”’]*\s+", line))
    kinds = ("long_words", "no_terminal_mark", "few_words", "javascript", "policy")
    whole = sum(map(len, lines))
    return {
        **{f"c4_{kind}": share(taken[kind], whole) for kind in kinds},
        "c4_removed_characters": share(taken.total(), whole),
        "c4_lorem_ipsum": lorem,
        "c4_curly_brackets": curly,
        "c4_sentences": sentences,
    }


def fineweb(text):
    lines = [line for line in text.split("\n") if line.strip()]
    again = sum(map(len, later_copies(lines)))
    return {
        "terminal_lines": share(
            sum(line.endswith(tuple(TERMINAL_CHARACTERS)) for line in lines), len(lines)
        ),
        "short_lines": share(sum(len(line) <= 30 for line in lines), len(lines)),
        "duplicate_characters": share(again, len(text.replace("\n", "")) if lines else 0),
        "line_feeds_per_word": share(text.count("\n"), len(text.split())),
    }
