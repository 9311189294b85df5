"""A model to findings: the audits, their items and their statistics; ``subjects`` are the models.

Its stages import the contract, the measures and ``model``, nothing of corpus and training.
"""
