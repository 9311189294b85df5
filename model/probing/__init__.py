"""What a trained model knows, asked without training it: answers, gaps, layers, positions.

Imports the core of ``model`` and ``decoding``, and of training how batches are drawn and clipped.
"""
