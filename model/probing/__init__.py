"""What a trained model knows, asked without training it: answers, gaps, labels, layers, positions.

Imports the core of ``model``, ``decoding`` and ``training``: how examples are laid out, how batches
are drawn and clipped.
"""
