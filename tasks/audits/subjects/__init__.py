"""Models under audit: our own checkpoints and Hugging Face folders, behind one interface.

Imports ``model`` and the contract; no audit, and nothing that knows what is asked.
"""
