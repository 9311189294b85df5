"""What a trained model is asked: texts, log-probabilities, embeddings, attention weights.

Imports the core of ``model`` and its plain forms. Changes no weight.
"""
