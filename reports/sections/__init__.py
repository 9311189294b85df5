"""The parts of cards, each from the tables of its artifacts; built on ``reports.page``.

Imports that and the contract; figures are read from rows, not computed here.
"""
