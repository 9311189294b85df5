"""Write the description of the corpus in Croissant 1.1, with the responsible-AI fields.

Croissant is a vocabulary of MLCommons on top of schema.org. The corpus itself is not published, so
the description names no files.
"""

from __future__ import annotations

from typing import Any

from hallmark.reports.exports.exported_card import ExportedCard
from hallmark.reports.exports.hugging_face import list_languages

#: The versions of the vocabulary and of its responsible-AI extension.
CONFORMS_TO = (
    "http://mlcommons.org/croissant/1.1",
    "http://mlcommons.org/croissant/RAI/1.0",
)

#: The context that Croissant 1.1 prescribes.
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "arrayShape": "cr:arrayShape",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "containedIn": "cr:containedIn",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "description": {"@container": "@language"},
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isArray": "cr:isArray",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "name": {"@container": "@language"},
    "parentField": "cr:parentField",
    "path": "cr:path",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}

#: The questions whose answers fill a field with one text.
QUESTIONS_BY_TEXT_FIELD = {
    "rai:dataCollection": ("collection_acquisition", "collection_mechanisms"),
    "rai:dataCollectionMissingData": ("composition_missing_information",),
    "rai:dataCollectionRawData": ("preprocessing_raw_data",),
    "rai:dataSocialImpact": ("collection_impact_analysis",),
    "rai:dataReleaseMaintenancePlan": ("maintenance_maintainer", "maintenance_updates"),
}

#: The questions whose answers fill a field with a list of texts.
QUESTIONS_BY_LIST_FIELD = {
    "rai:dataPreprocessingProtocol": ("preprocessing_steps",),
    "rai:dataBiases": ("uses_impact", "composition_subpopulations"),
    "rai:dataUseCases": ("uses_other_tasks",),
    "rai:dataLimitations": ("uses_to_avoid", "composition_errors", "composition_sample"),
    "rai:personalSensitiveInformation": ("composition_individuals", "composition_sensitive"),
}


def build_croissant(datasheet: ExportedCard) -> dict[str, Any]:
    """Return the description of a corpus as JSON-LD; unanswered fields are omitted."""
    description = datasheet.get_answer("motivation_purpose", "composition_instances")
    creators = datasheet.get_statement("motivation_creators")
    licence = datasheet.get_statement("distribution_licence")
    fields: dict[str, Any] = {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": list(CONFORMS_TO),
        "name": datasheet.title,
        "description": description,
        "license": [licence] if licence else [],
        "creator": [{"@type": "sc:Organization", "name": creators}] if creators else [],
        "inLanguage": list_languages(datasheet),
        "keywords": ["hallmark"],
    }
    for field, question_ids in QUESTIONS_BY_TEXT_FIELD.items():
        fields[field] = datasheet.get_answer(*question_ids)
    for field, question_ids in QUESTIONS_BY_LIST_FIELD.items():
        fields[field] = datasheet.list_answers(*question_ids)
    return {name: value for name, value in fields.items() if value}
