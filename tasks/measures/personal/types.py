"""Define the types of personal data and secrets, and their countries.

The type of a national number begins with its country code (ISO 3166), except SSN (United States).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

PersonalDataType = Literal[
    "SECRET",
    "EMAIL",
    "IBAN",
    "CARD",
    "SSN",
    "AR_CUIT",
    "AT_VNR",
    "AU_TFN",
    "BE_NN",
    "BG_EGN",
    "BR_CPF",
    "CA_SIN",
    "CH_AHV",
    "CL_RUT",
    "CN_RIC",
    "CZ_RC",
    "DE_IDNR",
    "DK_CPR",
    "EE_IK",
    "ES_DNI",
    "ES_NIE",
    "FI_HETU",
    "FR_NIR",
    "GB_NHS",
    "GB_NINO",
    "GR_AMKA",
    "HR_OIB",
    "IE_PPS",
    "IL_ID",
    "IN_AADHAAR",
    "IN_PAN",
    "IS_KENNITALA",
    "IT_CF",
    "JP_MYNUMBER",
    "KR_RRN",
    "LT_AK",
    "MX_CURP",
    "NL_BSN",
    "NO_FNR",
    "NZ_IRD",
    "PL_PESEL",
    "PT_NIF",
    "RO_CNP",
    "RU_INN",
    "SE_PNR",
    "SI_EMSO",
    "TH_PIN",
    "TR_TCKN",
    "UA_RNTRC",
    "US_ITIN",
    "ZA_ID",
    "PHONE",
    "IP",
]
PERSONAL_DATA_TYPES: tuple[PersonalDataType, ...] = get_args(PersonalDataType)

#: Type of the span over a whole text that has too many candidates to check.
UNREADABLE: Any = "UNREADABLE"


class Span(NamedTuple):
    """Characters `start` to `end` (exclusive) of a text, with the type of personal data."""

    type: PersonalDataType
    start: int
    end: int


def country_of_type(data_type: str) -> str:
    """Return the country of a type's numbers, or "" for an international type."""
    if data_type == "SSN":
        return "US"
    return data_type[:2] if data_type[2:3] == "_" else ""


def select_types_for_regions(
    types: Sequence[PersonalDataType], regions: Sequence[str]
) -> tuple[PersonalDataType, ...]:
    """Select the types that are international or belong to one of the regions."""
    return tuple(data_type for data_type in types if country_of_type(data_type) in ("", *regions))


#: Countries with at least one type.
SUPPORTED_COUNTRIES = tuple(
    sorted({country_of_type(data_type) for data_type in PERSONAL_DATA_TYPES} - {""})
)
