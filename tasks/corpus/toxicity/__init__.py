"""How a document's toxicity is scored: its windows, and which scorer is asked of which.

Imports the contract and the scorers.
"""
