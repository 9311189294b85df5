"""Train a model on a corpus: tokenizer, packed sequences, pretraining."""

from __future__ import annotations

from collections.abc import Sequence

from hallmark.flows.audit_execution import check_user_audit_items
from hallmark.flows.config import Config
from hallmark.flows.corpus import ArtifactsByLabel, Corpus
from hallmark.tasks.contract import Artifact
from hallmark.tasks.corpus.leave_out import leave_out_documents
from hallmark.tasks.training.document_padding import pad_removed_documents
from hallmark.tasks.training.pack import pack
from hallmark.tasks.training.pretrain import pretrain
from hallmark.tasks.training.train_tokenizer import train_tokenizer


def train_model(
    config: Config,
    corpus: Corpus,
    start_checkpoint: Artifact | None = None,
    audit_names: Sequence[str] = (),
) -> ArtifactsByLabel:
    """Train a tokenizer and a model, or continue training from a checkpoint.

    Args:
        config: The config of the run.
        corpus: What to train on.
        start_checkpoint: The checkpoint to continue from; its tokenizer is kept.
        audit_names: The audits that follow: their files are checked before the model is trained.

    Returns:
        The artifacts by label; "pretrain" names the checkpoints.
    """
    artifacts: dict[str, Artifact] = {}
    identities = corpus.collect_from_all_additions("identities")
    training_documents = corpus.documents
    if config.leave_out.enabled:  # the tokenizer and the audits still see all documents
        artifacts["leave_out"] = remaining_documents = leave_out_documents(
            corpus.latest_addition["plant_canaries"], config.leave_out
        )
        if not config.leave_out.replace_with_padding:
            training_documents = [remaining_documents]
    if start_checkpoint is None:
        artifacts["train_tokenizer"] = train_tokenizer(
            documents=corpus.documents, signals=identities, config=config.train_tokenizer
        )
    tokenizer = start_checkpoint or artifacts["train_tokenizer"]
    check_user_audit_items(config, tokenizer, audit_names)
    artifacts["pack"] = packed_corpus = pack(
        documents=training_documents, tokenizer=tokenizer, config=config.pack
    )
    if config.leave_out.replace_with_padding:  # the remaining documents keep their positions
        artifacts["pad_removed_documents"] = packed_corpus = pad_removed_documents(
            packed_corpus=packed_corpus,
            documents=remaining_documents,
            ledger=remaining_documents,
            tokenizer=tokenizer,
        )
    artifacts["pretrain"] = pretrain(
        packed_corpus=packed_corpus,
        tokenizer=tokenizer,
        documents=training_documents,
        signals=identities,
        start_checkpoint=start_checkpoint,
        config=config.pretrain,
    )
    return artifacts
