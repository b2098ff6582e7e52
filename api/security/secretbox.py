"""Secrets at rest: AES-256-GCM, bound to the place where each belongs.

A sealed secret names the key that sealed it, so that a wrong key is a sentence and not noise.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from schemas.errors import ConfigError, DataDirError

__all__ = ["SecretBox"]

_VERSION = "v1"
_KEY_BYTES = 32
#: NIST SP 800-38D, section 8.2: 96 bits, drawn at random for each message.
_NONCE_BYTES = 12


class SecretBox:
    """Seals and opens secrets.

    Parameters
    ----------
    key
        32 random bytes.

    Examples
    --------
    >>> box = SecretBox(bytes(32))
    >>> box.open(box.seal("hush", "endpoint/noc"), "endpoint/noc")
    'hush'
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != _KEY_BYTES:
            raise ConfigError("the key for secrets at rest has 32 bytes")
        self._cipher = AESGCM(key)
        self.key_id = hashlib.sha256(b"foreshock key id" + key).hexdigest()[:8]

    @classmethod
    def from_file(cls, path: Path, *, create: bool) -> SecretBox:
        """Read the key from a file, base64 of 32 bytes.

        Parameters
        ----------
        path
            The file, readable by its owner only.
        create
            Whether to make one where there is none.

        Raises
        ------
        ConfigError
            If there is none, or it holds something else.
        DataDirError
            If it cannot be made.
        """
        if create:
            try:
                with suppress(FileExistsError):
                    place = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                    with os.fdopen(place, "wb") as file:
                        file.write(base64.b64encode(secrets.token_bytes(_KEY_BYTES)) + b"\n")
            except OSError as exc:
                raise DataDirError(f"The key file {path} cannot be made: {exc.strerror}.") from exc
        try:
            key = base64.b64decode(path.read_bytes().strip(), validate=True)
        except OSError as exc:
            raise ConfigError(f"The key file {path} cannot be read: {exc.strerror}.") from exc
        except binascii.Error:
            raise ConfigError(f"The key file {path} must hold the base64 of 32 bytes.") from None
        return cls(key)

    def seal(self, secret: str, place: str) -> str:
        """Encrypt a secret; it opens only for the same place."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, secret.encode(), place.encode())
        return f"{_VERSION}.{self.key_id}.{base64.urlsafe_b64encode(nonce + sealed).decode()}"

    def open(self, sealed: str, place: str) -> str:
        """Decrypt a secret.

        Raises
        ------
        ConfigError
            If another key sealed it, it belongs elsewhere, or it was changed.
        """
        version, _, rest = sealed.partition(".")
        key_id, _, text = rest.partition(".")
        if version != _VERSION or key_id != self.key_id:
            raise ConfigError(
                "A stored secret was sealed with another key: give the key file of that time "
                "back, or enter the secret again."
            )
        try:
            data = base64.urlsafe_b64decode(text)
            plain = self._cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], place.encode())
        except (InvalidTag, ValueError):
            raise ConfigError("A stored secret is damaged: enter it again.") from None
        return plain.decode()
