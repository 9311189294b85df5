"""Turn raw text into a curated corpus; most modules here are one stage each.

The subpackages hold what the stages are built from: ``reading`` of sources, ``copies`` of
documents, ``quality_signals``, ``toxicity``, ``group_effects`` of curation, ``profiles`` and the
invented ``town``. Stages import ``tasks.contract`` and ``tasks.measures``, but neither training nor
audits.
"""
