"""Models on disk: checkpoints of our own and of ``transformers``."""
