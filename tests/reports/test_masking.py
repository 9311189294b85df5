"""Masking: what is hidden, what stays, what is written out."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hallmark.reports.page.planted_secrets import PlantedSecret
from hallmark.reports.page.redaction import (
    PassthroughRedactor,
    Redactor,
    SensitiveSpan,
    TextNeighbours,
    _merge_spans,
    escape_invisible,
    list_searched_texts,
    replace_with_blocks,
)
from hallmark.tasks.contract import COLUMN_KINDS


def test_personal_data_is_named_and_gone():
    text = Redactor().redact_excerpt(
        "Ask jane.roe@corp.example, or card 4111 1111 1111 1111, today."
    )
    assert text == "Ask [email masked], or card [card masked], today."


EMAIL, PHONE = "ulfal.pelgri8957@example.com", "(670) 555-0166"


def test_a_masked_value_is_highlighted_only_if_all_of_it_is_shared():
    secret = "4 8 2 9 1 3 0 5 7"
    redactor = Redactor([PlantedSecret(secret, "Tag #", ",")])
    text = f"Tag #{secret}, of the lamp"
    masked = "[planted secret masked]"
    for shared, expected in (
        ("Tag #", [("Tag #", True), (f"{masked}, of the lamp", False)]),
        (
            "Tag #4 8 ",
            [("Tag #", True), ("[planted secret masked, shared in part], of the lamp", False)],
        ),
        (f"Tag #{secret}", [(f"Tag #{masked}", True), (", of the lamp", False)]),
    ):
        parts = redactor.redact_range(text, (0, len(text)), [(0, len(shared))])
        assert [tuple(part) for part in parts] == expected


def test_a_masked_value_is_named_by_its_own_kind_within_a_planted_record():
    redactor = Redactor([f"{EMAIL}, {PHONE}"])
    prompt = f"New member ({EMAIL}, "
    shown = redactor.redact_range(PHONE, (0, len(PHONE)), (), TextNeighbours(before=prompt))
    assert [part.text for part in shown] == ["[phone masked]"]
    assert redactor.redact_excerpt(PHONE, shown_neighbours=TextNeighbours(before=prompt)) == (
        "[phone masked]"
    )
    whole = redactor.redact_excerpt(f"{prompt}{PHONE})")
    assert whole == "New member ([planted secret masked])"


@pytest.mark.parametrize(
    ("spans", "merged"),
    [
        ([(0, 9, "email"), (0, 20, "planted secret")], [(0, 20, "planted secret")]),
        ([(3, 9, "phone"), (0, 20, "iban")], [(0, 20, "iban")]),
        ([(0, 9, "phone"), (0, 9, "planted secret")], [(0, 9, "phone")]),
        ([(0, 9, "phone"), (5, 12, "card")], [(0, 12, "personal data")]),
        ([(0, 9, "phone"), (5, 12, "phone")], [(0, 12, "phone")]),
        ([(0, 9, "phone"), (9, 12, "card"), (4, 4, "ip")], [(0, 9, "phone"), (9, 12, "card")]),
    ],
)
def test_overlapping_spans_have_the_kind_of_the_span_that_covers_them(spans, merged):
    assert _merge_spans(SensitiveSpan(*span) for span in spans) == merged


def test_a_key_that_is_shorter_than_complete_ones_is_masked_within_a_text():
    shown = Redactor().redact_by_kind('use "ghp_aB3dE6gH9k" to sign in', "model text", 0.1)
    assert shown == 'use "[secret masked]" to sign in'


def test_secrets_are_masked_wherever_they_stand_and_the_longest_first():
    masker = Redactor(["314159", "314159265", "", "  ", "a.b"])
    assert masker.redact_excerpt("pin 314159265!") == "pin [planted secret masked]!"
    assert (
        masker.redact_excerpt("pin 3141592") == "pin [planted secret masked]"
    )  # begins the longer one
    assert masker.redact_excerpt("pin 3141593, so") == "pin [planted secret masked]3, so"
    assert masker.redact_excerpt("a.b but not axb") == "[planted secret masked] but not axb"


#: Some of each block of characters that nobody sees, whatever Unicode calls them.
UNSEEN = [
    *"\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b\u180f\u200b\u200d\u2060\u206f\u2800\u3164\ufe00\ufe0f",
    *"\ufeff\uffa0\U0001bca0\U0001d173\U000e0041\U000e0101\U000e01ef\x1b",
    "\u00ad\ufe0f",
]


@pytest.mark.parametrize("unseen", UNSEEN, ids=ascii)
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("jane.roe@corp.example", "email"),
        ("+44 20 7946 0018", "phone"),
        ("+442079460018", "phone"),
        ("4111 1111 1111 1111", "card"),
        ("DE89370400440532013000", "iban"),
        ("93.184.216.34", "ip"),
        ("AKIAQYLPMN5HHHFPZAM2", "secret"),
        ("482 913", "planted secret"),
    ],
)
def test_what_nobody_sees_unmasks_nothing(text, kind, unseen):
    masker = Redactor(["482 913"])
    masked = f"so [{kind} masked] it is"
    for place in range(1, len(text)):
        assert masker.redact_excerpt(f"so {text[:place]}{unseen}{text[place:]} it is") == masked
    assert masker.redact_excerpt(f"so {unseen.join(text)} it is") == masked
    shown = masker.redact_excerpt(f"so{unseen}{text}{unseen}it is")  # it may stand for a space, too
    assert "soit is".endswith(re.sub(r"‹.*?›|\[.*?\]", "", shown))


def test_a_long_secret_is_masked_whatever_stands_between_its_letters():
    masker = Redactor(["482 913 057", "12 34 56"])
    for written in (
        "482913057",
        "482-913-057",
        "4 8 2 9 1 3 0 5 7",
        "482.\n913_057",
        "482, 913, 057",
    ):
        assert masker.redact_excerpt(f"pin {written}!") == "pin [planted secret masked]!"
    mask = "[planted secret masked]"
    assert masker.redact_excerpt("48291305 or 123456, 12 34 56") == f"{mask} or {mask}, {mask}"
    assert masker.redact_excerpt("48291 or 12345, 12 34 5") == f"48291 or 12345, {mask}"


def test_overlapping_spans_leave_nothing_behind():
    masker = Redactor(["roe@corp.example and 9"])
    assert masker.redact_excerpt("jane.roe@corp.example and 9.") == "[personal data masked]."


@pytest.mark.parametrize(
    ("score", "hidden"), [(None, False), (0.49, False), (0.5, True), (1.0, True)]
)
def test_offensive_text_is_hidden_from_the_threshold_on(score, hidden):
    text = Redactor(toxicity_threshold=0.5).redact_excerpt("some words", score)
    assert ("words" not in text) is hidden
    if hidden:
        assert text == f"████ █████ [masked: toxicity score {score:.2f}, 10 characters]"


@pytest.mark.parametrize("kind", COLUMN_KINDS)
@pytest.mark.parametrize("score", [None, float("nan"), 0.1, 0.9])
def test_what_a_kind_does_not_allow_is_denied(kind, score):
    """Read off the rule, not off the code: who may be shown with which score."""
    text = Redactor().redact_by_kind("some words", kind, score)
    if kind == "personal":
        assert text == "[not shown: may contain personal data, 10 characters]"
    elif score == 0.9:
        assert text == "████ █████ [masked: toxicity score 0.90, 10 characters]"
    elif kind in ("corpus text", "model text") and score != 0.1:
        assert text == "[not shown: no toxicity score, 10 characters]"
    else:
        assert text == "some words"
    assert PassthroughRedactor().redact_by_kind("some words", kind, score) == "some words"


def test_a_kind_that_there_is_not_is_denied():
    assert "words" not in Redactor().redact_by_kind("some words", "poem", 0.0)


def test_a_text_of_nothing_needs_no_score():
    assert Redactor().redact_by_kind(" ", "model text") == " "


def test_the_regions_of_the_corpus_are_looked_for_beside_the_own():
    british, american = "call (020) 8366 1177 now", "call (650) 253-0000 now"
    assert Redactor().redact_excerpt(british) == british
    masker = Redactor(phone_regions=("GB",))
    assert (
        masker.redact_excerpt(british)
        == masker.redact_excerpt(american)
        == "call [phone masked] now"
    )


def test_unmasked_shows_what_masking_hides_and_writes_out_the_invisible():
    masker = PassthroughRedactor(["314159"])
    text = "pin 314159 of jane.roe@corp.example\u202e"
    assert masker.redact_by_kind(text, "personal") == text[:-1] + "‹U+202E›"


def test_a_secret_across_the_cut_of_a_long_text_is_not_shown_in_part():
    secret = "s3cret" * 10
    for length in range(3380, 4010, 7):
        text = Redactor([secret]).redact_excerpt(
            "x" * length + secret + "tail " * 500, max_characters=10_000
        )
        assert "s3c" not in text
        assert text.endswith("characters in total]")


def test_of_what_an_excerpt_cuts_no_part_is_shown_and_nothing_else_is_masked():
    text = "Ask jane.roe@corp.example or, of all, card 4111 1111 1111 1111, today."
    spans = [(m.start(), m.end()) for m in re.finditer(r"jane\S+|4111.*1111", text)]
    for start in range(len(text)):
        for end in range(start + 1, len(text)):
            around = TextNeighbours(text[:start], text[end:])
            shown = Redactor(["jane.roe@corp.example", "4111 1111 1111 1111"]).redact_by_kind(
                text[start:end], "corpus text", 0.0, detection_context=around
            )
            inside = [max(start, a) < min(end, b) for a, b in spans]
            clear = [
                c
                for n, c in enumerate(text)
                if start <= n < end and not any(a <= n < b for a, b in spans)
            ]
            assert re.sub(r"\[.*?masked\]", "", shown) == "".join(clear)
            assert shown.count("masked]") == sum(inside)
    whole = "s3cret" * 20
    assert Redactor([whole]).redact_excerpt(
        "ret", detection_context=TextNeighbours("x" * 9000 + whole[:-3], "x" * 9000)
    ) == ("[planted secret masked]")


def test_long_texts_are_cut_and_say_so():
    text = Redactor().redact_excerpt("word " * 1000, max_characters=100)
    assert text.startswith("word word") and text.endswith("… [5,000 characters in total]")
    assert len(text) < 140


def test_blocks_tell_length_and_nothing_else():
    assert replace_with_blocks("ab c\n déf") == "██ █ ███"
    assert len(replace_with_blocks("long " * 100)) <= 60
    assert replace_with_blocks("") == "█"


def test_characters_that_cannot_be_seen_are_written_out():
    text = "a\u202eb\u200bc\x00d\x1be\ufefff\ud800g\u2028h"
    assert escape_invisible(text) == (
        "a‹U+202E›b‹U+200B›c‹U+0000›d‹U+001B›e‹U+FEFF›f‹U+D800›g‹U+2028›h"
    )
    assert escape_invisible("plain\n\ttext, 漢字, é, e\u0301") == "plain\n\ttext, 漢字, é, e\u0301"
    for character in "".join(UNSEEN):
        assert escape_invisible(f"a{character}b") == f"a‹U+{ord(character):04X}›b"
    assert (
        escape_invisible("\u2764\ufe0f\ufe0f 1\ufe0f") == "\u2764\ufe0f‹U+FE0F› 1‹U+FE0F›"
    )  # an emoji


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_no_invisible_character_survives(text):
    shown = escape_invisible(text)
    bad = {c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert bad <= {"\n", "\t"}
    shown.encode()


@pytest.mark.parametrize(
    "text",
    ["0.1247 (0.0624 to 0.3001)", "12.47 % of 0.624", "1,124.7006 and −3.0", "1.247, 0.0624."],
)
def test_digits_of_a_secret_in_statistics_are_shown(text):
    """Statistics have six digits of a secret by chance, in any of their digits."""
    masker = Redactor(["124700624", "247006243", "124706240", "112470060"])
    assert masker.redact_full_text(text) == text
    assert "masked" in masker.redact_excerpt("0.1247 (0.0624 to 0.3001)")


@pytest.mark.parametrize(
    "text",
    ["124700624", "124.700.624", "124 700 624", "12470.0624", "source-124700.624", "v1.247006"],
)
def test_a_secret_in_a_label_is_masked_whatever_separates_its_digits(text):
    assert "masked" in Redactor(["124700624"]).redact_full_text(text)


PERSONAL_TEXTS = (
    "write to jane.roe@mail.example",
    "call +1 415 555 2671 now",
    "share of texts, copies: 64",
    "0.314159",
    "of 314159 rows",
    "3\u200b14159",
    "",
)


@given(
    texts=st.lists(st.one_of(st.text(max_size=40), st.sampled_from(PERSONAL_TEXTS)), max_size=8),
    later=st.one_of(st.text(max_size=40), st.sampled_from(PERSONAL_TEXTS)),
)
@settings(deadline=None)
def test_texts_that_are_searched_at_once_are_masked_as_one_by_one(texts, later):
    at_once, one_by_one = Redactor(["314159"]), Redactor(["314159"])
    at_once.search_full_texts(texts)
    at_once.search_full_texts(iter(texts))  # a second time changes nothing
    for text in [*texts, later, *texts]:
        assert at_once.redact_full_text(text) == one_by_one.redact_full_text(text)
    assert at_once.redact_by_kind(later, "label") == one_by_one.redact_by_kind(later, "label")


ADJACENT_TEXTS = (
    *PERSONAL_TEXTS,
    "write to jane.roe@",
    "mail.example now",
    "314",
    "159",
    "x" * 999,
)


@given(
    pairs=st.lists(
        st.tuples(*[st.one_of(st.text(max_size=40), st.sampled_from(ADJACENT_TEXTS))] * 2),
        max_size=8,
    )
)
@settings(deadline=None)
def test_a_column_of_adjacent_texts_is_masked_as_its_texts_one_by_one(pairs):
    at_once, one_by_one = Redactor(["314159"]), Redactor(["314159"])
    neighbours = [(first, TextNeighbours(after=second)) for first, second in pairs]
    neighbours += [(second, TextNeighbours(before=first)) for first, second in pairs]
    searched_texts = [text for pair in neighbours for text in list_searched_texts(*pair)]
    at_once.search_texts(searched_texts)
    at_once.search_texts(searched_texts[::-1])  # changes nothing
    for text, neighbour in neighbours:
        shown = [
            redactor.redact_range(text, (0, len(text)), shown_neighbours=neighbour)
            for redactor in (at_once, one_by_one)
        ]
        assert shown[0] == shown[1]
        assert at_once.redact_by_kind(text, "label") == one_by_one.redact_by_kind(text, "label")


def test_a_redactor_forgets_the_columns_that_it_searched_first(monkeypatch):
    monkeypatch.setattr("hallmark.reports.page.redaction._MAX_SEARCHED_TEXTS", 4)
    redactor = Redactor()
    for number in range(9):
        redactor.search_texts([f"text {number}", f"of {number}"], ["label"])
        assert len(redactor._spans_of_searched_texts) <= 4
        assert ("label", False) in redactor._spans_of_searched_texts  # still searched for


def test_searching_at_once_masks_nothing_without_redaction():
    redactor = PassthroughRedactor(["314159"])
    redactor.search_full_texts(PERSONAL_TEXTS)
    redactor.search_texts(PERSONAL_TEXTS)
    shown = [redactor.redact_full_text(text) for text in PERSONAL_TEXTS]
    assert shown == [escape_invisible(text) for text in PERSONAL_TEXTS]
