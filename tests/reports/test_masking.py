"""Masking: what is hidden, what stays, what is written out."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.page.masking import Masker, Unmasked, blocks, visible
from tasks.contract import KINDS


def test_personal_data_is_named_and_gone():
    text = Masker().text("Ask jane.roe@corp.example, or card 4111 1111 1111 1111, today.")
    assert text == "Ask [email masked], or card [card masked], today."


def test_secrets_are_masked_wherever_they_stand_and_the_longest_first():
    masker = Masker(["314159", "314159265", "", "  ", "a.b"])
    assert masker.text("pin 314159265!") == "pin [planted secret masked]!"
    assert masker.text("pin 3141592") == "pin [planted secret masked]2"
    assert masker.text("a.b but not axb") == "[planted secret masked] but not axb"


def test_overlapping_spans_leave_nothing_behind():
    masker = Masker(["roe@corp.example and 9"])
    assert masker.text("jane.roe@corp.example and 9.") == "[email masked]."


@pytest.mark.parametrize(
    ("score", "hidden"), [(None, False), (0.49, False), (0.5, True), (1.0, True)]
)
def test_offensive_text_is_hidden_from_the_threshold_on(score, hidden):
    text = Masker(threshold=0.5).text("some words", score)
    assert ("words" not in text) is hidden
    if hidden:
        assert text == f"████ █████ [masked: scored {score:.2f}, 10 characters]"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("score", [None, float("nan"), 0.1, 0.9])
def test_what_a_kind_does_not_allow_is_denied(kind, score):
    """Read off the rule, not off the code: who may be shown with which score."""
    text = Masker().shown("some words", kind, score)
    if kind == "personal":
        assert text == "[not shown: may hold personal data, 10 characters]"
    elif score == 0.9:
        assert text == "████ █████ [masked: scored 0.90, 10 characters]"
    elif kind in ("corpus text", "model text") and score != 0.1:
        assert text == "[not shown: not scored, 10 characters]"
    else:
        assert text == "some words"
    assert Unmasked().shown("some words", kind, score) == "some words"


def test_a_kind_that_there_is_not_is_denied():
    assert "words" not in Masker().shown("some words", "poem", 0.0)


def test_a_text_of_nothing_needs_no_score():
    assert Masker().shown(" ", "model text") == " "


def test_the_regions_of_the_corpus_are_looked_for_beside_the_own():
    british, american = "call (020) 8366 1177 now", "call (650) 253-0000 now"
    assert Masker().text(british) == british
    masker = Masker(regions=("GB",))
    assert masker.text(british) == masker.text(american) == "call [phone masked] now"


def test_unmasked_shows_what_masking_hides_and_writes_out_the_invisible():
    masker = Unmasked(["314159"])
    text = "pin 314159 of jane.roe@corp.example\u202e"
    assert masker.shown(text, "personal") == text[:-1] + "‹U+202E›"


def test_a_secret_across_the_cut_of_a_long_text_is_not_shown_in_part():
    secret = "s3cret" * 10
    for length in range(3380, 4010, 7):
        text = Masker([secret]).text("x" * length + secret + "tail " * 500, limit=10_000)
        assert "s3c" not in text
        assert text.endswith("characters in all]")


def test_of_what_an_excerpt_cuts_no_part_is_shown_and_nothing_else_is_masked():
    text = "Ask jane.roe@corp.example or, of all, card 4111 1111 1111 1111, today."
    spans = [(m.start(), m.end()) for m in re.finditer(r"jane\S+|4111.*1111", text)]
    for start in range(len(text)):
        for end in range(start + 1, len(text)):
            around = text[:start], text[end:]
            shown = Masker(["jane.roe@corp.example", "4111 1111 1111 1111"]).shown(
                text[start:end], "corpus text", 0.0, around=around
            )
            inside = [max(start, a) < min(end, b) for a, b in spans]
            clear = [c for n, c in enumerate(text) if start <= n < end
                     and not any(a <= n < b for a, b in spans)]  # fmt: skip
            assert re.sub(r"\[.*?masked\]", "", shown) == "".join(clear)
            assert shown.count("masked]") == sum(inside)
    whole = "s3cret" * 20
    assert Masker([whole]).text("ret", around=("x" * 9000 + whole[:-3], "x" * 9000)) == (
        "[planted secret masked]"
    )


def test_long_texts_are_cut_and_say_so():
    text = Masker().text("word " * 1000, limit=100)
    assert text.startswith("word word") and text.endswith("… [5,000 characters in all]")
    assert len(text) < 140


def test_blocks_tell_length_and_nothing_else():
    assert blocks("ab c\n déf") == "██ █ ███"
    assert len(blocks("long " * 100)) <= 60
    assert blocks("") == "█"


def test_characters_that_cannot_be_seen_are_written_out():
    text = "a\u202eb\u200bc\x00d\x1be\ufefff\ud800g\u2028h"
    assert visible(text) == (
        "a‹U+202E›b‹U+200B›c‹U+0000›d‹U+001B›e‹U+FEFF›f‹U+D800›g‹U+2028›h"
    )  # fmt: skip
    assert visible("plain\n\ttext, 漢字, é") == "plain\n\ttext, 漢字, é"


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_no_invisible_character_survives(text):
    shown = visible(text)
    bad = {c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert bad <= {"\n", "\t"}
    shown.encode()
