"""Define identity and tax numbers by country: format, check digits and context words.

A number is found if its format and its check digits (python-stdnum) are right. If other numbers of
the same format are common, a word for it must also occur nearby, in the language of the country.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module

from hallmark.tasks.measures.personal.contact_details import WORD_CHARACTER, SpanIterator
from hallmark.tasks.measures.personal.prefilters import ignore_case
from hallmark.tasks.measures.personal.types import PersonalDataType

#: Number of characters before and after a number that are searched for context words.
CONTEXT_CHARS_BEFORE, CONTEXT_CHARS_AFTER = 80, 30
#: Latin, Greek and Cyrillic letters: scripts that separate words by spaces.
_LETTER = "[A-Za-z\u00c0-\u04ff]"


@dataclass(frozen=True)
class NationalIdFormat:
    """A kind of national number.

    Attributes:
        type: The type of its spans.
        pattern: Regular expression without look-around, so that RE2 accepts it, too; "_" is an
            optional separator, and letters match in either case.
        checksum_module: Module of python-stdnum that validates the number; empty if there is none.
        context_words: Regular expression of words, one of which must be nearby; empty if the format
            needs no context.
        standalone_pattern: A format that needs no context word.
        requires_six_digits: Whether every number has six digits with at most two letters or
            separators between neighbours.
    """

    type: PersonalDataType
    pattern: str
    checksum_module: str = ""
    context_words: str = ""
    standalone_pattern: str = ""
    requires_six_digits: bool = True

    @property
    def prefilter_pattern(self) -> str:
        """Pattern of every number; only those with letters are slower to find in either case."""
        pattern = self.pattern.replace("_", "[ ./-]?")
        return ignore_case(pattern) if re.search("[A-Z]", pattern) else pattern

    @cached_property
    def _bounded_regex(self) -> re.Pattern[str]:
        return re.compile(
            rf"(?<!{WORD_CHARACTER})(?<!{WORD_CHARACTER}[+/-])(?<!\d\.)(?<!\+)"
            rf"(?:{self.prefilter_pattern})(?!{WORD_CHARACTER}|-\d|[./]\d)"
        )

    @cached_property
    def _context_regex(self) -> re.Pattern[str]:
        return re.compile(rf"(?i)(?<!{_LETTER})(?:{self.context_words})(?!{_LETTER})")

    @cached_property
    def _standalone_regex(self) -> re.Pattern[str]:
        return re.compile(self.standalone_pattern)

    @cached_property
    def _checksum_validator(self) -> Callable[[str], bool]:
        if not self.checksum_module:
            return lambda number: True
        is_valid: Callable[[str], bool] = import_module(f"stdnum.{self.checksum_module}").is_valid
        return is_valid

    def find_spans(self, text: str, regions: Sequence[str] = ()) -> SpanIterator:
        for match in self._bounded_regex.finditer(text):
            # The check digits are last because python-stdnum is slow.
            if (
                self._is_standalone_form(match[0]) or self._has_context_word(text, match)
            ) and self._is_valid_number(match[0]):
                yield match.span()

    def _is_valid_number(self, number: str) -> bool:
        digits = re.sub(r"\D", "", number)
        if len(digits) > 5 and len(set(digits)) < 2:  # A placeholder such as 000000.
            return False
        number = number.upper()
        compact_number = re.sub("[ ./-]", "", number)
        return self._checksum_validator(number) or (
            compact_number != number and self._checksum_validator(compact_number)
        )

    def _is_standalone_form(self, number: str) -> bool:
        return not self.context_words or bool(
            self.standalone_pattern and self._standalone_regex.fullmatch(number)
        )

    def _has_context_word(self, text: str, match: re.Match[str]) -> bool:
        # The search sees the characters around both ranges, which may belong to a longer word.
        start = max(0, match.start() - CONTEXT_CHARS_BEFORE)
        if self._context_regex.search(text, start, match.start()):
            return True
        end = match.end() + CONTEXT_CHARS_AFTER
        word = self._context_regex.search(text, match.end(), end + CONTEXT_CHARS_AFTER)
        return word is not None and word.end() <= end


_YYMMDD = r"\d{2}(?:0[1-9]|1[0-2])(?:[0-2]\d|3[01])"  # yymmdd
_DDMMYY = r"(?:[0-2]\d|3[01])(?:0[1-9]|1[0-2])\d{2}"  # ddmmyy
_TAX_ID_WORDS = r"(?-i:TIN)|tax (?:id|number|identification)\w*"

#: Formats by country, with the context words that people write before the number.
NATIONAL_ID_FORMATS = (
    NationalIdFormat(
        "SSN",
        r"\d{3}[ -]?\d{2}[ -]?\d{4}",
        "us.ssn",
        r"ssns?|social security\w*",
        r"\d{3}-\d{2}-\d{4}",
    ),
    NationalIdFormat(
        "US_ITIN",
        r"9\d{2}[ -]?\d{2}[ -]?\d{4}",
        "us.itin",
        rf"itin|taxpayer|{_TAX_ID_WORDS}",
        r"\d{3}-\d{2}-\d{4}",
    ),
    NationalIdFormat(
        "AR_CUIT", r"(?:2[0347]|3[034])_\d{8}_\d", "ar.cuit", r"cui[tl]", r"\d{2}-\d{8}-\d"
    ),
    NationalIdFormat(
        "AT_VNR",
        rf"\d{{4}}_{_DDMMYY}",
        "at.vnr",
        r"sv-?(?:nr|nummer)|svnr|vsnr|(?:sozial)?versicherungs(?:nummer|nr)",
    ),
    NationalIdFormat("AU_TFN", r"\d{3}_\d{3}_\d{2,3}", "au.tfn", r"tfn|tax file(?: number| no)?"),
    NationalIdFormat(
        "BE_NN",
        r"\d{2}[./-]?\d{2}[./-]?\d{2}_\d{3}_\d{2}",
        "be.nn",
        r"rijksregister\w*|nationaal|registre national|national(?:e|er)? register\w*|"
        r"num[eé]ro national|niss|insz|rrn?",
        r"\d{2}\.\d{2}\.\d{2}[ -]\d{3}\.\d{2}",
    ),
    NationalIdFormat("BG_EGN", r"\d{10}", "bg.egn", r"егн|egn|единен граждански номер"),
    NationalIdFormat(
        "BR_CPF",
        r"\d{3}_\d{3}_\d{3}_\d{2}",
        "br.cpf",
        r"cpf|cadastro de pessoas? físicas?",
        r"\d{3}\.\d{3}\.\d{3}-\d{2}",
    ),
    NationalIdFormat(
        "CA_SIN",
        r"\d{3}_\d{3}_\d{3}",
        "ca.sin",
        r"(?-i:SIN|NAS)|social insurance\w*|assurance sociale",
    ),
    NationalIdFormat("CH_AHV", r"756_\d{4}_\d{4}_\d{2}", "ch.ssn"),
    NationalIdFormat(
        "CL_RUT",
        r"\d{1,2}_\d{3}_\d{3}-?[\dKk]",
        "cl.rut",
        r"r\.?u\.?[tn]\.?|rol [uú]nico \w+",
        r"\d{1,2}\.\d{3}\.\d{3}-[\dKk]",
    ),
    NationalIdFormat(
        "CN_RIC", r"\d{6}_?(?:19|20)\d{2}(?:0[1-9]|1[0-2])[0-3]\d_?\d{3}[\dXx]", "cn.ric"
    ),
    NationalIdFormat(
        "CZ_RC",
        r"\d{2}[0-8]\d[0-3]\d[/ ]?\d{3,4}",
        "cz.rc",
        r"rodn\w+ (?:č[ií]sl\w+|cisl\w+)|r\.?\s?č\.?|rc",
        r"\d{6}/\d{3,4}",
    ),
    NationalIdFormat(
        "DE_IDNR",
        r"\d{2}_\d{3}_\d{3}_\d{3}",
        "de.idnr",
        rf"(?:steuerliche |steuer-?)?id(?:entifikations)?-?(?:nr|nummer)|idnr|steuer\w*|"
        rf"steuer-id\w*|{_TAX_ID_WORDS}",
    ),
    NationalIdFormat(
        "DK_CPR",
        rf"{_DDMMYY}[ -]?\d{{4}}",
        "dk.cpr",
        r"cpr(?:-?(?:nr|nummer\w*))?|person-?(?:nr|nummer\w*)",
    ),
    NationalIdFormat(
        "EE_IK", rf"[1-8]{_YYMMDD}\d{{4}}", "ee.ik", r"isikukood\w*|personal (?:id|code)\w*|ik"
    ),
    NationalIdFormat(
        "ES_DNI",
        r"\d{2}[.]?\d{3}[.]?\d{3}[ -]?[A-Z]",
        "es.dni",
        r"d\.?n\.?i\.?|n\.?i\.?f\.?|documento nacional\w*|identidad",
        r"\d{2}\.\d{3}\.\d{3}-?[A-Z]|\d{8}-[A-Z]",
    ),
    NationalIdFormat(
        "ES_NIE",
        r"[XYZ][ -]?\d[.]?\d{3}[.]?\d{3}[ -]?[A-Z]",
        "es.nie",
        r"n\.?i\.?e\.?|d\.?n\.?i\.?|n\.?i\.?f\.?|extranjer\w+",
        r"[XYZ]-\d{7}-[A-Z]",
    ),
    NationalIdFormat("FI_HETU", rf"{_DDMMYY}[-+A-FU-Y]\d{{3}}[0-9A-FHJ-NPR-Y]", "fi.hetu"),
    NationalIdFormat(
        "FR_NIR",
        r"[12]_\d{2}_(?:0[1-9]|1[0-2]|[2-9]\d)_(?:\d{2}|2[AB])_\d{3}_\d{3}_\d{2}",
        "fr.nir",
    ),
    NationalIdFormat("GB_NHS", r"\d{3}[ -]?\d{3}[ -]?\d{4}", "gb.nhs", r"nhs|national health\w*"),
    NationalIdFormat(
        "GB_NINO",
        r"(?:[A-CEHJ-MOPRSW-Y][A-CEGHJ-NPR-TW-Z]|G[ACEGHJ-MPR-TW-Z]|N[A-CEGHJL-NPRSW-Z]|"
        r"T[A-CEGHJ-MPR-TW-Z]|Z[A-CEGHJ-NPR-TW-Y])[ -]?\d{2}[ -]?\d{2}[ -]?\d{2}[ -]?[A-D]",
        "",
        r"national insurance\w*|ni(?:no)?(?: (?:no|number))?",
        r"[A-Z]{2} \d{2} \d{2} \d{2} [A-D]",
    ),
    NationalIdFormat("GR_AMKA", rf"{_DDMMYY}_\d{{5}}", "gr.amka", r"α\.?μ\.?κ\.?α\.?|amka"),
    NationalIdFormat("HR_OIB", r"\d{11}", "hr.oib", r"oib|osobni identifikacijski broj"),
    NationalIdFormat(
        "IE_PPS",
        r"\d{7}[ -]?[A-W](?:[ABHTWX])?",
        "ie.pps",
        r"pps(?:n| ?no)?|personal public service",
    ),
    NationalIdFormat(
        "IL_ID",
        r"\d{8}-?\d",
        "il.idnr",
        r"ת\.?\s?ז\.?|(?:מספר |תעודת )זהות|teudat zehut|israeli id\w*|mispar zehut",
    ),
    NationalIdFormat(
        "IN_AADHAAR", r"[2-9]\d{3}_\d{4}_\d{4}", "in_.aadhaar", r"aadh?aa?r|uid(?:ai)?|आधार"
    ),
    NationalIdFormat(
        "IN_PAN",
        r"[A-Z]{3}[ABCFGHLJPT][A-Z]\d{4}[A-Z]",
        "in_.pan",
        r"(?-i:PAN)|permanent account|पैन|income[- ]tax",
        requires_six_digits=False,
    ),
    NationalIdFormat(
        "IS_KENNITALA",
        rf"{_DDMMYY}[ -]?\d{{3}}[890]",
        "is_.kennitala",
        r"kennit[aö]l\w*|kt",
        r"\d{6}-\d{4}",
    ),
    NationalIdFormat(
        "IT_CF",
        r"[A-Z]{3}_[A-Z]{3}_[0-9L-NP-V]{2}[A-EHLMPR-T][0-9L-NP-V]{2}_[A-Z][0-9L-NP-V]{3}_[A-Z]",
        "it.codicefiscale",
        requires_six_digits=False,
    ),
    NationalIdFormat(
        "JP_MYNUMBER",
        r"\d{4}_\d{4}_\d{4}",
        "jp.in_",
        r"マイナンバー|個人番号|my number|individual number",
    ),
    NationalIdFormat(
        "KR_RRN",
        rf"{_YYMMDD}[ -]?[0-9]\d{{6}}",
        "kr.rrn",
        r"주민\s?등록\s?번호|resident registration\w*|rrn",
        rf"{_YYMMDD}-\d{{7}}",
    ),
    NationalIdFormat("LT_AK", rf"[1-6]{_YYMMDD}\d{{4}}", "lt.asmens", r"asmens kod\w+|a\. ?k\."),
    NationalIdFormat(
        "MX_CURP",
        rf"[A-Z][AEIOUX][A-Z]{{2}}{_YYMMDD}[HMX][A-Z]{{2}}[B-DF-HJ-NP-TV-Z]{{3}}[0-9A-Z]\d",
        "mx.curp",
    ),
    NationalIdFormat(
        "NL_BSN",
        r"\d{3}[ .]?\d{2,3}[ .]?\d{3}|\d{4}[ .]\d{2}[ .]\d{3}",
        "nl.bsn",
        r"bsn(?:-?nummer)?|burgerservicen(?:umme)?r|sofi-?(?:nummer|nr)?",
    ),
    NationalIdFormat(
        "NO_FNR",
        r"[0-7]\d[ .]?[0-1]\d[ .]?\d{2}_\d{5}",
        "no.fodselsnummer",
        r"f[øo]dsels-?(?:nummer\w*|nr)|person-?(?:nummer\w*|nr)|fnr",
        rf"{_DDMMYY} \d{{5}}",
    ),
    NationalIdFormat("NZ_IRD", r"\d{2,3}_\d{3}_\d{3}", "nz.ird", r"ird|inland revenue"),
    NationalIdFormat("PL_PESEL", r"\d{11}", "pl.pesel", r"pesel\w*"),
    NationalIdFormat(
        "PT_NIF", r"[1-3]\d{2}_\d{3}_\d{3}", "pt.nif", r"n\.?i\.?f\.?|contribuinte|fiscal"
    ),
    NationalIdFormat(
        "RO_CNP", rf"[1-8]{_YYMMDD}\d{{6}}", "ro.cnp", r"c\.?n\.?p\.?|cod(?:ul)? numeric personal"
    ),
    NationalIdFormat("RU_INN", r"\d{12}", "ru.inn", r"инн|inn"),
    NationalIdFormat(
        "SE_PNR",
        rf"(?:19|20)?{_YYMMDD}[-+ ]?\d{{4}}",
        "se.personnummer",
        r"person-?(?:nummer\w*|nr)|pnr",
        rf"(?:19|20){_YYMMDD}[-+]\d{{4}}|{_YYMMDD}[-+]\d{{4}}",
    ),
    NationalIdFormat("SI_EMSO", r"[0-3]\d[01]\d\d{9}", "si.emso", r"em[šs]o"),
    NationalIdFormat(
        "TH_PIN",
        r"[1-8][ -]?\d{4}[ -]?\d{5}[ -]?\d{2}[ -]?\d",
        "th.pin",
        r"บัตรประชาชน|ประจำตัวประชาชน|thai id\w*|citizen id\w*|national id\w*",
        r"\d-\d{4}-\d{5}-\d{2}-\d",
    ),
    NationalIdFormat(
        "TR_TCKN", r"[1-9]\d{10}", "tr.tckimlik", r"t\.?c\.?|kimlik\w*|tckn|vatanda[sş]l[iı]k"
    ),
    NationalIdFormat("UA_RNTRC", r"\d{10}", "ua.rntrc", r"рнокпп|іпн|rntrc|податков\w+"),
    NationalIdFormat(
        "ZA_ID",
        rf"{_YYMMDD}_\d{{4}}_[01]\d_?\d",
        "za.idnr",
        r"(?-i:ID|id)(?: ?(?:no|nr|number|nommer))?|identity\w*|identiteits\w*",
    ),
)
