"""Probes: one file each, what is asked of a model and what the answers are worth.

Imports the room above, ``methods`` and ``judging``, and of the subjects how they read; no model.
"""
