"""Proofs: how often audits are wrong on sealed worlds, and findings taken away with their
documents.

Imports ``judging`` and ``methods``; asks no model.
"""
