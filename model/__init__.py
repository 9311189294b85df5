"""The transformer: architecture, objectives, training, decoding, checkpoints.

The package stands alone: it imports torch, numpy, pyarrow, safetensors and tokenizers, and nothing
of the other packages. A trainer is started as ``python -m model.train JOB.json``.
"""

import os

# Threads that wait for each other sleep instead of spinning. Where other processes want the same
# cores, spinning made a training step ten times as slow here (764 against 7,126 tokens/s, two
# threads on two busy cores). It counts only if set before torch loads its OpenMP library.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Without this, MKL schedules dynamically and the last bits of a matrix product may differ from run
# to run on one and the same machine: conditional numerical reproducibility fixes the schedule, and
# (STRICT, where the processor supports it) makes products independent of the number of threads.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
