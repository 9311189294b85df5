"""What a trained model is asked: texts, log-probabilities, embeddings, attention weights."""
