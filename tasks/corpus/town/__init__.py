"""An invented town: documents composed by a seeded grammar, and the truth of each of them.

Imports the contract and the measures. The truth is read by the stage that scores the corpus
against it, and by no other.
"""
