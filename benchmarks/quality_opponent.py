"""The other side of ``benchmarks.quality``: datatrove's filters, in an environment of their own.

    python quality_opponent.py DOCUMENTS.jsonl VERDICTS.json

Holds the documents in memory, then for each line it reads calls every filter on every document and
prints the seconds that took. Words are what ``str.split`` gives, sentences what a mark and white
space part, as on our side. The verdicts are written once: the reason by filter and document.
"""

import json
import re
import sys
import time
from importlib.metadata import version

from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.filters.c4_filters import CITATION_REGEX
from datatrove.utils.word_tokenizers import WordTokenizer

SENTENCE = re.compile(r"[.?!][\"')\]”’]*\s+")


class Plain(WordTokenizer):
    def word_tokenize(self, text):
        return text.split()

    def sent_tokenize(self, text):
        return [text[start:end] for start, end in self.span_tokenize(text)]

    def span_tokenize(self, text):
        ends = [match.end() for match in SENTENCE.finditer(text)]
        return list(zip([0, *ends], [*ends, len(text)], strict=True))


def judged(judge, texts):
    verdicts = (judge.filter(Document(text=text, id="")) for text in texts)
    return [verdict if verdict is True else verdict[1] for verdict in verdicts]


def main(documents, verdicts):
    with open(documents, encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    plain = Plain()
    filters = {
        "Gopher quality": GopherQualityFilter(language=plain),
        "Gopher repetition": GopherRepetitionFilter(language=plain),
        "FineWeb": FineWebQualityFilter(language=plain),
        "C4": C4QualityFilter(language=plain),  # the last: it changes the text
    }
    print(version("datatrove"), flush=True)
    for turn, _ in enumerate(sys.stdin):
        held = [Document(text=text, id=str(place)) for place, text in enumerate(texts)]
        start = time.process_time()
        given = [[judge.filter(document) for judge in filters.values()] for document in held]
        seconds = time.process_time() - start
        if not turn:
            reasons = {
                name: [verdict if verdict is True else verdict[1] for verdict in column]
                for name, column in zip(filters, zip(*given, strict=True), strict=True)
            }
            bound = FineWebQualityFilter(language=plain, char_duplicates_ratio=0.1)
            reasons["FineWeb, with the paper's bound"] = judged(bound, texts)
            bare = (CITATION_REGEX.sub("", text) for text in texts)
            reasons["C4, citations taken out before"] = judged(filters["C4"], bare)
            with open(verdicts, "w", encoding="utf-8") as file:
                json.dump(reasons, file)
        print(seconds, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
