"""Test the generation of canaries: their secrets, templates, ids and invented people."""

import re
from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b

import pyarrow as pa
import pytest

from hallmark.tasks.measures.canaries import (
    AREA_CODES,
    CANARY_TEMPLATES,
    RECORD_TEMPLATES,
    SYLLABLES,
    Canary,
    draw_reference_secrets,
    generate_record_canaries,
    generate_secret_canaries,
)
from hallmark.tasks.measures.personal_data import find_spans_by_row


@dataclass(frozen=True)
class Config:
    seed: int = 3
    copy_counts: tuple[int, ...] = (0, 1, 5)
    secrets_per_count: int = 8
    records_per_count: int = 1998
    secret_digits: int = 9


def hash_id(text):
    return blake2b(text.encode(), digest_size=16).digest()


def is_plantable(secret):
    return blake2b(secret.encode(), digest_size=1).digest()[0] % 2 == 1


def test_canaries_and_references_are_disjoint():
    assert all(
        is_plantable(canary.secret)
        for canary in generate_secret_canaries(Config(secrets_per_count=50))
    )
    assert not any(map(is_plantable, draw_reference_secrets("ferry", 500, seed=3)))


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_at_most_a_quarter_of_all_secrets_can_be_drawn(digits):
    most = 10**digits // 4
    drawn = draw_reference_secrets("ferry", most, seed=1, digits=digits)
    assert len({*drawn}) == most
    assert all(re.fullmatch(r"\d( \d)*", s) and len(s) == 2 * digits - 1 for s in drawn)
    with pytest.raises(ValueError, match=f"{most} secrets with {digits} digits .* not {most + 1}"):
        draw_reference_secrets("ferry", most + 1, seed=1, digits=digits)


def test_canaries_are_spread_over_copy_counts_and_templates():
    canaries = generate_secret_canaries(Config(secrets_per_count=6))
    assert len(canaries) == 18 and Counter(canary.copies for canary in canaries) == {
        0: 6,
        1: 6,
        5: 6,
    }
    first, second, *rest = CANARY_TEMPLATES  # The first two are used twice.
    for copies in (0, 1, 5):
        assert Counter(p.template for p in canaries if p.copies == copies) == {
            first: 2,
            second: 2,
            **dict.fromkeys(rest, 1),
        }
    for canary in canaries:
        assert canary.kind == "canary"
        assert (canary.prompt, canary.suffix) == CANARY_TEMPLATES[canary.template]
        assert canary.text == canary.prompt + canary.secret + canary.suffix
    assert generate_secret_canaries(Config(secrets_per_count=6)) == canaries
    assert {p.secret for p in canaries}.isdisjoint(
        p.secret for p in generate_secret_canaries(Config(seed=4))
    )


def test_ids_are_hashes_of_kind_key_and_copy():
    canary = Canary("canary", 3, "t", "p", "s", key="3/7")
    assert canary.canary_id == hash_id("planted/canary/3/7")
    assert canary.compute_copy_doc_ids() == [
        hash_id(f"planted/canary/3/7/{copy}") for copy in range(3)
    ]
    assert Canary("canary", 0, "t", "p", "s", key="3/7").compute_copy_doc_ids() == []
    config = Config()
    for canaries in (generate_secret_canaries(config), generate_record_canaries(config)):
        assert [p.canary_id for p in canaries] == [
            hash_id(f"planted/{p.kind}/3/{number}") for number, p in enumerate(canaries)
        ]


def test_records_have_distinct_people_and_reserved_contact_details():
    canaries = generate_record_canaries(Config())
    assert Counter(canary.copies for canary in canaries) == dict.fromkeys((0, 1, 5), 1998)
    assert Counter(canary.template for canary in canaries) == dict.fromkeys(RECORD_TEMPLATES, 1998)
    syllable = f"(?:{'|'.join(SYLLABLES.split())})"
    form = (
        rf"({syllable}{{2}})\.({syllable}{{2}})\d{{4}}@example\.(com|net|org), "
        r"(?:\(([2-9]\d\d)\) 555-01(\d\d)|\+44 20 7946 0(\d{3}))"
    )
    drawn = [re.fullmatch(form, canary.secret) for canary in canaries]
    names = [f"{m[1].capitalize()} {m[2].capitalize()}" for m in drawn]
    assert len({*names}) == len(canaries)
    for name, canary in zip(names, canaries, strict=True):
        prompt, rest = RECORD_TEMPLATES[canary.template]
        assert canary.prompt == prompt.format(name=name) and canary.suffix == rest
        assert canary.text.count(name) == 1
    assert {m[3] for m in drawn} == {"com", "net", "org"}
    american = [m for m in drawn if m[4]]
    assert 0.4 < len(american) / len(drawn) < 0.6
    # Thousands of draws include the extremes of each range.
    assert {m[4] for m in american} == {*AREA_CODES.split()}
    assert {m[5][0] for m in american} == {*"0123456789"}
    assert {m[6][0] for m in drawn if m[6]} == {*"0123456789"}
    used = {part for m in drawn for part in re.findall(syllable, m[1] + m[2])}
    assert len(used) == len(SYLLABLES.split())


def test_the_default_search_for_personal_data_finds_all_contact_details():
    canaries = generate_record_canaries(Config())
    spans_by_row = find_spans_by_row(pa.array([canary.secret for canary in canaries]))
    for row, canary in enumerate(canaries):
        found_kinds = {span[0] for span in spans_by_row.get(row, ())}
        assert found_kinds >= {"EMAIL", "PHONE"}, canary.secret
