"""The parts of cards, each from the tables of its artifacts; built on ``hallmark.reports.page``.

Imports that, the contract, of the measures corrections and the types of personal data, and what
audits say of themselves: their titles, levels and comparisons; figures are read from rows, not
computed here. Of the corpus stages they import what says which rules tag, and what a rule over
toxicity does by default.
"""
