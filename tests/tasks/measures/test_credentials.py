"""What looks drawn at random, at the bounds of the rule; values put together by hand."""

import pytest

from hallmark.tasks.measures.personal_data import find_personal_data_spans


def found(text):
    return [text[span.start : span.end] for span in find_personal_data_spans(text, ("SECRET",), ())]


def quoted(value):
    return f'key = "{value}"'


#: Of each pair the first is just what the rule asks for, and the second lacks one character of it.
#: Shannon's entropy: 16 characters, each twice, have 3 bits; 8, of which one stands twice, 2.75.
BOUNDS = {
    "a quarter of changes": ("bcdfGHJKlmnp2468q", "bcdfGHJKlmnpqrst2"),
    "three bits": ("a1B2c3D4a1B2c3D4", "a1B2c3D4a1B2c3D3"),
    "2.75 bits of a short one": ("a1B2c3D1", "a1B1c3D3"),
    "eight characters": ("a1B2c3D4", "a1B2c3D"),
    "eight without what ends a sentence": ("a1B2c3D4!", "a1B2c3D!"),
    "one dot": ("a1B2.c3D4", "a1.B2.c3D4"),
    "a slash in twelve": ("a1B2c3/D4e5F", "a1B2c3/D4e5"),
    "two slashes in 24": ("a1B2c3/D4e5Fg7H8/j9K2m3N", "a1B2c3/D4e5F/7H8/j9K2m3N"),
    "no word of examples": ("a1B2c3D4", "a1B2pwd4"),
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_value_in_quotes_is_found_from_its_bound_on(bound):
    right, wrong = BOUNDS[bound]
    assert found(quoted(right)) == [right]
    assert found(quoted(wrong)) == []


def test_a_value_without_quotes_is_twice_as_long():
    assert found("key = a1B2c3D4e5F6g7H8") == ["a1B2c3D4e5F6g7H8"]
    assert found("key = a1B2c3D4e5F6g7H") == []


def test_capitals_digits_and_small_letters_change_places():
    """One kind alone never changes; from a digit to a capital is a change as any other."""
    for value in ("bcdfghjklmnpqrst", "BCDFGHJKLMNPQRST", "2938475610293847"):
        assert found(quoted(value)) == []
    assert found(quoted("B2D4F6H8")) == ["B2D4F6H8"]
    assert found(quoted("bXdYfZhW")) == ["bXdYfZhW"]


@pytest.mark.parametrize(
    "name",
    [
        "key",
        "API-KEY",
        "token",
        "client_secret",
        "password",
        "passwd",
        "pwd",
        "passphrase",
        "credential",
        "credentials",
        "my.token'",
        "key  ",
    ],
)
def test_a_name_promises_a_credential(name):
    for sign in (":", "=", ": ", " := ", "=>"):
        text = f'{name}{sign}"a1B2c3D4"'
        assert found(text) == ["a1B2c3D4"], text
    assert found(f'{name}s_of_it = "a1B2c3D4"') == []


def test_an_address_with_a_password_is_found_from_its_scheme_to_its_port():
    whole = "amqp://app:Zk3vQ9xw@queue.example:5672"
    assert found(f"see {whole}.") == [whole]
    longest, longer = "a" * 21, "a" * 22
    assert found(f"{longest}://app:Zk3vQ9xw@host") == [f"{longest}://app:Zk3vQ9xw@host"]
    assert found(f"{longer}://app:Zk3vQ9xw@host") == []
    assert found("C://app:Zk3vQ9xw@host") == []
    assert found("ab://app:Zk3@host") == ["ab://app:Zk3@host"] and found("ab://app:Zk@host") == []
    for stand_in in ("password", "PWD", "pw1", "secret", "token", "xxxx", "$PASS", "{pw}", "<pw>"):
        assert found(f"amqp://app:{stand_in}@host") == []


BEGIN, END = ("-----" + word + " PRIVATE KEY-----" for word in ("BEGIN", "END"))
BODY = "TUlJRQ+/" * 5


def test_a_private_key_reaches_from_its_beginning_to_its_end():
    key = f"{BEGIN}\n{BODY}\n{END}"
    assert found(f"x {key} y {key}") == [key, key]
    assert found(f"{BEGIN} {key}") == [key]
    assert found(f"{END} {BODY} {BEGIN}") == [] == found(f"{END} {BODY} {END}")
    assert found(f"{BEGIN} {BODY} {BEGIN}") == []
    assert found(f"{BEGIN}\n{BODY[:39]}\n{END}") == []
    assert found(f"{BODY} {BEGIN}\n{END} {BODY}") == []
