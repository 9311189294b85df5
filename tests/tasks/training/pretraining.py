"""Run a tiny pretraining for tests, in their own process or (`python -m`) in another."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from hallmark.model.config import ModelConfig, TrainConfig
from hallmark.tasks.contract import Artifact, Session, Store, open_session, stored_states
from hallmark.tasks.training.pack import PackConfig, pack
from hallmark.tasks.training.pretrain import PretrainConfig, pretrain
from hallmark.tasks.training.train_tokenizer import TokenizerConfig, train_tokenizer
from tests.tasks.small_corpus import split_corpus

CONFIG = PretrainConfig(
    model=ModelConfig(d_model=32, n_layers=2, n_heads=2),
    # One thread: on a busy machine, two would wait for each other at every small matrix product.
    train=TrainConfig(
        steps=300, batch_size=8, warmup_steps=10, checkpoint_every=50, validate_every=100, threads=1
    ),
)


def run(store: Path | str, config: PretrainConfig = CONFIG) -> tuple[Artifact, Artifact]:
    """Pretrain in a store; return the packed corpus and the result."""
    with open_session(Session(Store(store))):
        corpus = split_corpus(200, parts=4)
        tokenizer = train_tokenizer(corpus, None, TokenizerConfig(vocab_size=300))
        packed = pack(corpus, tokenizer, PackConfig(context=32))
        return packed, pretrain(packed, tokenizer, corpus, None, None, config)


def prepare_inputs(store: Path) -> tuple[Artifact, Artifact, Artifact, None, None]:
    """Return the inputs of the stage pretrain."""
    from hallmark.tasks.training.pack import PackConfig, pack
    from hallmark.tasks.training.train_tokenizer import TokenizerConfig, train_tokenizer

    with open_session(Session(Store(store))):
        corpus = split_corpus(60)
        tokenizer = train_tokenizer(corpus, None, TokenizerConfig(vocab_size=300))
        return pack(corpus, tokenizer, PackConfig(context=32)), tokenizer, corpus, None, None


if __name__ == "__main__":
    stored_states.SEND_INTERVAL_SECONDS = 0.0
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    print(run(sys.argv[1])[1].content_digest, flush=True)
