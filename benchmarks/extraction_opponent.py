"""Extract main content with trafilatura for ``benchmarks.extraction``, in its own environment.

    python extraction_opponent.py PAGES.jsonl TEXTS.json

Reads the pages into memory and prints trafilatura's version. Then, for each line of the standard
input, extracts all texts and prints the seconds of processor time. The texts are written once. The
options are those of the benchmark of articles: no comments and no tables.
"""

import json
import sys
import time
from importlib.metadata import version

import trafilatura


def main(pages_path, texts_path):
    with open(pages_path, encoding="utf-8") as file:
        pages = [json.loads(line) for line in file]
    print(version("trafilatura"), flush=True)
    for turn, _ in enumerate(sys.stdin):
        start = time.process_time()
        texts = [
            trafilatura.extract(html, include_comments=False, include_tables=False) or ""
            for html in pages
        ]
        seconds = time.process_time() - start
        if not turn:
            with open(texts_path, "w", encoding="utf-8") as file:
                json.dump(texts, file)
        print(seconds, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
