"""How a card is made: blocks, figures with their rows, masking, charts, and the two renderers.

Imports the contract and the detectors of personal data, by which it masks; it knows no section.
"""
