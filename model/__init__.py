"""Define, train, decode, probe and store transformers in PyTorch.

Read the core in this order:

    config        sizes of a model, settings of its training
    batch         the tensors that a model reads and predicts
    positions     sinusoidal and rotary positions
    masks         which tokens may attend to which
    attention     queries, keys and values
    architecture  block, stack, and the model made of stacks
    objectives    from rows of tokens to a batch
    loss          cross-entropy of the output layer

then ``training/training_step``, one step from the learning rate to the update. ``kernels`` and
``loss`` are written for speed; ``reference`` has the same formulas in plain code.
``keyed_randomness`` holds all randomness except torch's own, ``precision`` decides where bf16 is
used, ``special_tokens`` names the ids that every vocabulary has, and ``padding`` turns sequences
into padded rows. ``decoding`` generates and scores text,
``probing`` tests what a model has learned, and ``interchange`` reads and writes checkpoints; the
core imports none of these subpackages. ``python -m hallmark.model.training.run JOB.json`` starts a
training process. The package imports torch, numpy, pyarrow, safetensors and tokenizers, and no
other package of this repository.
"""

import os

# OpenMP threads that wait for each other spin briefly, then sleep. Waking a thread takes as long as
# many an operation of a decoding step: half as many rounds made a step 1/12 slower, twice as many
# 1/12 faster. But with twice as many, two concurrent trainings would be a quarter slower instead of
# a tenth; with the library's default of 300,000 a step takes ten times as long when other processes
# want the same cores. The variable only has an effect if it is set before torch loads OpenMP.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")

# Without this, MKL schedules dynamically, and the last bits of a matrix product may differ between
# runs on the same machine. Conditional numerical reproducibility fixes the schedule; STRICT, where
# the processor supports it, makes products independent of the number of threads.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
