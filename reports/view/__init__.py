"""Render the pages of the review application, ``hallmark view``.

The application itself is in ``flows/application``, since it opens runs and traces texts.
"""
