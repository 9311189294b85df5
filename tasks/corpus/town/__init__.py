"""Compose documents of an invented town with a seeded grammar, and record the truth about each.

Imports the contract, the measures, and the removing actions of ``group_effects``. Only the stage
that scores the corpus against the truth reads the truth.
"""
