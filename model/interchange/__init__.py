"""Read and write models on disk: this program's checkpoints and those of ``transformers``.

This package imports only the core of ``model``, which does not read or write checkpoints itself.
"""
