"""Use a trained model: generate texts, score tokens, extract embeddings and attention weights.

This package imports the core of ``model`` and its reference kernels. It changes no weights.
"""
