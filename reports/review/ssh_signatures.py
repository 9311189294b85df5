"""Read SSH signatures, and recognise forged ones without starting ``ssh-keygen``.

The file PROTOCOL.sshsig of OpenSSH describes the format. A signature that passes here is only a
candidate: ``signatures`` lets OpenSSH decide whether it is valid.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass

_SIGNATURE_PATTERN = re.compile(
    rb"-----BEGIN SSH SIGNATURE-----\s(.+?)-----END SSH SIGNATURE-----", re.DOTALL
)
_SIGNATURE_MAGIC = b"SSHSIG"

#: Bytes after a signature of a hardware key that it covers, too: flags and a counter.
_HARDWARE_KEY_BYTES = 5


@dataclass(frozen=True)
class SshSignature:
    """A signature as ``ssh-keygen -Y sign`` writes it."""

    key: bytes
    """The public key or certificate that it names."""
    namespace: bytes
    reserved: bytes
    hash_name: bytes
    """Name of the hash function of the statement, such as b"sha512"."""
    blob: bytes
    """The signature itself, with the name of its algorithm."""

    @property
    def is_certificate(self) -> bool:
        return b"-cert-" in self.key_type

    @property
    def key_type(self) -> bytes:
        """The type of the key, such as b"ssh-ed25519"."""
        return split_field(self.key)[0]

    def find_listable_key(self) -> bytes | None:
        """Return what a list of signers must have: the key, or the authority of a certificate.

        None if it is a certificate that its authority did not sign, or that cannot be read.
        """
        if not self.is_certificate:
            return self.key
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            PublicFormat,
            SSHCertificate,
            load_ssh_public_identity,
        )

        try:
            certificate = load_ssh_public_identity(_format_key(self.key))
            assert isinstance(certificate, SSHCertificate)
            certificate.verify_cert_signature()
            authority = certificate.signature_key()
            line = authority.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        except (InvalidSignature, UnsupportedAlgorithm, ValueError):
            return None
        return base64.b64decode(line.split()[1])

    def is_made_with_key(self, statement: bytes) -> bool:
        """Whether the key that the signature names made it, for this statement."""
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
        from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
        from cryptography.hazmat.primitives.serialization import (
            SSHCertificate,
            load_ssh_public_identity,
        )

        if self.hash_name not in (b"sha256", b"sha512"):
            return False
        digest = hashlib.new(self.hash_name.decode(), statement).digest()
        fields = (self.namespace, self.reserved, self.hash_name, digest)
        message = _SIGNATURE_MAGIC + b"".join(map(_join_field, fields))
        algorithm, rest = split_field(self.blob)
        signature, rest = split_field(rest)
        if self.key_type.startswith(b"sk-"):
            application = hashlib.sha256(self._find_application()).digest()
            counter = rest[:_HARDWARE_KEY_BYTES]
            message = application + counter + hashlib.sha256(message).digest()
        try:
            key = load_ssh_public_identity(_format_key(self.key))
            if isinstance(key, SSHCertificate):
                key = key.public_key()
            if isinstance(key, ed25519.Ed25519PublicKey):
                key.verify(signature, message)
            elif isinstance(key, rsa.RSAPublicKey):
                is_long = algorithm == b"rsa-sha2-512"
                rsa_hash = hashes.SHA512() if is_long else hashes.SHA256()
                # Some agents leave out zeros at the start.
                signature = signature.rjust((key.key_size + 7) // 8, b"\0")
                key.verify(signature, message, padding.PKCS1v15(), rsa_hash)
            elif isinstance(key, ec.EllipticCurvePublicKey):
                r, rest = split_field(signature)
                s, _ = split_field(rest)
                numbers = (int.from_bytes(number, "big", signed=True) for number in (r, s))
                ec_hash: hashes.HashAlgorithm = hashes.SHA256()
                if key.key_size > 256:
                    ec_hash = hashes.SHA384() if key.key_size <= 384 else hashes.SHA512()
                key.verify(encode_dss_signature(*numbers), message, ec.ECDSA(ec_hash))
            else:
                return False
        except (InvalidSignature, UnsupportedAlgorithm, ValueError):
            return False
        return True

    def _find_application(self) -> bytes:
        """Return the application of a hardware key, the field after its numbers."""
        field_count = 1 + self.is_certificate + (2 if b"ecdsa" in self.key_type else 1)
        rest = self.key
        for _ in range(field_count):
            _, rest = split_field(rest)
        return split_field(rest)[0]


def parse_signature(signature: bytes) -> SshSignature | None:
    """Parse a signature; None if it is none."""
    match = _SIGNATURE_PATTERN.match(signature)
    try:
        content = binascii.a2b_base64(match[1]) if match else b""
    except ValueError:
        return None
    if not content.startswith(_SIGNATURE_MAGIC):
        return None
    rest = content[len(_SIGNATURE_MAGIC) + 4 :]
    fields = []
    for _ in range(5):
        field, rest = split_field(rest)
        fields.append(field)
    return SshSignature(*fields)


def split_field(content: bytes) -> tuple[bytes, bytes]:
    """Split a field, which begins with its length, from what follows it."""
    end = 4 + int.from_bytes(content[:4], "big")
    return content[4:end], content[end:]


def _join_field(field: bytes) -> bytes:
    return len(field).to_bytes(4, "big") + field


def _format_key(key: bytes) -> bytes:
    """Return a key as a line of a file of public keys."""
    return split_field(key)[0] + b" " + base64.b64encode(key)
