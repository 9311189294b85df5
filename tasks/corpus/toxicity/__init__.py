"""Score the toxicity of documents: in windows, and with a cascade of scorers.

Imports only the contract and the scorers.
"""
