"""Small stages for the tests of reporters.

The digest of a stage's code covers what its module imports, so this module imports little.
"""

from hallmark.tasks.contract import StageContext, stage
from tests.tasks.contract.stages import CountConfig

#: Stands for the text of a corpus, which no reporter may send.
WORD = "confidential-word"


@stage(name="raise_text")
def raise_text(config: CountConfig, context: StageContext) -> None:
    raise ValueError(WORD)


@stage(name="interrupt")
def interrupt(config: CountConfig, context: StageContext) -> None:
    raise KeyboardInterrupt


@stage(name="learn")
def learn(config: CountConfig, context: StageContext) -> None:
    context.report_progress(3, 10, "")
    for step in (1, 2, 3):
        context.report_metrics(step, {"loss": 4.0 / step, "mfu": float("nan")})
