"""What a trained model is asked: texts, log-probabilities, embeddings, attention weights.

Imports the core of ``model``, and of training how rows and examples are laid out and
in which precision a device computes. Changes no weight.
"""
