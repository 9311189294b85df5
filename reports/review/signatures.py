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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hallmark.tasks.contract import HallmarkError, UsageError

#: Namespace of the signatures: one that was made for another purpose is not accepted.
SIGNATURE_NAMESPACE = "hallmark-review"

#: Seconds that one call of ssh-keygen may take. Signing may wait for a touch on a hardware key.
CHECK_TIMEOUT_SECONDS = 30
SIGN_TIMEOUT_SECONDS = 120

MAX_SIGNATURE_BYTES = 1 << 16

MISSING_SSH_KEYGEN = (
    "ssh-keygen was not found, so signatures can be neither written nor checked; install OpenSSH "
    "8.9 or newer (on Debian: apt-get install openssh-client)"
)

_PUBLIC_KEY_PATTERN = re.compile(r"(ssh-|ecdsa-|sk-)[\w.@-]+ [A-Za-z0-9+/=]+")
_KEY_ID_PATTERN = re.compile(r"with \S+ key (SHA256:[A-Za-z0-9+/=]+)\Z")
_KRL_MAGIC = b"SSHKRL\n\0"


@dataclass(frozen=True)
class SignerFiles:
    """The files that say whose signatures count."""

    allowed_signers: Path | None = None
    """Allowed signers in the format of ``ssh-keygen``; without one every signer is unknown."""
    revoked_keys: Path | None = None
    """Keys whose signatures do not count: public keys, one a line, or a KRL of ``ssh-keygen``."""

    def check_readable(self) -> None:
        """Check that both files can be read.

        Raises:
            UsageError: One cannot, or the revoked keys are no list of keys.
        """
        for path in (self.allowed_signers, self.revoked_keys):
            if path is not None and not path.is_file():
                problem = "there is no such file"
                if path.exists():
                    problem = f"this is {'a folder' if path.is_dir() else 'not a regular file'}"
                raise UsageError(
                    f"{path}: {problem}; specify the path to the file of signers or keys"
                )
        if self.revoked_keys is not None:
            content = self.revoked_keys.read_bytes()
            lines = [line.strip() for line in content.decode(errors="replace").splitlines()]
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

    outcome: Literal["valid", "signer_unknown", "signature_invalid"]
    reason: str = ""
    """Why it does not count; empty if it does."""
    signer: str = ""
    """Principal of the allowed signers whose key signed; empty if unknown."""
    key: str = ""
    """Fingerprint of the key that signed, such as "SHA256:..."; empty without a valid signature."""


def check_signature(
    statement: bytes, signature: bytes, signer_files: SignerFiles
) -> SignatureCheck:
    """Check who signed a statement, and whether this person may sign.

    Raises:
        HallmarkError: ssh-keygen is missing or does not end.
    """
    if len(signature) > MAX_SIGNATURE_BYTES:
        return SignatureCheck("signature_invalid", "the signature is too long")
    with tempfile.TemporaryDirectory(prefix="hallmark-") as folder:
        signature_file = Path(folder, "statement.sig")
        signature_file.write_bytes(signature)
        namespace_and_signature = ("-n", SIGNATURE_NAMESPACE, "-s", str(signature_file))
        check = _run_ssh_keygen(("-Y", "check-novalidate", *namespace_and_signature), statement)
        if check.returncode:
            return SignatureCheck(
                "signature_invalid", "the signature does not belong to this statement"
            )
        key = _parse_key_fingerprint(check.stdout)
        if signer_files.allowed_signers is None:
            return SignatureCheck(
                "signer_unknown", "no file of allowed signers was specified", key=key
            )
        allowed_signers = ("-f", os.path.abspath(signer_files.allowed_signers))
        verify_arguments = [*namespace_and_signature, *allowed_signers]
        signer = next(
            (
                name
                for name in _iter_principals(signature_file, signer_files.allowed_signers, key)
                if not _run_ssh_keygen(
                    ("-Y", "verify", "-I", name, *verify_arguments), statement
                ).returncode
            ),
            "",
        )
        if not signer:
            reason = (
                f"the file of allowed signers does not list {key} as valid today for "
                f"{SIGNATURE_NAMESPACE}"
            )
            return SignatureCheck("signer_unknown", reason, key=key)
        if signer_files.revoked_keys is not None:
            revoked_arguments = ("-r", os.path.abspath(signer_files.revoked_keys))
            revoked_check = ("-Y", "verify", "-I", signer, *verify_arguments)
            if _run_ssh_keygen((*revoked_check, *revoked_arguments), statement).returncode:
                return SignatureCheck("signature_invalid", f"the key {key} is revoked", signer, key)
    return SignatureCheck("valid", signer=signer, key=key)


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
            f"{public_key_file}: --key takes the public key, a file whose name ends with .pub; "
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
            f"the SSH agent did not sign with {public_key_file}; load the key with: ssh-add "
            f"{shlex.quote(str(public_key_file.with_suffix('')))}; or omit --key to sign the "
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
            f"ssh-keygen did not answer within {timeout_seconds:g} seconds; check the SSH agent "
            "and try again"
        ) from error


def _iter_principals(signature_file: Path, allowed_signers: Path, key: str) -> Iterator[str]:
    """Yield the names under which the allowed signers list the key of a signature.

    ssh-keygen prints only those of the first line with the key. This line may be for another
    purpose or another time, so each other line with the key is given to it alone.

    Args:
        signature_file: The signature.
        allowed_signers: The allowed signers.
        key: Fingerprint of the key.
    """
    line_file = signature_file.with_suffix(".signer")
    lines = [
        line
        for line in allowed_signers.read_bytes().splitlines()
        if any(_compute_key_fingerprint(word) == key for word in line.split())
    ]
    yielded_names = set[str]()
    for line in (None, *lines):
        if line is not None:
            line_file.write_bytes(line + b"\n")
        signers_file = allowed_signers if line is None else line_file
        arguments = ("-s", str(signature_file), "-f", os.path.abspath(signers_file))
        found = _run_ssh_keygen(("-Y", "find-principals", *arguments), b"")
        names = [] if found.returncode else found.stdout.decode(errors="replace").splitlines()
        yield from (name for name in names if name and name not in yielded_names)
        yielded_names.update(names)


def _compute_key_fingerprint(encoded_key: bytes) -> str:
    """Compute the fingerprint of a public key; that of other words means nothing."""
    try:
        key = base64.b64decode(encoded_key, validate=True)
    except ValueError:
        return ""
    return f"SHA256:{base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip('=')}"


def _parse_key_fingerprint(output: bytes) -> str:
    match = _KEY_ID_PATTERN.search(output.decode(errors="replace").strip())
    return match[1] if match else ""
