"""Test that parts of planted secrets are masked: truncated, across a border, or respelled."""

from __future__ import annotations

import re
from itertools import product

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hallmark.flows.finding_trace import build_displayed_row as shown_row
from hallmark.reports.page.cases import SelectedRows, build_cases
from hallmark.reports.page.figures import FigureBook
from hallmark.reports.page.planted_secrets import MIN_EDGE_LENGTH, RUN_LENGTH, PlantedSecret
from hallmark.reports.page.redaction import Redactor
from hallmark.reports.sections.attention import redact_tokens
from hallmark.reports.sections.corpus_figures import build_corpus_redactor
from hallmark.tasks.contract import (
    Session,
    StageConfig,
    StageContext,
    Store,
    column,
    describe_columns,
    open_session,
    stage,
    table_schema,
)
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
from hallmark.tasks.measures.canaries import (
    CANARY_TEMPLATES,
    RECORD_SEPARATOR,
    generate_record_canaries,
    generate_secret_canaries,
)
from tests.reports import pages
from tests.tasks.corpora import given as corpus_of

BEFORE, AFTER = CANARY_TEMPLATES["telescope"]
SECRET = "4 8 2 9 1 3 0 5 7"
MARK = re.compile(r"\[[a-z_ ]+ masked\]")


def clear(text: str) -> str:
    """Return the unmasked part of a shown text."""
    return MARK.sub("", text)


def digits(text: str) -> str:
    return re.sub(r"\D", "", text)


def build_redactor(secret: str = SECRET, before: str = BEFORE, after: str = AFTER) -> Redactor:
    return Redactor([PlantedSecret(secret, before, after)])


@pytest.mark.parametrize("size", range(1, 10))
def test_first_digits_of_a_secret_are_masked_after_its_sentence(size):
    start = SECRET[: 2 * size - 1]
    text = build_redactor().redact_by_kind(f"Once more. {BEFORE}{start}", "model text", 0.0)
    assert text == f"Once more. {BEFORE}[planted secret masked]"


@pytest.mark.parametrize("size", range(1, 10))
def test_last_digits_of_a_secret_are_masked_before_following_text(size):
    end = SECRET[-(2 * size - 1) :]
    text = build_redactor().redact_by_kind(f"{end}{AFTER}", "corpus text", 0.0)
    assert text == f"[planted secret masked]{AFTER}"


def test_wrong_guess_after_the_sentence_is_masked_completely():
    for guess in ("4 8 7 7 7 7", "4 8 2 9 1 3 0 5 8", "4"):
        text = build_redactor().redact_by_kind(
            f"{BEFORE}{guess}, engraved on it", "model text", 0.0
        )
        assert text == f"{BEFORE}[planted secret masked], engraved on it"
    text = build_redactor().redact_by_kind(f"{BEFORE}seven, engraved on it", "model text", 0.0)
    assert text == f"{BEFORE}seven, engraved on it"


def test_part_at_an_end_without_sentence_is_masked_from_four_characters():
    masker = build_redactor()
    for size in range(1, 9):
        first, last = SECRET[: 2 * size - 1], SECRET[-(2 * size - 1) :]
        inner = SECRET[2 : 2 * size + 1]
        for text in (f"and so {first}", f"{last} it is", inner):
            shown = masker.redact_by_kind(text, "model text", 0.0)
            assert (digits(clear(shown)) == "") is (size >= MIN_EDGE_LENGTH), text


def test_part_inside_a_text_is_masked_from_six_characters():
    masker = build_redactor()
    for size in range(1, 9):
        shown = masker.redact_by_kind(f"pin {SECRET[: 2 * size - 1]} or so", "model text", 0.0)
        assert (digits(clear(shown)) == "") is (size >= RUN_LENGTH)


def test_number_at_the_end_of_a_label_is_not_masked():
    masker = build_redactor()
    for text in ("step 4829", "4829", "copies: 482", "planted share: 48.29 %", "2026-11-28"):
        assert masker.redact_full_text(text) == masker.redact_by_kind(text, "label") == text
    assert masker.redact_full_text(f"of {BEFORE}4 8") == f"of {BEFORE}[planted secret masked]"


@pytest.mark.parametrize(
    "written",
    [
        "482913057",
        "482-913-057",
        "4.8.2.9.1.3.0.5.7",
        "4\n8\n2\n9\n1\n3\n0\n5\n7",
        "４８２９１３０５７",
        "٤٨٢٩١٣٠٥٧",
        "4_8_2_9_1_3_0_5_7",
        "4\u00ad8\u200b29130\u20095\u00a07",
    ],
)
def test_respelled_secret_and_its_parts_are_masked(written):
    masker = build_redactor()
    assert clear(masker.redact_excerpt(f"pin {written}!")) == "pin !"
    half = written[: len(written) // 2 + 1]
    assert clear(masker.redact_excerpt(f"{BEFORE}{half}")).rstrip() == BEFORE


def test_secret_is_masked_in_any_case():
    masker = Redactor(["bel.tor0123@mail.example", "Zq7Xw9Lk2"])
    assert clear(masker.redact_excerpt("so ZQ7XW9LK2, zq7xw9lk2")) == "so , "
    for size in range(MIN_EDGE_LENGTH, 9):
        assert clear(masker.redact_excerpt("so ZQ7XW9LK2"[: 3 + size])) == "so "
    assert clear(masker.redact_excerpt("write to Bel.Tor01")) == "write to "


@given(
    st.integers(0, 10**9 - 1),
    st.integers(0, 500),
    st.sampled_from(sorted(CANARY_TEMPLATES)),
    st.sampled_from(["", " ", "-", ".", " / "]),
)
@settings(max_examples=30, deadline=None)
def test_no_window_shows_too_much_of_a_secret(number, at, template, separator):
    """Check all starts and ends of windows, in the planted spelling and another one."""
    before, after = CANARY_TEMPLATES[template]
    secret = " ".join(f"{number:09d}")
    masker = build_redactor(secret, before, after)
    written = secret.replace(" ", separator)
    text = before + written + after
    first, last = len(before), len(before + written)
    begin = at % last
    for end in range(first, len(text) + 1):
        for start in {begin, 0, max(0, first - 3)}:
            shown = digits(clear(masker.redact_by_kind(text[start:end], "model text", 0.0)))
            assert len(shown) < MIN_EDGE_LENGTH
            if start == 0 or end >= len(text) - 2:
                assert not shown, text[start:end]


SMALL = PlantCanariesConfig(
    enabled=True,
    copy_counts=(1,),
    secrets_per_count=4,
    passages_per_count=0,
    records_per_count=6,
    associations_per_share=0,
)


@pytest.fixture(scope="module")
def masker(tmp_path_factory):
    with open_session(Session(Store(tmp_path_factory.mktemp("store")))):
        return build_corpus_redactor(
            {"plant_canaries": plant_canaries(corpus_of(["one", "two"]), SMALL)}, 0.5
        )


def test_each_truncation_of_planted_text_is_masked(masker):
    """Check canaries, addresses and telephone numbers as ``plant_canaries`` stores them."""
    for made in [*generate_secret_canaries(SMALL), *generate_record_canaries(SMALL)]:
        for size in range(1, len(made.secret)):
            shown = clear(
                masker.redact_by_kind(made.prompt + made.secret[:size], "model text", 0.0)
            )
            assert not set(re.sub(r"\W", "", shown[len(made.prompt) :])), made.secret[:size]
        for size in range(1, len(made.secret)):
            shown = clear(
                masker.redact_by_kind(made.secret[-size:] + made.suffix, "model text", 0.0)
            )
            assert len(digits(shown.removesuffix(made.suffix))) == 0


def test_identifier_is_masked_like_its_record(masker):
    for made in generate_record_canaries(SMALL):
        address, phone = made.secret.split(RECORD_SEPARATOR)
        assert (
            clear(masker.redact_by_kind(f"Write to {address[:-6]}", "model text", 0.0))
            == "Write to "
        )
        assert digits(clear(masker.redact_by_kind(f"or {phone[:-2]}", "model text", 0.0))) == ""


# Across a border -------------------------------------------------------------------------------

WRITTEN = table_schema(
    "Prompts and what a model wrote.",
    column("text", pa.string(), "audit text", "the prompt"),
    column("continuation", pa.string(), "model text", "what follows", judged_by="score"),
    column("score", pa.float32(), "figure", "its score", unit="score"),
)


class Pair(StageConfig):
    prompt: str
    continuation: str


@stage(name="written", tables={"values": WRITTEN})
def written(config: Pair, context: StageContext) -> None:
    row = {"text": [config.prompt], "continuation": [config.continuation], "score": [0.0]}
    context.get_table_writer("values").write(row)


def cells(prompt: str, continuation: str, masker: Redactor) -> list[str]:
    book = FigureBook({"a": written(Pair(prompt=prompt, continuation=continuation))})
    evidence = book.get_evidence("a", "values")
    rows = SelectedRows(evidence, evidence.read_first_rows(9))
    [[case]] = build_cases(pages.content_of(book, masker), [rows])
    return ["".join(part.text for part in text.parts) for text in case.texts]


@pytest.mark.parametrize("size", range(1, 9))
def test_secret_across_prompt_and_continuation_is_masked_in_both(session, size):
    for text in (f"pin {SECRET} it is", BEFORE + SECRET + AFTER):
        cut = text.index(SECRET) + 2 * size - 1
        row = {"text": text[:cut], "continuation": text[cut:], "score": 0.0}
        told = shown_row(row, {c.name: c for c in describe_columns(WRITTEN)}, build_redactor())
        for shown in (
            cells(text[:cut], text[cut:], build_redactor()),
            [told[n] for n in list(row)[:2]],
        ):
            assert digits(clear("".join(shown))) == "", shown


def test_first_digits_are_masked_if_the_prompt_is_the_sentence(session):
    for size in range(1, 9):
        shown = cells(BEFORE, SECRET[: 2 * size - 1], build_redactor())
        assert shown == [BEFORE, "[planted secret masked]"]


def test_address_across_prompt_and_continuation_is_masked_in_both(session):
    shown = cells("Write to jane.ro", "e@corp.example today.", Redactor())
    assert shown == ["Write to [email masked]", "[email masked] today."]
    shown = cells("Pay to DE89 3704 0044", " 0532 0130", Redactor())
    assert shown == ["Pay to [iban masked]", "[iban masked]"]


def test_part_across_several_tokens_of_a_chart_is_masked():
    sentence = f"{BEFORE}4 8 2"
    pieces = re.findall(r"\s?\w+|\s?[^\w\s]", sentence)
    ends = [0]
    for piece in pieces:
        ends.append(ends[-1] + len(piece))
    tokens = pa.table({"token": pieces, "char_start": ends[:-1], "char_end": ends[1:]})
    assert not digits("".join(redact_tokens(sentence, tokens, build_redactor())))


def test_text_that_is_truncated_for_display_shows_no_part():
    masker = build_redactor()
    for limit in range(60, 100):
        text = masker.redact_by_kind(
            BEFORE + SECRET + AFTER + "more " * 100, "model text", 0.0, limit
        )
        assert not digits(text.partition("…")[0])
    for length in range(3380, 4010, 3):
        text = masker.redact_excerpt(
            "x " * (length // 2) + BEFORE + SECRET + AFTER * 40, max_characters=10_000
        )
        assert not digits(text.partition("…")[0])


COLUMN_SECRETS = [
    PlantedSecret(SECRET, BEFORE, AFTER),
    PlantedSecret("jane.roe4159@example.org", "Write to my sister ", " by Friday noon"),
    PlantedSecret("ABC"),
]
SECRET_PARTS = (
    SECRET,
    "48-29-13",
    "4829",
    "\uff14\uff18\uff12\uff19",
    "0 5 7",
    "jane.roe4159",
    "roe4159@EXAMPLE.org",
    "abc",
    BEFORE,
    AFTER,
    "write to my sister ",
    " by friday noon",
    "the lamp ",
    "\u200b",
    " ",
    "7",
)


@given(texts=st.lists(st.lists(st.sampled_from(SECRET_PARTS), max_size=4).map("".join), max_size=5))
@settings(deadline=None)
def test_a_column_is_searched_as_its_texts_one_by_one(texts):
    at_once, one_by_one = Redactor(COLUMN_SECRETS), Redactor(COLUMN_SECRETS)
    at_once.search_texts(texts, texts)
    for text in texts:
        for may_be_truncated, shows_planted_secrets in product((False, True), repeat=2):
            assert at_once.find_sensitive_spans(
                text,
                may_be_truncated=may_be_truncated,
                shows_planted_secrets=shows_planted_secrets,
            ) == one_by_one.find_sensitive_spans(
                text,
                may_be_truncated=may_be_truncated,
                shows_planted_secrets=shows_planted_secrets,
            )
