"""Test that credentials in columns of tables and in short options of programs are found."""

import time

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hallmark.tasks.measures.personal_data import find_personal_data_spans, find_spans_by_row

#: Random characters, concatenated, so that secret scanners ignore this file.
TOKEN = "Jqhr0kWsRpcE5cw7" + "Wxu8dSbRDE28jhYQ"
PASSWORD = "hT7kLm9" + "wQz"


def list_secrets(text):
    spans = find_personal_data_spans(text, ("SECRET",), ())
    rows = find_spans_by_row(pa.array(["x", text], pa.large_string()), ("SECRET",), ())
    assert rows == ({1: spans} if spans else {})
    return [text[span.start : span.end] for span in spans]


# Options of programs -----------------------------------------------------------------------------

OPTIONS = [
    "mysql -uroot -p{}",
    "mysql -u root -p{} shop",
    "mysqldump -h db -u root -p'{}' shop > shop.sql",
    'mysqladmin -u root -p"{}" status',
    "mariadb -p{} -e 'SELECT 1'",
    "mariadb-dump -p{}",
    "$ docker exec db mysql -uroot -p{}",
    "/usr/bin/mysql \\\n  --user=root \\\n  -p{}",
    "mysql.exe -p{}",
    "`mysql -p{}`",
    "cat a.sql | mysql -p{}",
    "sshpass -p {} ssh ann@h.example",
    "sshpass -p{} scp a ann@h.example:",
    "sshpass -p '{}' rsync a b",
    "mongo -u ann -p {} h.example/base",
    "mongodump --username ann -p{}",
    "mongosh -p={}",
    "redis-cli -h h.example -a {} ping",
    "redis-cli -a{}",
    "docker login -u ann -p {} registry.example",
    "helm registry login -u ann -p {} h.example",
    "7z x -p{} a.7z",
    "7za a -p{} a.7z b",
    "rar a -hp{} a.rar b",
    "unrar x -p{} a.rar",
    "unzip -P {} a.zip",
    "zip -P{} a.zip b",
    "sqlcmd -S h.example -U sa -P {}",
    "bcp base.users out a -S h -U sa -P{}",
    "ipmitool -H h -U admin -P {} power status",
    "ldapsearch -x -D cn=admin -w {} -b dc=example",
    "openssl enc -aes-256-cbc -k {} -in a",
    "smbclient -U ann%{} //h.example/share",
    "smbclient //h.example/share -U 'ann%{}'",
    "keytool -genkey -storepass {} -keypass changeit",
    "jarsigner -keypass {} a.jar",
    "WIFI:T:WPA;S:Mill;P:{};;",
    "WIFI:S:Mill;T:WPA;P:{};H:true;;",
]


@pytest.mark.parametrize("template", OPTIONS)
@pytest.mark.parametrize("value", [PASSWORD, TOKEN])
def test_a_password_in_a_short_option_of_a_program_is_found(template, value):
    assert list_secrets(template.format(value)) == [value]
    assert list_secrets(f"Run it:\n    {template.format(value)}\nThen wait.") == [value]


@pytest.mark.parametrize(
    "text",
    [
        f"tool -p{TOKEN}, grep -p {TOKEN}",
        f"mysql -p {TOKEN}",  # A blank ends the option; a name of a base follows.
        f"mysql -uroot; tool -p{TOKEN}",
        f"mysql -uroot | tool -p{TOKEN}",
        f"mysql -uroot\ntool -p{TOKEN}",
        f"mysql -a {TOKEN} -P {TOKEN} -w {TOKEN}",
        f"mysql --x-p{TOKEN}",
        f"x-mysql -p{TOKEN}",
        f"mysql {'-v ' * 140}-p{TOKEN}",
        "mysql -p$MYSQL_ROOT_PASSWORD_2, mysql -p${DB_PASSWORD_X9q2}, mysql -p<a1B2c3D4e5F6>",
        "mysql -p'changeme123', sshpass -p password ssh h, sshpass -p yourpassword1 ssh h",
        "mysql -p3306 -P 13306 --port=3306, unzip -P 12345678 a.zip",
        "sshpass -p a1B2c3D",
        "docker run -p 127.0.0.1:8080:8080 -p 443:8443 image, mongod -port 27017",
        "unzip -p archive2.zip, zip -r a1B2c3D4.zip folder, rar -print-all-Names2",
        f"smbclient -U ann {TOKEN}",
        "WIFI:T:WPA;S:Mill;P:password;;, WIFI:T:nopass;S:Mill;;",
        f"WIFI:T:WPA;S:Mill\nP:{TOKEN};",
    ],
)
def test_other_options_have_no_passwords(text):
    assert list_secrets(text) == []


@pytest.mark.parametrize("template", ["sshpass -p {} ssh h", "WIFI:T:WPA;S:Mill;P:{};;"])
def test_a_password_in_an_option_has_at_least_eight_characters(template):
    assert list_secrets(template.format("a1B2c3D4")) == ["a1B2c3D4"]
    assert list_secrets(template.format("a1B2c3D")) == []


def test_an_option_is_at_most_400_characters_after_the_name_of_its_program():
    assert list_secrets(f"mysql{' ' * 395}-p{TOKEN}") == [TOKEN]
    assert list_secrets(f"mysql{' ' * 396}-p{TOKEN}") == []


# Columns of delimited text -----------------------------------------------------------------------

COLUMNS = [
    "name,password\nann,{}\nbob,x\n",
    "password,name\n{},ann",
    "name\tapi_key\nann\t{}\n",
    "id;user;token;note\n1;ann;{};3\n",
    '"name","password"\n"ann","{}"\n',
    '"name","password"\r\n"Lee, Ann","{}"\r\n',
    "user_name, user_password , mail\nann, {} , a\n",
    "Name,API Key\nann,{}\n",
    "host,DB_PASSWORD,port\nh,{},5432\n",
    "name,apikey\nann,{}\n",
    "name,accessToken\nann,{}\n",
    "name,clientSecret2\nann,{}\n",
    "name,pwd\nann,{}\n",
    "name,passcode\nann,{}\n",
    "name,credentials\nann,{}\n",
    "name,secret_value\nann,{}\n",
    "Benutzer;Passwort\nann;{}\n",
    "nombre,contraseña\nana,{}\n",
    "用户,密码\n安,{}\n",
    "имя;пароль\nаня;{}\n",
    "| name | password |\n|---|---|\n| ann | {} |\n",
    "| name | API key |\n|:---|---:|\n| ann | `{}` |\n",
    "name | token\n--- | ---\nann | {}\n",
    "Users:\n\nname,password\nann,{}\n\nThat is all.",
    'name,note,password\nann,"two\nlines",x\nbob,,{}\n',
    "name,password\n" + "x,y\n" * 500 + "ann,{}\n",
    "name,password\n\n\n\n\nann,{}\n",
    "insert into users (name, password\nann,{}\n",
    ",name,password\n0,ann,{}\n",
    '"","name","password"\n"1","ann","{}"\n',
]
SQL = [
    "INSERT INTO users (name, password) VALUES ('x', '{}')",
    "INSERT INTO users (name, password) VALUES ('x', 'y'), ('z', '{}');",
    "INSERT INTO users (name, password)\nVALUES\n  ('x', 'y'),\n  ('z', '{}');",
    "insert into `users` (`name`,`pwd`,`id`) values ('x','{}',3)",
    'INSERT INTO "shop"."users" ("id", "api_key") VALUES (1, \'{}\')',
    "INSERT INTO [dbo].[users] ([id], [token]) VALUES (1, N'{}')",
    "INSERT IGNORE INTO users (name, secret) VALUES ('it''s, (x', '{}')",
    "INSERT INTO users (name, password) VALUES ('a\\', b', '{}')",
    "INSERT OR REPLACE INTO users (access_token, at) VALUES ('{}', now())",
    "REPLACE INTO users (at, password) VALUES (DATE_ADD(now(), 'x,y'), '{}')",
    "INSERT INTO users (name, password) VALUES ('ann', MD5('{}'))",
    "INSERT INTO users (name, password) VALUES ('ann', crypt('{}', gen_salt('bf')))",
    "INSERT INTO users (id, password) OVERRIDING SYSTEM VALUE VALUES (1, '{}')",
    'INSERT INTO users (name, password) VALUES ("ann", "{}")',
    "COPY public.users (id, name, password) FROM stdin;\n1\tann\t{}\n\\.\n",
]


@pytest.mark.parametrize("template", [*COLUMNS, *SQL])
def test_a_random_value_in_a_column_of_credentials_is_found(template):
    assert list_secrets(template.format(TOKEN)) == [TOKEN]


@pytest.mark.parametrize("template", [COLUMNS[0], COLUMNS[4], COLUMNS[16], SQL[0], SQL[-1]])
def test_a_password_in_a_column_may_be_short(template):
    assert list_secrets(template.format(PASSWORD)) == [PASSWORD]
    assert list_secrets(template.format("a1B2c3D4")) == ["a1B2c3D4"]
    assert list_secrets(template.format("a1B2c3D")) == []


def test_a_token_in_a_column_must_be_longer():
    for name in ("token", "api_key"):
        assert list_secrets(f"name,{name}\nann,a1B2c3D4e5F\n") == []
        assert list_secrets(f"name,{name}\nann,a1B2c3D4e5F6\n") == ["a1B2c3D4e5F6"]


@pytest.mark.parametrize(
    ("names", "is_found"),
    [
        (["cc", *["c"] * 496, "token"], True),
        (["ccc", *["c"] * 496, "token"], False),
        (["token", *["c"] * 498, "cc"], True),
        (["token", *["c"] * 499, "c"], False),
    ],
)
def test_a_header_has_at_most_1000_characters_on_each_side(names, is_found):
    row = [TOKEN if name == "token" else "x" for name in names]
    assert list_secrets(f"{','.join(names)}\n{','.join(row)}\n") == [TOKEN] * is_found


def test_a_statement_has_at_most_200_characters_before_the_names_of_its_columns():
    for blank_count, values in ((187, [TOKEN]), (188, [])):
        statement = f"INSERT INTO{' ' * blank_count}t (name, password) VALUES ('ann', '{TOKEN}')"
        assert list_secrets(statement) == values


def test_all_values_of_several_columns_are_found():
    rows = "".join(f"{n},{TOKEN[n:]},u{n},{PASSWORD}{n}\n" for n in range(10, 14))
    values = [v for n in range(10, 14) for v in (TOKEN[n:], f"{PASSWORD}{n}")]
    assert list_secrets(f"id,api_key,name,password\n{rows}") == values
    names = "INSERT INTO u (api_key, name, password) VALUES "
    rows = ", ".join(f"('{TOKEN[n:]}', NULL, '{PASSWORD}{n}')" for n in range(10, 14))
    assert list_secrets(f"{names}{rows};\n{names}{rows};") == values * 2


@pytest.mark.parametrize(
    "text",
    [
        # other columns
        f"key,value\n{TOKEN},1\n",
        f"name,primary_key\nann,{TOKEN}\n",
        f"name,password_hash\nann,{TOKEN}\n",
        f"name,token_count\nann,{TOKEN}\n",
        f"id,next_page_token\n1,{TOKEN}\n",
        f"name,passage\nann,{TOKEN}\n",
        f"name,monkey\nann,{TOKEN}\n",
        f"password,name\nann,{TOKEN}\n",
        f"password\n{TOKEN}\n",
        # other values
        "name,password\nann,correct horse\nbob,hunter2\n",
        "token\ttag\nbicycles\tNN\niPhone12\tNNP\n",
        "token,url\nhttps://t.example/aB3dE6gH9kLm,x\n",
        "name,password\nann,$DB_PASSWORD_X9\nbob,********\n",
        # no rows
        f"Enter your name, password\n{TOKEN}\n",
        f"name,password\n\n\n\n\n\nann,{TOKEN}\n",
        f"name,password\n{TOKEN}\n",
        f"if name, token\n{TOKEN}, x, y\n",
        f"f(name=1, token)\nx, {TOKEN}\n",
        f"x = name | token\nann | {TOKEN}\n",
        f"name,,password\nann,,{TOKEN}\n",
        f"{'x' * 1001}, token\nx, {TOKEN}\n",
        # other statements
        f"INSERT INTO users (name, password) SELECT 'x', '{TOKEN}'",
        f"INSERT INTO users (password, name) VALUES ('x', '{TOKEN}')",
        f"INSERT INTO users (name, password) VALUES ('{TOKEN}')",
        f"INSERT INTO users (name, password) VALUES (?, ?), ('{TOKEN}', x)",
        f"CREATE TABLE users (name, password) VALUES ('x', '{TOKEN}')",
        f"COPY users (name, password) TO stdout;\nann\t{TOKEN}\n",
        "INSERT INTO users (name, password) VALUES ('ann', 'password1')",
    ],
)
def test_other_columns_have_no_credentials(text):
    assert list_secrets(text) == []


# Values that a bare key identifies ---------------------------------------------------------------

UUID = "550e8400-e29b-41d4-" + "a716-446655440000"
IDENTIFIERS = [
    UUID,
    UUID.upper(),
    "DejaVuSansMono9pt7b",
    "HelveticaNeue65MediumXq9",
    "FiraSans-Medium-e1aa3f0a",
    "SourceSerif4-It-ca3b17ed.ttf",
]


@pytest.mark.parametrize("template", ["key: {}", 'key="{}"', '{{"key": "{}"}}', "- key: {}\n"])
@pytest.mark.parametrize("value", IDENTIFIERS)
def test_a_uuid_or_the_name_of_a_font_is_no_credential_after_a_bare_key(template, value):
    assert list_secrets(template.format(value)) == []


@pytest.mark.parametrize(
    "template", ["api_key: {}", "API key: {}", "secret.key={}", "x-key: {}", "token: {}"]
)
def test_a_uuid_is_a_credential_after_another_name(template):
    assert list_secrets(template.format(UUID)) == [UUID]


def test_other_values_of_a_bare_key_are_credentials():
    for value in (TOKEN, f"{UUID}0", TOKEN[:9] + "Sans" + TOKEN[9:]):
        assert list_secrets(f"key: {value}") == [value]


# Properties --------------------------------------------------------------------------------------

HOSTILE = [
    "ann,token\n",
    "token,\n",
    "(token)",
    "a,token\n" + "b,c,d\n" * 4,
    "insert into t (token) values (",
    "insert into t (token) values ('",
    "insert into t (token) values ('\\",
    "insert into t (token) values (((",
    'insert into t (token) values ("',
    "insert into t (token) values ('x'),",
    "copy t (a,token) from stdin;\n",
    "mysql -p12345678 ",
    "mysql -p" + "aB3dE6gH" + " ",
    " -paB3dE6gH",
    "docker login -U a%",
    "WIFI:P:",
    "WIFI:T:a;",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_adversarial_text_takes_linear_time(piece):
    """For 16 times the text, allow 64 times the time; quadratic time would be 256 times."""

    def seconds(characters):
        texts = pa.array([piece * (characters // len(piece))], pa.large_string())
        times = []
        for _ in range(3):
            start = time.process_time()
            find_spans_by_row(texts, ("SECRET",), ())
            times.append(time.process_time() - start)
        return min(times)

    seconds(100)
    assert seconds(160_000) < 64 * seconds(10_000) + 0.02


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([*OPTIONS, *COLUMNS, *SQL]),
    st.text(st.sampled_from("aZé漢–-_.,;|=\"'(\t\n9"), max_size=30),
    st.text(st.sampled_from("aZé漢–-_.,;|=\"'(\t\n9"), max_size=30),
)
def test_a_credential_is_found_after_any_text(template, before, after):
    text = f"{before}\n\n{template.format(TOKEN)}\n{after}"
    assert any(TOKEN in value for value in list_secrets(text))
