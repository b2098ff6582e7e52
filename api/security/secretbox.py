"""Secrets at rest: AES-256-GCM, bound to the place where each belongs.

A sealed secret names the key that sealed it, so that a wrong key is a sentence and not noise. Of
several keys the first seals and every one opens: a key is replaced by putting the new one first.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import secrets
from collections.abc import Sequence
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
_MOST_KEYS = 20


class SecretBox:
    """Seals and opens secrets.

    Parameters
    ----------
    key
        32 random bytes; seals and opens.
    older
        Keys that were used before; they open only.

    Examples
    --------
    >>> old, new = SecretBox(bytes(32)), SecretBox(bytes([1]) * 32, older=[bytes(32)])
    >>> sealed = old.seal("hush", "endpoint/noc")
    >>> new.open(sealed, "endpoint/noc"), new.is_current(sealed)
    ('hush', False)
    """

    def __init__(self, key: bytes, older: Sequence[bytes] = ()) -> None:
        if any(len(one) != _KEY_BYTES for one in (key, *older)):
            raise ConfigError("a key for secrets at rest has 32 bytes")
        self._ciphers = {_id_of(one): AESGCM(one) for one in (*older, key)}
        self.key_id = _id_of(key)

    @classmethod
    def from_text(cls, text: str, where: str) -> SecretBox:
        """Read keys: base64 of 32 bytes each, with white space between; the first seals.

        Parameters
        ----------
        text
            The keys.
        where
            What holds them, for the error.

        Raises
        ------
        ConfigError
            If it holds anything else; the text repeats none of it.
        """
        words = text.split()
        try:
            keys = [base64.b64decode(word, validate=True) for word in words]
        except binascii.Error:
            keys = []
        if not 1 <= len(keys) <= _MOST_KEYS or any(len(key) != _KEY_BYTES for key in keys):
            raise ConfigError(
                f"{where} must hold the base64 of 32 bytes; of several keys the first seals and "
                "all of them open."
            )
        return cls(keys[0], keys[1:])

    @classmethod
    def from_file(cls, path: Path, *, create: bool) -> SecretBox:
        """Read the keys from a file.

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
            text = path.read_bytes().decode("ascii", "replace")
        except OSError as exc:
            raise ConfigError(f"The key file {path} cannot be read: {exc.strerror}.") from exc
        return cls.from_text(text, f"The key file {path}")

    def seal(self, secret: str, place: str) -> str:
        """Encrypt a secret; it opens only for the same place."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = self._ciphers[self.key_id].encrypt(nonce, secret.encode(), place.encode())
        return f"{_VERSION}.{self.key_id}.{base64.urlsafe_b64encode(nonce + sealed).decode()}"

    def open(self, sealed: str, place: str) -> str:
        """Decrypt a secret.

        Raises
        ------
        ConfigError
            If a key that is not here sealed it, it belongs elsewhere, or it was changed.
        """
        version, key_id, text = _parts(sealed)
        cipher = self._ciphers.get(key_id)
        if version != _VERSION or cipher is None:
            raise ConfigError(
                "A stored secret was sealed with another key: give the key file of that time "
                "back, or enter the secret again."
            )
        try:
            data = base64.urlsafe_b64decode(text)
            plain = cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], place.encode())
        except (InvalidTag, ValueError):
            raise ConfigError("A stored secret is damaged: enter it again.") from None
        return plain.decode()

    def is_current(self, sealed: str) -> bool:
        """Tell whether the key that seals now sealed this."""
        return _parts(sealed)[1] == self.key_id


def _id_of(key: bytes) -> str:
    return hashlib.sha256(b"foreshock key id" + key).hexdigest()[:8]


def _parts(sealed: str) -> tuple[str, str, str]:
    version, _, rest = sealed.partition(".")
    key_id, _, text = rest.partition(".")
    return version, key_id, text
