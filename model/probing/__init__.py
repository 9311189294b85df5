"""What a trained model knows, asked without training it: answers, gaps, layers, positions."""
