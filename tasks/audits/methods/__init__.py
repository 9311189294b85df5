"""Methods: ways of asking and of judging that several probes share.

Imports the room above, ``judging`` and the subjects; of probes it knows types alone.
"""
