"""Values to findings, and what is made of these: measures, comparisons, the policy's verdicts.

Imports of the room above what answers are; asks no model and knows no probe.
"""
