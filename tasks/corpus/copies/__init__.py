"""Find copies among documents: sketches, matching, repeated spans and earlier corpora.

These are pure functions and tables; the stages that use them are in ``hallmark.tasks.corpus``.
"""
