"""Digests of contexts: equal ones mean equal tokens from the start on, under the same salt."""

import hashlib
from array import array
from collections.abc import Sequence


def first_digest(salt: str) -> bytes:
    """Returns the digest of no tokens. Contexts with different salts share no blocks."""
    # `person` keeps salts apart from tokens: otherwise a salt could collide with a block's tokens.
    return hashlib.blake2b(salt.encode(), digest_size=16, person=b"salt").digest() if salt else b""


def extend_digest(before: bytes, tokens: Sequence[int]) -> bytes:
    return hashlib.blake2b(before + array("Q", tokens).tobytes(), digest_size=16).digest()
