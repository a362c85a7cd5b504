"""Who finds whose blocks: only equal contexts with equal salts."""

from array import array

from paceline.digests import extend_digest, first_digest

# Tokens whose eight bytes each are characters.
TOKENS = [(index * 7 + 3) % 128 + 256 * (index * 5 % 128) for index in range(16)]


def test_contexts_with_different_salts_have_different_digests() -> None:
    digests = {extend_digest(first_digest(salt), TOKENS) for salt in ("", "a", "b")}
    assert len(digests) == 3


def test_no_salt_spells_the_tokens_of_another_context() -> None:
    spelled = array("Q", TOKENS).tobytes().decode()
    assert len(spelled) <= 256, "a salt may be as long"
    assert first_digest(spelled) != extend_digest(first_digest(""), TOKENS)
