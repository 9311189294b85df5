"""Detectors of personal data and secrets; each finds one kind of span in a text.

Imports nothing from the rest of the project.
"""
