"""Detectors of personal data and secrets, by what they find.

Imports nothing of the project: texts in, spans out.
"""
