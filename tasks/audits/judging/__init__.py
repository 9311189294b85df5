"""Compute findings from values, compare findings, and judge them by a policy.

These modules import the tables of the audits but run no model and know no probe.
"""
