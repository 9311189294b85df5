"""The transformer: architecture, objectives, training, decoding, checkpoints.

The core is an evening's reading, in this order:

    config        what a model is, and how it is trained
    batch         what it reads and is to predict
    positions     where a token stands
    masks         who may attend to whom
    attention     queries, keys and values
    architecture  block, stack, and the model made of stacks
    objectives    from rows of tokens to a batch
    loss          cross-entropy of the output layer

and then ``training/optimise``. ``plain`` holds the formulas of what is written for speed, in
``kernels`` (attention, products) and ``loss``; ``draws`` is all randomness but torch's own,
``precision`` says where bf16 pays, ``tokens`` names what stands in every vocabulary, ``rows`` lays
sequences out as rows; ``decoding`` what a trained model is asked, ``probing`` what it knows;
``interchange`` models on disk. The core imports none of these rooms. A trainer is started as
``python -m model.training.run JOB.json``. The package stands alone: it imports torch, numpy,
pyarrow, safetensors and tokenizers, and nothing of the other packages.
"""

import os

# Threads that wait for each other spin a moment, then sleep. Waking one takes as long as many an
# operation of a step of decoding: with half of these rounds it took a twelfth longer, with twice as
# many it takes a twelfth less. But two trainings side by side would then lose a quarter of their
# speed, where they lose a tenth now; with the library's 300,000 a step took ten times as long where
# others want the same cores. It counts only if set before torch loads its OpenMP library.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")

# Without this, MKL schedules dynamically and the last bits of a matrix product may differ from run
# to run on one and the same machine: conditional numerical reproducibility fixes the schedule, and
# (STRICT, where the processor supports it) makes products independent of the number of threads.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
