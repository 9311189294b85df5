"""Building blocks of a page: blocks, figures with their rows, redaction, charts and renderers.

Imports the contract, the detectors of personal data for redaction, and the row conditions of audit
findings; it imports no section.
"""
