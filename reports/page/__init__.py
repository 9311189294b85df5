"""How a card is made: blocks, figures with their rows, masking, charts, and the two renderers.

Imports the contract, the detectors of personal data, by which it masks, and how audits write the
conditions of rows; it knows no section.
"""
