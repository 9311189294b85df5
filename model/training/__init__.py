"""Training: data, optimisers, the trainer's process, its state; fine-tuning of classifiers.

Imports the core of ``model``, ``decoding`` and ``interchange``; nothing but the job tells it of the
stage that starts it.
"""
