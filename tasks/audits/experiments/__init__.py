"""Test the audits: error rates on sealed trials, and findings after their documents are removed.

These modules import ``judging`` and ``methods`` and run no model.
"""
