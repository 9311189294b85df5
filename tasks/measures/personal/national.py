"""Identity and tax numbers of countries: their form, their check digits, and what they are called.

A number is found where its form and its check digits (python-stdnum) are right. Where other numbers
of that form are common, a word for it must stand near by, in the language of the country.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module

from tasks.measures.personal.contact import WORD, Found
from tasks.measures.personal.types import Type

#: Characters in front of a number and behind it in which its word is looked for.
BEFORE, AFTER = 80, 30
#: Latin, Greek and Cyrillic letters: those of scripts that set words apart by spaces.
_LETTER = "[A-Za-z\u00c0-\u04ff]"


@dataclass(frozen=True)
class Number:
    """A kind of number.

    form   a regular expression without look-around, as RE2 takes it as well; "_" in it stands for a
           separator or none
    check  the module of python-stdnum that knows the check digits; empty: the form is all there is
    words  what it is called, a regular expression of whole words as far as its script sets them
           apart; empty: its form needs no word
    alone  a form in which it needs no word
    numeric  whether it always has six digits with at most two letters or separators between them
    """

    type: Type
    form: str
    check: str = ""
    words: str = ""
    alone: str = ""
    numeric: bool = True

    @property
    def prefilter(self) -> str:
        return self.form.replace("_", "[ ./-]?")

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(rf"(?<!{WORD})(?<![+/-])(?<!\d\.)(?:{self.prefilter})(?!{WORD}|-|[./]\w)")

    @cached_property
    def _words(self) -> re.Pattern[str]:
        return re.compile(rf"(?i)(?<!{_LETTER})(?:{self.words})(?!{_LETTER})")

    @cached_property
    def _alone(self) -> re.Pattern[str]:
        return re.compile(self.alone)

    @cached_property
    def _valid(self) -> Callable[[str], bool]:
        if not self.check:
            return lambda number: True
        return import_module(f"stdnum.{self.check}").is_valid

    def find(self, text: str, regions: Sequence[str] = ()) -> Found:
        for match in self._pattern.finditer(text):
            if self._holds(match[0]) and (self._stands_alone(match[0]) or self._named(text, match)):
                yield match.span()

    def _holds(self, number: str) -> bool:
        digits = [c for c in number if c.isdigit()]
        if len(digits) > 5 and len(set(digits)) < 2:  # what fills a form; letters may be the rest
            return False
        return self._valid(number) or self._valid(re.sub("[ ./-]", "", number))

    def _stands_alone(self, number: str) -> bool:
        return not self.words or bool(self.alone and self._alone.fullmatch(number))

    def _named(self, text: str, match: re.Match[str]) -> bool:
        start = max(0, match.start() - BEFORE)
        near = text[start : match.start()] + " " + text[match.end() : match.end() + AFTER]
        return bool(self._words.search(near))


_DATE = r"\d{2}(?:0[1-9]|1[0-2])(?:[0-2]\d|3[01])"  # yymmdd
_ETAD = r"(?:[0-2]\d|3[01])(?:0[1-9]|1[0-2])\d{2}"  # ddmmyy
_TAX = r"(?-i:TIN)|tax (?:id|number|identification)\w*"

#: By country. Words are written as people put them before the number.
NUMBERS = (
    Number("SSN", r"\d{3}[ -]?\d{2}[ -]?\d{4}", "us.ssn", r"ssns?|social security\w*",
           r"\d{3}-\d{2}-\d{4}"),
    Number("US_ITIN", r"9\d{2}[ -]?\d{2}[ -]?\d{4}", "us.itin", rf"itin|taxpayer|{_TAX}",
           r"\d{3}-\d{2}-\d{4}"),
    Number("AR_CUIT", r"(?:2[0347]|3[034])_\d{8}_\d", "ar.cuit", r"cui[tl]", r"\d{2}-\d{8}-\d"),
    Number("AT_VNR", rf"\d{{4}}_{_ETAD}", "at.vnr",
           r"sv-?(?:nr|nummer)|svnr|vsnr|(?:sozial)?versicherungs(?:nummer|nr)"),
    Number("AU_TFN", r"\d{3}_\d{3}_\d{2,3}", "au.tfn", r"tfn|tax file(?: number| no)?"),
    Number("BE_NN", r"\d{2}[./-]?\d{2}[./-]?\d{2}_\d{3}_\d{2}", "be.nn",
           r"rijksregister\w*|nationaal|registre national|national(?:e|er)? register\w*|"
           r"num[eé]ro national|niss|insz|rrn?", r"\d{2}\.\d{2}\.\d{2}[ -]\d{3}\.\d{2}"),
    Number("BG_EGN", r"\d{10}", "bg.egn", r"егн|egn|единен граждански номер"),
    Number("BR_CPF", r"\d{3}_\d{3}_\d{3}_\d{2}", "br.cpf", r"cpf|cadastro de pessoas? físicas?",
           r"\d{3}\.\d{3}\.\d{3}-\d{2}"),
    Number("CA_SIN", r"\d{3}_\d{3}_\d{3}", "ca.sin",
           r"(?-i:SIN|NAS)|social insurance\w*|assurance sociale"),
    Number("CH_AHV", r"756_\d{4}_\d{4}_\d{2}", "ch.ssn"),
    Number("CL_RUT", r"\d{1,2}_\d{3}_\d{3}-?[\dKk]", "cl.rut",
           r"r\.?u\.?[tn]\.?|rol [uú]nico \w+", r"\d{1,2}\.\d{3}\.\d{3}-[\dKk]"),
    Number("CN_RIC", r"\d{6}_?(?:19|20)\d{2}(?:0[1-9]|1[0-2])[0-3]\d_?\d{3}[\dXx]", "cn.ric"),
    Number("CZ_RC", r"\d{2}[0-8]\d[0-3]\d[/ ]?\d{3,4}", "cz.rc",
           r"rodn\w+ (?:č[ií]sl\w+|cisl\w+)|r\.?\s?č\.?|rc", r"\d{6}/\d{3,4}"),
    Number("DE_IDNR", r"\d{2}_\d{3}_\d{3}_\d{3}", "de.idnr",
           rf"(?:steuerliche |steuer-?)?id(?:entifikations)?-?(?:nr|nummer)|idnr|steuer\w*|"
           rf"steuer-id\w*|{_TAX}"),
    Number("DK_CPR", rf"{_ETAD}[ -]?\d{{4}}", "dk.cpr",
           r"cpr(?:-?(?:nr|nummer\w*))?|person-?(?:nr|nummer\w*)"),
    Number("EE_IK", rf"[1-8]{_DATE}\d{{4}}", "ee.ik", r"isikukood\w*|personal (?:id|code)\w*|ik"),
    Number("ES_DNI", r"\d{2}[.]?\d{3}[.]?\d{3}[ -]?[A-Z]", "es.dni",
           r"d\.?n\.?i\.?|n\.?i\.?f\.?|documento nacional\w*|identidad",
           r"\d{2}\.\d{3}\.\d{3}-?[A-Z]|\d{8}-[A-Z]"),
    Number("ES_NIE", r"[XYZ][ -]?\d[.]?\d{3}[.]?\d{3}[ -]?[A-Z]", "es.nie",
           r"n\.?i\.?e\.?|d\.?n\.?i\.?|n\.?i\.?f\.?|extranjer\w+", r"[XYZ]-\d{7}-[A-Z]"),
    Number("FI_HETU", rf"{_ETAD}[-+A-FU-Y]\d{{3}}[0-9A-FHJ-NPR-Y]", "fi.hetu"),
    Number("FR_NIR", r"[12]_\d{2}_(?:0[1-9]|1[0-2]|[2-9]\d)_(?:\d{2}|2[AB])_\d{3}_\d{3}_\d{2}",
           "fr.nir"),
    Number("GB_NHS", r"\d{3}[ -]?\d{3}[ -]?\d{4}", "gb.nhs", r"nhs|national health\w*"),
    Number("GB_NINO",
           r"(?:[A-CEHJ-MOPRSW-Y][A-CEGHJ-NPR-TW-Z]|G[ACEGHJ-MPR-TW-Z]|N[A-CEGHJL-NPRSW-Z]|"
           r"T[A-CEGHJ-MPR-TW-Z]|Z[A-CEGHJ-NPR-TW-Y])[ -]?\d{2}[ -]?\d{2}[ -]?\d{2}[ -]?[A-D]",
           "", r"national insurance\w*|ni(?:no)?(?: (?:no|number))?",
           r"[A-Z]{2} \d{2} \d{2} \d{2} [A-D]"),
    Number("GR_AMKA", rf"{_ETAD}_\d{{5}}", "gr.amka", r"α\.?μ\.?κ\.?α\.?|amka"),
    Number("HR_OIB", r"\d{11}", "hr.oib", r"oib|osobni identifikacijski broj"),
    Number("IE_PPS", r"\d{7}[ -]?[A-W](?:[ABHTWX])?", "ie.pps",
           r"pps(?:n| ?no)?|personal public service"),
    Number("IL_ID", r"\d{8}-?\d", "il.idnr",
           r"ת\.?\s?ז\.?|(?:מספר |תעודת )זהות|teudat zehut|israeli id\w*|mispar zehut"),
    Number("IN_AADHAAR", r"[2-9]\d{3}_\d{4}_\d{4}", "in_.aadhaar", r"aadh?aa?r|uid(?:ai)?|आधार"),
    Number("IN_PAN", r"[A-Z]{3}[ABCFGHLJPT][A-Z]\d{4}[A-Z]", "in_.pan",
           r"(?-i:PAN)|permanent account|पैन|income[- ]tax", numeric=False),
    Number("IS_KENNITALA", rf"{_ETAD}[ -]?\d{{3}}[890]", "is_.kennitala", r"kennit[aö]l\w*|kt",
           r"\d{6}-\d{4}"),
    Number("IT_CF",
           r"[A-Z]{3}_[A-Z]{3}_[0-9L-NP-V]{2}[A-EHLMPR-T][0-9L-NP-V]{2}_[A-Z][0-9L-NP-V]{3}_[A-Z]",
           "it.codicefiscale", numeric=False),
    Number("JP_MYNUMBER", r"\d{4}_\d{4}_\d{4}", "jp.in_",
           r"マイナンバー|個人番号|my number|individual number"),
    Number("KR_RRN", rf"{_DATE}[ -]?[0-9]\d{{6}}", "kr.rrn",
           r"주민\s?등록\s?번호|resident registration\w*|rrn", rf"{_DATE}-\d{{7}}"),
    Number("LT_AK", rf"[1-6]{_DATE}\d{{4}}", "lt.asmens", r"asmens kod\w+|a\. ?k\."),
    Number("MX_CURP",
           rf"[A-Z][AEIOUX][A-Z]{{2}}{_DATE}[HMX][A-Z]{{2}}[B-DF-HJ-NP-TV-Z]{{3}}[0-9A-Z]\d",
           "mx.curp"),
    Number("NL_BSN", r"\d{3}[ .]?\d{2,3}[ .]?\d{3}|\d{4}[ .]\d{2}[ .]\d{3}", "nl.bsn",
           r"bsn(?:-?nummer)?|burgerservicen(?:umme)?r|sofi-?(?:nummer|nr)?"),
    Number("NO_FNR", r"[0-7]\d[ .]?[0-1]\d[ .]?\d{2}_\d{5}", "no.fodselsnummer",
           r"f[øo]dsels-?(?:nummer\w*|nr)|person-?(?:nummer\w*|nr)|fnr", rf"{_ETAD} \d{{5}}"),
    Number("NZ_IRD", r"\d{2,3}_\d{3}_\d{3}", "nz.ird", r"ird|inland revenue"),
    Number("PL_PESEL", r"\d{11}", "pl.pesel", r"pesel\w*"),
    Number("PT_NIF", r"[1-3]\d{2}_\d{3}_\d{3}", "pt.nif", r"n\.?i\.?f\.?|contribuinte|fiscal"),
    Number("RO_CNP", rf"[1-8]{_DATE}\d{{6}}", "ro.cnp",
           r"c\.?n\.?p\.?|cod(?:ul)? numeric personal"),
    Number("RU_INN", r"\d{12}", "ru.inn", r"инн|inn"),
    Number("SE_PNR", rf"(?:19|20)?{_DATE}[-+ ]?\d{{4}}", "se.personnummer",
           r"person-?(?:nummer\w*|nr)|pnr", rf"(?:19|20){_DATE}[-+]\d{{4}}|{_DATE}[-+]\d{{4}}"),
    Number("SI_EMSO", r"[0-3]\d[01]\d\d{9}", "si.emso", r"em[šs]o"),
    Number("TH_PIN", r"[1-8][ -]?\d{4}[ -]?\d{5}[ -]?\d{2}[ -]?\d", "th.pin",
           r"บัตรประชาชน|ประจำตัวประชาชน|thai id\w*|citizen id\w*|national id\w*",
           r"\d-\d{4}-\d{5}-\d{2}-\d"),
    Number("TR_TCKN", r"[1-9]\d{10}", "tr.tckimlik", r"t\.?c\.?|kimlik\w*|tckn|vatanda[sş]l[iı]k"),
    Number("UA_RNTRC", r"\d{10}", "ua.rntrc", r"рнокпп|іпн|rntrc|податков\w+"),
    Number("ZA_ID", rf"{_DATE}_\d{{4}}_[01]\d_?\d", "za.idnr",
           r"(?-i:ID|id)(?: ?(?:no|nr|number|nommer))?|identity\w*|identiteits\w*"),
)  # fmt: skip
