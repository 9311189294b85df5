"""Progress of a run: the same line in a terminal, and on a pipe every half minute."""

import io
import re

from rich.console import Console

from hallmark.flows.console import RunProgressDisplay
from hallmark.tasks.contract import Event
from hallmark.tasks.training.pretrain import format_step_progress


class Piped:
    """A progress display on a pipe, with a clock that the test sets."""

    def __init__(self, **console):
        self.now, self.file = 1000.0, io.StringIO()
        self.view = RunProgressDisplay(
            Console(file=self.file, **{"width": 40} | console), lambda: self.now
        )

    def tell(self, kind, done=0, total=0, what="", after=0.0):
        self.now += after
        self.view(Event(kind, "pretrain", None, 0.0, done, total, what))

    @property
    def lines(self):
        return self.file.getvalue().splitlines()


def test_a_long_stage_reports_its_progress_every_half_minute():
    piped = Piped()
    piped.tell("start")
    for second in range(1, 101):
        piped.tell("progress", second, 4000, "loss [3.1], 1,200 tokens/s", after=1.0)
    assert piped.lines == [
        f"  pretrain {n} of 4,000, {(4000 - n) / 60:.1f} min remaining, loss [3.1], "
        f"1,200 tokens/s, {n}.0 s elapsed"
        for n in (30, 60, 90)
    ]


def test_resumed_work_does_not_shorten_the_remaining_time():
    piped = Piped()
    piped.tell("start")
    piped.tell("progress", 300, 400, after=10.0)  # resumed: ten seconds to load
    piped.tell("progress", 320, 400, after=40.0)
    assert piped.lines == ["  pretrain 320 of 400, 2.7 min remaining, 50.0 s elapsed"]


def test_each_stage_starts_a_new_half_minute():
    piped = Piped()
    piped.tell("start")
    piped.tell("progress", 1, 3, after=29.0)
    piped.tell("start")
    piped.tell("progress", 1, 3, after=29.0)
    assert not piped.lines
    piped.tell("progress", 5, after=1.0)  # of how many it does not know
    assert piped.lines == ["  pretrain 5, 30.0 s elapsed"]


def test_a_silent_stage_is_reported_too():
    """The last event of a long step, or of a stage with one part, is repeated."""
    piped = Piped()
    piped.tell("start")
    for _ in range(13):
        piped.tell("silence", after=5.0)
    piped.tell("progress", 1, 4, after=25.0)  # 90 s
    piped.tell("figures", 1)
    for _ in range(6):
        piped.tell("silence", after=5.0)
    piped.tell("done")
    for _ in range(20):
        piped.tell("silence", after=5.0)
    assert piped.lines == [
        "  pretrain 30.0 s elapsed",
        "  pretrain 60.0 s elapsed",
        "  pretrain 1 of 4, 90.0 s elapsed",
        "  pretrain 1 of 4, 2.0 min elapsed",
    ]


STEP = {
    "loss": 10.1234,
    "learning_rate": 0.0006,
    "grad_norm": 1.25,
    "tokens_per_second": 12_345,
    "mfu": 0.31,
}


def test_a_terminal_of_80_columns_shows_steps_time_and_both_losses():
    """The same line as in a log file, cut at the right; without the cut 79 of 80 columns."""
    piped = Piped(width=80, force_terminal=True)
    piped.tell("start")
    piped.tell("progress", 1, 100_000, format_step_progress(STEP, None), after=1.0)
    piped.tell(
        "progress", 12_345, 100_000, format_step_progress(STEP, (9_000, 10.2345)), after=20_000.0
    )
    with piped.view.console.capture() as capture:
        piped.view.console.print(piped.view.progress.get_renderable())
    (line,) = re.sub(r"\x1b\[[\d;]*m", "", capture.get()).splitlines()
    assert len(line) == 80
    assert line[2:].startswith(
        "pretrain 12,345 of 100,000, 39.5 h remaining, loss 10.123, validation 10.235"
    )
    assert line.endswith("…")


def test_a_wide_terminal_shows_the_line_of_the_log_file():
    piped, log = Piped(width=200, force_terminal=True), Piped(width=80)
    for display in (piped, log):
        display.tell("start")
        display.tell("progress", 1, 400, format_step_progress(STEP, (0, 9.5)), after=1.0)
        display.tell("progress", 31, 400, format_step_progress(STEP, (0, 9.5)), after=30.0)
    with piped.view.console.capture() as capture:
        piped.view.console.print(piped.view.progress.get_renderable())
    (log_line,) = log.lines
    assert log_line.strip() == (
        "pretrain 31 of 400, 6.2 min remaining, loss 10.123, validation 9.500 (step 0), "
        "12,345 tokens/s, MFU 31%, learning rate 0.0006, gradient norm 1.2, 31.0 s elapsed"
    )
    assert log_line.strip() in capture.get()


def test_a_terminal_gets_no_line_every_half_minute():
    piped = Piped(force_terminal=True)
    piped.tell("start")
    piped.tell("progress", 1, 3, after=100.0)
    piped.tell("silence", after=100.0)
    assert not piped.lines


class Left:
    """Imitates an artifact."""

    def __init__(self, files=(), **rows):
        self.manifest = {"files": dict.fromkeys(files)}
        self.tables = {name: Rows(count) for name, count in rows.items()}


class Rows:
    def __init__(self, rows):
        self.row_count = rows


def test_stages_of_one_step_share_a_line():
    """The line sums their rows; cached stages add no seconds."""
    piped = Piped()
    with piped.view:
        for kind, label, step, seconds, left in (
            ("done", "pack", "", 1.5, Left(["a.json"], train=1234)),
            ("done", "bias_ask", "ask", 0.25, Left(items=1000, requests=7)),
            ("cached", "toxicity_ask", "ask", 0.0, Left(items=234, skipped=1)),
            ("cached", "bias_respond", "respond", 0.0, Left(responses=5)),
        ):
            if kind == "done":
                piped.view(Event("start", label, phase=step))
            piped.view(Event(kind, label, left, seconds, phase=step))
        assert piped.lines == [
            "✓ pack                    1.5 s   train 1,234, a.json",
            "✓ ask                     0.2 s   2 audits, items 1,234, requests 7, skipped 1",
        ]
    assert piped.lines[2:] == ["✓ respond                cached   responses 5"]


def test_a_step_is_printed_before_the_next_one_starts():
    piped = Piped()
    piped.view(Event("done", "bias_ask", Left(items=1), 1.0, phase="ask"))
    piped.view(Event("start", "toxicity_ask", phase="ask"))
    assert not piped.lines
    piped.view(Event("start", "bias_respond", phase="respond"))
    assert piped.lines == ["✓ ask                     1.0 s   items 1"]
