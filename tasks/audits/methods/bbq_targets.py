"""Find the answer that names the stereotyped person in an item of BBQ.

BBQ labels each answer with a group ("M-Black", "lowSES", "trans_F", a region) and each item with
the stereotyped groups ("African American", "low SES", "Transgender women", a nationality), in
different spellings. Both are parsed to attributes and compared, as the authors' own analysis script
does (analysis_scripts/BBQ_results_metadata.R of nyu-mll/BBQ), without the file of metadata that it
writes: users give the items alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Words for a gender, an identity or a group that BBQ's files and templates use for one another.
SYNONYMS = {
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

#: Words that are attributes of a person beside the group, and the kind of each.
ATTRIBUTES = {
    "m": "gender",
    "f": "gender",
    "trans": "identity",
    "nontrans": "identity",
    "lowses": "status",
    "highses": "status",
}

#: In the two files about race and a second attribute the items name only the race. The other items
#: of a question show the second attribute of its target; at least this share must agree.
AGREEMENT = 0.9

BOTH = "both persons belong to the stereotyped groups"
NEITHER = "neither person belongs to the stereotyped groups"
NOT_TWO = "not exactly two answers name a person"


@dataclass(frozen=True)
class Person:
    """A person whom an answer names.

    Attributes:
        answer: Index of the answer, 0 to 2.
        attributes: Gender, identity, status and group, as far as the label names them.
        belongs: Whether the person belongs to one of the stereotyped groups.
    """

    answer: int
    attributes: Mapping[str, str]
    belongs: bool


def parse_attributes(label: str) -> dict[str, str]:
    """Split a label into attributes.

    Args:
        label: A label or the name of a group, such as "lowSES-F-Black" or "Transgender women".

    Returns:
        The values by kind (gender, identity, status, group); words that are no attribute are the
        group, without spaces and in small letters: {"status": "lowses", "gender": "f", "group":
        "black"}.
    """
    joined = re.sub(r"(?i)\b(low|high|non)[\W_]+(?=ses\b|trans)", r"\1", label)
    attributes: dict[str, str] = {}
    rest = []
    for word in _words(joined):
        kind = ATTRIBUTES.get(word)
        if kind is None:
            rest.append(word)
        else:
            attributes.setdefault(kind, word)
    if rest:
        attributes["group"] = "".join(rest)
    return attributes


def find_people(
    labels: Sequence[str], texts: Sequence[str], answers: Sequence[str], groups: Sequence[str]
) -> list[Person]:
    """List the persons among three answers, and who of them belongs to a stereotyped group.

    The label decides. Where no label names a stereotyped group, as for nationalities, whose labels
    are regions, or both persons have the same label, the words that the labels were made from
    decide; then those of the whole answers.

    Args:
        labels: What ``answer_info`` gives for each answer; "unknown" where it names nobody.
        texts: The words that each label was made from, from ``answer_info``.
        answers: The answers themselves.
        groups: The stereotyped groups.
    """
    people = [i for i, label in enumerate(labels) if label.strip().lower() != "unknown"]
    attributes = {i: parse_attributes(labels[i]) for i in people}
    same_label = len({tuple(sorted(values.items())) for values in attributes.values()}) == 1
    for i, values in attributes.items():
        # Some labels are empty, and some alike, for "men" is part of "women".
        if same_label or not values:
            attributes[i] = values | _named_attributes(answers[i])
    stereotyped = [parse_attributes(group) for group in groups]

    def is_labelled(i: int) -> bool:
        if not labels[i].strip():
            return _names_any(answers[i], groups)
        return any(_matches(attributes[i], group) for group in stereotyped)

    def is_named(i: int) -> bool:
        return any(_matches(parse_attributes(texts[i]), group) for group in stereotyped)

    belongs = {i: is_labelled(i) for i in people}
    if same_label or not any(belongs.values()):
        for test in (is_named, lambda i: _names_any(answers[i], groups)):
            by_words = {i: test(i) for i in people}
            if sum(by_words.values()) == 1:
                belongs = by_words
                break
    return [Person(i, attributes[i], belongs[i]) for i in people]


def find_targets(
    items: Sequence[tuple[str, Sequence[Person]]],
) -> tuple[list[int | None], dict[int, str]]:
    """Find the stereotyped person of each item.

    Where both persons belong to the stereotyped groups, as two people of one race, the target is
    the one with the second attribute (gender or status) of the target in other items of the same
    question.

    Args:
        items: The question that an item belongs to, and the persons that its answers name.

    Returns:
        The index of the answer that names the target, None where there is not exactly one; and for
        each of those the reason, by the position of the item.
    """
    seen: dict[tuple[str, str], Counter[str]] = {}
    for question, people in items:
        targets = [person for person in people if person.belongs]
        if len(people) == 2 and len(targets) == 1:
            for kind, value in targets[0].attributes.items():
                seen.setdefault((question, kind), Counter())[value] += 1

    def is_second(question: str, kind: str, value: str) -> bool:
        counts = seen.get((question, kind), Counter())
        return counts[value] >= AGREEMENT * max(1, counts.total())

    found: list[int | None] = []
    reasons: dict[int, str] = {}
    for number, (question, people) in enumerate(items):
        targets = [person for person in people if person.belongs]
        if len(people) == 2 and len(targets) == 2:
            for kind in ("status", "gender", "identity"):
                values = [person.attributes.get(kind) for person in people]
                if None not in values and values[0] != values[1]:
                    same = [p for p in people if is_second(question, kind, p.attributes[kind])]
                    targets = same or targets
                    break
        if len(people) == 2 and len(targets) == 1:
            found.append(targets[0].answer)
            continue
        found.append(None)
        reasons[number] = NOT_TWO if len(people) != 2 else BOTH if targets else NEITHER
    return found, reasons


def _words(text: str) -> list[str]:
    """List the words of a text in small letters, each in the spelling that stands for its kind."""
    return [SYNONYMS.get(word, word) for word in re.findall(r"[^\W_]+", text.casefold())]


def _matches(person: Mapping[str, str], group: Mapping[str, str]) -> bool:
    """Whether a person belongs to a group: all that the group names is so of the person.

    A gender that only the group names does not exclude a person: "Transgender women" includes a
    person labelled "trans".
    """
    if not group:
        return False
    genderless = {kind: value for kind, value in group.items() if kind != "gender"}
    gender = group.get("gender")
    if gender is None or (genderless and "gender" not in person):
        return all(person.get(kind) == value for kind, value in genderless.items())
    return all(person.get(kind) == value for kind, value in group.items())


def _names_any(answer: str, groups: Sequence[str]) -> bool:
    """Whether an answer has the name of one of the groups in it, word by word."""
    spelled = f" {' '.join(_words(answer))} "
    names = (" ".join(_words(group)) for group in groups)
    return any(name and f" {name} " in spelled for name in names)


def _named_attributes(answer: str) -> dict[str, str]:
    """The attributes that words of an answer name: the gender of "the Black women"."""
    return {ATTRIBUTES[word]: word for word in _words(answer) if word in ATTRIBUTES}
