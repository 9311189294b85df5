"""What a model can do, beside the harm it may do: cloze, dependencies, baselines, attention.

Imports the subjects, which it asks itself, and of ``judging`` how findings are written; no probe.
"""
