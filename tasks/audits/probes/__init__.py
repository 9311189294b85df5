"""Probes: one file each, what is asked of a model and what the answers are worth."""
