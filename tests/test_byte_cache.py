from paceline.byte_cache import ByteCache


def test_sizes_bound_what_is_kept() -> None:
    cache = ByteCache[str, int](100)
    for at in range(50):
        cache.put(f"{at}", at, num_bytes=30)
        assert cache.num_bytes <= 100
    assert (len(cache), cache.num_bytes) == (3, 90)
    assert [cache.get(f"{at}") for at in range(46, 50)] == [None, 47, 48, 49]


def test_the_least_recently_used_goes_first() -> None:
    cache = ByteCache[str, int](60)
    cache.put("a", 1, num_bytes=30)
    cache.put("b", 2, num_bytes=30)
    assert cache.get("a") == 1
    cache.put("c", 3, num_bytes=30)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)


def test_a_value_beyond_the_limit_displaces_nothing() -> None:
    cache = ByteCache[str, int](60)
    cache.put("a", 1, num_bytes=30)
    cache.put("b", 2, num_bytes=61)
    assert (cache.get("a"), cache.get("b")) == (1, None)


def test_a_replaced_value_counts_once() -> None:
    cache = ByteCache[str, int](60)
    cache.put("a", 1, num_bytes=10)
    cache.put("a", 2, num_bytes=20)
    assert (cache.get("a"), cache.num_bytes, len(cache)) == (2, 20, 1)
    cache.drop("a")
    cache.drop("a")
    assert (cache.num_bytes, len(cache)) == (0, 0)
