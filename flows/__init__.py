"""What a person runs or schedules: flows, deployments, the command line, configs.

This is the last of the packages: it may import all others, and none of them imports it.
"""
