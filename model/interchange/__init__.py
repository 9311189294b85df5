"""Models on disk: checkpoints of our own and of ``transformers``.

Imports the core of ``model`` alone; the one room of it that reads and writes checkpoints.
"""
