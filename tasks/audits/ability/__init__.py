"""Measure what a model can do, to weigh it against its risks: capability and attention.

These modules run the audited models themselves and use the findings of ``judging``, but no probe.
"""
