"""The grammar of plants: what is drawn, from which class, under which id."""

import re
from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b

import pytest

from hallmark.tasks.measures.canaries import (
    CANARY_TEMPLATES,
    RECORD_TEMPLATES,
    SYLLABLES,
    Canary,
    draw_reference_secrets,
    generate_record_canaries,
    generate_secret_canaries,
)


@dataclass(frozen=True)
class Config:
    seed: int = 3
    copy_counts: tuple[int, ...] = (0, 1, 5)
    secrets_per_count: int = 8
    records_per_count: int = 1998
    secret_digits: int = 9


def blake(text):
    return blake2b(text.encode(), digest_size=16).digest()


def odd(secret):
    return blake2b(secret.encode(), digest_size=1).digest()[0] % 2 == 1


def test_canaries_and_references_are_of_two_classes():
    assert all(
        odd(plant.secret) for plant in generate_secret_canaries(Config(secrets_per_count=50))
    )
    assert not any(map(odd, draw_reference_secrets("ferry", 500, seed=3)))


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_a_quarter_of_all_secrets_are_to_be_had(digits):
    most = 10**digits // 4
    found = draw_reference_secrets("ferry", most, seed=1, digits=digits)
    assert len({*found}) == most
    assert all(re.fullmatch(r"\d( \d)*", s) and len(s) == 2 * digits - 1 for s in found)
    with pytest.raises(ValueError, match=f"not {most + 1} secrets of {digits} digits"):
        draw_reference_secrets("ferry", most + 1, seed=1, digits=digits)


def test_canaries_are_spread_over_counts_and_templates():
    made = generate_secret_canaries(Config(secrets_per_count=6))
    assert len(made) == 18 and Counter(plant.copies for plant in made) == {0: 6, 1: 6, 5: 6}
    first, second, *rest = CANARY_TEMPLATES  # the first two have a second turn
    for copies in (0, 1, 5):
        assert Counter(p.template for p in made if p.copies == copies) == {
            first: 2,
            second: 2,
            **dict.fromkeys(rest, 1),
        }
    for plant in made:
        assert plant.kind == "canary"
        assert (plant.prompt, plant.suffix) == CANARY_TEMPLATES[plant.template]
        assert plant.text == plant.prompt + plant.secret + plant.suffix
    assert generate_secret_canaries(Config(secrets_per_count=6)) == made
    assert {p.secret for p in made}.isdisjoint(
        p.secret for p in generate_secret_canaries(Config(seed=4))
    )


def test_ids_are_hashes_of_the_kind_and_the_key_and_for_documents_of_the_copy():
    plant = Canary("canary", 3, "t", "p", "s", key="3/7")
    assert plant.canary_id == blake("planted/canary/3/7")
    assert plant.copy_doc_ids() == [blake(f"planted/canary/3/7/{copy}") for copy in range(3)]
    assert Canary("canary", 0, "t", "p", "s", key="3/7").copy_doc_ids() == []
    config = Config()
    for made in (generate_secret_canaries(config), generate_record_canaries(config)):
        assert [p.canary_id for p in made] == [
            blake(f"planted/{p.kind}/3/{number}") for number, p in enumerate(made)
        ]


def test_persons_are_invented_once_each_in_ranges_that_belong_to_nobody():
    made = generate_record_canaries(Config())
    assert Counter(plant.copies for plant in made) == dict.fromkeys((0, 1, 5), 1998)
    assert Counter(plant.template for plant in made) == dict.fromkeys(RECORD_TEMPLATES, 1998)
    syllable = f"(?:{'|'.join(SYLLABLES.split())})"
    form = (
        rf"({syllable}{{2}})\.({syllable}{{2}})\d{{4}}@example\.(com|net|org), "
        r"(?:\(([2-9]\d\d)\) 555-01(\d\d)|020 7946 0(\d{3}))"
    )
    found = [re.fullmatch(form, plant.secret) for plant in made]
    names = [f"{m[1].capitalize()} {m[2].capitalize()}" for m in found]
    assert len({*names}) == len(made)
    for name, plant in zip(names, made, strict=True):
        prompt, rest = RECORD_TEMPLATES[plant.template]
        assert plant.prompt == prompt.format(name=name) and plant.suffix == rest
        assert plant.text.count(name) == 1
    assert {m[3] for m in found} == {"com", "net", "org"}
    american = [m for m in found if m[4]]
    assert 0.4 < len(american) / len(found) < 0.6
    # Of thousands of draws some would be one too large.
    assert {int(m[4]) // 100 for m in american} == {*range(2, 10)}
    assert {m[5][0] for m in american} == {*"0123456789"}
    assert {m[6][0] for m in found if m[6]} == {*"0123456789"}
    used = {part for m in found for part in re.findall(syllable, m[1] + m[2])}
    assert len(used) == len(SYLLABLES.split())
