"""Digests of contexts: equal ones mean equal tokens from the start on, under the same salt.

Model servers index cached blocks by them, and the coordinator remembers them to know which server has what.
"""

import hashlib
from array import array
from collections.abc import Iterator, Sequence

from paceline.sampling_params import MAX_SALT_CHARACTERS


def block_digests(known: Sequence[bytes], tokens: Sequence[int], salt: str, block_size: int) -> Iterator[bytes]:
    """Yields a digest for each whole block of a context after those in `known`: of all tokens up to the block's end."""
    digest = known[-1] if known else first_digest(salt)
    for start in range(len(known) * block_size, len(tokens) - block_size + 1, block_size):
        digest = extend_digest(digest, tokens[start : start + block_size])
        yield digest


def salt_of_head(salt: str) -> str:
    """Returns the salt of sequences that a draft head reads: longer than any that a client may choose."""
    return f"{salt:<{MAX_SALT_CHARACTERS}} draft head"


def first_digest(salt: str) -> bytes:
    """Returns the digest of no tokens. Contexts with different salts share no blocks."""
    # `person` keeps salts apart from tokens: otherwise a salt could collide with a block's tokens.
    return hashlib.blake2b(salt.encode(), digest_size=16, person=b"salt").digest() if salt else b""


def extend_digest(before: bytes, tokens: Sequence[int]) -> bytes:
    return hashlib.blake2b(before + array("Q", tokens).tobytes(), digest_size=16).digest()
