"""What a trained model is asked: texts, log-probabilities, embeddings, attention weights.

Imports the core of ``model``, and of training what a row of tokens looks like. Changes no weight.
"""
