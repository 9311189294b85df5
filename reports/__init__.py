"""Artifacts in, cards and pages out. Imports ``tasks``; neither torch nor Prefect."""
