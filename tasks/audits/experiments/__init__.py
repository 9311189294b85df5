"""Test the audits: error rates on sealed worlds, and findings after their documents are removed.

These modules import ``judging`` and ``methods`` and run no model.
"""
