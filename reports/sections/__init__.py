"""The parts of cards, each from the tables of its artifacts; built on ``reports.page``.

Imports that and the contract, and computes nothing that a stage could have left.
"""
