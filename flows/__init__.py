"""Flows, deployments, the command line and configs: everything that a person runs or schedules.

This is the top package: it may import all others, and none of them imports it.
"""
