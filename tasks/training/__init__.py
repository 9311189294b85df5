"""Stages that turn a corpus into a tokenizer, packed sequences and a trained model.

They import the contract, the measures and `model`, but nothing from the corpus or the audits.
"""
