"""Sections of cards, each built from the tables of its artifacts.

They sit on ``hallmark.reports.page`` and read figures from rows; they compute no measurements.
Their other imports are the contract, the titles and comparisons of the audits, the types of
personal data, the correction of p values, and the defaults of the selection rules.
"""
