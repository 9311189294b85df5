"""Detectors of personal data and secrets, by what they find."""
