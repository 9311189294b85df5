"""Sign statements and check their signatures with OpenSSH's ``ssh-keygen -Y``.

Hallmark never reads a private key: the SSH agent signs, or the reviewer runs ``ssh-keygen``. Only
OpenSSH decides whether a signature is valid and who may sign.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
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
                raise UsageError(
                    f"{path}: there is no such file; specify the path to the file of signers "
                    "or keys"
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
        principals = _run_ssh_keygen(
            ("-Y", "find-principals", "-s", str(signature_file), *allowed_signers), b""
        )
        signer = principals.stdout.decode(errors="replace").partition("\n")[0]
        verify_arguments = [*("-Y", "verify", "-I", signer), *namespace_and_signature]
        verify_arguments += allowed_signers
        if (
            principals.returncode
            or not signer
            or _run_ssh_keygen(verify_arguments, statement).returncode
        ):
            reason = (
                f"the file of allowed signers does not list {key} as valid today for "
                f"{SIGNATURE_NAMESPACE}"
            )
            return SignatureCheck("signer_unknown", reason, key=key)
        if signer_files.revoked_keys is not None:
            revoked_arguments = ("-r", os.path.abspath(signer_files.revoked_keys))
            if _run_ssh_keygen([*verify_arguments, *revoked_arguments], statement).returncode:
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
            f"{public_key_file}: --key takes the public key, a file that ends with .pub; Hallmark "
            "does not read private keys"
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
            f"{shlex.quote(str(public_key_file.with_suffix('')))}; or leave out --key to sign the "
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


def _parse_key_fingerprint(output: bytes) -> str:
    match = _KEY_ID_PATTERN.search(output.decode(errors="replace").strip())
    return match[1] if match else ""
