"""The training run, its samples and the tokenizer on the model card: groups, masks, what lacks."""

import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hallmark.reports.model_card import ModelCardConfig, build_model_card
from hallmark.reports.page.figures import FigureBook
from hallmark.reports.page.redaction import Redactor
from hallmark.reports.sections.checkpoint import read_file_rows
from hallmark.reports.sections.training import (
    build_checkpoint_table,
    build_loss_chart,
    build_samples_section,
)
from hallmark.tasks.audits.sample_scoring import ScoreSamplesConfig, score_samples
from hallmark.tasks.contract import Artifact, EmptyConfig, HallmarkError, StageContext, stage
from hallmark.tasks.training.pretrain import CHECKPOINTS, SAMPLES
from tests.reports import artifacts, pages


@pytest.fixture
def page(cards):
    return pages.read_whole_card(pages.write_pages(cards["model_card"]) / "model_card.html")


def card_of(made, pretrained=None, tokenizer=None, checkpoint=None, corpus=None, **settings):
    config = ModelCardConfig(**settings)
    found = checkpoint or made.checkpoint
    written = score_samples(pretrained, ScoreSamplesConfig()) if pretrained else None
    card = build_model_card(
        found, pretrained, tokenizer, {}, corpus or {}, None, written, None, None, {}, None, config
    )
    assert pages.broken_links(pages.write_pages(card)) == []
    return pages.read_whole_card(pages.write_pages(card) / "model_card.html")


def tables(page, *head):
    return [table[1:] for table in page.tables if tuple(table[0][: len(head)]) == head]


def words(page):
    return " ".join(page.text.split())


def test_a_training_of_no_step_has_neither_curve_nor_checkpoints():
    def table(*names):
        return SimpleNamespace(read=lambda _=None: pa.table({name: [] for name in names}))

    left = {"log": table("step", "loss", "validation_loss"), "checkpoints": table("step")}
    assert build_loss_chart(left) == []
    assert (
        build_checkpoint_table(
            FigureBook({"pretrain": left}), "pretrain", {}, "the untrained model", 40
        )
        == []
    )


@given(st.lists(st.one_of(st.none(), st.just(math.nan), st.floats(0, 9)), max_size=9))
def test_a_loss_falls_only_where_the_numbers_beside_it_do(losses):
    """Nor does one that is no number, or that falls by less than the digits that are shown."""
    logged = pa.table(
        {
            "step": range(1, len(losses) + 1),
            "loss": pa.array(losses, pa.float64()),
            "validation_loss": pa.nulls(len(losses), pa.float64()),
        }
    )
    table = SimpleNamespace(read=lambda _=None: logged)
    for rows in (0, 3):
        made = build_loss_chart({"log": table, "checkpoints": SimpleNamespace(row_count=rows)})
        if not any(loss is not None for loss in losses):
            assert made == []
            continue
        first, last = re.search(r"from (\S+) to (\S+) nats", made[0].alt_text).groups()
        assert ("falls" in made[0].alt_text) == (float(last) < float(first))
        assert ("losses at the checkpoints" in made[0].caption) == bool(rows)


@pytest.mark.parametrize(
    ("first", "expected"), [((0, None), True), ((0, 3.0), False), ((5, None), False)]
)
def test_step_0_has_no_loss_only_where_its_line_has_none(session, first, expected):
    @stage(name="taken", tables={"checkpoints": CHECKPOINTS})
    def taken(config: artifacts.TrainedConfig, context: StageContext) -> None:
        for step, loss in (first, (9, 1.0)):
            row = {"step": step, "tokens_seen": step, "artifact": "a", "content_digest": "c"}
            row |= {"loss": loss, "validation_loss": loss}
            context.get_table_writer("checkpoints").write(
                {key: [value] for key, value in row.items()}
            )

    left = taken(artifacts.TrainedConfig(content=str(first)))
    (grid,) = build_checkpoint_table(
        FigureBook({"pretrain": left}), "pretrain", {}, "the untrained model", 40
    )
    assert ("training had not computed a loss yet" in grid.note) == expected


def test_samples_of_one_step_are_not_said_to_be_of_two(session, made):
    """And where texts were written but not scored, the card does not say that none is known."""
    left = artifacts.trained(None, artifacts.TrainedConfig(texts=("the sea was calm",)))
    page = card_of(made, left)
    assert "The texts were generated at the first and last sampling steps" in page.text
    card = build_model_card(
        made.checkpoint, left, None, {}, {}, None, None, None, None, {}, None, ModelCardConfig()
    )
    text = pages.text_of(card, "model_card")
    assert left["samples"].row_count and "No text that the model wrote" not in text
    only = score_samples(only_step(left, EmptyConfig()), ScoreSamplesConfig())
    section = build_samples_section(FigureBook({"score_samples": only}), only, Redactor())
    assert section.blocks[-1].note == "The texts were generated at the only sampling step."


@stage(name="only_step", tables={"samples": SAMPLES})
def only_step(pretrained: Artifact, config: EmptyConfig, context: StageContext) -> None:
    rows = pretrained["samples"].read()
    context.get_table_writer("samples").write(rows.filter(pc.equal(rows["step"], 250)))


# Held-out text by group ------------------------------------------------------------------------


def test_groups_stand_beside_the_whole_the_first_step_beside_the_last(page):
    assert tables(page, "source", "n", "step 100", "step 250") == [
        [
            ["all", "9,000", "4.500", "2.500"],
            ["books", "7,000", "4.250", "2.250"],
            [artifacts.SCRIPT, "1,000", "5.000", "3.000"],
            [artifacts.TABLE, "999 (few)", "5.500", "3.500"],
        ]
    ]
    assert tables(page, "identity group", "n", "step 100") == [
        [
            ["all", "9,000", "4.500", "2.500"],
            ["women", "40 (few)", "6.000", "4.000"],
            [artifacts.LINK, "0 (few)", "not measured", "not measured"],
        ]
    ]
    assert (
        "“Few” means fewer than 1,000 tokens" in page.text and "No intervals are shown" in page.text
    )


def test_groups_left_out_are_counted(session, made):
    page = card_of(made, made.pretrained, made.tokenizer, max_table_rows=1)
    [sources] = tables(page, "source", "n", "step 100")
    assert [row[0] for row in sources] == ["all", "books"]
    assert "The group with the most tokens is shown; 2 more are in the validation table." in words(
        page
    )
    [languages] = tables(page, "estimated language")
    assert [row[0] for row in languages] == ["all", "en"]
    assert "The group with the most tokens is shown; 1 more is in the fertility table." in words(
        page
    )


def test_an_objective_that_moves_tokens_has_the_whole_alone(session, made):
    log = artifacts.trained(None, artifacts.TrainedConfig(measured=("all",)))
    page = card_of(made, log)
    assert tables(page, "group", "n") == [[["all", "9,000", "4.500", "2.500"]]]
    assert "Groups were not measured separately." in page.text


def test_a_log_without_held_out_text_says_so(session, made):
    page = card_of(made, artifacts.trained(None, artifacts.TrainedConfig(measured=())))
    assert "Bits per byte of held-out text were not measured by group during training." in page.text
    assert "No text generated during training was scored." in page.text


# What was read ---------------------------------------------------------------------------------


def test_the_card_says_what_was_read_and_not_what_there_was(page):
    said = words(page)
    assert not re.search(r"trained on [\d,]+ (documents|tokens)", said.lower())
    assert (
        "By step 250, the model had read 42,500 tokens. The text packed for training has 61,000 "
        "tokens, so training covered 0.6967 epochs; tokens read twice are counted twice. Of 304 "
        "documents, the model had read at least part of 204 and all of 154. The model was trained "
        "on no documents other than these 204."
    ) in said.split("Model details")[1]  # among the main results, after the contents
    assert tables(page, "source", "documents", "read at least in part") == [
        [
            ["books", "300", "200", "150", "40,000", "0.6667"],
            [artifacts.SCRIPT, "4", "4", "4", "2,500", "2.500"],
        ]
    ]


def test_of_a_checkpoint_that_the_training_did_not_leave_nothing_is_said(session, made):
    log = artifacts.trained(None, artifacts.TrainedConfig(content="another"))
    page = card_of(made, log, corpus={**made.corpus, "profile": made.profile})
    assert "By step" not in words(page)
    assert "; it is not recorded how much of each document the model read." in words(page)


def test_of_many_sources_the_largest_are_shown(session, made):
    page = card_of(
        made, made.pretrained, corpus={**made.corpus, "profile": made.profile}, max_table_rows=1
    )
    [shown] = tables(page, "source", "documents", "read at least in part")
    assert [row[0] for row in shown] == ["books"]
    assert (
        "The table shows 1 of 2 sources, largest first; the coverage table lists all of them."
        in words(page)
    )


# Samples ---------------------------------------------------------------------------------------


def test_samples_of_the_first_and_last_step_are_masked_and_clipped(page):
    [lines] = tables(page, "step", "generated text")
    assert [row[0] for row in lines] == ["100", "100", "250", "250"]
    first, second = lines[2][1], lines[3][1]
    assert first == f"{artifacts.SCRIPT} {artifacts.TABLE} calls [phone masked] at 250"
    assert "‹U+202E›" in second and "tells [planted secret masked]" in second
    assert second.endswith("characters in total]") and len(second) < 350
    assert "the model wrote 9 texts, which alt-profanity-check" in words(page)


def test_an_offensive_sample_is_shown_nowhere(session, made):
    texts = (f"you {artifacts.OFFENSIVE}", "the sea was calm")
    page = card_of(made, artifacts.trained(None, artifacts.TrainedConfig(texts=texts)))
    [lines] = tables(page, "step", "generated text")
    assert lines[0][1].startswith("███ ██████ ██████ █████ ██ ███ [masked: toxicity score ")
    assert lines[1] == ["100", "the sea was calm at 100"]


def test_unscored_samples_of_training_stand_on_no_page(session, made, cards):
    """Rows of pretrain itself have no score: the card leads to those that have."""
    stages = set(
        cards["model_card"]["evidence"].read(["stage", "evidence_table"]).to_pandas().itertuples()
    )
    assert not any(row.stage == "pretrain" and row.evidence_table == "samples" for row in stages)
    column = made.pretrained["samples"].columns["text"]
    assert (column.kind, column.judged_by) == ("model text", "")


def test_samples_lead_to_their_row(cards):
    figures = pages.read_figures(cards["model_card"]).set_index("id")
    row = figures.loc["sample-250-1"]
    assert (
        json.loads(row["evidence_filter"]) == {"step": 250, "sample_id": 1}
        and row["row_count"] == 1
    )


def test_what_the_encoder_read_stands_beside_what_was_written(session, made):
    log = artifacts.trained(None, artifacts.TrainedConfig(texts=("",), prompts=True))
    [lines] = tables(card_of(made, log), "step", "read", "generated text")
    assert lines[0] == ["100", f"asked {artifacts.SCRIPT}", "nothing"]


# The tokenizer ---------------------------------------------------------------------------------


def test_fertility_stands_beside_that_of_all_text(page):
    assert tables(page, "source", "n", "bytes per token") == [
        [
            ["all", "40", "2.100", "1.00"],
            ["books", "30", "3.000", "1.43"],
            [artifacts.TABLE, "10 (few)", "1.000", "0.48"],
        ]
    ]
    [languages] = tables(page, "estimated language")
    assert ["undetermined", "5 (few)", "2.000", "0.95"] in languages
    assert "Languages are estimated with py3langid" in page.text
    [groups] = tables(page, "identity group", "n", "bytes per token")
    assert groups[1:] == [["women", "4 (few)", "1.500", "0.71"]]


def test_the_kind_and_the_size_are_those_of_the_file(cards, made, page):
    """Four ids: one token of the vocabulary is among the added ones, one is not."""
    assert "KindBPEVocabulary4 tokens" in "".join(page.text.split("\n"))
    figures = pages.read_figures(cards["model_card"]).set_index("id")
    # The checkpoint is a folder outside of the store, so only its figures are known later.
    path, _, anchor = figures.loc["vocabulary", "page_path"].partition("#")
    rows_page = pages.read(pages.write_pages(cards["model_card"]) / path)
    assert "not in this store" in rows_page.text and anchor in rows_page.ids
    assert read_file_rows(made.checkpoint, "tokenizer.json")["token"].to_pylist() == [
        "<|endoftext|>",
        artifacts.TABLE,
        artifacts.SCRIPT,
        "Ġlamp",
    ]
    with pytest.raises(
        HallmarkError, match=r"the 'config\.json' file of .+ has no rows that support figures"
    ):
        read_file_rows(made.checkpoint, "config.json")


def test_a_unigram_vocabulary_is_a_list(session, made, tmp_path):
    folder = tmp_path / "unigram"
    artifacts.checkpoint(folder)
    stored = {"model": {"type": "Unigram", "vocab": [["a", 0.0], ["b", -1.5]]}}
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    page = card_of(made, checkpoint=artifacts.folder_to_artifact(folder, "checkpoint"))
    assert "KindUnigramVocabulary2 tokens" in "".join(page.text.split("\n"))


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"model": {"vocab": 3}}'])
def test_a_damaged_tokenizer_is_named(session, made, tmp_path, text):
    artifacts.checkpoint(tmp_path / "x")
    (tmp_path / "x" / "tokenizer.json").write_text(text)
    with pytest.raises(HallmarkError, match="cannot be loaded by the tokenizers library"):
        card_of(made, checkpoint=artifacts.folder_to_artifact(tmp_path / "x", "checkpoint"))


def test_a_foreign_checkpoint_without_a_tokenizer_file_says_what_is_not_known(
    session, made, tmp_path
):
    folder = tmp_path / "foreign"
    artifacts.checkpoint(folder)
    (folder / "tokenizer.json").unlink()
    page = card_of(made, checkpoint=artifacts.folder_to_artifact(folder, "checkpoint"))
    assert "has no tokenizer.json, so the tokenizer type is not known" in page.text
    assert "this store has no record of how the tokenizer was trained" in page.text
    assert "No text generated during training was scored." in page.text


def test_a_tokenizer_that_met_no_held_out_text_says_so(session, made):
    page = card_of(made, None, artifacts.tokenized(artifacts.TokenizedConfig(measured=False)))
    assert "Bytes per token are not known, because there is no held-out text." in page.text


# Continued training ----------------------------------------------------------------------------


def test_the_checkpoint_that_training_went_on_from_is_named(session, made, tmp_path):
    start = artifacts.checkpoint(tmp_path / "start", "other")
    log = artifacts.trained(start, artifacts.TrainedConfig())
    corpus = {**made.corpus, "profile": made.profile}
    assert "Continued from" not in words(card_of(made, made.pretrained))
    lineage = {"lineage": {"start_checkpoint": start.name}}
    checkpoint = replace(made.checkpoint, manifest=made.checkpoint.manifest | lineage)
    made = replace(made, checkpoint=checkpoint)
    text = words(card_of(made, log, corpus=corpus))
    assert f"Continued from{start.name}" in text
    assert f"Training continued from {start.name}." in text  # beside the corpus of this training
    assert (
        text.count("This card does not describe the training data of the earlier checkpoint") == 2
    )
    assert "The tokenizer is from the checkpoint that training continued from;" in text
    assert "untrained" not in text
    left = artifacts.TrainedConfig(content=made.checkpoint.content_digest)
    head = words(card_of(made, artifacts.trained(start, left), corpus=corpus))
    head = head.split("Model details")[1]
    assert f"Training continued from {start.name}." in head
    assert "trained on no documents other" not in head  # the earlier one may have read them
