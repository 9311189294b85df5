"""Measure recall and precision of the search for personal data, and compare it with presidio.

    python -m benchmarks.personal_data [--texts FOLDER] [--presidio PYTHON]

Recall is measured on one fixed-line and one mobile example number of `phonenumbers` for each of 53
countries, in national form: after a word for a telephone in a language of the country, with the
usual separators and without any, and without such a word. The other types are e-mail addresses
between marks, secrets in assignments, and accounts in groups of several sizes. Text is searched
with the country alone.

--texts: a folder with texts full of numbers (logs, changelogs, tables), searched with all
countries; the number of spans that look like telephone numbers bounds the false positives.
--presidio: a Python interpreter whose environment contains presidio-analyzer.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import phonenumbers
import pyarrow as pa

from hallmark.tasks.measures.personal.types import PERSONAL_DATA_TYPES, SUPPORTED_COUNTRIES
from hallmark.tasks.measures.personal_data import find_personal_data_spans, find_spans_by_row

REGIONS = (*SUPPORTED_COUNTRIES, "HK", "SG", "MY", "TW", "VN", "ID", "PH", "HU", "SK", "LV")
#: A word for a telephone in a language of the country, unless it is "Telefon".
PHONE_WORDS = {
    **dict.fromkeys(["AU", "CA", "GB", "IE", "NZ", "SG", "US", "ZA", "PH", "MY"], "Phone"),
    **dict.fromkeys(["AR", "CL", "ES", "MX"], "Teléfono"),
    **dict.fromkeys(["BR", "PT"], "Telefone"),
    **dict.fromkeys(["BG", "RU", "UA"], "Телефон"),
    **dict.fromkeys(["HK", "JP", "TW"], "電話"),
    **{"BE": "Telefoon", "CN": "电话", "FI": "Puhelin", "FR": "Téléphone", "GR": "Τηλέφωνο"},
    **{"ID": "Telepon", "IL": "טלפון", "IN": "फ़ोन", "IS": "Sími", "IT": "Telefono", "KR": "전화"},
    **{"LT": "Telefonas", "LV": "Tālrunis", "NL": "Telefoon", "TH": "โทร", "VN": "Điện thoại"},
}
MARKS = ("—", "–", "-", "--", "_", "**", "`", "~~", "|")
TOKEN = "Jqhr0kWsRpcE5cw7" + "Wxu8dSbRDE28jhYQ"
ASSIGNMENTS = (
    "access_token={}",
    "https://h.example/cb?access_token={}&x=1",
    "//registry.example/:_authToken={}",
    "docker build --build-arg=API_KEY={} .",
    "a=b&api_key={}",
    "tool --api-key {}",
    "Authorization: Bearer {}",
    "env='API_KEY={}'",
    'os.environ["X_TOKEN"] = "{}"',
    "SECRET_KEY_ID={}",
    'password: str = b"{}"',
    "**Password:** {}",
    "| token | `{}` |",
    '<add key="ApiKey" value="{}"/>',
    "password=&quot;{}&quot;",
    "password: >-\n  {}\n",
    "Authorization: Basic {}",
    "curl -u ann:{} https://h.example",
    "machine h.example login ann password {}",
    "Пароль: {}",
    "密码：{}",
)
ACCOUNTS = ("DE89370400440532013000", "GB82WEST12345698765432", "NO9386011117947")


class Example(NamedTuple):
    """A text with a value to find."""

    type: str
    form: str
    region: str
    text: str
    value: str


def list_examples() -> list[Example]:
    """List the texts on which recall is measured."""
    examples = []
    for region in REGIONS:
        word = PHONE_WORDS.get(region, "Telefon")
        for kind in (phonenumbers.PhoneNumberType.FIXED_LINE, phonenumbers.PhoneNumberType.MOBILE):
            value = phonenumbers.format_number(
                phonenumbers.example_number_for_type(region, kind),
                phonenumbers.PhoneNumberFormat.NATIONAL,
            )
            digits = re.sub(r"\D", "", value)
            examples += [
                Example("PHONE", "word, separated", region, f"{word}: {value}", value),
                Example("PHONE", "word, digits only", region, f"{word}: {digits}", digits),
                Example("PHONE", "no word, separated", region, f"Ask Ann, {value}, now", value),
            ]
    for mark in MARKS:
        for address in ("ann@mail.example.org", "y@a.xn--p1ai"):
            for start in ("", "Open 9–5. "):
                text = f"{start}{mark}{address}{mark} she said"
                examples.append(Example("EMAIL", "between marks", "US", text, address))
    examples += [
        Example("SECRET", "assigned", "US", template.format(TOKEN), TOKEN)
        for template in ASSIGNMENTS
    ]
    for account in ACCOUNTS:
        for size in (2, 3, 4, 5, 8, 30):
            for separator in " -":
                value = separator.join(account[i : i + size] for i in range(0, len(account), size))
                examples.append(Example("IBAN", "capitals", "US", f"IBAN: {value}.", value))
                lower = value.lower()
                examples.append(Example("IBAN", "lower case", "US", f"iban: {lower}.", lower))
    return examples


def is_found(example: Example) -> bool:
    spans = find_personal_data_spans(example.text, PERSONAL_DATA_TYPES, (example.region,))
    return any(
        span.type == example.type and example.text[span.start : span.end] == example.value
        for span in spans
    )


def run_presidio(python: Path, examples: list[Example]) -> list[list[list[int]]]:
    """Return the spans that presidio finds in each example, and print its time."""
    script = Path(__file__).parent / "opponents" / "presidio_spans.py"
    with tempfile.TemporaryDirectory(prefix="hallmark-presidio-") as scratch:
        texts, spans = Path(scratch) / "texts.jsonl", Path(scratch) / "spans.json"
        lines = [json.dumps(example._asdict()) for example in examples]
        texts.write_text("\n".join(lines), "utf-8")
        result = subprocess.run(
            [python, script, texts, spans], check=True, capture_output=True, text=True
        )
        answer = json.loads(result.stdout.splitlines()[-1])
        print(
            f"presidio-analyzer {answer['version']}: {answer['seconds']:.2f} s for "
            f"{len(examples)} texts"
        )
        found: list[list[list[int]]] = json.loads(spans.read_text("utf-8"))
        return found


def find_with_presidio(python: Path, examples: list[Example]) -> list[bool]:
    """Return whether presidio finds the value of each example; it searches for no secrets."""
    searched = [example for example in examples if example.type != "SECRET"]
    found = dict(zip(searched, run_presidio(python, searched), strict=True))
    return [
        any(example.text[start:end] == example.value for start, end in found.get(example, []))
        for example in examples
    ]


def print_recall(examples: list[Example], found_by_tool: dict[str, list[bool]]) -> None:
    """Print the share of values found by type and form, and of telephone numbers by region."""
    tools = list(found_by_tool)
    print(f"\n{'type, form':<32}{'n':>6}" + "".join(f"{tool:>12}" for tool in tools))
    forms = dict.fromkeys((example.type, example.form) for example in examples)
    for data_type, form in forms:
        rows = [i for i, e in enumerate(examples) if (e.type, e.form) == (data_type, form)]
        shares = [sum(found_by_tool[tool][i] for i in rows) / len(rows) for tool in tools]
        line = f"{f'{data_type}, {form}':<32}{len(rows):>6}"
        print(line + "".join(f"{share:>12.2f}" for share in shares))
    phone_forms = [form for data_type, form in forms if data_type == "PHONE"]
    print(f"\nPHONE, numbers found of two, by {tools[0]}")
    print(f"{'region':<8}" + "".join(f"{form:>22}" for form in phone_forms))
    counts: Counter[tuple[str, str]] = Counter()
    for example, found in zip(examples, found_by_tool[tools[0]], strict=True):
        counts[example.region, example.form] += found
    for region in REGIONS:
        print(f"{region:<8}" + "".join(f"{counts[region, form]:>22}" for form in phone_forms))


def print_spans_in_texts(folder: Path, presidio: Path | None) -> None:
    """Print how many spans are found in the files of a folder, by type.

    presidio searches for telephone numbers of the United States, in the first megabyte.
    """
    texts_by_name = defaultdict(list)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            text = path.read_text("utf-8", errors="replace")
            pieces = [text[i : i + 20_000] for i in range(0, len(text), 20_000)]
            texts_by_name[path.relative_to(folder).parts[0]] += pieces
    for name, texts in texts_by_name.items():
        column = pa.array(texts, pa.large_string())
        for label, regions in (("US", ("US",)), (f"{len(REGIONS)} regions", REGIONS)):
            start = time.process_time()
            spans_by_row = find_spans_by_row(column, ("PHONE", "IBAN", "SECRET", "EMAIL"), regions)
            seconds = time.process_time() - start
            counts = Counter(span.type for spans in spans_by_row.values() for span in spans)
            megabytes = sum(map(len, texts)) / 1e6
            print(f"{name}, {label}: {megabytes:.1f} MB, {seconds:.2f} s, spans {dict(counts)}")
        if presidio:
            examples = [Example("PHONE", "", "US", text, "") for text in texts[:50]]
            found = run_presidio(presidio, examples)
            ours = find_spans_by_row(column[:50], ("PHONE",), ("US",))
            print(
                f"{name}, first {len(examples)} texts: telephone numbers found by presidio: "
                f"{sum(map(len, found))}, by Hallmark: {sum(map(len, ours.values()))}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path, help="folder with texts full of numbers")
    parser.add_argument("--presidio", type=Path, help="Python with presidio-analyzer")
    options = parser.parse_args()
    examples = list_examples()
    found_by_tool = {"Hallmark": list(map(is_found, examples))}
    if options.presidio:
        found_by_tool["presidio"] = find_with_presidio(options.presidio, examples)
    print_recall(examples, found_by_tool)
    if options.texts:
        print_spans_in_texts(options.texts, options.presidio)


if __name__ == "__main__":
    main()
