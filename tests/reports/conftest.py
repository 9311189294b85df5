import pytest

from hallmark.reports.datasheet import DatasheetConfig, build_datasheet
from hallmark.reports.model_card import ModelCardConfig, build_model_card
from hallmark.tasks.contract import Session, Store, open_session
from tests.reports import finetuning_artifacts
from tests.reports.artifacts import LINK, Made, make


@pytest.fixture(scope="session")
def session(tmp_path_factory):
    with open_session(Session(Store(tmp_path_factory.mktemp("reports-store")))) as opened:
        yield opened


@pytest.fixture(scope="session")
def made(session, tmp_path_factory) -> Made:
    return make(tmp_path_factory.mktemp("reports-made"))


@pytest.fixture(scope="session")
def cards(made):
    """All cards, with hostile words in what a person said."""
    sheet = build_datasheet(made.profile, made.corpus, DatasheetConfig(title=f"Corpus {LINK}"))
    corpus = made.corpus | {"profile": made.profile, "datasheet": sheet}
    config = ModelCardConfig(title="A model", intended_use="1. Tests\n# only")
    card = build_model_card(
        made.checkpoint,
        made.pretrained,
        made.tokenizer,
        made.audits,
        corpus,
        made.maps,
        made.written,
        None,
        None,
        {},
        None,
        config,
    )
    of_task = finetuning_artifacts.card_of(made.tuned, title=f"A task {LINK}")
    return {"datasheet": sheet, "model_card": card, "task_card": of_task}
