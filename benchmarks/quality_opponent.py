"""Run datatrove's quality filters for ``benchmarks.quality``, in an environment of their own.

    python quality_opponent.py DOCUMENTS.jsonl VERDICTS.json

Reads the documents into memory and prints datatrove's version. Then, for each line of the standard
input, calls every filter on every document and prints the seconds. As in Hallmark, words are
separated by white space, and sentences by a mark and white space. The verdicts are written once:
for each filter, True or a reason for each document.
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

SENTENCE_END = re.compile(r"[.?!][\"')\]”’]*\s+")


class WhiteSpaceTokenizer(WordTokenizer):
    """Separates words by white space, and sentences by a mark and white space."""

    def word_tokenize(self, text):
        return text.split()

    def sent_tokenize(self, text):
        return [text[start:end] for start, end in self.span_tokenize(text)]

    def span_tokenize(self, text):
        ends = [match.end() for match in SENTENCE_END.finditer(text)]
        return list(zip([0, *ends], [*ends, len(text)], strict=True))


def get_verdict(result):
    """Convert the result of ``filter``, True or (False, reason), to True or the reason."""
    return result if result is True else result[1]


def judge_texts(quality_filter, texts):
    """Return the verdict of a filter on each text."""
    return [get_verdict(quality_filter.filter(Document(text=text, id=""))) for text in texts]


def main(documents_path, verdicts_path):
    with open(documents_path, encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    tokenizer = WhiteSpaceTokenizer()
    filters = {
        "Gopher quality": GopherQualityFilter(language=tokenizer),
        "Gopher repetition": GopherRepetitionFilter(language=tokenizer),
        "FineWeb": FineWebQualityFilter(language=tokenizer),
        "C4": C4QualityFilter(language=tokenizer),  # must be the last: it changes the text
    }
    print(version("datatrove"), flush=True)
    for turn, _ in enumerate(sys.stdin):
        documents = [Document(text=text, id=str(number)) for number, text in enumerate(texts)]
        start = time.process_time()
        results = [
            [quality_filter.filter(document) for quality_filter in filters.values()]
            for document in documents
        ]
        seconds = time.process_time() - start
        if not turn:
            verdicts = {
                name: [get_verdict(result) for result in column]
                for name, column in zip(filters, zip(*results, strict=True), strict=True)
            }
            paper_limit = FineWebQualityFilter(language=tokenizer, char_duplicates_ratio=0.1)
            verdicts["FineWeb, with the paper's limit"] = judge_texts(paper_limit, texts)
            without_citations = (CITATION_REGEX.sub("", text) for text in texts)
            c4_verdicts = judge_texts(filters["C4"], without_citations)
            verdicts["C4, without citations"] = c4_verdicts
            with open(verdicts_path, "w", encoding="utf-8") as file:
                json.dump(verdicts, file)
        print(seconds, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
