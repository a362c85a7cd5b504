"""In which order the variants of one run take turns.

Requests are cut into blocks. A block asks every variant the same requests, one variant after the other:
a variant's share of a block is a slice. The next block begins with the next variant:

    block 0   off 0-7     model 0-7     ngram 0-7
    block 1   model 8-15  ngram 8-15    off 8-15
    block 2   ngram 16-23 off 16-23     model 16-23

So a machine that slows down, or a neighbour that comes and goes, hits all variants alike, and none is
always the first. A slice ends when its last request is answered: no variant runs beside another's leftovers.
That end, where fewer than all clients are busy, costs each variant the same throughput; only figures of one
run with --compare should be compared with one another.
"""

from collections.abc import Iterator
from dataclasses import dataclass

# More than any run asks.
UNLIMITED = 2**31


@dataclass(frozen=True, slots=True)
class Slice:
    """A variant's turn: which variant, and which requests."""

    variant: int
    requests: range


def blocks(num_variants: int, requests: range, requests_per_slice: int) -> Iterator[list[Slice]]:
    """Each block's slices, in order. A single variant needs no turns: one slice."""
    if num_variants == 1:
        yield [Slice(0, requests)]
        return
    for block, first in enumerate(range(0, len(requests), requests_per_slice)):
        part = requests[first : first + requests_per_slice]
        yield [Slice((block + turn) % num_variants, part) for turn in range(num_variants)]
