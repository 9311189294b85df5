"""The transformer: architecture, objectives, training, decoding, checkpoints.

The package stands alone: it imports torch, numpy, pyarrow, safetensors and tokenizers, and nothing
of the other packages. A trainer is started as ``python -m model.training.train JOB.json``.
"""

import os

# Threads that wait for each other spin a moment, then sleep. Spinning for long made a training step
# ten times as slow where other processes want the same cores; never spinning costs a quarter of the
# speed where none do. It counts only if set before torch loads its OpenMP library.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# Without this, MKL schedules dynamically and the last bits of a matrix product may differ from run
# to run on one and the same machine: conditional numerical reproducibility fixes the schedule, and
# (STRICT, where the processor supports it) makes products independent of the number of threads.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
