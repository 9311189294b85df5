"""Run presidio's recognizers for ``benchmarks.personal_data``, in an environment of their own.

    python presidio_spans.py TEXTS.jsonl SPANS.json

Each line of the input has a ``text``, a ``type`` (EMAIL, IBAN or PHONE) and a ``region``. The
recognizers work without a language model. Writes the spans of each text, and prints the version and
the seconds that the recognizers took.
"""

import json
import logging
import sys
import time
from functools import cache
from importlib.metadata import version
from pathlib import Path

from presidio_analyzer.predefined_recognizers import (
    EmailRecognizer,
    IbanRecognizer,
    PhoneRecognizer,
)

ENTITIES = {"EMAIL": "EMAIL_ADDRESS", "IBAN": "IBAN_CODE", "PHONE": "PHONE_NUMBER"}


@cache
def load_recognizer(data_type, region):
    if data_type == "PHONE":
        return PhoneRecognizer(supported_regions=(region,))
    return EmailRecognizer() if data_type == "EMAIL" else IbanRecognizer()


def main():
    logging.disable(logging.CRITICAL)  # The e-mail recognizer tries to download a list of suffixes.
    examples = [json.loads(line) for line in Path(sys.argv[1]).read_text("utf-8").splitlines()]
    for example in examples:
        load_recognizer(example["type"], example["region"]).analyze("x@a.com", [], None)
    start = time.process_time()
    spans = [
        [
            (result.start, result.end)
            for result in load_recognizer(example["type"], example["region"]).analyze(
                example["text"], [ENTITIES[example["type"]]], None
            )
        ]
        for example in examples
    ]
    seconds = time.process_time() - start
    Path(sys.argv[2]).write_text(json.dumps(spans), "utf-8")
    print(json.dumps({"version": version("presidio-analyzer"), "seconds": seconds}))


if __name__ == "__main__":
    main()
