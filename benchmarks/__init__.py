"""Measurements that anyone can repeat: each module is a command, and says what it prints.

They may import everything, and nothing imports them; ``results`` holds what they
printed, and where.
"""
