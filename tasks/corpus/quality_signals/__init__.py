"""Figures of texts that published rules of quality look at: pure functions over Arrow columns.

Imports nothing of the project.
"""
