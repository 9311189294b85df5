"""Everything a pipeline does, in rooms: audits, training, corpus → measures → contract.

The three rooms of stages import neither each other nor anything of ``reports`` and ``flows``.
"""
