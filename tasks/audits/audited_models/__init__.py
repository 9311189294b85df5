"""Give audits one interface to Hallmark checkpoints and Hugging Face folders.

These modules import ``model``, the contract and the measures, but no audit.
"""
