"""Masked language models as subjects: pseudo-log-likelihoods (Salazar et al. 2020)."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from model.decoding.score import chosen_log_probs
from model.rows import check_numbers
from tasks.audits.subjects.subject import Float32, Subject, Written, computes

#: Logits held at a time, in elements (float32: 256 MiB).
LOGITS = 1 << 26


def like_lengths(lengths: Sequence[int], vocab_size: int) -> Iterator[list[int]]:
    """Indices of rows of like length, the longest first, within the memory of LOGITS."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    while order:
        rows = max(1, LOGITS // (vocab_size * max(1, lengths[order[0]])))
        yield order[:rows]
        order = order[rows:]


class Masked(Subject):
    """Both sides are seen; sequences stand between an opening and a closing token, where the
    tokenizer has them.

    end, mask   the closing token, None where there is none, and the token that hides another
    """

    kind = "masked"
    saving = sys.maxsize  # what it reads behind, it reads with it
    end: int | None
    mask: int

    @abstractmethod
    def logits_at(self, rows: Sequence[Sequence[int]], columns: Sequence[int]) -> Tensor:
        """Logits (B, V), float32, at one column of each row of token ids."""

    def group_rows(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Group the indices of rows that may be in one batch, the longest first."""
        return like_lengths(lengths, self.vocab_size)

    def log_probs(
        self, sequences: Sequence[Sequence[int]], given: Sequence[int] | None = None
    ) -> list[Float32]:
        opening = 0 if self.bos is None else 1
        places = [list(range(1, len(s))) for s in sequences]
        lines = [list(s[opening:]) for s in sequences]
        return self.masked_log_probs(lines, [[p - opening for p in row] for row in places])

    @computes
    @torch.inference_mode()
    def masked_log_probs(
        self, sequences: Sequence[Sequence[int]], places: Sequence[Sequence[int]]
    ) -> list[Float32]:
        """log p of the tokens at ``places`` of each sequence (without special tokens), each
        masked by itself with all others in sight; far from the ends of a sequence longer than the
        context, of its surroundings."""
        before = [] if self.bos is None else [self.bos]
        after = [] if self.end is None else [self.end]
        room = self.context - len(before) - len(after)
        scores = [np.empty(len(p), dtype=np.float32) for p in places]
        lines, cells = [], []
        for index, (sequence, wanted) in enumerate(zip(sequences, places, strict=True)):
            for number, place in enumerate(wanted):
                start = max(0, min(place - room // 2, len(sequence) - room))
                line = [*before, *sequence[start : start + room], *after]
                at = len(before) + place - start
                lines.append([*line[:at], self.mask, *line[at + 1 :]])
                cells.append((index, number, at, sequence[place]))
        for batch in self.group_rows([len(line) for line in lines]):
            logits = self.logits_at([lines[i] for i in batch], [cells[i][2] for i in batch])
            target = torch.tensor([cells[i][3] for i in batch], device=logits.device)
            chosen = check_numbers(chosen_log_probs(logits, target))
            for i, value in zip(batch, chosen.tolist(), strict=True):
                scores[cells[i][0]][cells[i][1]] = value
        return scores

    @computes
    @torch.inference_mode()
    def complete(
        self,
        contexts: Sequence[Sequence[int]],
        afters: Sequence[Sequence[int]],
        *,
        count: int,
        max_new_tokens: int,
    ) -> list[list[Written]]:
        before = [] if self.bos is None else [self.bos]
        behind = [] if self.end is None else [self.end]
        room = self.context - len(before) - len(behind) - 1
        lines, columns = [], []
        for context, after in zip(contexts, afters, strict=True):
            left = list(context)[-max(1, room - min(len(after), room // 2)) :]
            right = list(after)[: room - len(left)]
            lines.append([*before, *left, self.mask, *right, *behind])
            columns.append(len(before) + len(left))
        made: list[list[Written]] = [[] for _ in lines]
        for batch in self.group_rows([*map(len, lines)]):
            logits = self.logits_at([lines[i] for i in batch], [columns[i] for i in batch])
            best = check_numbers(logits.log_softmax(-1)).topk(min(count, logits.shape[1]))
            for i, *cells in zip(batch, best.indices.tolist(), best.values.cpu().numpy(),
                                 strict=True):  # fmt: skip
                made[i] = [Written([token], log_p[None], False)
                           for token, log_p in zip(*cells, strict=True)]  # fmt: skip
        return made
