"""Benchmarks that anyone can repeat: each module is a command that prints its measurements.

Benchmarks may import every package of the project, and no package imports them. The folder
``results`` holds earlier output, with the date and the machine.
"""
