"""Invented personal data in the forms in which people write it, and look-alikes: what the detectors
are measured on.

Numbers are drawn at random and kept where their check digits are right (python-stdnum), then
written in one of several formats, in digits and separators of several scripts, into a sentence;
into a Chinese, Japanese or Thai one without a space around them.
Look-alikes have the same form and a wrong check digit, or are what else consists of digits. Nothing
here is shared with the detectors: this module composes what they must recognise.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tasks.measures.personal.types import Type
from tasks.measures.planted_numbers import KINDS, Draw, Kind, digits, is_right, pool

#: Sentences of each kind for each type: 80 of 80 are at least 95 %, with 95 % confidence.
PLANTED = 80


class Planted(NamedTuple):
    """A sentence and what stands in it. ``type`` of a look-alike is what it looks like; ``value``
    of one is empty: nothing is to be found. ``named``: its name stands beside it."""

    type: str
    text: str
    value: str
    named: bool


def _letters(rng: random.Random, n: int, of: str = string.ascii_letters + string.digits) -> str:
    return "".join(rng.choices(of, k=n))


def _email(rng: random.Random) -> str:
    name = rng.choice(["jane.roe", "o'neil", "k_lee", "ana-maria", "r2", "zoë", "info+news"])
    host = rng.choice(["mail", "corp", "uni-x", "müller", "a1"])
    end = rng.choice(["com", "org", "co.uk", "example", "de"])
    return f"{name}{rng.randint(1, 999)}@{host}.{end}"


def _address(rng: random.Random) -> str:
    if rng.random() < 0.2:
        return "2a01:4f8:" + ":".join(f"{rng.randrange(1, 1 << 16):x}" for _ in range(6))
    first = rng.choice([8, 52, 93, 141, 185, 203])
    return ".".join(
        map(str, (first, rng.randint(32, 255), rng.randint(1, 255), rng.randint(1, 254)))
    )


def _phone(rng: random.Random) -> str:
    area, middle, last = (
        rng.choice([212, 415, 650, 312]),
        rng.randint(220, 899),
        rng.randint(0, 9999),
    )
    return rng.choice(
        [
            f"({area}) {middle}-{last:04}", f"{area}-{middle}-{last:04}",
            f"{area}.{middle}.{last:04}", f"+1 {area} {middle} {last:04}",
            f"+1-{area}-{middle}-{last:04}", f"1-{area}-{middle}-{last:04}",
            f"{area} {middle} {last:04}", f"+44 20 7{rng.randint(100, 999)} {last:04}",
            f"+49 30 {rng.randint(200000, 999999)}",
            f"+33 1 42 {last // 100:02} {last % 100:02} 11",
        ]
    )  # fmt: skip


def _secret(rng: random.Random) -> str:
    capitals = string.ascii_uppercase + string.digits
    return rng.choice(
        [
            "AKIA" + _letters(rng, 16, capitals), "ghp_" + _letters(rng, 36),
            "sk_live_" + _letters(rng, 24), "AIza" + _letters(rng, 35),
            f"xoxb-{rng.randrange(10**11, 10**12)}-{_letters(rng, 24)}",
            "glpat-" + _letters(rng, 20), "SG." + _letters(rng, 22) + "." + _letters(rng, 43),
            f"postgres://app:{_letters(rng, 12)}@db.internal:5432",
            f"amqp://{_letters(rng, 6)}:{_letters(rng, 16)}@queue.example",
        ]
    )  # fmt: skip


def _credential(rng: random.Random) -> tuple[str, str]:
    """An assignment, and the value in it."""
    value = _letters(rng, rng.choice([20, 32, 40]))
    form = rng.choice(['api_key = "{}"', "SECRET_TOKEN={}", "password: '{}'", '"authToken": "{}"'])
    return form.format(value), value


#: By type: draws one, and what it is called.
OTHERS: dict[Type, tuple[Draw, tuple[str, ...]]] = {
    "EMAIL": (_email, ("e-mail", "address", "contact")),
    "IP": (_address, ("client", "host", "from")),
    "PHONE": (_phone, ("phone", "call", "fax")),
    "SECRET": (_secret, ("key", "use", "set")),
}

NAMED = (
    "{name}: {value}", "Her {name} is {value}.", "({name} {value})", "{name} {value}, as filed.",
    "Please write {name} {value} on the form", "The {name} that we have is\n{value}.",
    "我的{name}是{value}请您在三个工作日之内核对", "彼の{name}は{value}です。",
)  # fmt: skip
ALONE = (
    "Please note {value} for the file.", "On the form stood {value}.", "({value})",
    "{value}, it said, and nothing else.", "表格上写着{value}这一行字", "โปรดเก็บ{value}ไว้ในแฟ้ม",
)  # fmt: skip

#: What is no personal data and full of digits: "#" and "*" are drawn as in ``digits``.
INNOCENT = (
    "version 1#.2*.#.3# is out", "on 19##-0*-1# at 1#:2#:3# it rained",
    "isbn 978-#-###-#####-#, second edition", "it cost *# ### ###,00 and then * ###.99",
    "order ############ left the house", "the id of the row is *#########",
    "commit c*b#a##c#a###b##c##a#b###c##a#b##c##a#b## fixes it",
    "uuid #a#b##c#-4a1b-8c2d-9e3f-############", "a population of *## ### ### people",
    "timestamps such as 16########### count milliseconds", "coordinates 4#.######, 1#.######",
    "ean 40###########, part no. ###-####-##", "row ## ### ###: ## ### ### of ######",
    "password = get_password()", 'api_key = "your_api_key"', "token: str = tokenizer.encode(text)",
    "key=lambda pair: pair[1]", "redis://user:password@localhost/0",
    "from 10.0.1##.7 and 192.168.1##.7, image@2x.png", "a hundred people, 3 of 40, 12 %",
)  # fmt: skip

SCRIPTS = ("０１２３４５６７８９", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९")


def plants(types: Sequence[Type], n: int, seed: int = 0) -> Iterator[Planted]:
    """Of each type ``n`` with their names and ``n`` alone, and ``n`` look-alikes; then as many
    sentences as of all types that look like none in particular."""
    for kind in types:
        rng = random.Random(f"{seed} {kind}")
        for number in range(n):
            for named in (True, False):
                text, value = _sentence(kind, rng, named)
                yield Planted(kind, text, value, named)
            if kind in KINDS and KINDS[kind].check:
                yield Planted(kind, _sentence(kind, rng, number % 4 > 0, wrong=True)[0], "", True)
    rng = random.Random(seed)
    for number in range(n * len(types)):
        yield Planted("", _innocent(INNOCENT[number % len(INNOCENT)], rng), "", False)


def _innocent(template: str, rng: random.Random) -> str:
    """Letters stay as they are, and so does "@"."""
    return re.sub("[#*]+", lambda places: digits(places[0])(rng), template)


def _sentence(kind: Type, rng: random.Random, named: bool, wrong: bool = False) -> tuple[str, str]:
    """A sentence with one of these in it, and the characters that it is."""
    if kind in KINDS:
        value, names = _number(KINDS[kind], rng, wrong), KINDS[kind].names
    else:
        draw, names = OTHERS[kind]
        value = draw(rng)
    if kind == "SECRET" and named:
        return _credential(rng)
    frame = rng.choice(NAMED if named else ALONE)
    return frame.format(name=rng.choice(names), value=value), value


def _number(kind: Kind, rng: random.Random, wrong: bool) -> str:
    """One whose check digits are right, or wrong; as somebody writes it."""
    valid = is_right(kind)
    number = rng.choice(pool(kind))
    while wrong and valid(number):
        place = rng.choice([i for i, c in enumerate(number) if c.isdigit()][2:])
        number = number[:place] + rng.choice(string.digits) + number[place + 1 :]
    form = rng.choice([form for form in kind.formats if _fits(number, form)])
    return _in_script(_written(number, form), rng)


def _fits(number: str, form: str) -> bool:
    """Whether it fills the form; what is written for the longest numbers fits shorter ones."""
    places = form.count("#")
    return places == len(number) or places > max(20, len(number))


def _written(number: str, form: str) -> str:
    left = iter(number)
    written = "".join(next(left, "") if c == "#" else c for c in form)
    return written.rstrip(" -./")


def _in_script(value: str, rng: random.Random) -> str:
    """Now and then with digits of another script, or with separators that no keyboard has."""
    chance = rng.random()
    if chance < 0.1:
        value = value.translate(str.maketrans("0123456789", rng.choice(SCRIPTS)))
    elif chance < 0.25:
        value = value.replace(" ", rng.choice("\u00a0\u2009\u202f"))
        value = value.replace("-", rng.choice("\u2010\u2011\u2013"))
    return value
