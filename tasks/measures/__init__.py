"""Scorers, statistics, lexicons, language detection, personal-data detectors and canaries.

Preparation of the corpus, training and audits share these modules. They define no stages and import
only `tasks.contract`.
"""
