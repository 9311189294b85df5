"""Reviewers with real SSH keys, who sign as people do: with ssh-keygen."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from hallmark.reports.review.signatures import SIGNATURE_NAMESPACE, SignerFiles


@dataclass(frozen=True)
class Reviewers:
    """Keys in a folder: FOLDER/ada and FOLDER/ada.pub for the reviewer ada."""

    folder: Path

    def sign(self, name: str, statement: bytes, namespace: str = SIGNATURE_NAMESPACE) -> bytes:
        command = ["ssh-keygen", "-Y", "sign", "-n", namespace, "-f", str(self.folder / name)]
        done = subprocess.run(command, input=statement, capture_output=True, check=True)
        return done.stdout

    def public_key(self, name: str) -> str:
        return (self.folder / f"{name}.pub").read_text().strip()

    def write_allowed_signers(self, path: Path, *names: str, options: str = "") -> Path:
        lines = [f"{name}@example.org {options} {self.public_key(name)}\n" for name in names]
        path.write_text("".join(lines))
        return path

    def files(self, folder: Path, *names: str, revoked: tuple[str, ...] = ()) -> SignerFiles:
        """Allow the named reviewers, and revoke keys."""
        allowed_signers = self.write_allowed_signers(folder / "allowed_signers", *names)
        revoked_keys = None
        if revoked:
            revoked_keys = folder / "revoked_keys"
            revoked_keys.write_text("".join(f"{self.public_key(name)}\n" for name in revoked))
        return SignerFiles(allowed_signers, revoked_keys)


def make_reviewers(folder: Path) -> Reviewers:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is missing (on Debian: apt-get install openssh-client)")
    for name in ("ada", "bob", "eve"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f"]
        subprocess.run([*command, str(folder / name)], check=True)
    return Reviewers(folder)
