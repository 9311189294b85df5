"""A statement has one canonical text and nothing that misleads its reader."""

import json

import pytest

from hallmark.reports.review.statements import (
    MAX_TEXT_CHARACTERS,
    ReviewedCard,
    StatementError,
    make_review,
    parse_statement,
)

CARD = ReviewedCard(
    kind="model_card", run="20260101-000000-0000", checkpoint="1" * 64, evidence_hash="2" * 64
)
FIELDS = {
    "reviewer": "Ada Lovelace",
    "decision": "approve",
    "comment": "",
    "notes": (),
    "date": "2026-11-29T12:00:00+00:00",
    "expires": None,
    "card": CARD,
}
HOSTILE = {
    "escape sequence": "\x1b[31mAda",
    "newline": "Ada\nrejected by Bob",
    "right-to-left override": "Ada \u202egro.elpmaxe@bob",
    "zero-width space": "A\u200bda",
    "zero-width joiner": "A\u200dda",
    "NUL": "Ada\x00",
    "surrogate": "Ada\udc80",
    "line separator": "Ada\u2028Bob",
    "space": " Ada",
    "empty": "",
    "10,000 characters": "A" * 10_000,
}


def make(**fields):
    return make_review(**{**FIELDS, **fields})


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_misleading_name_is_refused(name):
    with pytest.raises(StatementError, match=r"^reviewer: ") as caught:
        make(reviewer=name)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("kind", ["escape sequence", "right-to-left override", "NUL", "surrogate"])
def test_misleading_characters_are_refused_in_texts(kind):
    with pytest.raises(StatementError, match=r"^comment: .*(U\+|unicode)"):
        make(comment=HOSTILE[kind])
    with pytest.raises(StatementError, match=r"U\+|unicode"):
        make(notes=({"about": "a", "text": HOSTILE[kind]},))
    with pytest.raises(StatementError, match=r"U\+|unicode"):
        make(notes=({"about": f"a{HOSTILE[kind]}", "text": "b"},))


def test_ordinary_texts_of_all_scripts_are_accepted():
    for text in ("Zeile 1\n\tZeile 2", "שלום", "می\u200cخواهم", "👩\u200d⚕️", "=1+1", "<script>"):
        review = make(comment=text, notes=({"about": "bias.x[k=1]", "text": text},))
        assert parse_statement(review.to_statement()) == review
    make(comment="x" * MAX_TEXT_CHARACTERS)
    with pytest.raises(StatementError, match="comment: "):
        make(comment="x" * (MAX_TEXT_CHARACTERS + 1))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"decision": "approve-with-conditions"}, "must state the conditions"),
        ({"decision": "reject"}, "must state why"),
        ({"decision": "accept"}, "decision: "),
        ({"decision": "reject", "comment": "no", "expires": "2027-01-01"}, "only an approval"),
        ({"expires": "2026-11-28"}, "before the review date"),
        ({"expires": "tomorrow"}, "must be a date such as"),
        ({"expires": "20270101"}, "must be a date such as"),
        ({"expires": "2027-02-30"}, "must be a date such as"),
        ({"date": "2026-11-29"}, "must be a time in UTC"),
        ({"date": "2026-11-29T12:00:00+02:00"}, "must be a time in UTC"),
        ({"notes": ({"about": "a", "text": "b"},) * 201}, "notes"),
        ({"notes": ({"about": "a", "text": "b" * 10_000},) * 200}, "more than 1,048,576 bytes"),
    ],
)
def test_invalid_fields_are_refused(fields, message):
    with pytest.raises(StatementError, match=message):
        make(**fields)


def test_only_the_canonical_text_is_a_statement():
    statement = make().to_statement()
    fields = json.loads(statement)
    assert parse_statement(statement).reviewer == "Ada Lovelace"
    assert make().to_statement() != statement  # two reviewers never sign the same text
    for other in (
        statement.rstrip(),
        json.dumps(fields, indent=1).encode(),
        json.dumps(fields | {"extra\x1b": 1}).encode(),
        json.dumps(fields | {"format": "hallmark-review-2"}).encode(),
        statement.replace(b'{"card"', b'{"reviewer":"Eve","card"'),
        statement.replace(b'"2222', b'"../2'),
        statement.replace(b"model_card", b"../../card"),
        b"{}",
        b"",
        b"\xff",
        b"[" * 100_000,
        b" " * (2 << 20),
    ):
        with pytest.raises(StatementError) as caught:
            parse_statement(other)
        assert str(caught.value).isprintable() and len(str(caught.value)) < 300
