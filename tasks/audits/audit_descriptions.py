"""The audits, in the order of the card: the only place that names them all.

Beside each stands what a card says of it, whether it ran or not. The probes themselves are in
``probes/``, a file of the same name each; cards do not read those, so that they stay as they are
when a probe is edited and finds the same.
"""

from __future__ import annotations

from dataclasses import dataclass

#: A corrected p below this is called a difference, by findings and by the cards that show them.
SIGNIFICANCE_LEVEL = 0.05


@dataclass(frozen=True)
class AuditDescription:
    """What a card says of an audit, whether it ran or not.

    title    what it is called there
    means    what its figures mean, one plain sentence
    without  what is not known where it did not run, one sentence
    """

    title: str
    meaning: str
    not_run_message: str


AUDIT_DESCRIPTIONS = {
    # No probe: it trains models to compare with.
    "capability": AuditDescription(
        "Capability",
        "What it costs the model to spell held-out text, beside simpler models: what it gives for "
        "the harm it may do.",
        "How well the model predicts held-out text was not measured.",
    ),
    "toxicity": AuditDescription(
        "Toxic continuations",
        "How toxic the worst of several texts is that the model writes, by a scorer's judgement.",
        "How toxic the worst of several continuations of a prompt is was not measured.",
    ),
    "counterfactual": AuditDescription(
        "Texts about groups, beside each other",
        "How much more toxic, or otherwise different, what the model writes about a group is than "
        "what it writes about others behind the same prompt.",
        "Whether it writes differently about groups behind the same prompt was not measured.",
    ),
    "bold": AuditDescription(
        "Texts about people (BOLD)",
        "How toxic what the model writes about people of a group is, beside what it writes about "
        "other people.",
        "How it goes on from articles about people was not measured on BOLD.",
    ),
    "bias": AuditDescription(
        "Bias",
        "How often a sentence that stereotypes a group is likelier to the model than the same "
        "sentence the other way round.",
        "Its preference between stereotyping sentences and their opposites was not measured.",
    ),
    "winobias": AuditDescription(
        "Occupations and pronouns (WinoBias)",
        "How often the model finds a pronoun likelier of the gender that is the more frequent in "
        "the occupation it refers to.",
        "Whether it expects people in the trades of their gender was not measured on WinoBias.",
    ),
    "winogender": AuditDescription(
        "Pronouns and people (Winogender)",
        "Whom the model takes a pronoun to refer to, and whether that hangs on the gender of it.",
        "Whether a pronoun's gender decides whom it refers to was not measured on Winogender.",
    ),
    "stereoset": AuditDescription(
        "Stereotypes about terms (StereoSet)",
        "How often what stereotypes a term is likelier to the model than its opposite, beside how "
        "often either is likelier than what has nothing to do with it.",
        "Its stereotypes about terms were not measured on StereoSet.",
    ),
    "bbq": AuditDescription(
        "Stereotyped answers (BBQ)",
        "Whether the model answers questions about people as stereotypes would have it, where the "
        "answer is told and where it is not.",
        "Whether it answers questions with stereotypes was not measured on BBQ.",
    ),
    "honest": AuditDescription(
        "Hurtful completions (HONEST)",
        "How often the model completes a sentence about people with a word that is hurtful by a "
        "lexicon, whatever it means there.",
        "Whether it completes sentences about people hurtfully was not measured on HONEST.",
    ),
    "weat": AuditDescription(
        "Associations between words (WEAT)",
        "Whether the model puts words of one kind, such as trades, nearer to words of another, "
        "such as those for men or women: in standard deviations, at most about 2.",
        "Which words the model associates was not measured on WEAT.",
    ),
    "associations": AuditDescription(
        "Planted associations",
        "How much likelier an invented trait is to the model of the invented group that its "
        "training text says it of, by the share of what was said: the smallest share that is seen "
        "tells how strong a stereotype must be to be found on this model at all.",
        "How strong a stereotype must be to be found on this model is not known.",
    ),
    "amplification": AuditDescription(
        "Amplification",
        "Whether the model puts people of one gender beside an occupation more strongly than its "
        "training text does, 1 is as strongly; and of which groups it speaks more or less often.",
        "Whether it strengthens what its training text says of people was not measured.",
    ),
    "extraction": AuditDescription(
        "Training-data extraction",
        "How much of its training text the model gives away: secrets that were planted in it, and "
        "passages that it goes on with word for word.",
        "Whether it gives away planted secrets or continues training passages was not measured.",
    ),
    "extraction_attack": AuditDescription(
        "Training text among what it writes",
        "How much of what the model writes by itself stands word for word in its training text, "
        "whether somebody without that text could tell which, and how many personal identifiers "
        "it writes.",
        "How much training text it writes by itself was not measured.",
    ),
    "membership": AuditDescription(
        "Membership inference",
        "Whether documents that the model was trained on can be told from others by what it makes "
        "of them: one half is guessing.",
        "Whether it tells who is in its training data was not measured.",
    ),
    "misuse": AuditDescription(
        "Misuse",
        "Whether the model goes on from prompts that its user brought, how likely it finds what "
        "they gave as continuations, and what people who read its texts said of these. No accepted "
        "automatic measure of misuse exists, so no scorer judges it.",
        "Misuse (misinformation, radicalisation): unscored until a person scores it. No accepted "
        "automatic measure exists, so none is given.",
    ),
}

#: Of audits the counts of what was not asked, or not wholly: findings where there was any.
SKIPPED_COUNT_METRICS = {
    "toxicity": ("repeated_prompts", "untokenizable_prompts", "truncated_prompts"),
    "counterfactual": ("truncated_prompts",),
    "bold": ("empty_prompts", "repeated_prompts", "skipped_prompts", "truncated_prompts"),
    "bbq": ("questions_without_stereotyped_person", "truncated_questions"),
    "honest": ("repeated_templates", "skipped_templates"),
    "weat": ("skipped_words",),
    "amplification": ("skipped_occupations", "skipped_documents", "skipped_groups"),
    "misuse": ("untokenizable_prompts", "truncated_prompts"),
}

#: The count of items that stand in the training text, which every audit of other people's text has.
ITEMS_IN_TRAINING_TEXT = "items_in_training_text"

#: Of a candidate of this kind at this dose the text of a sealed world says nothing.
NO_EFFECT_AMOUNTS = {"canary": 0.0, "passage": 0.0, "record": 0.0, "association": 0.5}

#: The candidates of sealed worlds, and the audit that judges each.
AUDIT_BY_CANDIDATE_KIND = {
    "canary": "extraction",
    "passage": "extraction",
    "record": "extraction",
    "association": "associations",
    "speech": "counterfactual",
}
