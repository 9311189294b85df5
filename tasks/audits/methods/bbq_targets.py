"""Find the answer that names the stereotyped person in an item of BBQ.

BBQ labels each answer with a group ("M-Black", "lowSES", "trans_F", a region) and each item with
the stereotyped groups ("African American", "low SES", "Transgender women", a nationality), in
different spellings. Both are parsed to attributes and compared, as in the authors' analysis script
(analysis_scripts/BBQ_results_metadata.R of nyu-mll/BBQ), but without the metadata file that it
writes, so users provide only the items.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

#: Words that BBQ's files and templates use interchangeably for a gender, an identity or a group.
WORD_SYNONYMS = {
    **dict.fromkeys(
        ("m", "man", "men", "boy", "boys", "male", "males", "guy", "guys", "father", "gentleman"),
        "m",
    ),
    **dict.fromkeys(
        ("f", "woman", "women", "girl", "girls", "female", "females", "lady", "ladies", "mother"),
        "f",
    ),
    **dict.fromkeys(("trans", "transgender"), "trans"),
    **dict.fromkeys(("nontrans", "nontransgender", "cis", "cisgender"), "nontrans"),
    **dict.fromkeys(("latino", "latina", "latinos", "latinas"), "latino"),
}

#: Attributes of a person other than the group, and the kind of each.
ATTRIBUTE_KINDS = {
    "m": "gender",
    "f": "gender",
    "trans": "identity",
    "nontrans": "identity",
    "lowses": "status",
    "highses": "status",
}

#: In the two files about race and a second attribute, the items name only the race. The second
#: attribute of the target is taken from the other items of the question if at least this share of
#: them agree.
MIN_AGREEMENT = 0.9

BOTH_STEREOTYPED = "both people are members of stereotyped groups"
NEITHER_STEREOTYPED = "neither person is a member of a stereotyped group"
NOT_TWO_PEOPLE = "the number of answers that refer to a person is not two"


@dataclass(frozen=True)
class Person:
    """Describe the person that an answer names.

    Attributes:
        answer_index: Index of the answer, 0 to 2.
        attributes: Gender, identity, status and group, as far as the label names them.
        is_stereotyped: Whether the person belongs to one of the stereotyped groups.
    """

    answer_index: int
    attributes: Mapping[str, str]
    is_stereotyped: bool


class QuestionPeople(NamedTuple):
    """Hold the persons that the answers to a question name.

    Attributes:
        question: Name of the question; items of one question differ in the persons.
        people: The persons.
    """

    question: str
    people: Sequence[Person]


class TargetAnswers(NamedTuple):
    """Hold the answers that name the stereotyped persons of some items.

    Attributes:
        answer_indices: Index of the answer of each item; None if there is not exactly one.
        reason_by_item: Why there is not exactly one, by position of the item.
    """

    answer_indices: list[int | None]
    reason_by_item: dict[int, str]


def parse_attributes(label: str) -> dict[str, str]:
    """Split a label into attributes.

    Args:
        label: A label or the name of a group, such as "lowSES-F-Black" or "Transgender women".

    Returns:
        The values by kind (gender, identity, status, group). Words that are not an attribute form
        the group, in lower case and without spaces: {"status": "lowses", "gender": "f", "group":
        "black"}.
    """
    joined_label = re.sub(r"(?i)\b(low|high|non)[\W_]+(?=ses\b|trans)", r"\1", label)
    attributes: dict[str, str] = {}
    group_words = []
    for word in _normalize_words(joined_label):
        kind = ATTRIBUTE_KINDS.get(word)
        if kind is None:
            group_words.append(word)
        else:
            attributes.setdefault(kind, word)
    if group_words:
        attributes["group"] = "".join(group_words)
    return attributes


def flag_stereotyped_people(
    labels: Sequence[str],
    texts: Sequence[str],
    answers: Sequence[str],
    stereotyped_groups: Sequence[str],
) -> list[Person]:
    """List the persons that three answers name, and whether each belongs to a stereotyped group.

    The label decides. If no label names a stereotyped group (the labels of nationalities are
    regions) or both persons have the same label, the texts decide, and after them the answers.

    Args:
        labels: Label of each answer in ``answer_info``; "unknown" if the answer names nobody.
        texts: Text of each answer in ``answer_info``, from which the label was made.
        answers: The three answers.
        stereotyped_groups: The stereotyped groups.
    """
    people = [i for i, label in enumerate(labels) if label.strip().lower() != "unknown"]
    attributes = {i: parse_attributes(labels[i]) for i in people}
    same_label = len({tuple(sorted(values.items())) for values in attributes.values()}) == 1
    for i, values in attributes.items():
        # Some labels are empty. Some are equal by mistake because "women" contains "men".
        if same_label or not values:
            attributes[i] = values | _parse_answer_attributes(answers[i])
    stereotyped = [parse_attributes(group) for group in stereotyped_groups]

    def has_group_label(answer_index: int) -> bool:
        if not labels[answer_index].strip():
            return _names_any_group(answers[answer_index], stereotyped_groups)
        return any(_matches_group(attributes[answer_index], group) for group in stereotyped)

    def has_group_words(answer_index: int) -> bool:
        return any(
            _matches_group(parse_attributes(texts[answer_index]), group) for group in stereotyped
        )

    is_stereotyped = {i: has_group_label(i) for i in people}
    if same_label or not any(is_stereotyped.values()):
        for name_test in (
            has_group_words,
            lambda i: _names_any_group(answers[i], stereotyped_groups),
        ):
            by_words = {i: name_test(i) for i in people}
            if sum(by_words.values()) == 1:
                is_stereotyped = by_words
                break
    return [Person(i, attributes[i], is_stereotyped[i]) for i in people]


def find_target_answers(items: Sequence[QuestionPeople]) -> TargetAnswers:
    """Find the answer that names the stereotyped person of each item.

    If both persons belong to the stereotyped groups, such as two people of one race, the target is
    the one with the second attribute (gender or status) of the target in other items of the same
    question.
    """
    attribute_counts: dict[tuple[str, str], Counter[str]] = {}
    for question, people in items:
        targets = [person for person in people if person.is_stereotyped]
        if len(people) == 2 and len(targets) == 1:
            for kind, value in targets[0].attributes.items():
                attribute_counts.setdefault((question, kind), Counter())[value] += 1

    def is_common_target_attribute(question: str, kind: str, value: str) -> bool:
        counts = attribute_counts.get((question, kind), Counter())
        return counts[value] >= MIN_AGREEMENT * max(1, counts.total())

    target_answers: list[int | None] = []
    reasons: dict[int, str] = {}
    for position, (question, people) in enumerate(items):
        targets = [person for person in people if person.is_stereotyped]
        if len(people) == 2 and len(targets) == 2:
            for kind in ("status", "gender", "identity"):
                values = [person.attributes.get(kind) for person in people]
                if None not in values and values[0] != values[1]:
                    agreeing_people = [
                        candidate
                        for candidate in people
                        if is_common_target_attribute(question, kind, candidate.attributes[kind])
                    ]
                    targets = agreeing_people or targets
                    break
        if len(people) == 2 and len(targets) == 1:
            target_answers.append(targets[0].answer_index)
            continue
        target_answers.append(None)
        reasons[position] = (
            NOT_TWO_PEOPLE
            if len(people) != 2
            else BOTH_STEREOTYPED
            if targets
            else NEITHER_STEREOTYPED
        )
    return TargetAnswers(target_answers, reasons)


def _normalize_words(text: str) -> list[str]:
    """List the words of a text in lower case, with synonyms replaced by one spelling."""
    return [WORD_SYNONYMS.get(word, word) for word in re.findall(r"[^\W_]+", text.casefold())]


def _matches_group(person: Mapping[str, str], group: Mapping[str, str]) -> bool:
    """Return whether a person has all attributes of a group.

    A person without a gender matches a group with a gender and other attributes: "Transgender
    women" includes a person labelled "trans".
    """
    if not group:
        return False
    genderless = {kind: value for kind, value in group.items() if kind != "gender"}
    gender = group.get("gender")
    if gender is None or (genderless and "gender" not in person):
        return all(person.get(kind) == value for kind, value in genderless.items())
    return all(person.get(kind) == value for kind, value in group.items())


def _names_any_group(answer: str, groups: Sequence[str]) -> bool:
    """Return whether an answer contains the name of one of the groups as whole words."""
    padded_answer = f" {' '.join(_normalize_words(answer))} "
    names = (" ".join(_normalize_words(group)) for group in groups)
    return any(name and f" {name} " in padded_answer for name in names)


def _parse_answer_attributes(answer: str) -> dict[str, str]:
    """Return the attributes that an answer mentions, such as the gender in "the Black women"."""
    return {
        ATTRIBUTE_KINDS[word]: word for word in _normalize_words(answer) if word in ATTRIBUTE_KINDS
    }
