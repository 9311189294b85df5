"""Training: data, optimisers, the trainer's process, its state; fine-tuning of classifiers."""
