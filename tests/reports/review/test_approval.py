"""Whether a card is approved follows from its reviews; in doubt it is not."""

import base64
import hashlib
import os
import shutil
import subprocess
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from hallmark.reports.review.approval import judge_card
from hallmark.reports.review.review_store import (
    StoredReview,
    read_reviews,
    read_stored_review,
    write_review,
)
from hallmark.reports.review.signatures import (
    MAX_SIGNATURE_BYTES,
    SignerFiles,
    check_signature,
    sign_with_agent,
)
from hallmark.reports.review.statements import MAX_STATEMENT_BYTES, compute_review_id
from hallmark.tasks.contract import HallmarkError, Store, UsageError
from tests.reports.review.test_statements import CARD, make

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


@pytest.fixture
def stored(reviewers):
    """Create a review that a reviewer signed."""

    def create(name, **fields):
        comment = {} if fields.get("decision", "approve") == "approve" else {"comment": "Because."}
        statement = make(reviewer=name, **comment, **fields).to_statement()
        return StoredReview(
            compute_review_id(statement), statement, reviewers.sign(name, statement)
        )

    return create


@pytest.fixture
def judge(reviewers, tmp_path):
    """Judge a card; ada and bob may sign."""

    def judge_reviews(*reviews, card=CARD, now=NOW, names=("ada", "bob"), revoked=()):
        files = reviewers.files(tmp_path, *names, revoked=revoked)
        return judge_card(card, reviews, files, now)

    return judge_reviews


def states(approval):
    return [review.state for review in approval.reviews]


def test_without_reviews_a_card_is_unsigned(judge):
    approval = judge()
    assert approval.state == "unsigned" and not approval.is_approved
    assert approval.describe() == "unsigned: not yet reviewed"


def test_a_signed_approval_approves(judge, stored):
    approval = judge(stored("ada"))
    assert approval.is_approved and approval.describe() == "approved by ada@example.org"
    (review,) = approval.reviews
    assert review.signer == "ada@example.org" and review.key.startswith("SHA256:")
    conditional = judge(stored("ada"), stored("bob", decision="approve-with-conditions"))
    assert conditional.is_approved and conditional.state == "approved_with_conditions"


def test_changed_evidence_voids_the_decision(judge, stored):
    review = stored("ada")
    changed = CARD.model_copy(update={"evidence_hash": "3" * 64})
    approval = judge(review, card=changed)
    assert approval.state == "void" and not approval.is_approved
    assert "the card's evidence has changed" in approval.describe()
    other_weights = CARD.model_copy(update={"checkpoint": "4" * 64})
    assert judge(review, card=other_weights).state == "void"
    # Another run with the same evidence about the same checkpoint needs no other review.
    assert judge(review, card=CARD.model_copy(update={"run": "other"})).is_approved


def test_reviews_of_other_cards_do_not_count(judge, stored):
    review = stored("ada")
    for card in (
        CARD.model_copy(update={"kind": "datasheet"}),
        CARD.model_copy(update={"evidence_hash": "3" * 64, "checkpoint": "4" * 64, "run": "x"}),
    ):
        assert judge(review, card=card).reviews == ()


def test_an_unknown_signer_does_not_count(judge, stored):
    approval = judge(stored("eve"))
    assert approval.state == "signer_unknown" and "does not list SHA256:" in approval.describe()
    assert judge_card(CARD, [stored("ada")], SignerFiles(), NOW).state == "signer_unknown"
    assert judge(stored("eve"), stored("ada")).is_approved


def test_a_signer_may_be_limited_to_other_purposes_or_times(reviewers, stored, tmp_path):
    for options in ('namespaces="git"', 'valid-before="20200101"', 'valid-after="20990101"'):
        path = reviewers.write_allowed_signers(tmp_path / "signers", "ada", options=options)
        assert judge_card(CARD, [stored("ada")], SignerFiles(path), NOW).state == "signer_unknown"
    path = reviewers.write_allowed_signers(
        tmp_path / "signers", "ada", options='namespaces="hallmark-review"'
    )
    assert judge_card(CARD, [stored("ada")], SignerFiles(path), NOW).is_approved


def test_a_revoked_key_does_not_count(judge, stored, reviewers, tmp_path):
    approval = judge(stored("ada"), revoked=("ada",))
    assert approval.state == "signature_invalid" and "is revoked" in approval.describe()
    assert judge(stored("ada"), stored("bob"), revoked=("ada",)).is_approved
    revocation_list = tmp_path / "krl"
    key = str(reviewers.folder / "ada.pub")
    subprocess.run(["ssh-keygen", "-q", "-k", "-f", str(revocation_list), key], check=True)
    files = SignerFiles(reviewers.files(tmp_path, "ada").allowed_signers, revocation_list)
    files.check_readable()
    assert judge_card(CARD, [stored("ada")], files, NOW).state == "signature_invalid"


def test_signatures_of_other_texts_or_purposes_are_invalid(judge, stored, reviewers):
    review, other = stored("ada"), stored("ada", date="2026-11-29T13:00:00+00:00")
    for signature in (
        other.signature,
        reviewers.sign("ada", review.statement, "git"),
        reviewers.sign("ada", review.statement + b" "),
        b"",
        b"-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n",
        b"x" * 100_000,
    ):
        assert judge(replace(review, signature=signature)).state == "signature_invalid"
    assert judge(replace(review, signature=None)).state == "unsigned"


def test_an_approval_expires_after_its_last_day(judge, stored):
    review = stored("ada", expires="2026-12-01")
    assert judge(review, now=datetime(2026, 12, 1, 23, 59, tzinfo=UTC)).is_approved
    late = judge(review, now=datetime(2026, 12, 2, tzinfo=UTC))
    assert (
        late.state == "expired" and late.describe() == "expired: the approval expired on 2026-12-01"
    )
    assert judge(review, stored("bob"), now=datetime(2026, 12, 2, tzinfo=UTC)).is_approved


def test_a_rejection_outweighs_approvals(judge, stored):
    approval = judge(stored("ada"), stored("bob", decision="reject"))
    assert approval.state == "rejected" and approval.describe() == "rejected by bob@example.org"


def test_a_reviewer_can_decide_again(judge, stored):
    early, late = "2026-11-29T12:00:00+00:00", "2026-11-30T12:00:00+00:00"
    rejected = judge(stored("ada", date=early), stored("ada", decision="reject", date=late))
    assert rejected.state == "rejected"
    approved = judge(stored("ada", decision="reject", date=early), stored("ada", date=late))
    assert approved.is_approved
    assert [review.is_superseded for review in approved.reviews] == [True, False]
    # Only the same key supersedes, and of two decisions in one second the rejection counts.
    assert judge(stored("bob", decision="reject", date=early), stored("ada", date=late)).state == (
        "rejected"
    )
    assert judge(stored("ada", decision="reject"), stored("ada")).state == "rejected"


def test_an_approval_from_the_future_hides_no_rejection(judge, stored):
    """A wrong clock must not let an approval replace a rejection that was written after it."""
    future = stored("ada", date="2027-11-29T12:00:00+00:00")
    assert judge(future).state == "signature_invalid"
    assert judge(future, stored("ada", decision="reject")).state == "rejected"


def test_a_rejection_that_cannot_be_verified_prevents_approval(judge, stored):
    """Else a missing line in the file of allowed signers would let a rejection vanish."""
    approval, rejection = stored("ada"), stored("bob", decision="reject")
    assert judge(approval, rejection, names=("ada",)).state == "signer_unknown"
    assert judge(approval, replace(rejection, signature=None)).state == "unsigned"
    assert judge(approval, replace(rejection, signature=b"x")).state == "signature_invalid"
    assert judge(approval, rejection, revoked=("bob",)).state == "signature_invalid"
    # One about other evidence says nothing of this card.
    earlier = stored(
        "eve", decision="reject", card=CARD.model_copy(update={"evidence_hash": "3" * 64})
    )
    assert judge(approval, earlier).is_approved


def test_a_damaged_statement_prevents_approval(judge, stored):
    """It may have been a rejection."""
    approval, rejection = stored("ada"), stored("bob", decision="reject")
    changed = replace(rejection, statement=rejection.statement.replace(b"reject", b"accept"))
    judged = judge(approval, changed)
    assert judged.state == "signature_invalid" and "is damaged" in judged.describe()
    shortened = replace(approval, statement=b"")
    assert judge(shortened).state == "signature_invalid"


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([MAX_STATEMENT_BYTES, MAX_SIGNATURE_BYTES], (b"x.json", b"x.json.sig")),
        ([MAX_STATEMENT_BYTES + 1, MAX_SIGNATURE_BYTES], (b"", b"x.json.sig")),
        ([MAX_STATEMENT_BYTES, MAX_SIGNATURE_BYTES + 1], (b"x.json", b"")),
        ([MAX_STATEMENT_BYTES], (b"x.json", None)),
        ([], (b"", None)),
    ],
)
def test_files_that_are_too_long_for_a_review_are_not_read(sizes, expected):
    keys = ("reviews/x.json", "reviews/x.json.sig")
    size_by_key = dict(zip(keys, sizes, strict=False))
    review = read_stored_review("x", size_by_key, lambda key: key.split("/")[1].encode())
    assert (review.statement, review.signature) == expected


@pytest.fixture(params=["folder", "bucket"])
def review_store(request, tmp_path):
    if request.param == "bucket":
        request.getfixturevalue("bucket")
        return Store(f"s3://hallmark/{tmp_path.name}", tmp_path / "work")
    return Store(tmp_path / "store")


def test_reviews_are_stored_and_never_overwritten(review_store, stored, reviewers):
    assert read_reviews(review_store) == []
    first, second = stored("ada"), stored("bob")
    for review in (first, second, first):
        assert write_review(review_store, review.statement, review.signature) == review
    assert read_reviews(review_store) == sorted((first, second), key=lambda review: review.id)
    with pytest.raises(HallmarkError, match="never overwritten"):
        write_review(review_store, first.statement, reviewers.sign("bob", first.statement))
    with pytest.raises(HallmarkError):
        write_review(review_store, b"{}", b"")
    review_store.put(f"reviews/{first.id}.json", b"{}")
    with pytest.raises(HallmarkError, match="never overwritten"):
        write_review(review_store, first.statement, first.signature)


def test_foreign_and_huge_files_are_no_reviews(tmp_path, stored):
    store = Store(tmp_path)
    review = stored("ada")
    write_review(store, review.statement, review.signature)
    store.put("reviews/notes.txt", b"hello")
    store.put("reviews/nested/0123.json", b"{}")
    store.put(f"reviews/{'0' * 32}.json", b" " * (1 << 20) + b" ")
    store.put(f"reviews/{'1' * 32}.json.sig", b"x")
    huge, (own) = read_reviews(store)
    assert (huge.id, huge.statement) == ("0" * 32, b"") and own == review


def test_the_agent_signs_without_the_private_key_file(reviewers, tmp_path, monkeypatch):
    statement = make().to_statement()
    public_key = tmp_path / "key.pub"
    public_key.write_text(reviewers.public_key("ada"))
    # The private key is next to the public one, as usual, and is not in the agent yet.
    (tmp_path / "key").write_bytes((reviewers.folder / "ada").read_bytes())
    (tmp_path / "key").chmod(0o600)
    socket = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.PIPE)
    try:
        agent.stdout.readline()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        with pytest.raises(HallmarkError, match="ssh-add"):
            sign_with_agent(statement, public_key)
        subprocess.run(["ssh-add", "-q", str(tmp_path / "key")], check=True, capture_output=True)
        signature = sign_with_agent(statement, public_key)
    finally:
        agent.terminate()
        agent.wait()
    files = reviewers.files(tmp_path, "ada")
    assert check_signature(statement, signature, files).outcome == "valid"


def test_a_private_key_is_never_opened(reviewers, tmp_path):
    with pytest.raises(UsageError, match="does not read private keys"):
        sign_with_agent(b"x", reviewers.folder / "ada")
    pretended = tmp_path / "ada.pub"
    pretended.write_text((reviewers.folder / "ada").read_text())
    with pytest.raises(UsageError, match="not an OpenSSH public key"):
        sign_with_agent(b"x", pretended)


def test_a_missing_ssh_keygen_is_one_sentence(stored, tmp_path, monkeypatch, judge):
    review = stored("ada")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HallmarkError, match=r"ssh-keygen was not found.*openssh-client"):
        judge(review)
    assert judge().state == "unsigned"


def test_an_ssh_keygen_that_does_not_end_is_stopped(stored, tmp_path, monkeypatch, judge):
    review = stored("ada")
    program = tmp_path / "ssh-keygen"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr("hallmark.reports.review.signatures.CHECK_TIMEOUT_SECONDS", 0.2)
    with pytest.raises(HallmarkError, match="did not respond within"):
        judge(review)


def test_wrong_signer_files_are_refused(tmp_path):
    with pytest.raises(UsageError, match="there is no such file"):
        SignerFiles(tmp_path / "missing").check_readable()
    junk = tmp_path / "junk"
    junk.write_text("# comment\nnot a key\n")
    with pytest.raises(UsageError, match="neither a list of public keys"):
        SignerFiles(revoked_keys=junk).check_readable()
    with pytest.raises(UsageError, match="line 2 has no public key"):
        SignerFiles(junk).check_readable()
    junk.write_text("# nobody yet\n\n \t# nor here\n")
    SignerFiles(junk, junk).check_readable()


def test_a_carriage_return_ends_no_line(reviewers, tmp_path):
    """ssh-keygen would read one line where a reader sees two."""
    lines, path = [f"ada {reviewers.public_key('ada')}", "# old:"], tmp_path / "lines"
    for files in (SignerFiles(path), SignerFiles(revoked_keys=path)):
        path.write_bytes("\n".join(["", "\r".join(reversed(lines))]).encode())
        with pytest.raises(UsageError, match="line 2 contains a carriage return"):
            files.check_readable()
    path.write_bytes("\r\n".join(lines).encode())
    SignerFiles(path).check_readable()


def test_a_private_key_is_no_list_of_signers(reviewers, tmp_path):
    with pytest.raises(UsageError, match="this is a private key; specify a list of allowed"):
        SignerFiles(reviewers.folder / "ada").check_readable()


@pytest.mark.parametrize("first", ['namespaces="git"', 'valid-before="20000101"', ""])
def test_a_key_may_have_several_names(reviewers, stored, tmp_path, first):
    """The first line with the key may be for another purpose or an earlier time."""
    review, key = stored("ada"), reviewers.public_key("ada")
    lines = [
        "# reviewers",
        f"eve@example.org {reviewers.public_key('eve')}",
        f"ada-git@example.org {first} {key}",
        f'ada-2@example.org namespaces="file" {key}',
        f'"ada@example.org,lovelace@example.org" namespaces="hallmark-review" {key}',
    ]
    allowed_signers = tmp_path / "allowed_signers"
    allowed_signers.write_text("\n".join(lines))
    check = check_signature(review.statement, review.signature, SignerFiles(allowed_signers))
    assert check.outcome == "valid", check.reason
    assert check.signer == ("ada@example.org" if first else "ada-git@example.org")
    allowed_signers.write_text("\n".join(lines[: 2 + 2 * bool(first)]))
    check = check_signature(review.statement, review.signature, SignerFiles(allowed_signers))
    assert check.outcome == "signer_unknown" and not check.signer
    allowed_signers.write_text("\n".join(lines))
    revoked_keys = tmp_path / "revoked"
    revoked_keys.write_text(f"{key}\n")
    files = SignerFiles(allowed_signers, revoked_keys)
    assert "is revoked" in check_signature(review.statement, review.signature, files).reason


@pytest.fixture
def ssh_keygen_calls(tmp_path, monkeypatch):
    """Count the calls of ssh-keygen."""
    log = tmp_path / "calls"
    log.touch()
    program = tmp_path / "counting" / "ssh-keygen"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$2" >> {log}\nexec {shutil.which("ssh-keygen")} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return lambda: len(log.read_text().splitlines())


def test_signatures_of_strangers_need_no_call_of_ssh_keygen(judge, stored, ssh_keygen_calls):
    strangers = [stored("eve") for _ in range(5)]
    calls_before = ssh_keygen_calls()
    assert judge(*strangers).state == "signer_unknown"
    approval = judge_card(CARD, strangers, SignerFiles(), NOW)
    assert approval.state == "signer_unknown" and "was not verified" in approval.describe()
    assert approval.count_unchecked_signatures() == 5
    assert ssh_keygen_calls() == calls_before
    approval = judge(*strangers, stored("ada"))
    assert approval.is_approved and approval.count_unchecked_signatures() == 5


def test_forged_signatures_of_a_listed_key_need_no_call_of_ssh_keygen(
    judge, stored, ssh_keygen_calls
):
    genuine = stored("ada")
    forged = [replace(stored("ada"), signature=genuine.signature) for _ in range(5)]
    calls_before = ssh_keygen_calls()
    assert judge(*forged).state == "signature_invalid"
    assert ssh_keygen_calls() == calls_before
    approval = judge(*forged, genuine)
    assert approval.is_approved and approval.count_unchecked_signatures() == 0


def test_a_page_shows_a_limited_number_of_unverified_reviews(judge, stored):
    strangers = [stored("eve") for _ in range(5)]
    rejection = stored("eve", decision="reject")
    approval = judge(*strangers, rejection, stored("ada"))
    assert approval.state == "signer_unknown"
    assert len(approval.list_shown_reviews(10)) == 7
    shown = approval.list_shown_reviews(1)
    assert {review.state for review in shown} == {"approved", "signer_unknown"}
    assert {review.id for review in shown} >= {rejection.id} and len(shown) == 2


@pytest.mark.parametrize(
    "options", [("rsa", "2048"), ("ecdsa", "256"), ("ecdsa", "384"), ("ecdsa", "521"), ("ed25519",)]
)
@pytest.mark.parametrize("hash_name", ["sha256", "sha512"])
def test_signatures_of_all_kinds_of_keys_are_read(tmp_path, options, hash_name):
    """What is refused without ssh-keygen is only what ssh-keygen would refuse, too."""
    key_file = tmp_path / "key"
    make_key = ["ssh-keygen", "-q", "-N", "", "-f", str(key_file), "-t", options[0]]
    subprocess.run([*make_key, *(("-b", options[1]) if options[1:] else ())], check=True)
    sign = ["ssh-keygen", "-Y", "sign", "-n", "hallmark-review", "-O", f"hashalg={hash_name}"]
    statement = make().to_statement()
    done = subprocess.run(
        [*sign, "-f", str(key_file)], input=statement, capture_output=True, check=True
    )
    signers = tmp_path / "signers"
    signers.write_text(f"ada@example.org {key_file.with_suffix('.pub').read_text()}")
    check = check_signature(statement, done.stdout, SignerFiles(signers))
    assert check.outcome == "valid", check.reason
    check = check_signature(make().to_statement(), done.stdout, SignerFiles(signers))
    assert check.outcome == "signature_invalid"


@pytest.mark.parametrize("is_ecdsa", [False, True])
def test_signatures_of_hardware_keys_are_read(tmp_path, is_ecdsa):
    """The key is a file here, but ssh-keygen verifies the signature as that of a device."""

    def join(*fields):
        return b"".join(len(field).to_bytes(4, "big") + field for field in fields)

    statement, application, counter = make().to_statement(), b"ssh:", b"\1\0\0\0\7"
    signed = join(b"hallmark-review", b"", b"sha512", hashlib.sha512(statement).digest())
    digest = hashlib.sha256(b"SSHSIG" + signed).digest()
    message = hashlib.sha256(application).digest() + counter + digest
    if is_ecdsa:
        private_key = ec.generate_private_key(ec.SECP256R1())
        point = private_key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        name, numbers = b"sk-ecdsa-sha2-nistp256@openssh.com", (b"nistp256", point)
        pair = decode_dss_signature(private_key.sign(message, ec.ECDSA(hashes.SHA256())))
        made = join(*(number.to_bytes(33, "big") for number in pair))
    else:
        private_key = ed25519.Ed25519PrivateKey.generate()
        name, numbers = (
            b"sk-ssh-ed25519@openssh.com",
            (private_key.public_key().public_bytes_raw(),),
        )
        made = private_key.sign(message)
    key = join(name, *numbers, application)
    blob = join(key, b"hallmark-review", b"", b"sha512", join(name, made) + counter)
    text = base64.encodebytes(b"SSHSIG\0\0\0\1" + blob).decode()
    signature = f"-----BEGIN SSH SIGNATURE-----\n{text}-----END SSH SIGNATURE-----\n".encode()
    signers = tmp_path / "signers"
    signers.write_text(f"ada@example.org {name.decode()} {base64.b64encode(key).decode()}\n")
    check = check_signature(statement, signature, SignerFiles(signers))
    assert check.outcome == "valid", check.reason
    check = check_signature(make().to_statement(), signature, SignerFiles(signers))
    assert check.outcome == "signature_invalid"


def test_a_signature_is_checked_once(judge, stored, ssh_keygen_calls, reviewers, tmp_path):
    review = stored("ada")
    calls_before = ssh_keygen_calls()
    assert judge(review).is_approved
    calls = ssh_keygen_calls()
    assert 0 < calls - calls_before <= 4
    assert judge(review, names=("ada",)).is_approved  # another list with the same line
    assert ssh_keygen_calls() == calls
    assert judge(review, revoked=("ada",)).state == "signature_invalid"
    assert judge(replace(review, signature=reviewers.sign("ada", b"x"))).state == (
        "signature_invalid"
    )
    assert ssh_keygen_calls() > calls


@pytest.mark.parametrize(
    ("line", "count", "message"),
    [
        ("{names} {key}\n", 1, "line 1 has more than 100 names"),
        ('"{names}" namespaces="hallmark-review" {key}\n', 1, "line 1 has more than 100 names"),
        ("ada@example.org {key}\n", 3_000, "more than 2,000 lines"),
        ("ada@example.org {key}\n", 11, "11 lines contain the key SHA256:"),
        ("ada@example.org {key} {long}\n", 1, "line 1 has more than 16,384 bytes"),
        ("# {long}\n", 60, "more than 1,048,576 bytes"),
    ],
)
def test_long_lists_of_signers_are_refused(
    reviewers, stored, tmp_path, ssh_keygen_calls, line, count, message
):
    """A release contains a list that somebody else wrote."""
    review = stored("ada")
    calls_before = ssh_keygen_calls()
    names = ",".join(f"n{number}@example.org" for number in range(101))
    text = line.format(names=names, key=reviewers.public_key("ada"), long="x" * 20_000)
    path = tmp_path / "signers"
    path.write_text(text * count)
    with pytest.raises(UsageError, match=message):
        SignerFiles(path).check_readable()
    with pytest.raises(UsageError, match=message):
        judge_card(CARD, [review], SignerFiles(path), NOW)
    path.write_text("x" * (1 << 20) + "\n")
    with pytest.raises(UsageError, match="more than 1,048,576 bytes"):
        SignerFiles(revoked_keys=path).check_readable()
    assert ssh_keygen_calls() == calls_before


def test_the_calls_for_a_key_in_many_lines_are_bounded(
    reviewers, stored, tmp_path, ssh_keygen_calls
):
    review, key = stored("ada"), reviewers.public_key("ada")
    names = ",".join(f"*{number}@example.org" for number in range(99))
    path = tmp_path / "signers"
    path.write_text("".join(f'{names} namespaces="git" {key}\n' for _ in range(9)))
    with path.open("a") as file:
        file.write(f"*@example.org,ada@example.org {key}\n")
    calls_before = ssh_keygen_calls()
    check = check_signature(review.statement, review.signature, SignerFiles(path))
    assert (check.outcome, check.signer) == ("valid", "ada@example.org")
    assert ssh_keygen_calls() - calls_before <= 21


def test_a_damaged_list_of_revoked_keys_is_no_revocation(stored, reviewers, tmp_path):
    review = stored("ada")
    revoked_keys = tmp_path / "revoked"
    files = SignerFiles(reviewers.files(tmp_path, "ada").allowed_signers, revoked_keys)
    for content in (b"ssh-ed25519 AAAA broken\n", b"SSHKRL\n\0broken"):
        revoked_keys.write_bytes(content)
        with pytest.raises(HallmarkError, match="cannot read this list of revoked keys; restore"):
            judge_card(CARD, [review], files, NOW)
    revoked_keys.write_text(f"{reviewers.public_key('bob')}\n")
    assert judge_card(CARD, [review], files, NOW).is_approved


def test_a_certificate_of_a_listed_authority_counts(stored, reviewers, tmp_path):
    certified = tmp_path / "carl"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(certified)]
    subprocess.run(command, check=True)
    authority = ["ssh-keygen", "-q", "-s", str(reviewers.folder / "bob"), "-I", "carl"]
    subprocess.run([*authority, "-n", "carl@example.org", f"{certified}.pub"], check=True)
    statement = make(reviewer="carl").to_statement()
    sign = ["ssh-keygen", "-Y", "sign", "-n", "hallmark-review", "-f", f"{certified}-cert.pub"]
    signature = subprocess.run(sign, input=statement, capture_output=True, check=True).stdout
    path = reviewers.write_allowed_signers(tmp_path / "signers", "bob", options="cert-authority")
    path.write_text(path.read_text().replace("bob@", "*@"))
    check = check_signature(statement, signature, SignerFiles(path))
    assert (check.outcome, check.signer) == ("valid", "carl@example.org"), check.reason
    path = reviewers.write_allowed_signers(path, "ada", options="cert-authority")
    check = check_signature(statement, signature, SignerFiles(path))
    assert check.outcome == "signer_unknown"
    assert "does not list its certificate's authority" in check.reason
