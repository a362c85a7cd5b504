"""Places divided between keys."""

from paceline.shares import Shares


def fill(shares: Shares, owner: str | None) -> int:
    """Returns how many places the key gets."""
    count = 0
    while shares.may_take(owner):
        shares.take(owner)
        count += 1
    return count


def test_a_key_alone_may_take_all_and_others_still_find_their_shares() -> None:
    shares = Shares(12)
    assert [fill(shares, owner) for owner in ("a", "b", "c", "a")] == [12, 6, 4, 0]
    for _ in range(12):
        shares.give_back("a")
    # 10 are taken of 12.
    assert [fill(shares, owner) for owner in ("a", "b")] == [4, 0]


def test_a_share_is_by_weight() -> None:
    shares = Shares(12, lambda owner: 3.0 if owner == "b" else 1.0)
    assert [fill(shares, owner) for owner in ("a", "b")] == [12, 9]


def test_callers_without_keys_share_all_places() -> None:
    shares = Shares(3)
    assert fill(shares, None) == 3
    shares.give_back(None)
    assert fill(shares, None) == 1
    assert fill(Shares(0), None) == 0
