"""Explain statistical terms where a page uses them for the first time.

A definition is the ``title`` of the term, so that it is read without leaving the page. It belongs
to the rendering, like the style sheet: no card contains it.
"""

from __future__ import annotations

import re

import markupsafe

#: What each term means, in a phrase.
DEFINITIONS = {
    "Min-K++": (
        "mean probability of a text's least likely tokens, each compared with the probabilities "
        "of all other tokens; high for a text that the model has read"
    ),
    "Min-K": (
        "mean log-probability of a text's least likely tokens; high for a text that the model has "
        "read"
    ),
    "Mantel–Haenszel": "method that combines the ratios of all sources into one",
    "Holm": (
        "correction of p for the number of tests, which keeps false alarms as rare as in a single "
        "test"
    ),
    "FDR": "false discovery rate: expected share of false alarms among all reported effects",
    "AUC": (
        "area under the ROC curve: probability that a training document gets a higher score than "
        "another document"
    ),
    "log-odds": "logarithm of p / (1 − p) for a probability p; 0 means equally likely",
    "nats": "unit for base-e logarithms of probabilities; 1 nat is 1.44 bits",
    "perplexity": "how much a text surprises the model; low for a text that it has memorised",
}

_TERM = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, DEFINITIONS))})(?![\w+]|-\w)")


_EXPLAINED_TERM = markupsafe.Markup('<abbr title="{}">{}</abbr>')


def explain_terms(text: str, explained_terms: set[str]) -> markupsafe.Markup:
    """Escape a text, and give each term that was not explained before its definition.

    Args:
        text: The text.
        explained_terms: The terms that the page has explained; those of the text are added.
    """
    html = markupsafe.Markup()
    end = 0
    for match in _TERM.finditer(text):
        term = match[0]
        if term not in explained_terms:
            explained_terms.add(term)
            html += text[end : match.start()]  # what is added to markup is escaped
            html += _EXPLAINED_TERM.format(DEFINITIONS[term], term)
            end = match.end()
    return html + text[end:]
