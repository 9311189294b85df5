"""What workers and trainers of tests find done: imports, and models that are read once.

Of the six seconds of a small training five are imports, of a worker that scores a part two. So they
are forks of a process that has imported this.
"""

import profanity_check.profanity_check  # noqa: F401
import torch._dynamo  # noqa: F401

import model.training.run  # noqa: F401
from tasks.corpus.figures.texts import _classes
from tasks.measures.languages import _identifier

_classes()
_identifier()
