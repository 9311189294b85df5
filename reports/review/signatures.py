"""Sign statements and check their signatures with OpenSSH's ``ssh-keygen -Y``.

Hallmark never reads a private key: the SSH agent signs, or the reviewer runs ``ssh-keygen``. Only
OpenSSH decides whether a signature is valid and who may sign.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from hallmark.reports.review.ssh_signatures import parse_signature
from hallmark.tasks.contract import HallmarkError, UsageError, sha256_hex

#: Namespace of the signatures: one that was made for another purpose is not accepted.
SIGNATURE_NAMESPACE = "hallmark-review"

#: Seconds that one call of ssh-keygen may take. Signing may wait for a touch on a hardware key.
CHECK_TIMEOUT_SECONDS = 30
SIGN_TIMEOUT_SECONDS = 120

MAX_SIGNATURE_BYTES = 1 << 16

#: Limits of a file of signers or keys: bytes, lines, bytes of a line, names in a line, and lines
#: with the same key. Somebody else wrote it if it is part of a release.
MAX_SIGNER_FILE_BYTES = 1 << 20
MAX_SIGNER_LINES = 2_000
MAX_SIGNER_LINE_BYTES = 1 << 14
MAX_NAMES_PER_LINE = 100
MAX_LINES_PER_KEY = 10

#: Results that a process remembers, and seconds for which it does.
MAX_REMEMBERED_CHECKS = 10_000
REMEMBERED_SECONDS = 60

MISSING_SSH_KEYGEN = (
    "ssh-keygen was not found, so signatures can be neither written nor checked; install OpenSSH "
    "8.9 or newer (on Debian: apt-get install openssh-client)"
)

_PUBLIC_KEY_PATTERN = re.compile(r"(ssh-|ecdsa-|sk-)[\w.@-]+ [A-Za-z0-9+/=]+")
_KEY_ID_PATTERN = re.compile(r"with \S+ key (SHA256:[A-Za-z0-9+/=]+)\Z")
_KRL_MAGIC = b"SSHKRL\n\0"

_LONE_CARRIAGE_RETURN = re.compile(rb"\r(?!\n)")

#: The least bytes of a public key, so that no other word of a line is taken for one.
_MIN_KEY_BYTES = 32


@dataclass(frozen=True)
class SignerFiles:
    """The files that say whose signatures count."""

    allowed_signers: Path | None = None
    """Allowed signers in the format of ``ssh-keygen``; without one every signer is unknown."""
    revoked_keys: Path | None = None
    """Keys whose signatures do not count: public keys, one a line, or a KRL of ``ssh-keygen``."""

    def check_readable(self) -> None:
        """Check that both files can be read and are not too long.

        Raises:
            UsageError: One cannot or is, or it is no list of signers or keys.
        """
        if self.allowed_signers is not None:
            _parse_allowed_signers(_read_signer_file(self.allowed_signers), self.allowed_signers)
        if self.revoked_keys is not None:
            content = _read_signer_file(self.revoked_keys)
            lines = [line.strip() for line in content.decode(errors="replace").split("\n")]
            if not content.startswith(_KRL_MAGIC) and not all(
                not line or line[0] == "#" or _PUBLIC_KEY_PATTERN.match(line) for line in lines
            ):
                raise UsageError(
                    f"{self.revoked_keys}: this is neither a list of public keys nor a key "
                    "revocation list (ssh-keygen -k)"
                )


@dataclass(frozen=True)
class SignatureCheck:
    """What is known of a signature."""

    outcome: Literal["valid", "signer_unknown", "signature_invalid", "unsigned"]
    reason: str = ""
    """Why it does not count; empty if it does."""
    signer: str = ""
    """Principal of the allowed signers whose key signed; empty if unknown."""
    key: str = ""
    """Fingerprint of the key that signed, such as "SHA256:..."; empty without a valid signature."""


#: The results that this process remembers, by what they depend on.
_remembered_checks: dict[tuple[str, ...], SignatureCheck] = {}


def check_signature(
    statement: bytes, signature: bytes, signer_files: SignerFiles
) -> SignatureCheck:
    """Check who signed a statement, and whether this person may sign; see check_signatures."""
    return check_signatures([(statement, signature)], signer_files)[0]


def check_signatures(
    signed_statements: Iterable[tuple[bytes, bytes | None]], signer_files: SignerFiles
) -> list[SignatureCheck]:
    """Check for each statement and its signature, if any, who signed it and may do so.

    Only a signature that can count is given to ``ssh-keygen``: the allowed signers list its key,
    and the key made it. A result is remembered for a minute. So many signatures of strangers, and
    many forged ones, take little time.

    Raises:
        UsageError: A file of signers or keys is missing or too long, or cannot be understood.
        HallmarkError: ssh-keygen is missing or does not end.
    """
    lines_by_key, revoked_keys = None, None
    if signer_files.allowed_signers is not None:
        content = _read_signer_file(signer_files.allowed_signers)
        lines_by_key = _parse_allowed_signers(content, signer_files.allowed_signers)
    if signer_files.revoked_keys is not None:
        revoked_keys = _read_signer_file(signer_files.revoked_keys)
    time_and_revoked_keys = repr((int(time.time() // REMEMBERED_SECONDS), revoked_keys)).encode()

    def check(statement: bytes, signature: bytes | None) -> SignatureCheck | Future[SignatureCheck]:
        if signature is None:
            return SignatureCheck("unsigned", "the statement has no signature")
        parsed = None if len(signature) > MAX_SIGNATURE_BYTES else parse_signature(signature)
        if parsed is None or parsed.namespace != SIGNATURE_NAMESPACE.encode():
            return _UNRELATED_SIGNATURE
        if lines_by_key is None:
            return _UNCHECKED_SIGNATURE
        lines = lines_by_key.get(parsed.find_listable_key() or b"", [])
        if not lines:
            is_certificate, key = parsed.is_certificate, _compute_key_fingerprint(parsed.key)
            return _make_unlisted_signer("its certificate's authority" if is_certificate else key)
        inputs = (statement, signature, repr(lines).encode(), time_and_revoked_keys)
        memory_key = tuple(map(sha256_hex, inputs))
        if memory_key in _remembered_checks:
            return _remembered_checks[memory_key]
        if not parsed.is_made_with_key(statement):
            return _remember(memory_key, _UNRELATED_SIGNATURE)

        def check_with_ssh_keygen() -> SignatureCheck:
            result = _check_with_ssh_keygen(statement, signature, lines, signer_files.revoked_keys)
            return _remember(memory_key, result)

        return executor.submit(check_with_ssh_keygen)

    # ssh-keygen runs while the other signatures are looked at.
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as executor:
        checks = [check(*pair) for pair in signed_statements]
        return [one.result() if isinstance(one, Future) else one for one in checks]


def _remember(memory_key: tuple[str, ...], check: SignatureCheck) -> SignatureCheck:
    if len(_remembered_checks) >= MAX_REMEMBERED_CHECKS:
        _remembered_checks.clear()
    _remembered_checks[memory_key] = check
    return check


_UNRELATED_SIGNATURE = SignatureCheck(
    "signature_invalid", "the signature does not belong to this statement"
)


_UNCHECKED_SIGNATURE = SignatureCheck(
    "signer_unknown",
    "the signature was not verified, because no file of allowed signers was specified",
)


def is_signature_of(signature: bytes, statement: bytes) -> bool:
    """Whether a signature for reviews belongs to a statement, whoever signed it.

    Raises:
        HallmarkError: ssh-keygen is missing or does not end.
    """
    if len(signature) > MAX_SIGNATURE_BYTES:
        return False
    with tempfile.TemporaryDirectory(prefix="hallmark-") as folder:
        signature_file = Path(folder, "statement.sig")
        signature_file.write_bytes(signature)
        return not _run_check_novalidate(signature_file, statement).returncode


def _make_unlisted_signer(signer: str, key: str = "") -> SignatureCheck:
    reason = (
        f"the file of allowed signers does not list {signer} as valid today for "
        f"{SIGNATURE_NAMESPACE}"
    )
    return SignatureCheck("signer_unknown", reason, key=key)


def _check_with_ssh_keygen(
    statement: bytes,
    signature: bytes,
    signer_lines: Sequence[bytes],
    revoked_keys: Path | None,
) -> SignatureCheck:
    """Check a signature with a bounded number of calls of ssh-keygen.

    Args:
        statement: The statement.
        signature: Its signature.
        signer_lines: The lines of the allowed signers with this key.
        revoked_keys: The file of revoked keys.
    """
    with tempfile.TemporaryDirectory(prefix="hallmark-") as folder:
        signature_file, signers_file = Path(folder, "statement.sig"), Path(folder, "signer")
        signature_file.write_bytes(signature)
        namespace_and_signature = ("-n", SIGNATURE_NAMESPACE, "-s", str(signature_file))
        check = _run_check_novalidate(signature_file, statement)
        if check.returncode:
            return _UNRELATED_SIGNATURE
        key = _parse_key_fingerprint(check.stdout)
        for line in signer_lines:
            # ssh-keygen prints only the names of the first line with the key. This line may be for
            # another purpose or another time, so each line is given to it alone.
            signers_file.write_bytes(line + b"\n")
            name = _find_principal(signature_file, signers_file)
            arguments = (*namespace_and_signature, "-f", str(signers_file))
            verify = ("-Y", "verify", "-I", name, *arguments)
            if not name or _run_ssh_keygen(verify, statement).returncode:
                continue
            if revoked_keys is not None and _is_revoked(verify, statement, revoked_keys):
                return SignatureCheck("signature_invalid", f"the key {key} is revoked", name, key)
            return SignatureCheck("valid", signer=name, key=key)
        return _make_unlisted_signer(key, key)


def sign_with_agent(statement: bytes, public_key_file: Path) -> bytes:
    """Let the SSH agent sign a statement.

    Args:
        statement: The statement.
        public_key_file: The public key, whose private key the agent holds.

    Raises:
        UsageError: The file is not a public key.
        HallmarkError: The agent does not sign.
    """
    # The name is checked first, because the file must not even be opened if it is a private key.
    if public_key_file.suffix != ".pub":
        raise UsageError(
            f"{public_key_file}: --key requires a public key file whose name ends with .pub; "
            "Hallmark does not read private keys"
        )
    if not public_key_file.is_file():
        raise UsageError(
            f"{public_key_file}: there is no such file; specify the path to your public key"
        )
    public_key = public_key_file.read_text(errors="replace").strip()
    if "\n" in public_key or not _PUBLIC_KEY_PATTERN.match(public_key):
        raise UsageError(f"{public_key_file}: this is not an OpenSSH public key")
    with tempfile.TemporaryDirectory(prefix="hallmark-") as folder:
        # Next to a copy there is no private key, which ssh-keygen would read without the agent.
        copied_key = Path(folder, "key.pub")
        copied_key.write_text(public_key + "\n")
        arguments = ("-Y", "sign", "-q", "-n", SIGNATURE_NAMESPACE, "-f", str(copied_key))
        signed = _run_ssh_keygen(arguments, statement, SIGN_TIMEOUT_SECONDS)
    if signed.returncode:
        raise HallmarkError(
            f"the SSH agent did not sign with {public_key_file}; load the key with ssh-add "
            f"{shlex.quote(str(public_key_file.with_suffix('')))}, or omit --key to sign the "
            "statement yourself"
        )
    return signed.stdout


def format_signing_command(statement_file: Path) -> str:
    """Return the shell command with which a reviewer signs a statement."""
    return (
        f"ssh-keygen -Y sign -n {SIGNATURE_NAMESPACE} -f ~/.ssh/id_ed25519 "
        f"{shlex.quote(str(statement_file))}"
    )


def _run_ssh_keygen(
    arguments: Sequence[str], message: bytes, timeout_seconds: float | None = None
) -> subprocess.CompletedProcess[bytes]:
    timeout_seconds = timeout_seconds or CHECK_TIMEOUT_SECONDS
    # The terminal is no place to ask for a passphrase: the reviewer would not know what asks.
    environment = os.environ | {"LC_ALL": "C", "SSH_ASKPASS_REQUIRE": "never"}
    try:
        return subprocess.run(
            ["ssh-keygen", *arguments],
            input=message,
            capture_output=True,
            timeout=timeout_seconds,
            env=environment,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise HallmarkError(MISSING_SSH_KEYGEN) from error
    except subprocess.TimeoutExpired as error:
        raise HallmarkError(
            f"ssh-keygen did not respond within {timeout_seconds:g} seconds; check the SSH agent "
            "and try again"
        ) from error


def _run_check_novalidate(
    signature_file: Path, statement: bytes
) -> subprocess.CompletedProcess[bytes]:
    arguments = ("-n", SIGNATURE_NAMESPACE, "-s", str(signature_file))
    return _run_ssh_keygen(("-Y", "check-novalidate", *arguments), statement)


def _find_principal(signature_file: Path, signers_file: Path) -> str:
    """Return a name under which the allowed signers list the key of a signature; else ""."""
    arguments = ("-s", str(signature_file), "-f", str(signers_file))
    found = _run_ssh_keygen(("-Y", "find-principals", *arguments), b"")
    names = [] if found.returncode else found.stdout.decode(errors="replace").splitlines()
    # A pattern is the name of nobody; ssh-keygen prints patterns, too.
    names = sorted(filter(None, names), key=lambda name: any(sign in name for sign in "!*?"))
    return names[0] if names else ""


def _is_revoked(verify: Sequence[str], statement: bytes, revoked_keys: Path) -> bool:
    """Whether a signature that is valid otherwise is of a revoked key.

    Args:
        verify: The arguments of ssh-keygen that verify the signature without revoked keys.
        statement: The statement.
        revoked_keys: The file of revoked keys.

    Raises:
        HallmarkError: ssh-keygen cannot read the file, so it refuses every signature.
    """
    # Only its debugging messages say why ssh-keygen refuses a signature.
    arguments = ("-vvv", *verify, "-r", os.path.abspath(revoked_keys))
    check = _run_ssh_keygen(arguments, statement)
    if check.returncode and b"sshkey_check_revoked: key is revoked" not in check.stderr.lower():
        raise UsageError(
            f"{revoked_keys}: ssh-keygen cannot read this list of revoked keys; restore it from a "
            "backup"
        )
    return check.returncode != 0


def _read_signer_file(path: Path) -> bytes:
    """Read a file of signers or keys.

    Raises:
        UsageError: It is missing, no regular file or too large, or has a line end that ssh-keygen
            reads as part of a line.
    """
    if not path.is_file():
        problem = "there is no such file"
        if path.exists():
            problem = f"this is {'a folder' if path.is_dir() else 'not a regular file'}"
        raise UsageError(f"{path}: {problem}; specify the path to the file of signers or keys")
    with path.open("rb") as file:
        content = file.read(MAX_SIGNER_FILE_BYTES + 1)
    if len(content) > MAX_SIGNER_FILE_BYTES:
        raise UsageError(
            f"{path}: the file has more than {MAX_SIGNER_FILE_BYTES:,} bytes; remove keys that are "
            "no longer used"
        )
    lone_carriage_return = _LONE_CARRIAGE_RETURN.search(content)
    if lone_carriage_return and not content.startswith(_KRL_MAGIC):
        number = content.count(b"\n", 0, lone_carriage_return.start()) + 1
        raise UsageError(
            f"{path}: line {number} contains a carriage return, which ssh-keygen does not treat "
            "as a line ending; save the file with line feeds"
        )
    return content


def _parse_allowed_signers(content: bytes, path: Path) -> dict[bytes, list[bytes]]:
    """Return the lines of the allowed signers by the public keys in them.

    Raises:
        UsageError: The file has more lines or names than it may have, or a line without a key.
    """
    problem, lines_by_key = _group_lines_by_key(content)
    if problem:
        raise UsageError(f"{path}: {problem}")
    return lines_by_key


@lru_cache(maxsize=4)
def _group_lines_by_key(content: bytes) -> tuple[str, dict[bytes, list[bytes]]]:
    """Return what is wrong with a file of allowed signers, and its lines by their keys."""
    lines = content.split(b"\n")
    if len(lines) > MAX_SIGNER_LINES:
        problem = f"the file has more than {MAX_SIGNER_LINES:,} lines; remove keys that are no "
        return f"{problem}longer used", {}
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_SIGNER_LINE_BYTES:
            return f"line {number} has more than {MAX_SIGNER_LINE_BYTES:,} bytes; shorten it", {}
        names = line.split(b'"')[1:2] if line.startswith(b'"') else line.split()[:1]
        if names and names[0].count(b",") >= MAX_NAMES_PER_LINE:
            problem = f"line {number} has more than {MAX_NAMES_PER_LINE} names; list fewer names"
            return f"{problem} for this key", {}
    if b"PRIVATE KEY-----" in content:
        return "this is a private key; specify a list of allowed signers and their public keys", {}
    lines_by_key: dict[bytes, list[bytes]] = {}
    for number, line in enumerate(lines, 1):
        words = [] if line.lstrip().startswith(b"#") else line.split()
        keys = dict.fromkeys(key for word in words if (key := _decode_key(word)))
        if words and not keys:
            problem = f"line {number} has no public key; each line must contain a signer followed"
            return f"{problem} by a key, such as: ana@example.org ssh-ed25519 AAAA...", {}
        for key in keys:
            lines_by_key.setdefault(key, []).append(line)
    for key, lines_of_key in lines_by_key.items():
        if len(lines_of_key) > MAX_LINES_PER_KEY:
            problem = f"{len(lines_of_key)} lines contain the key {_compute_key_fingerprint(key)}"
            message = f"{problem}; at most {MAX_LINES_PER_KEY} are allowed, so remove the others"
            return message, {}
    return "", lines_by_key


def _decode_key(word: bytes) -> bytes:
    """Return the bytes of a public key; empty if the word is none."""
    try:
        key = base64.b64decode(word, validate=True)
    except ValueError:
        return b""
    return key if len(key) >= _MIN_KEY_BYTES else b""


def _compute_key_fingerprint(key: bytes) -> str:
    return f"SHA256:{base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip('=')}"


def _parse_key_fingerprint(output: bytes) -> str:
    match = _KEY_ID_PATTERN.search(output.decode(errors="replace").strip())
    return match[1] if match else ""
