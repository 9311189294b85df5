"""Training: data, optimisers, the trainer's process, its state; fine-tuning of classifiers.

Imports all other rooms of ``model``; nothing but the job tells it of the stage that starts it.
"""
