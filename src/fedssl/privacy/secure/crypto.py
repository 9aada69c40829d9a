"""The primitives: key agreement, encryption and secret sharing of Flower and `cryptography`."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING

from fedssl.extras import require
from fedssl.privacy.stream import Stream

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

PUBLIC = 33  # bytes of a public key: a compressed point of P-256
PRIVATE = 32
SEED = 16


def require_secure_aggregation() -> None:
    """A ConfigError unless the packages of secure aggregation are installed."""
    require("cryptography", "privacy", "privacy.secure=true")
    require("flwr", "flower", "privacy.secure=true")


def new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def new_seed() -> bytes:
    return os.urandom(SEED)


def public_bytes(key: EllipticCurvePrivateKey) -> bytes:
    """The public half of a key."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def private_bytes(key: EllipticCurvePrivateKey) -> bytes:
    return key.private_numbers().private_value.to_bytes(PRIVATE, "big")


def load_private(data: bytes) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.derive_private_key(int.from_bytes(data, "big"), ec.SECP256R1())


def load_public(data: bytes) -> EllipticCurvePublicKey:
    """Parse a public key; raises a ValueError if the bytes are invalid."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), data)


def agree(own: EllipticCurvePrivateKey, other: bytes) -> bytes:
    """The secret that two clients share (ECDH and HKDF), in the form that `encrypt` takes."""
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key

    return generate_shared_key(own, load_public(other))


def encrypt(key: bytes, text: bytes) -> str:
    """Authenticated encryption (Fernet) for one peer."""
    from flwr.common.secure_aggregation.crypto import symmetric_encryption

    return symmetric_encryption.encrypt(key, text).decode()


def decrypt(key: bytes, text: str) -> bytes:
    """The inverse of `encrypt`; a ValueError if the text was not encrypted with this key."""
    from cryptography.fernet import InvalidToken
    from flwr.common.secure_aggregation.crypto import symmetric_encryption

    try:
        return symmetric_encryption.decrypt(key, text.encode())
    except InvalidToken:
        raise ValueError("a share that was not encrypted for this client") from None


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Split a secret into shares, any `threshold` of which recover it (Shamir 1979)."""
    from flwr.common.secure_aggregation.crypto.shamir import create_shares

    return create_shares(secret, threshold, count)


def combine(shares: list[bytes]) -> bytes:
    """Recover the secret of these shares; a ValueError if they are inconsistent."""
    from flwr.common.secure_aggregation.crypto.shamir import combine_shares

    return combine_shares(shares)


def seed_mask(seed: bytes) -> Stream:
    """The mask of a client's own seed."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return Stream(HKDF(hashes.SHA256(), 32, None, b"fedssl own mask").derive(seed))


def pair_mask(own: EllipticCurvePrivateKey, other: bytes) -> Stream:
    """The mask that two clients agree on; it is new in every round, like the keys."""
    return Stream(base64.urlsafe_b64decode(agree(own, other)))
