"""What workers and trainers of tests find done: imports, models that are read once, and how fast
this machine multiplies.

Of the six seconds of a small training five are imports, of a worker that scores a part two. So they
are forks of a process that has imported this.
"""

import profanity_check.profanity_check  # noqa: F401
import torch
import torch._dynamo

import model.training.run  # noqa: F401
from model.training.machine import matmul_ceiling
from tasks.corpus.figures.texts import _classes
from tasks.measures.languages import _identifier

_classes()
_identifier()

torch.set_num_threads(1)  # threads do not survive a fork
CEILING = matmul_ceiling(torch.device("cpu"), torch.float32)
