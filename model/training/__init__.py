"""Train models: data, optimizers, the training process and its state, fine-tuning of classifiers.

This package imports the core of ``model``, ``decoding`` and ``interchange``. It knows nothing of
the caller except the job that the caller writes.
"""
