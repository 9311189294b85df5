"""Identity, tax, card and account numbers drawn at random, their check digits right.

Check digits are computed where two of them make chance too slow, and else drawn until python-stdnum
finds them right. Nothing here is shared with the detectors, see ``planted_personal``.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import islice, repeat

from tasks.measures.personal.types import Type

Draw = Callable[[random.Random], str]


@dataclass(frozen=True)
class Kind:
    """draw: the characters of a number, no separators, its check digits by chance. formats: how
    they are written, "#" a character. names: what people call it."""

    draw: Draw
    check: str
    formats: tuple[str, ...]
    names: tuple[str, ...]


def digits(template: str) -> Draw:
    """Draws "#" as a digit, "*" as one from 1 to 9, "@" as a capital, the rest as it is; "D" a date
    (yymmdd), "E" one the other way round (ddmmyy), "F" one with its century."""

    def draw(rng: random.Random) -> str:
        year, month, day = rng.randint(1931, 1999), rng.randint(1, 12), rng.randint(1, 28)
        made = {
            "#": lambda: rng.choice(string.digits),
            "*": lambda: rng.choice(string.digits[1:]),
            "@": lambda: rng.choice(string.ascii_uppercase),
            "D": lambda: f"{year % 100:02}{month:02}{day:02}",
            "E": lambda: f"{day:02}{month:02}{year % 100:02}",
            "F": lambda: f"{year}{month:02}{day:02}",
        }
        return "".join(made[c]() if c in made else c for c in template)

    return draw


def _one_of(*templates: str) -> Draw:
    draws = [digits(template) for template in templates]
    return lambda rng: rng.choice(draws)(rng)


def _tax_id(rng: random.Random) -> str:
    """Germany's: of its first ten digits one stands there twice, one not at all."""
    body = rng.sample(string.digits, 9)
    body.insert(rng.randint(0, 9), rng.choice(body))
    return "".join(body) + rng.choice(string.digits)


def _checked(body: Draw, finish: Callable[[str], str]) -> Draw:
    """Two check digits are rarely right by chance: these are computed."""

    def draw(rng: random.Random) -> str:
        number = body(rng)
        return number + finish(number)

    return draw


def _mod_97(number: str) -> str:
    """France and Belgium, of persons born before 2000."""
    return f"{97 - int(number) % 97:02}"


def _weighted(sign: int, *weights: Sequence[int]) -> Callable[[str], str]:
    """Two digits, each the sum of those before it with these weights, modulo 11; what is 10 stands
    as 0, which is drawn again where the country has no such number."""

    def finish(number: str) -> str:
        whole = number
        for row in weights:
            whole += str(sign * sum(w * int(d) for w, d in zip(row, whole, strict=True)) % 11 % 10)
        return whole[len(number) :]

    return finish


def _turkish(number: str) -> str:
    places = [int(d) for d in number]
    tenth = (7 * sum(places[::2]) - sum(places[1::2])) % 10
    return f"{tenth}{(sum(places) + tenth) % 10}"


def _account(rng: random.Random) -> str:
    """ISO 13616: the letters as numbers from 10, the country and the check digits behind."""
    head, places = rng.choice([("DE", 18), ("GBNWBK", 14), ("NLABNA", 10)])
    number = head + digits(places * "#")(rng)
    as_digits = "".join(str(int(c, 36)) for c in number[2:] + number[:2])
    return f"{number[:2]}{98 - int(as_digits + '00') % 97:02}{number[2:]}"


def _lettered(template: str, **letters: str) -> Draw:
    """``digits`` whose lower-case letters are drawn from these."""
    plain = digits(template)
    return lambda rng: "".join(rng.choice(letters[c]) if c in letters else c for c in plain(rng))


CONSONANTS, VOWELS = "BCDFGHLMNPRSTVZ", "AEIOU"

KINDS: dict[Type, Kind] = {
    "CARD": Kind(
        _one_of("4###############", "51##############", "37#############", "6011############"),
        "luhn", ("#### #### #### ####", "####-####-####-####", "################",
                 "#### ###### #####"),
        ("card number", "Visa", "Kreditkarte"),
    ),
    "IBAN": Kind(
        _account, "iban", ("#### #### #### #### #### #### #### ####", 34 * "#"),
        ("IBAN", "account"),
    ),
    "SSN": Kind(digits("#########"), "us.ssn", ("###-##-####", "### ## ####", "#########"),
                ("SSN", "social security number", "Social Security No.")),
    "US_ITIN": Kind(digits("9########"), "us.itin", ("###-##-####", "#########"),
                    ("ITIN", "taxpayer identification number")),
    "AR_CUIT": Kind(_one_of("20#########", "27#########"), "ar.cuit",
                    ("##-########-#", "###########"), ("CUIT", "CUIL")),
    "AT_VNR": Kind(digits("*###E"), "at.vnr", ("#### ######", "##########"),
                   ("Sozialversicherungsnummer", "SV-Nummer", "SVNR")),
    "AU_TFN": Kind(digits("*########"), "au.tfn", ("### ### ###", "#########"),
                   ("TFN", "tax file number")),
    "BE_NN": Kind(_checked(digits("D###"), _mod_97), "be.nn",
                  ("##.##.##-###.##", "###########", "######-###-##"),
                  ("rijksregisternummer", "numéro national", "NISS")),
    "BG_EGN": Kind(digits("D####"), "bg.egn", ("##########",), ("ЕГН", "EGN")),
    "BR_CPF": Kind(_checked(digits("#########"), _weighted(1, range(1, 10), range(10))),
                   "br.cpf", ("###.###.###-##", "###########"),
                   ("CPF", "CPF nº")),
    "CA_SIN": Kind(digits("*########"), "ca.sin", ("### ### ###", "###-###-###", "#########"),
                   ("SIN", "social insurance number", "NAS")),
    "CH_AHV": Kind(digits("756##########"), "ch.ssn", ("###.####.####.##", "#############"),
                   ("AHV-Nummer", "numéro AVS")),
    "CL_RUT": Kind(_lettered("*#######k", k="0123456789K"), "cl.rut",
                   ("##.###.###-#", "########-#"), ("RUT", "RUN")),
    "CN_RIC": Kind(_lettered("110101F###x", x="0123456789X"), "cn.ric",
                   ("##################", "###### ######## ####"), ("身份证号码", "公民身份号码")),
    "CZ_RC": Kind(digits("D####"), "cz.rc", ("######/####", "##########"),
                  ("rodné číslo", "RČ")),
    "DE_IDNR": Kind(_tax_id, "de.idnr", ("## ### ### ###", "###########"),
                    ("Steuer-ID", "Steueridentifikationsnummer", "IdNr.")),
    "DK_CPR": Kind(digits("E####"), "dk.cpr", ("######-####", "##########"),
                   ("CPR-nummer", "CPR nr.", "personnummer")),
    "EE_IK": Kind(_one_of("3D####", "4D####"), "ee.ik", ("###########",), ("isikukood",)),
    "ES_DNI": Kind(digits("########@"), "es.dni", ("#########", "########-#", "##.###.###-#"),
                   ("DNI", "D.N.I.", "NIF")),
    "ES_NIE": Kind(_one_of("X#######@", "Y#######@"), "es.nie", ("#########", "#-#######-#"),
                   ("NIE", "N.I.E.")),
    "FI_HETU": Kind(digits("E-###@"), "fi.hetu", ("###########",),
                    ("henkilötunnus", "HETU")),
    "FR_NIR": Kind(_checked(_one_of("1*#1075######", "2*#0*33######"), _mod_97), "fr.nir",
                   ("# ## ## ## ### ### ##", "###############"),
                   ("numéro de sécurité sociale", "NIR")),
    "GB_NHS": Kind(digits("*#########"), "gb.nhs", ("### ### ####", "##########", "###-###-####"),
                   ("NHS number", "NHS no.")),
    "GB_NINO": Kind(_lettered("ab######d", a="ABCEHJ", b="ABCEGH", d="ABCD"), "",
                    ("## ## ## ## #", "#########"), ("National Insurance number", "NI number")),
    "GR_AMKA": Kind(digits("E#####"), "gr.amka", ("###########",), ("ΑΜΚΑ", "AMKA")),
    "HR_OIB": Kind(digits("###########"), "hr.oib", ("###########",), ("OIB",)),
    "IE_PPS": Kind(_one_of("#######@", "#######@A"), "ie.pps",
                   ("########", "#########", "####### ##"),
                   ("PPS number", "PPSN", "PPS No.")),
    "IL_ID": Kind(digits("#########"), "il.idnr", ("#########", "########-#"),
                  ("תעודת זהות", "ת.ז.", "Teudat Zehut")),
    "IN_AADHAAR": Kind(digits("*###########"), "in_.aadhaar",
                       ("#### #### ####", "############", "####-####-####"),
                       ("Aadhaar", "आधार", "Aadhaar number")),
    "IN_PAN": Kind(digits("@@@P@*###@"), "", ("##########",), ("PAN", "PAN card")),
    "IS_KENNITALA": Kind(digits("E###9"), "is_.kennitala", ("######-####", "##########"),
                         ("kennitala",)),
    "IT_CF": Kind(
        _lettered("cccccc##m##p###k", c=CONSONANTS, m="ABCDEHLMPRST", p="ABCDEFGHIL",
                  k=string.ascii_uppercase),
        "it.codicefiscale", ("################", "### ### ##### #####"), ("codice fiscale", "C.F."),
    ),
    "JP_MYNUMBER": Kind(digits("############"), "jp.in_", ("#### #### ####", "############"),
                        ("マイナンバー", "個人番号")),
    "KR_RRN": Kind(_one_of("D1######", "D2######"), "kr.rrn", ("######-#######", "#############"),
                   ("주민등록번호",)),
    "LT_AK": Kind(_one_of("3D####", "4D####"), "lt.asmens", ("###########",), ("asmens kodas",)),
    "MX_CURP": Kind(
        _lettered("cvccDhNLccc0#", c="BCDFGLMNPRS", v=VOWELS, h="HM"),
        "mx.curp", ("##################",), ("CURP",),
    ),
    "NL_BSN": Kind(digits("*########"), "nl.bsn", ("#########", "####.##.###", "### ### ###"),
                   ("BSN", "burgerservicenummer")),
    "NO_FNR": Kind(
        _checked(digits("E###"), _weighted(-1, (3, 7, 6, 1, 8, 9, 4, 5, 2),
                                           (5, 4, 3, 2, 7, 6, 5, 4, 3, 2))),
        "no.fodselsnummer", ("###### #####", "###########"), ("fødselsnummer", "personnummer"),
    ),
    "NZ_IRD": Kind(_one_of("10#######", "12#######"), "nz.ird", ("###-###-###", "#########"),
                   ("IRD number", "IRD")),
    "PL_PESEL": Kind(digits("D#####"), "pl.pesel", ("###########",), ("PESEL", "numer PESEL")),
    "PT_NIF": Kind(_one_of("1########", "2########"), "pt.nif", ("#########", "### ### ###"),
                   ("NIF", "contribuinte n.º")),
    "RO_CNP": Kind(_one_of("1D######", "2D######"), "ro.cnp", ("#############",), ("CNP",)),
    "RU_INN": Kind(
        _checked(digits("77########"), _weighted(1, (7, 2, 4, 10, 3, 5, 9, 4, 6, 8),
                                                 (3, 7, 2, 4, 10, 3, 5, 9, 4, 6, 8))),
        "ru.inn", ("############",), ("ИНН",),
    ),
    "SE_PNR": Kind(digits("D-####"), "se.personnummer", ("###########",),
                   ("personnummer", "pers.nr")),
    "SI_EMSO": Kind(lambda rng: digits("E")(rng)[:4] + digits("9##50####")(rng), "si.emso",
                    ("#############",), ("EMŠO",)),
    "TH_PIN": Kind(digits("*############"), "th.pin", ("#-####-#####-##-#", "#############"),
                   ("เลขประจำตัวประชาชน", "Thai ID")),
    "TR_TCKN": Kind(_checked(digits("*########"), _turkish), "tr.tckimlik", ("###########",),
                    ("TC kimlik no", "T.C. Kimlik No")),
    "UA_RNTRC": Kind(digits("##########"), "ua.rntrc", ("##########",), ("РНОКПП", "ІПН")),
    "ZA_ID": Kind(digits("D####08#"), "za.idnr", ("#############", "###### #### ## #"),
                  ("ID number", "identity number")),
}  # fmt: skip


@cache
def pool(kind: Kind) -> tuple[str, ...]:
    """Numbers that are drawn until their check digits are right."""
    rng = random.Random(kind.check)
    drawn = (kind.draw(rng) for _ in repeat(None))
    return tuple(islice(filter(is_right(kind), drawn), 25))


def is_right(kind: Kind) -> Callable[[str], bool]:
    return import_module(f"stdnum.{kind.check}").is_valid if kind.check else lambda number: True
