"""Test the limits of what counts as a random-looking credential."""

import pytest

from hallmark.tasks.measures.personal_data import find_personal_data_spans


def list_secrets(text):
    return [text[span.start : span.end] for span in find_personal_data_spans(text, ("SECRET",), ())]


def assign_quoted(value):
    return f'key = "{value}"'


#: The first value of each pair just satisfies the rule, the second just fails it.
BOUNDS = {
    "eight characters": ("a1B2c3D4", "a1B2c3D"),
    "eight without what ends a sentence": ("a1B2c3D4!", "a1B2c3D!"),
    "six unpredictable characters": ("Xq7Zk9-house", "Xq7Zk-house"),
    "half unpredictable characters": ("Xq7Zk9Wmarket", "Xq7Zk9Wmarketsss"),
    "more of them without digits": ("XqZkWxmark", "XqZkWxmarke"),
    "three changes": ("qxz7wkJbg", "qxz7wkjbg"),
    "a sixth of changes of a long one": ("qxzwkjbgqxzvwkJbgqxZ", "qxzwkjbgqxzvwkqxJbgqxZ"),
    "two changes of a long one": ("qxzv7wkjbgqxjvkw", "qxzvwkjbgqxjvkw7"),
    "a third of changes of a short one": ("qxz7wkJbgZqk", "qxz7wkJbgqkxw"),
    "a tenth of changes": ("qxzv7wkjbgqxjvkwqxzvw", "qxzv7wkjbgqxjvkwqxzvwk"),
    "more changes between blanks": ("a1B2 c3D4", "wqx1 kjbz 2vwq"),
    "two dots": ("a1.B2.c3D4", "a1.B2.c3.D4"),
    "a dot in twelve": (
        "a1B2c3.D4e5F6g7.H8j9K2m3.N4p5Q6r7S8t9",
        "a1B2c3.D4e5F6.g7H8.j9K2m3.N4p5Q6r7S8",
    ),
    "a slash in six": ("a1B2c3/D4e5F/7H8", "a1/B2c3/D4e5/F"),
    "mostly changes, though words": ("AbLeAcTsInTo7Xq2", "AbleActsInto7Xq2"),
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_quoted_value_is_found_only_within_the_limits(bound):
    right, wrong = BOUNDS[bound]
    assert list_secrets(assign_quoted(right)) == [right]
    assert list_secrets(assign_quoted(wrong)) == []


def test_an_unquoted_value_must_be_longer_unless_it_is_a_password():
    assert list_secrets("key = a1B2c3D4e5F6") == ["a1B2c3D4e5F6"]
    assert list_secrets("key = a1B2c3D4e5F") == []
    assert list_secrets("password = a1B2c3D4") == ["a1B2c3D4"]
    assert list_secrets("password = a1B2c3D") == []


@pytest.mark.parametrize("template", ["curl -u ann:{} h", "curl --user 'ann:{}' h"])
def test_a_password_after_the_name_of_a_user_has_at_least_eight_characters(template):
    assert list_secrets(template.format("a1B2c3D4")) == ["a1B2c3D4"]
    assert list_secrets(template.format("a1B2c3D")) == []


@pytest.mark.parametrize("value", [r"a1B2c3\"D4e5F6", r"a1B2c3D4e5F6\"", r"a1B2\"\"c3D4e5F6"])
def test_an_escaped_quote_does_not_close_a_value(value):
    assert list_secrets(assign_quoted(value)) == [value]


def test_a_credential_must_mix_kinds_of_characters():
    """A value of one kind never changes; a change from a digit to a capital also counts."""
    for value in ("bcdfghjklmnpqrst", "BCDFGHJKLMNPQRST", "2938475610293847"):
        assert list_secrets(assign_quoted(value)) == []
    assert list_secrets(assign_quoted("B2D4F6H8")) == ["B2D4F6H8"]
    assert list_secrets(assign_quoted("bXdYfZhW")) == ["bXdYfZhW"]


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
def test_names_that_suggest_a_credential_are_recognised(name):
    for sign in (":", "=", ": ", " := ", "=>"):
        text = f'{name}{sign}"a1B2c3D4"'
        assert list_secrets(text) == ["a1B2c3D4"], text
    assert list_secrets(f'{name.strip()}board = "a1B2c3D4"') == []


def test_a_url_with_a_password_is_found_from_scheme_to_port():
    whole = "amqp://app:Zk3vQ9xw@queue.example:5672"
    assert list_secrets(f"see {whole}.") == [whole]
    longest, longer = "a" * 21, "a" * 22
    assert list_secrets(f"{longest}://app:Zk3vQ9xw@host") == [f"{longest}://app:Zk3vQ9xw@host"]
    assert list_secrets(f"{longer}://app:Zk3vQ9xw@host") == []
    assert list_secrets("C://app:Zk3vQ9xw@host") == []
    assert (
        list_secrets("ab://app:Zk3@host") == ["ab://app:Zk3@host"]
        and list_secrets("ab://app:Zk@host") == []
    )
    for placeholder in (
        "password",
        "PWD",
        "pw1",
        "secret",
        "token",
        "xxxx",
        "$PASS",
        "{pw}",
        "<pw>",
    ):
        assert list_secrets(f"amqp://app:{placeholder}@host") == []


BEGIN, END = ("-----" + word + " PRIVATE KEY-----" for word in ("BEGIN", "END"))
BODY = "TUlJRQ+/" * 5


def test_a_private_key_is_found_from_begin_to_end():
    key = f"{BEGIN}\n{BODY}\n{END}"
    assert list_secrets(f"x {key} y {key}") == [key, key]
    assert list_secrets(f"{BEGIN} {key}") == [key]
    assert list_secrets(f"{END} {BODY} {BEGIN}") == [] == list_secrets(f"{END} {BODY} {END}")
    assert list_secrets(f"{BEGIN} {BODY} {BEGIN}") == [f"{BEGIN} {BODY}"]
    assert list_secrets(f"{BEGIN}\n{BODY[:39]}\n{END}") == []
    assert list_secrets(f"{BODY} {BEGIN}\n{END} {BODY}") == []
