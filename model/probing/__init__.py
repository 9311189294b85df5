"""Test what a trained model has learned: answers, gaps, labels, layers and positions.

This package imports the core of ``model``, ``decoding``, and from ``training`` the layout of
examples, the selection of batches and the clipping of gradients. The model's weights do not change,
except where an answer span model is trained on it.
"""
