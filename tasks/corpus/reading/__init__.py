"""Containers of text to records: files, data sets, installed documentation. Knows no stage."""
