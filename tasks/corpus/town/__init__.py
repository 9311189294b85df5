"""An invented town: documents composed by a seeded grammar, and the truth of each of them.

Imports the contract, the measures, and of ``people`` the actions with which documents leave. The
truth is read by the stage that scores the corpus against it, and by no other.
"""
