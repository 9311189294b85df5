"""Models under audit: our own checkpoints and Hugging Face folders, behind one interface.

Imports ``model``, the contract and the measures; no audit, and nothing that knows what is asked.
"""
