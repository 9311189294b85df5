"""A corpus to a tokenizer, packed sequences and a trained model.

Its stages import the contract, the measures and ``model``, nothing of corpus and audits.
"""
