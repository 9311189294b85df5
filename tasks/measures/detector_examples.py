"""Generate invented personal data and look-alikes, on which the detectors are evaluated.

Numbers are drawn at random until their check digits are right (python-stdnum), written in one of
several formats, digits and separators of several scripts, and put into a sentence; Chinese,
Japanese and Thai sentences have no spaces around them. Look-alikes have the same format and a wrong
check digit, or are other text with many digits. No code is shared with the detectors: this module
composes what they must recognise.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hallmark.tasks.measures.personal.types import PersonalDataType
from hallmark.tasks.measures.synthetic_identifiers import (
    IDENTIFIER_SPECS,
    IdentifierSpec,
    TextGenerator,
    checksum_validator,
    draw_valid_numbers,
    make_template_generator,
)

#: Sentences of each kind per type: 80 of 80 show a rate of at least 95 %, with 95 % confidence.
EXAMPLES_PER_VARIANT = 80


class DetectorExample(NamedTuple):
    """A sentence with a value to find, or with a look-alike.

    Attributes:
        type: The type of the value, or the type that a look-alike resembles; may be empty.
        text: The sentence.
        value: The value to find; empty for a look-alike.
        has_context_word: Whether the sentence names the type of the number.
        region: Country in whose national form a telephone number is written; else empty.
    """

    type: str
    text: str
    value: str
    has_context_word: bool
    region: str = ""


def _draw_characters(
    rng: random.Random, length: int, alphabet: str = string.ascii_letters + string.digits
) -> str:
    return "".join(rng.choices(alphabet, k=length))


def _draw_email_address(rng: random.Random) -> str:
    name = rng.choice(
        ["jane.roe", "o'neil", "k_lee", "ana-maria", "r2", "zoë", "info+news", "j!roe"]
    )
    host = rng.choice(["mail", "corp", "uni-x", "müller", "a1"])
    top_level_domain = rng.choice(["com", "org", "co.uk", "example", "de"])
    return f"{name}{rng.randint(1, 999)}@{host}.{top_level_domain}"


def _draw_ip_address(rng: random.Random) -> str:
    if rng.random() < 0.2:
        return "2a01:4f8:" + ":".join(f"{rng.randrange(1, 1 << 16):x}" for _ in range(6))
    first_octet = rng.choice([8, 52, 93, 141, 185, 203])
    return ".".join(
        map(str, (first_octet, rng.randint(32, 255), rng.randint(1, 255), rng.randint(1, 254)))
    )


def _draw_international_phone_number(rng: random.Random) -> str:
    area, exchange, line_number = (
        rng.choice([212, 415, 650, 312]),
        rng.randint(220, 899),
        rng.randint(0, 9999),
    )
    return rng.choice(
        [
            f"+1 {area} {exchange} {line_number:04}",
            f"+1-{area}-{exchange}-{line_number:04}",
            f"+1{area}{exchange}{line_number:04}",
            f"+44 20 7{rng.randint(100, 999)} {line_number:04}",
            f"+49 30 {rng.randint(200000, 999999)}",
            f"+33 1 42 {line_number // 100:02} {line_number % 100:02} 11",
        ]
    )


#: Words for a telephone by country, where people seldom write "Tel." or "phone".
_PHONE_WORDS_BY_REGION = {
    **dict.fromkeys(["BG", "RU", "UA"], ("телефон", "тел.")),
    **dict.fromkeys(["CN", "HK", "JP", "TW"], ("電話", "电话")),
    **dict.fromkeys(["EG", "SA", "AE"], ("هاتف",)),
    **{"FI": ("puhelin", "puh."), "GR": ("τηλέφωνο", "τηλ."), "IL": ("טלפון",)},
    **{"IN": ("फ़ोन", "mobile"), "IR": ("تلفن",), "IS": ("sími",), "KR": ("전화",)},
    **{"LV": ("tālrunis",), "TH": ("โทร",), "VN": ("điện thoại",)},
}


def _compose_national_phone_sentence(
    region: str, rng: random.Random, with_context: bool
) -> _TextWithValue:
    """Compose a sentence with a telephone number in the national form of a country.

    With a word for a telephone, the number may also be written without separators.
    """
    value = _draw_national_phone_number(region, rng)
    if with_context and rng.random() < 0.3:
        value = re.sub(r"\D", "", value)
    value = _randomise_script(value, rng)
    template = rng.choice(CONTEXT_TEMPLATES if with_context else CONTEXT_FREE_TEMPLATES)
    words = _PHONE_WORDS_BY_REGION.get(region, ("telefon", "Tel.", "phone"))
    return _TextWithValue(template.format(name=rng.choice(words), value=value), value)


def _draw_national_phone_number(region: str, rng: random.Random) -> str:
    """Draw a number of a fixed line or a mobile telephone, formatted as in its country.

    It resembles the example number of `phonenumbers` except for its last digits.
    """
    import phonenumbers

    kinds = (phonenumbers.PhoneNumberType.FIXED_LINE, phonenumbers.PhoneNumberType.MOBILE)
    example = phonenumbers.example_number_for_type(region, rng.choice(kinds))
    example = example or phonenumbers.example_number(region)
    if example is None or example.national_number is None:
        raise ValueError(f"phonenumbers has no example number for {region!r}")
    first_digits = example.national_number // 10**4 * 10**4
    for _ in range(50):
        example.national_number = first_digits + rng.randrange(10**4)
        if phonenumbers.is_valid_number_for_region(example, region):
            break
    national_form = phonenumbers.PhoneNumberFormat.NATIONAL
    return phonenumbers.format_number(example, national_form)


def _draw_secret(rng: random.Random) -> str:
    capitals = string.ascii_uppercase + string.digits
    return rng.choice(
        [
            "AKIA" + _draw_characters(rng, 16, capitals),
            "ghp_" + _draw_characters(rng, 36),
            "sk_live_" + _draw_characters(rng, 24),
            "AIza" + _draw_characters(rng, 35),
            f"xoxb-{rng.randrange(10**11, 10**12)}-{_draw_characters(rng, 24)}",
            "glpat-" + _draw_characters(rng, 20),
            "SG." + _draw_characters(rng, 22) + "." + _draw_characters(rng, 43),
            f"postgres://app:{_draw_characters(rng, 12)}@db.internal:5432",
            f"amqp://{_draw_characters(rng, 6)}:{_draw_characters(rng, 16)}@queue.example",
        ]
    )


class _TextWithValue(NamedTuple):
    """A text, and the value of personal data in it."""

    text: str
    value: str


def _draw_credential_assignment(rng: random.Random) -> _TextWithValue:
    """Draw an assignment of a random credential to a variable or setting."""
    value = _draw_characters(rng, rng.choice([20, 32, 40]))
    template = rng.choice(
        [
            'api_key = "{}"',
            "SECRET_TOKEN={}",
            "password: '{}'",
            '"authToken": "{}"',
            'os.environ["API_KEY_PROD"] = "{}"',
            "**Password:** {}",
            "<password>{}</password>",
            "| token | {} |",
            "Authorization: Bearer {}",
            "curl -u ann:{} https://example.com",
        ]
    )
    return _TextWithValue(template.format(value), value)


#: For each type without check digits, the generator of values and the context words.
UNCHECKED_GENERATORS: dict[PersonalDataType, tuple[TextGenerator, tuple[str, ...]]] = {
    "EMAIL": (_draw_email_address, ("e-mail", "address", "contact")),
    "IP": (_draw_ip_address, ("client", "host", "from")),
    "PHONE": (_draw_international_phone_number, ("phone", "call", "fax")),
    "SECRET": (_draw_secret, ("key", "use", "set")),
}

CONTEXT_TEMPLATES = (
    "{name}: {value}",
    "Her {name} is {value}.",
    "({name} {value})",
    "{name} {value}, as filed.",
    "Please write {name} {value} on the form",
    "The {name} that we have is\n{value}.",
    "我的{name}是{value}请您在三个工作日之内核对",
    "彼の{name}は{value}です。",
)
CONTEXT_FREE_TEMPLATES = (
    "Please note {value} for the file.",
    "On the form stood {value}.",
    "({value})",
    "{value}, it said, and nothing else.",
    "表格上写着{value}这一行字",
    "โปรดเก็บ{value}ไว้ในแฟ้ม",
)

#: Marks, dashes and escapes next to a value. The keys of some vendors contain such marks.
NEIGHBOUR_TEMPLATES = (
    "On the form: _{value}_",
    "the form—{value}—I have it here",
    "- {value}-",
    '{{"note": "on the form:\\n{value}\\n"}}',
    '{{"note": "form\\u00a0{value}\\t"}}',
    "note=form%20{value}%20and+more",
)

#: Texts without personal data but many digits; "#" and "*" as in `make_template_generator`.
NEGATIVE_TEMPLATES = (
    "version 1#.2*.#.3# is out",
    "on 19##-0*-1# at 1#:2#:3# it rained",
    "isbn 978-#-###-#####-#, second edition",
    "it cost *# ### ###,00 and then * ###.99",
    "order ############ has been shipped",
    "the id of the row is *#########",
    "commit c*b#a##c#a###b##c##a#b###c##a#b##c##a#b## fixes it",
    "uuid #a#b##c#-4a1b-8c2d-9e3f-############",
    "a population of *## ### ### people",
    "timestamps such as 16########### count milliseconds",
    "coordinates 4#.######, 1#.######",
    "ean 40###########, part no. ###-####-##",
    "row ## ### ###: ## ### ### of ######",
    "password = get_password()",
    'api_key = "your_api_key"',
    "token: str = tokenizer.encode(text)",
    "key=lambda pair: pair[1]",
    '"result_key": "MaxResults"',
    "key: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "redis://user:password@localhost/0",
    "from 10.0.1##.7 and 192.168.1##.7, image@2x.png",
    "a hundred people, 3 of 40, 12 %",
    '"version": "1.#.2##.#", Firefox 11#.0.#.9#, Chrome/1##.0.6###.1##',
    "mobile 1*00 minutes for *9.90, mobile sales of *12 *45 678 units",
    "call 2019 2020 2021, sku *##-###-####, RFC 2*## 3*##",
    "000000*0: *111 2222 #a#b 4111 1111 1111 111# c##d",
)

NON_ASCII_DIGITS = ("０１２３４５６７８９", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९")


def generate_positive_and_negative_examples(
    types: Sequence[PersonalDataType],
    examples_per_variant: int,
    seed: int = 0,
    regions: Sequence[str] = (),
) -> Iterator[DetectorExample]:
    """Generate labelled examples of all types.

    Each type gets `examples_per_variant` sentences with context words, as many without, and as many
    look-alikes if it has check digits. Telephone numbers are international, and in addition
    national for each of the regions. `examples_per_variant` sentences for each type resemble none
    of them.
    """
    for data_type in types:
        rng = random.Random(f"{seed} {data_type}")
        for example_index in range(examples_per_variant):
            for with_context in (True, False):
                text, value = _compose_sentence(data_type, rng, with_context)
                yield DetectorExample(data_type, text, value, with_context)
            if data_type in IDENTIFIER_SPECS and IDENTIFIER_SPECS[data_type].checksum_module:
                yield DetectorExample(
                    data_type,
                    _compose_sentence(data_type, rng, example_index % 4 > 0, invalid=True).text,
                    "",
                    True,
                )
    for region in regions if "PHONE" in types else ():
        rng = random.Random(f"{seed} PHONE {region}")
        for _ in range(examples_per_variant):
            for with_context in (True, False):
                text, value = _compose_national_phone_sentence(region, rng, with_context)
                yield DetectorExample("PHONE", text, value, with_context, region)
    rng = random.Random(seed)
    for example_index in range(examples_per_variant * len(types)):
        yield DetectorExample(
            "",
            _fill_negative_template(
                NEGATIVE_TEMPLATES[example_index % len(NEGATIVE_TEMPLATES)], rng
            ),
            "",
            False,
        )


def _fill_negative_template(template: str, rng: random.Random) -> str:
    """Fill "#" and "*" in a template, but leave letters and "@" unchanged."""
    return re.sub(
        "[#*]+", lambda placeholder: make_template_generator(placeholder[0])(rng), template
    )


def _compose_sentence(
    data_type: PersonalDataType, rng: random.Random, with_context: bool, invalid: bool = False
) -> _TextWithValue:
    """Compose a sentence that contains a value of the type."""
    if data_type in IDENTIFIER_SPECS:
        value, context_words = (
            _draw_formatted_number(IDENTIFIER_SPECS[data_type], rng, invalid),
            IDENTIFIER_SPECS[data_type].context_words,
        )
    else:
        draw_value, context_words = UNCHECKED_GENERATORS[data_type]
        value = draw_value(rng)
    if data_type == "SECRET" and with_context:
        return _draw_credential_assignment(rng)
    if with_context:
        template = rng.choice(CONTEXT_TEMPLATES)
    elif data_type == "SECRET":
        template = rng.choice(CONTEXT_FREE_TEMPLATES)
    else:
        template = rng.choice((*CONTEXT_FREE_TEMPLATES, *NEIGHBOUR_TEMPLATES))
    text = template.format(name=rng.choice(context_words), value=value)
    return _TextWithValue(text, value)


def _draw_formatted_number(spec: IdentifierSpec, rng: random.Random, invalid: bool) -> str:
    """Draw a number with right or wrong check digits, in one of its written formats."""
    is_valid = checksum_validator(spec)
    number = rng.choice(draw_valid_numbers(spec))
    while invalid and is_valid(number):
        position = rng.choice([i for i, c in enumerate(number) if c.isdigit()][2:])
        number = number[:position] + rng.choice(string.digits) + number[position + 1 :]
    number_format = rng.choice(
        [number_format for number_format in spec.formats if _can_fill_format(number, number_format)]
    )
    return _randomise_script(_apply_format(number, number_format), rng)


def _can_fill_format(number: str, number_format: str) -> bool:
    """Return whether a number fits a format; the longest formats also fit shorter numbers."""
    digit_slots = number_format.count("#")
    return digit_slots == len(number) or digit_slots > max(20, len(number))


def _apply_format(number: str, number_format: str) -> str:
    remaining = iter(number)
    formatted = "".join(next(remaining, "") if c == "#" else c for c in number_format)
    return formatted.rstrip(" -./")


def _randomise_script(value: str, rng: random.Random) -> str:
    """Sometimes replace digits by those of another script, or separators by non-ASCII ones."""
    chance = rng.random()
    if chance < 0.1:
        value = value.translate(str.maketrans("0123456789", rng.choice(NON_ASCII_DIGITS)))
    elif chance < 0.25:
        value = value.replace(" ", rng.choice("\u00a0\u2009\u202f"))
        value = value.replace("-", rng.choice("\u2010\u2011\u2013"))
    return value
