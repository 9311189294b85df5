"""Compute the text figures of published quality rules, as pure functions over Arrow columns.

Imports nothing else of Hallmark.
"""
