"""Draw random identity, tax, card and account numbers with correct check digits.

Check digits are computed if there are two, which are rarely right by chance; otherwise numbers are
drawn until python-stdnum accepts one. No code is shared with the detectors, see
`detector_examples`.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import islice, repeat

from hallmark.tasks.measures.personal.types import PersonalDataType

TextGenerator = Callable[[random.Random], str]


@dataclass(frozen=True)
class IdentifierSpec:
    """How to draw and write an identifier.

    Attributes:
        draw_number: Draw the characters of a number, without separators; one check digit may be
            wrong.
        checksum_module: Module of python-stdnum that validates the number; empty if there is none.
        formats: Written formats, with "#" for each character.
        context_words: Names that people use for the number.
    """

    draw_number: TextGenerator
    checksum_module: str
    formats: tuple[str, ...]
    context_words: tuple[str, ...]


def make_template_generator(template: str) -> TextGenerator:
    """Return a function that fills a template at random.

    "#" is a digit, "*" a digit from 1 to 9, "@" a capital, "D" a date (yymmdd), "E" a date as
    ddmmyy and "F" a date as yyyymmdd; other characters are kept.
    """

    def draw_from_template(rng: random.Random) -> str:
        year, month, day = rng.randint(1931, 1999), rng.randint(1, 12), rng.randint(1, 28)
        generators = {
            "#": lambda: rng.choice(string.digits),
            "*": lambda: rng.choice(string.digits[1:]),
            "@": lambda: rng.choice(string.ascii_uppercase),
            "D": lambda: f"{year % 100:02}{month:02}{day:02}",
            "E": lambda: f"{day:02}{month:02}{year % 100:02}",
            "F": lambda: f"{year}{month:02}{day:02}",
        }
        return "".join(
            generators[character]() if character in generators else character
            for character in template
        )

    return draw_from_template


def _make_choice_generator(*templates: str) -> TextGenerator:
    generators = [make_template_generator(template) for template in templates]
    return lambda rng: rng.choice(generators)(rng)


def _draw_german_tax_id(rng: random.Random) -> str:
    """Draw a German tax id: of its first ten digits one occurs twice and one is missing."""
    first_digits = rng.sample(string.digits, 9)
    first_digits.insert(rng.randint(0, 9), rng.choice(first_digits))
    return "".join(first_digits) + rng.choice(string.digits)


def _add_check_digits(
    draw_body: TextGenerator, compute_check_digits: Callable[[str], str]
) -> TextGenerator:
    """Append computed check digits to a generated number."""

    def draw_with_check_digits(rng: random.Random) -> str:
        body_digits = draw_body(rng)
        return body_digits + compute_check_digits(body_digits)

    return draw_with_check_digits


def _mod_97_check_digits(number: str) -> str:
    """Compute the check digits of France, and of Belgium for people born before 2000."""
    return f"{97 - int(number) % 97:02}"


def _make_check_digit_function(sign: int, *weights: Sequence[int]) -> Callable[[str], str]:
    """Return a function that computes two check digits as weighted sums modulo 11.

    Each is over all digits before it. A remainder of 10 becomes 0; if the country has no such
    number, the number fails validation and is drawn again.
    """

    def compute_check_digits(number: str) -> str:
        digits_so_far = number
        for row_weights in weights:
            digits_so_far += str(
                sign
                * sum(w * int(d) for w, d in zip(row_weights, digits_so_far, strict=True))
                % 11
                % 10
            )
        return digits_so_far[len(number) :]

    return compute_check_digits


def _turkish_check_digits(number: str) -> str:
    digit_values = [int(d) for d in number]
    tenth = (7 * sum(digit_values[::2]) - sum(digit_values[1::2])) % 10
    return f"{tenth}{(sum(digit_values) + tenth) % 10}"


def _draw_iban(rng: random.Random) -> str:
    """Draw an IBAN by ISO 13616: letters count as numbers from 10, the country code comes last."""
    prefix, account_digits = rng.choice([("DE", 18), ("GBNWBK", 14), ("NLABNA", 10)])
    number = prefix + make_template_generator(account_digits * "#")(rng)
    as_digits = "".join(str(int(c, 36)) for c in number[2:] + number[:2])
    return f"{number[:2]}{98 - int(as_digits + '00') % 97:02}{number[2:]}"


def _make_lettered_generator(template: str, **alphabets: str) -> TextGenerator:
    """Return a template generator whose lower-case letters are drawn from the given alphabets."""
    draw_template = make_template_generator(template)
    return lambda rng: "".join(
        rng.choice(alphabets[c]) if c in alphabets else c for c in draw_template(rng)
    )


CONSONANTS, VOWELS = "BCDFGHLMNPRSTVZ", "AEIOU"

IDENTIFIER_SPECS: dict[PersonalDataType, IdentifierSpec] = {
    "CARD": IdentifierSpec(
        _make_choice_generator(
            "4###############", "51##############", "37#############", "6011############"
        ),
        "luhn",
        ("#### #### #### ####", "####-####-####-####", "################", "#### ###### #####"),
        ("card number", "Visa", "Kreditkarte"),
    ),
    "IBAN": IdentifierSpec(
        _draw_iban,
        "iban",
        ("#### #### #### #### #### #### #### ####", "-".join(8 * ["####"]), 34 * "#"),
        ("IBAN", "account"),
    ),
    "SSN": IdentifierSpec(
        make_template_generator("#########"),
        "us.ssn",
        ("###-##-####", "### ## ####", "#########"),
        ("SSN", "social security number", "Social Security No."),
    ),
    "US_ITIN": IdentifierSpec(
        make_template_generator("9########"),
        "us.itin",
        ("###-##-####", "#########"),
        ("ITIN", "taxpayer identification number"),
    ),
    "AR_CUIT": IdentifierSpec(
        _make_choice_generator("20#########", "27#########"),
        "ar.cuit",
        ("##-########-#", "###########"),
        ("CUIT", "CUIL"),
    ),
    "AT_VNR": IdentifierSpec(
        make_template_generator("*###E"),
        "at.vnr",
        ("#### ######", "##########"),
        ("Sozialversicherungsnummer", "SV-Nummer", "SVNR"),
    ),
    "AU_TFN": IdentifierSpec(
        make_template_generator("*########"),
        "au.tfn",
        ("### ### ###", "#########"),
        ("TFN", "tax file number"),
    ),
    "BE_NN": IdentifierSpec(
        _add_check_digits(make_template_generator("D###"), _mod_97_check_digits),
        "be.nn",
        ("##.##.##-###.##", "###########", "######-###-##"),
        ("rijksregisternummer", "numéro national", "NISS"),
    ),
    "BG_EGN": IdentifierSpec(
        make_template_generator("D####"), "bg.egn", ("##########",), ("ЕГН", "EGN")
    ),
    "BR_CPF": IdentifierSpec(
        _add_check_digits(
            make_template_generator("#########"),
            _make_check_digit_function(1, range(1, 10), range(10)),
        ),
        "br.cpf",
        ("###.###.###-##", "###########"),
        ("CPF", "CPF nº"),
    ),
    "CA_SIN": IdentifierSpec(
        make_template_generator("*########"),
        "ca.sin",
        ("### ### ###", "###-###-###", "#########"),
        ("SIN", "social insurance number", "NAS"),
    ),
    "CH_AHV": IdentifierSpec(
        make_template_generator("756##########"),
        "ch.ssn",
        ("###.####.####.##", "#############"),
        ("AHV-Nummer", "numéro AVS"),
    ),
    "CL_RUT": IdentifierSpec(
        _make_lettered_generator("*#######k", k="0123456789K"),
        "cl.rut",
        ("##.###.###-#", "########-#"),
        ("RUT", "RUN"),
    ),
    "CN_RIC": IdentifierSpec(
        _make_lettered_generator("110101F###x", x="0123456789X"),
        "cn.ric",
        ("##################", "###### ######## ####"),
        ("身份证号码", "公民身份号码"),
    ),
    "CZ_RC": IdentifierSpec(
        make_template_generator("D####"),
        "cz.rc",
        ("######/####", "##########"),
        ("rodné číslo", "RČ"),
    ),
    "DE_IDNR": IdentifierSpec(
        _draw_german_tax_id,
        "de.idnr",
        ("## ### ### ###", "###########"),
        ("Steuer-ID", "Steueridentifikationsnummer", "IdNr."),
    ),
    "DK_CPR": IdentifierSpec(
        make_template_generator("E####"),
        "dk.cpr",
        ("######-####", "##########"),
        ("CPR-nummer", "CPR nr.", "personnummer"),
    ),
    "EE_IK": IdentifierSpec(
        _make_choice_generator("3D####", "4D####"), "ee.ik", ("###########",), ("isikukood",)
    ),
    "ES_DNI": IdentifierSpec(
        make_template_generator("########@"),
        "es.dni",
        ("#########", "########-#", "##.###.###-#"),
        ("DNI", "D.N.I.", "NIF"),
    ),
    "ES_NIE": IdentifierSpec(
        _make_choice_generator("X#######@", "Y#######@"),
        "es.nie",
        ("#########", "#-#######-#"),
        ("NIE", "N.I.E."),
    ),
    "FI_HETU": IdentifierSpec(
        make_template_generator("E-###@"), "fi.hetu", ("###########",), ("henkilötunnus", "HETU")
    ),
    "FR_NIR": IdentifierSpec(
        _add_check_digits(
            _make_choice_generator("1*#1075######", "2*#0*33######"), _mod_97_check_digits
        ),
        "fr.nir",
        ("# ## ## ## ### ### ##", "###############"),
        ("numéro de sécurité sociale", "NIR"),
    ),
    "GB_NHS": IdentifierSpec(
        make_template_generator("*#########"),
        "gb.nhs",
        ("### ### ####", "##########", "###-###-####"),
        ("NHS number", "NHS no."),
    ),
    "GB_NINO": IdentifierSpec(
        _make_lettered_generator("ab######d", a="ABCEHJ", b="ABCEGH", d="ABCD"),
        "",
        ("## ## ## ## #", "#########"),
        ("National Insurance number", "NI number"),
    ),
    "GR_AMKA": IdentifierSpec(
        make_template_generator("E#####"), "gr.amka", ("###########",), ("ΑΜΚΑ", "AMKA")
    ),
    "HR_OIB": IdentifierSpec(
        make_template_generator("###########"), "hr.oib", ("###########",), ("OIB",)
    ),
    "IE_PPS": IdentifierSpec(
        _make_choice_generator("#######@", "#######@A"),
        "ie.pps",
        ("########", "#########", "####### ##"),
        ("PPS number", "PPSN", "PPS No."),
    ),
    "IL_ID": IdentifierSpec(
        make_template_generator("#########"),
        "il.idnr",
        ("#########", "########-#"),
        ("תעודת זהות", "ת.ז.", "Teudat Zehut"),
    ),
    "IN_AADHAAR": IdentifierSpec(
        make_template_generator("*###########"),
        "in_.aadhaar",
        ("#### #### ####", "############", "####-####-####"),
        ("Aadhaar", "आधार", "Aadhaar number"),
    ),
    "IN_PAN": IdentifierSpec(
        make_template_generator("@@@P@*###@"), "", ("##########",), ("PAN", "PAN card")
    ),
    "IS_KENNITALA": IdentifierSpec(
        make_template_generator("E###9"),
        "is_.kennitala",
        ("######-####", "##########"),
        ("kennitala",),
    ),
    "IT_CF": IdentifierSpec(
        _make_lettered_generator(
            "cccccc##m##p###k",
            c=CONSONANTS,
            m="ABCDEHLMPRST",
            p="ABCDEFGHIL",
            k=string.ascii_uppercase,
        ),
        "it.codicefiscale",
        ("################", "### ### ##### #####"),
        ("codice fiscale", "C.F."),
    ),
    "JP_MYNUMBER": IdentifierSpec(
        make_template_generator("############"),
        "jp.in_",
        ("#### #### ####", "############"),
        ("マイナンバー", "個人番号"),
    ),
    "KR_RRN": IdentifierSpec(
        _make_choice_generator("D1######", "D2######"),
        "kr.rrn",
        ("######-#######", "#############"),
        ("주민등록번호",),
    ),
    "LT_AK": IdentifierSpec(
        _make_choice_generator("3D####", "4D####"), "lt.asmens", ("###########",), ("asmens kodas",)
    ),
    "MX_CURP": IdentifierSpec(
        _make_lettered_generator("cvccDhNLccc0#", c="BCDFGLMNPRS", v=VOWELS, h="HM"),
        "mx.curp",
        ("##################",),
        ("CURP",),
    ),
    "NL_BSN": IdentifierSpec(
        make_template_generator("*########"),
        "nl.bsn",
        ("#########", "####.##.###", "### ### ###"),
        ("BSN", "burgerservicenummer"),
    ),
    "NO_FNR": IdentifierSpec(
        _add_check_digits(
            make_template_generator("E###"),
            _make_check_digit_function(
                -1, (3, 7, 6, 1, 8, 9, 4, 5, 2), (5, 4, 3, 2, 7, 6, 5, 4, 3, 2)
            ),
        ),
        "no.fodselsnummer",
        ("###### #####", "###########"),
        ("fødselsnummer", "personnummer"),
    ),
    "NZ_IRD": IdentifierSpec(
        _make_choice_generator("10#######", "12#######"),
        "nz.ird",
        ("###-###-###", "#########"),
        ("IRD number", "IRD"),
    ),
    "PL_PESEL": IdentifierSpec(
        make_template_generator("D#####"), "pl.pesel", ("###########",), ("PESEL", "numer PESEL")
    ),
    "PT_NIF": IdentifierSpec(
        _make_choice_generator("1########", "2########"),
        "pt.nif",
        ("#########", "### ### ###"),
        ("NIF", "contribuinte n.º"),
    ),
    "RO_CNP": IdentifierSpec(
        _make_choice_generator("1D######", "2D######"), "ro.cnp", ("#############",), ("CNP",)
    ),
    "RU_INN": IdentifierSpec(
        _add_check_digits(
            make_template_generator("77########"),
            _make_check_digit_function(
                1, (7, 2, 4, 10, 3, 5, 9, 4, 6, 8), (3, 7, 2, 4, 10, 3, 5, 9, 4, 6, 8)
            ),
        ),
        "ru.inn",
        ("############",),
        ("ИНН",),
    ),
    "SE_PNR": IdentifierSpec(
        make_template_generator("D-####"),
        "se.personnummer",
        ("###########",),
        ("personnummer", "pers.nr"),
    ),
    "SI_EMSO": IdentifierSpec(
        lambda rng: (
            make_template_generator("E")(rng)[:4] + make_template_generator("9##50####")(rng)
        ),
        "si.emso",
        ("#############",),
        ("EMŠO",),
    ),
    "TH_PIN": IdentifierSpec(
        make_template_generator("*############"),
        "th.pin",
        ("#-####-#####-##-#", "#############"),
        ("เลขประจำตัวประชาชน", "Thai ID"),
    ),
    "TR_TCKN": IdentifierSpec(
        _add_check_digits(make_template_generator("*########"), _turkish_check_digits),
        "tr.tckimlik",
        ("###########",),
        ("TC kimlik no", "T.C. Kimlik No"),
    ),
    "UA_RNTRC": IdentifierSpec(
        make_template_generator("##########"), "ua.rntrc", ("##########",), ("РНОКПП", "ІПН")
    ),
    "ZA_ID": IdentifierSpec(
        make_template_generator("D####08#"),
        "za.idnr",
        ("#############", "###### #### ## #"),
        ("ID number", "identity number"),
    ),
}


@cache
def draw_valid_numbers(spec: IdentifierSpec) -> tuple[str, ...]:
    """Draw 25 numbers with correct check digits."""
    rng = random.Random(spec.checksum_module)
    drawn = (spec.draw_number(rng) for _ in repeat(None))
    return tuple(islice(filter(checksum_validator(spec), drawn), 25))


def checksum_validator(spec: IdentifierSpec) -> Callable[[str], bool]:
    return (
        import_module(f"stdnum.{spec.checksum_module}").is_valid
        if spec.checksum_module
        else lambda number: True
    )
