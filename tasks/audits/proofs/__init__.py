"""Proofs: how often audits are wrong on sealed worlds, and findings taken away with their
documents."""
