"""How a server says it is doing."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLoad:
    # Other clients with generations there, these, and the tokens of its cache that they may come to hold.
    num_others: int = 0
    num_other_generations: int = 0
    num_other_tokens: int = 0
    num_free_blocks: int = 0
    # Share of the last second in which its model computed.
    busy: float = 0.0
    # Seconds of recent forwards, divided by those of its ForwardTimes; 0 while unknown.
    slowdown: float = 0.0
    # It was told to end: it keeps its generations for a while.
    is_draining: bool = False
