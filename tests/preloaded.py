"""Import modules and load models before the tests' workers and trainers are forked.

Of six seconds of a small training, imports take five; of a worker that scores a part, two. The
speed of a matrix product is measured here, too.
"""

import profanity_check.profanity_check  # noqa: F401
import torch
import torch._dynamo

import hallmark.model.training.run  # noqa: F401
from hallmark.model.training.hardware import measure_matmul_flops_per_second
from hallmark.tasks.corpus.quality_signals.text_batch import _build_character_classes
from hallmark.tasks.measures.languages import _load_language_identifier

_build_character_classes()
_load_language_identifier()

torch.set_num_threads(1)  # threads do not survive a fork
CEILING = measure_matmul_flops_per_second(torch.device("cpu"), torch.float32)
