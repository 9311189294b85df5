"""Test in which forms a credential is found, and which text is none."""

import random
import string

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hallmark.tasks.measures.personal_data import find_personal_data_spans, find_spans_by_row

#: Random characters, concatenated, so that secret scanners ignore this file.
TOKEN = "Jqhr0kWsRpcE5cw7" + "Wxu8dSbRDE28jhYQ"
HEXADECIMAL = "a3f5c8e19b2d4760" + "f1e2d3c4b5a69788"


def list_values(text):
    """Return the types and values found in a text, which must be the same in a column of texts."""
    spans = find_personal_data_spans(text)
    assert find_spans_by_row(pa.array(["", text, "x"], pa.large_string())).get(1, []) == spans
    return [(span.type, text[span.start : span.end]) for span in spans]


#: Forms in which a name announces the value {}.
ASSIGNMENTS = [
    # operators
    "api_key = {}",
    "API_KEY={};",
    'api_key="{}",',
    "secret_key := '{}'",
    "'token' => '{}',",
    "token -> {}",
    'password == "{}"',
    "Password:{}",
    "the token={} (old)",
    "token={}[1]",
    "token={}{{x}}",
    # options
    "-key {}",
    "tool --key {}",
    "login bob key {}",
    "machine example.org login bob key {}",
    # names
    "SECRET_KEY_ID={}",
    "API_KEY_PROD={}",
    "token2={}",
    "api_key_1: '{}'",
    "secretKeyId = '{}'",
    "apiKeyProd: '{}'",
    "tokens: ['{}']",
    "PASS={}",
    "DB_PASS='{}'",
    "userpass={}",
    "PGPASSWORD={} psql",
    "pw: '{}'",
    "_auth={}",
    "//registry.example/:_authToken={}",
    # subscripts
    'config["API_KEY"] = "{}"',
    "os.environ['X_TOKEN'] = '{}'",
    "config[:api_key] = '{}'",
    "$config['password'] = '{}';",
    "os.environ.get('X_TOKEN', '{}')",
    'define("AUTH_KEY", "{}");',
    'setToken("{}")',
    # types and prefixes of strings
    'password: str = "{}"',
    'const token: string = "{}";',
    'String apiKey = "{}"',
    'token = b"{}"',
    'token = r"{}"',
    'token = f"{}"',
    'token = u"{}"',
    'token = L"{}"',
    'token = @"{}"',
    'token = """{}"""',
    "token = '''{}'''",
    # brackets and calls
    'token=("{}")',
    'token=["{}"]',
    'token={{"{}"}}',
    'token = Some("{}")',
    'token = String::from("{}");',
    # Markdown and tables
    "**Password:** {}",
    "**Password**: {}",
    "Password: **{}**",
    "*token*: `{}`",
    "token: `{}`",
    "| token | {} |",
    "|api_key|{}|",
    "token\t{}",
    # XML and HTML
    "<password>{}</password>",
    '<api-key type="plain">{}</api-key>',
    '<add key="ApiKey" value="{}"/>',
    '<property name="db.password" value="{}" />',
    "password=&quot;{}&quot;",
    "&quot;token&quot;:&quot;{}&quot;",
    "token=&#39;{}&#39;",
    "token&#61;{}",
    # JSON and YAML
    '{{"name": "API_KEY", "value": "{}"}}',
    "- name: API_KEY\n  value: {}\n",
    '{{\\"token\\":\\"{}\\"}}',
    "password: >-\n  {}\n",
    "password: |\n  {}\n",
    "password:\n  {}\nuser: a",
    'password = (\n    "{}"\n)',
    # quotes
    "password: “{}”",
    "password: „{}“",
    "password: ‘{}’",
    "password: «{}»",
    "パスワードは「{}」",
    # URLs
    "https://h.example/cb?access_token={}#section",
    "https://h.example/cb#access_token={}&token_type=bearer",
    "https://h.example/?auth={}",
    "https://h.example/?token={}&amp;x",
    "token={}&lt;",
    "https://h.example/?sv=2024&sig={}&se=2026",
    "[link](https://h.example/?token={})",
    "See https://h.example/?token={}, then.",
    "See https://h.example/?token={}.",
    "https://h.example/?token={}を使う",
    "token%3D{}%26x%3D1",
    "token%253D{}",
    "token=%22{}%22",
    # headers
    "Authorization: Bearer {}",
    'Authorization: "Bearer {}"',
    "Authorization: Basic {}",
    "authorization: token {}",
    "Authorization: ApiKey {}",
    "Authorization: {}",
    '{{"Authorization": "Bearer {}"}}',
    "curl -H 'X-API-Key: {}' https://h",
    "Authorization=Bearer%20{}",
    # options and files of programs
    "tool --token {}",
    "tool --api-key  '{}'",
    "tool --api-key \\\n  {}",
    "tool -token {}",
    "--password {}",
    "curl -u ann:{} https://h.example",
    "curl --user 'ann:{}' https://h.example",
    "machine h.example login ann password {}",
    "machine h.example\nlogin ann\npassword {}",
    "ENV API_KEY {}",
    "requirepass {}",
    "IDENTIFIED BY '{}'",
    "ALTER USER ann PASSWORD '{}';",
    'variable "db_password" {{\n  default = "{}"\n}}',
    "password = <<EOF\n{}\nEOF",
    # several marks between the name and the value
    'var token string = "{}"',
    'char password[32] = "{}";',
    'secret <- "{}"',
    '"password";"{}"',
    "token\\u003d{}",
    "token:%20{}",
    'password = """\n{}\n"""',
    "Password:&nbsp;{}",
    "API key — {}",
    "API key - {}",
    "token ({})",
    "api_key     {}",
    # elements of pages
    "<td>password</td><td>{}</td>",
    "<b>Password:</b> {}",
    "<strong>Token</strong>: <code>{}</code>",
    "Password:<br>{}",
    "<key>ApiKey</key>\n<string>{}</string>",
    '<input type="hidden" name="csrf_token" value="{}">',
    'data-token="{}"',
    # sentences
    "The password is {}.",
    "Set the token to {}",
    "Password (root): {}",
    # other languages
    "Passwort: {}",
    "Das Kennwort lautet: {}",
    "API-Schlüssel = {}",
    "mot de passe : {}",
    "clé: {}",
    "contraseña: {}",
    "clave={}",
    "chiave: {}",
    "senha: {}",
    "chave de acesso = '{}'",
    "Password for root: {}",
    "wachtwoord: {}",
    "hasło: {}",
    "Пароль: {}",
    "ключ={}",
    "ŞİFRE: {}",
    "parola = {}",
    "lösenord: {}",
    "A senha é {}",
    "Passwort für root: {}",
    "пароль от почты — {}",
    "Şifreniz: {}",
    "密码：{}",
    "口令是{}，请保密",
    "비밀번호는 {} 입니다",
    "كلمة المرور هي {}",
    "密鑰: {}",
    "パスワード：{}",
    "비밀번호: {}",
    "كلمة المرور: {}",
    "पासवर्ड: {}",
]


@pytest.mark.parametrize("template", ASSIGNMENTS)
def test_a_random_value_after_a_name_is_found_in_every_form(template):
    for value in (TOKEN, HEXADECIMAL):
        assert list_values(template.format(value)) == [("SECRET", value)]


@pytest.mark.parametrize("value", [TOKEN, TOKEN[:16], TOKEN[:20] + "+/" + TOKEN[20:]])
def test_a_remark_may_follow_a_value_that_is_no_function(value):
    assert list_values(f"token={value}(old)") == [("SECRET", value)]
    assert list_values(f"token={value[:12]}(old)") == []


PASSWORDS = [
    "hT7$kLm9!wQz",
    "x8#Kq2,vL",
    "n7Gk^p2(Qz)",
    "k3%Jq9;sLz:8Xw",
    "p9{Lq2}k<Zx7",
    "aB3|dE6|gH9k",
    "Zk3 vQ9 xW2 mN",
    "$ecr3tQ7kz9X",
    "@p7Zq-9xK2<w",
    r"aB3\"dE6gH9kq",
]


@pytest.mark.parametrize("password", PASSWORDS)
def test_a_password_may_contain_any_mark_in_quotes(password):
    for template in ('password = "{}"', '{"password": "{}"}', 'x["DB_PASSWORD"] = "{}"'):
        assert list_values(template.replace("{}", password)) == [("SECRET", password)]


@pytest.mark.parametrize("password", ["hT7$kLm9!wQz", "p9{Lq2k%Zx7", "Zk3^vQ9~xW2@mN"])
def test_a_password_without_quotes_may_contain_some_marks(password):
    assert list_values(f"password: {password}\nuser: ann") == [("SECRET", password)]


@pytest.mark.parametrize(
    "value", [TOKEN * 8, TOKEN * 200, HEXADECIMAL * 40, (TOKEN[:30] + "+/") * 20 + "=="]
)
def test_long_values_are_found(value):
    for template in ("token={}", 'session_token: "{}"', "Authorization: Bearer {}"):
        assert list_values(template.format(value)) == [("SECRET", value)]


@pytest.mark.parametrize("word", ["1234", "foo", "test", "abcd", "example", "pass", "xxxx", "your"])
def test_a_word_of_placeholders_inside_a_random_value_is_part_of_it(word):
    value = TOKEN[:10] + word + TOKEN[10:24]
    assert list_values(f"api_key={value}") == [("SECRET", value)]


@pytest.mark.parametrize("value", ["9Xhandg" + "UrequeG7Bs", "tTppasKx" + "GmpassMBy"])
def test_parts_of_words_in_a_value_of_many_changes_do_not_hide_it(value):
    assert list_values(f"password: {value}") == [("SECRET", value)]


@pytest.mark.parametrize(
    "value",
    [
        "${DB_PASSWORD_X9q2}",
        "$DB_PASSWORD_9",
        "$dbPassword",
        "{{ vault.a1B2c3D4e5F6 }}",
        "%DB_PASSWORD_X9q2%",
        "<a1B2c3D4e5F6g7H8>",
        "{a1B2c3D4e5F6g7H8}",
        "$(cat a1B2c3D4e5F6)",
        "your-api-key-1234",
        "changeme123example",
        "xxxxxxxxXXXXXXXX1234",
        "test-secret-token-foo-1",
        "****************",
        "AbcdefghIjkl12345678",
        "[redacted9X7q3Z]",
    ],
)
def test_a_value_that_is_a_placeholder_is_not_found(value):
    for template in ('password = "{}"', "api_key={}", "token: '{}'"):
        assert list_values(template.replace("{}", value)) == []


@pytest.mark.parametrize(
    "text",
    [
        # names in code
        '"result_key": "MaxResults"',
        'limit_key: "CloudFrontOriginAccessIdentityList.NextMarker"',
        "DispatchKey::SparseCsrPrivateUse1",
        "peer_public_key: 'EllipticCurvePublicKey'",
        "key: X25519PublicKey | Ed25519PrivateKey",
        "key=MEAN_NUM_LEARNER_GROUP_UPDATE_CALLED,",
        'XRAY_ENABLED_KEY = "AWS_XRAY_SDK_ENABLED"',
        "mngr->getKey = xmlSecKeysMngrGetKey;",
        "ACCESS_KEY = 'AWSAccessKeyId'",
        'translation_key: "Login2FAHeader3Title"',
        "<key>CFBundleIdentifier2</key>",
        'key="iPhone12ProMax"',
        'key = "H264_1080P60"',
        'model_key: "Qwen2.5-7B-Instruct-GPTQ-Int4"',
        "cacheKey = `user:${id}:v2`",
        "key: ${{ runner.os }}-pip-${{ hashFiles('r.txt') }}",
        "Answer key: 1.B 2.C 3.A 4.D",
        "pass: 12/15, PASS: test_foo2bar3",
        'password_hash = "$2b$12$EixZaYVK1fsbw1ZfbX3OXePaWxn96p36WQoeG6Lruj3vjPGga31lW"',
        "password: process.env.DB_PASSWORD_2024",
        "secret = secretsmanager.GetSecretValue2Async()",
        "if key in {'utf8ToUtf16Dup'}:",
        "keyboard: QWERTZ-DE105-Layout2",
        "tokenizer = 'a1B2c3D4e5F6g7H8'",
        "password = utf8_to_utf16_dup(v);",
        "key: ed25519.hexToDER(keyInfo.value)",
        "self.queries_keys_values = MLPLayerWithBN(sizes)",
        # names of public values
        f"gpg --recv-keys {HEXADECIMAL}",
        f'primary_key="{TOKEN}"',
        f"sort_key: '{TOKEN}'",
        f'PUBLIC_KEY = "{TOKEN}"',
        f"cache key: {TOKEN}",
        f'key_hash = "{TOKEN}"',
        f'token-sha256: "{TOKEN}"',
        f'"AWS::KMS::Key": "{TOKEN}"',
        # sentences
        "The key: Understanding the 3 phases of photosynthesis",
        'key: "Use SHA256 or MD5, see RFC2104"',
        "key: 'T-1000 vs. RoboCop 2'",
        "Password must contain: A-Z, a-z, 0-9",
        "Key: C# minor, 4/4",
        # algorithms, dates, patterns, places
        "key: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        "encryption key: AES-256-GCM/PBKDF2",
        'key = "2024-01-15T10:30:00Z"',
        "token = '[A-Za-z0-9_-]{16,64}'",
        "key='America/Los_Angeles'",
        "s3 key: images/2024/01/IMG_0123.JPG",
        'KeyArn: "arn:aws:kms:us-west-2:123456789012:key/b0844d6c-xmpl-4463-97a4-d49f50839966"',
        # elements of pages
        '<div key="row-12-col-3" data-key="TeamMemberList2">',
        '<input id="passwordField2" name="password" type="password2">',
        # without a name
        TOKEN,
        f"commit {HEXADECIMAL}",
        f"the key {TOKEN}",
        f'call(token, "{TOKEN}")',
        f'"token", {TOKEN}',
        f"compass: {TOKEN}",
        f"bypass={TOKEN}",
        f"const x = a-u d:{TOKEN}",
    ],
)
def test_other_text_has_no_credentials(text):
    assert list_values(text) == []


def test_several_credentials_of_a_line_are_found():
    for separator in ("&", ",", ";", " ", "|", "/", "%26"):
        text = f"token={TOKEN}{separator}secret={HEXADECIMAL}"
        assert list_values(text) == [("SECRET", TOKEN), ("SECRET", HEXADECIMAL)]


# Passwords and tokens in URLs --------------------------------------------------------------------


@pytest.mark.parametrize(
    "password",
    [
        "p4ss/w0rD9",
        "p4ss@w0rD9",
        "it's9Kq",
        "$ecr3tPw9",
        "100%real",
        "p:q:r9",
        "hunter22",
    ],
)
@pytest.mark.parametrize("rest", ["", "/base", ":5432/base?x=1", ", and so on", "/@scope/x"])
def test_a_password_in_a_url_may_contain_marks(password, rest):
    url = f"postgres://ann:{password}@db.example"
    found = [value for kind, value in list_values(f"see {url}{rest}") if kind == "SECRET"]
    assert len(found) == 1
    assert found[0].startswith(url)
    assert found[0] in (url, f"{url}:5432")


@pytest.mark.parametrize(
    "password", ["$PASS", "${PASS}", "%PASS%", "{pw}", "<password>", "$dbPass"]
)
def test_a_placeholder_in_a_url_is_no_password(password):
    found = list_values(f"postgres://ann:{password}@db.example/base")
    assert [value for kind, value in found if kind == "SECRET"] == []


@pytest.mark.parametrize(
    "text",
    ["http://localhost:8080/users/@ann", "https://h.example:443/x?to=ann@", "git@h.example:a/b"],
)
def test_a_port_before_a_path_is_no_password(text):
    assert [value for kind, value in list_values(text) if kind == "SECRET"] == []


def test_a_token_in_place_of_a_user_is_found():
    url = f"https://{TOKEN}@github.com"
    assert list_values(f"git clone {url}/x/y.git") == [("SECRET", url)]
    assert list_values("ssh://anna.maria.schmidt@github.com/x") != [
        ("SECRET", "ssh://anna.maria.schmidt@github.com")
    ]


# Signatures and responses ------------------------------------------------------------------------


def test_signatures_and_responses_of_requests_are_found():
    digest = f'Authorization: Digest username="ann", realm="x", uri="/", response="{HEXADECIMAL}"'
    assert list_values(digest) == [("SECRET", HEXADECIMAL)]
    request = (
        "Authorization: AWS4-HMAC-SHA256 Credential=id/20260101/us-east-1/s3/aws4_request, "
        f"SignedHeaders=host, Signature={HEXADECIMAL * 2}"
    )
    assert ("SECRET", HEXADECIMAL * 2) in list_values(request)


# Keys of vendors ---------------------------------------------------------------------------------

LETTERS = "aB3dE6gH9kLm2NpQ5rSt8uVwX1yZ4cFj7hKi0oPqRsTuVwXyZ" * 9
DIGITS = HEXADECIMAL * 8

VENDOR_KEYS = [
    "AKIA" + "QYLP3J7ZK2M5N8RT",
    "ASIA" + "QYLP3J7ZK2M5N8RT",
    *(prefix + LETTERS[:36] for prefix in ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "npm_")),
    "github_pat_" + LETTERS[:22] + "_" + LETTERS[:59],
    "glpat-" + LETTERS[:20],
    "xoxb-" + "123456789012-1234567890123-" + LETTERS[:24],
    "xoxe.xoxp-1-" + LETTERS[:150],
    "xapp-1-" + "A01B2C3D4E5-1234567890123-" + DIGITS[:64],
    *(prefix + LETTERS[:24] for prefix in ("sk_live_", "sk_test_", "rk_live_", "rk_test_")),
    "whsec_" + LETTERS[:32],
    "sk-ant-" + "api03-" + LETTERS[:93],
    "sk-or-v1-" + DIGITS[:64],
    "sk-proj-" + LETTERS[:48],
    "sk-" + LETTERS[:48],
    "AIza" + LETTERS[:35],
    "ya29." + LETTERS[:120],
    "GOCSPX-" + LETTERS[:28],
    "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH",
    "gsk_" + LETTERS[:52],
    "nvapi-" + LETTERS[:64],
    "xai-" + LETTERS[:80],
    "pplx-" + LETTERS[:48],
    "r8_" + LETTERS[:37],
    "dckr_pat_" + LETTERS[:27],
    "pypi-" + "AgEIcHlwaS5vcmc" + LETTERS[:80],
    "rubygems_" + DIGITS[:48],
    "SG." + LETTERS[:22] + "." + LETTERS[:43],
    "key-" + DIGITS[:32],
    "SK" + DIGITS[:32],
    "sq0atp-" + LETTERS[:22],
    "sq0csp-" + LETTERS[:43],
    "EAAC" + LETTERS[:120],
    "EAAA" + LETTERS[:60],
    "dop_v1_" + DIGITS[:64],
    "shpat_" + DIGITS[:32],
    "dapi" + DIGITS[:32],
    "LTAI" + LETTERS[:20],
    "ATATT3" + LETTERS[:186],
    "glsa_" + LETTERS[:32] + "_" + DIGITS[:8],
    "lin_api_" + LETTERS[:40],
    "PMAK-" + DIGITS[:24] + "-" + DIGITS[:34],
    "hvs." + LETTERS[:90],
    "sntrys_" + LETTERS[:100],
    "AGE-SECRET-KEY-1" + "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L" + "QPZRY9X8GF2TVDW0S3JN54KHCE",
    "123456789:AA" + LETTERS[:33],
    "hooks.slack.com/services/" + "T01AB2CD3/B01AB2CD3/" + LETTERS[:24],
    "discord.com/api/webhooks/" + "123456789012345678/" + LETTERS[:68],
    "eyJ" + LETTERS[:40] + ".eyJ" + LETTERS[:300] + "." + LETTERS[:43],
]


@pytest.mark.parametrize("value", VENDOR_KEYS)
def test_a_key_with_the_prefix_of_a_vendor_is_found(value):
    for template in ("use {}, please", "({})", "用{}的人", "x={}", '"{}"', "/{}"):
        assert list_values(template.format(value)) == [("SECRET", value)]
    assert [v for _, v in list_values(f"x{value}")] != [value]
    assert [v for _, v in list_values(f"see {value[:-1]}é")] != [value]


CAPITALS = "QYLP3J7ZK2M5N8RT" * 4
#: Prefixes of vendors, with the characters of their keys and the least and most of them.
KEY_LENGTHS = [
    ("AKIA", CAPITALS, 16, 16),
    ("ghp_", LETTERS, 36, 255),
    ("github_pat_", LETTERS, 82, 82),
    ("glpat-", LETTERS, 20, 80),
    ("xoxb-1-", LETTERS, 10, 200),
    ("xapp-1-A0-1-", LETTERS, 10, 200),
    ("sk_live_", LETTERS, 16, 250),
    ("whsec_", LETTERS, 24, 100),
    ("sk-ant-", LETTERS, 24, 120),
    ("sk-or-v1-", DIGITS, 64, 64),
    ("sk-proj-", LETTERS, 20, 250),
    ("sk-", LETTERS, 48, 48),
    ("AIza", LETTERS, 35, 35),
    ("ya29.", LETTERS, 20, 400),
    ("GOCSPX-", LETTERS, 28, 28),
    ("hf_", LETTERS, 34, 40),
    ("gsk_", LETTERS, 40, 60),
    ("nvapi-", LETTERS, 40, 80),
    ("xai-", LETTERS, 70, 90),
    ("pplx-", LETTERS, 40, 64),
    ("r8_", LETTERS, 37, 37),
    ("dckr_pat_", LETTERS, 27, 36),
    ("npm_", LETTERS, 36, 36),
    ("rubygems_", DIGITS, 48, 48),
    ("SG." + LETTERS[:22] + ".", LETTERS, 43, 43),
    ("key-", DIGITS, 32, 32),
    ("SK", DIGITS, 32, 32),
    ("sq0atp-", LETTERS, 22, 43),
    ("EAAC", LETTERS, 56, 400),
    ("dop_v1_", DIGITS, 64, 64),
    ("shpat_", DIGITS, 32, 32),
    ("dapi", DIGITS, 32, 32),
    ("LTAI", LETTERS, 20, 20),
    ("ATATT3", LETTERS, 60, 250),
    ("glsa_", LETTERS, 41, 41),
    ("lin_api_", LETTERS, 40, 40),
    ("PMAK-", DIGITS, 59, 59),
    ("hvs.", LETTERS, 24, 200),
    ("sntrys_", LETTERS, 60, 400),
    ("AGE-SECRET-KEY-1", CAPITALS, 58, 58),
    ("123456789:AA", LETTERS, 33, 33),
    ("hooks.slack.com/services/", LETTERS, 20, 80),
    ("discord.com/api/webhooks/1234567890123456/", LETTERS, 50, 80),
]


@pytest.mark.parametrize(("prefix", "characters", "least", "most"), KEY_LENGTHS)
def test_a_key_of_a_vendor_has_a_documented_length(prefix, characters, least, most):
    for length in (least - 1, least, most, most + 1):
        key = f"{prefix}{characters[:length]}"
        found = [("SECRET", key)] * (least <= length <= most)
        assert list_values(f"use {key}, please") == found, length


# Private keys ------------------------------------------------------------------------------------

BEGIN, END = ("-----" + word + " RSA PRIVATE KEY-----" for word in ("BEGIN", "END"))
LINES = [LETTERS[i * 64 : i * 64 + 64] for i in range(4)]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\\n", '"\n    "', "\n> "])
def test_a_private_key_without_its_end_is_found(newline):
    key = BEGIN + newline + newline.join(LINES)
    assert list_values(f"the key {key}") == [("SECRET", key)]
    assert list_values(f"the key {key}\n\nIt is, as we said, no more valid.") == [("SECRET", key)]
    complete = f"{BEGIN}\n{LINES[0]}\n{END}"
    assert list_values(f"{key}\n{complete}") == [("SECRET", key), ("SECRET", complete)]


def test_headers_of_a_private_key_are_part_of_it():
    key = f"{BEGIN}\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0F1E2D\n\n{LINES[0]}\n{LINES[1]}"
    assert list_values(f"{key}\n") == [("SECRET", key)]


def test_the_begin_of_a_private_key_without_lines_is_none():
    assert list_values(f"A key begins with {BEGIN} and ends otherwise") == []
    assert list_values(f"{BEGIN}\n...\n{LINES[0]}") == []


# Properties --------------------------------------------------------------------------------------

ALPHABETS = (
    string.ascii_letters + string.digits,
    string.ascii_letters + string.digits + "+/",
    string.ascii_letters + string.digits + "-_",
    string.hexdigits[:16],
)


def create_random_secret(rng, length, alphabet):
    value = "".join(rng.choices(alphabet, k=length - 2))
    return f"k{value}7"  # Not the end of a sentence.


def is_found(value, text, start=0):
    start = text.index(value, start)
    return any(
        span.start <= start and start + len(value) <= span.end
        for span in find_personal_data_spans(text)
    )


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_few_random_secrets_of_sixteen_characters_look_like_words_or_numbers(alphabet):
    """A random value sometimes contains a word, a path or one long number."""
    rng = random.Random(1)
    values = [create_random_secret(rng, 16, alphabet) for _ in range(3000)]
    n_found = sum(is_found(value, f"api_key = {value}") for value in values)
    assert n_found >= 0.995 * len(values)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(16, 400),
    st.sampled_from(ALPHABETS),
    st.sampled_from(ASSIGNMENTS),
    st.text(st.sampled_from("aZé漢字１٣–-_.,:=\"' \n9"), max_size=30),
    st.text(st.sampled_from("aZé漢字１٣–-_.,:=\"' \n9"), max_size=30),
)
def test_a_secret_found_on_its_own_is_found_in_every_form_in_any_text(
    seed, length, alphabet, template, before, after
):
    value = create_random_secret(random.Random(seed), length, alphabet)
    assume(is_found(value, f"api_key = {value}"))
    assert is_found(value, f"{before}\n{template.format(value)}\n{after}", len(before))
