"""The grammars of requests: tried first where a crash costs nothing, then compiled here."""

import asyncio
from collections.abc import Sequence

from coordinator.trials import MAX_RUNNING, GrammarTrials, Part
from coordinator.turns import RoundRobin
from paceline.grammar import Grammar, GrammarEngine
from paceline.rpc.metadata import caller


class Grammars:
    def __init__(self, tokenizer_json: bytes, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._engine = GrammarEngine(tokenizer_json, vocab_size, eos_token_ids)
        self._trials = GrammarTrials(tokenizer_json, vocab_size, eos_token_ids)
        self._turns = RoundRobin(MAX_RUNNING)

    async def compile(self, text: str, salt: str = "", parts: Sequence[Part] = ()) -> Grammar:
        """Returns a grammar when it is compiled.

        salt: requests of others find none that is kept for this one.
        parts: of the text, for errors.
        Raises InvalidArgument naming a part or else "format", ResourceExhausted, and Unavailable.
        """
        grammar = self._engine.find(text, salt)
        if grammar is None:
            grammar = await self._try(text, salt, parts)
        # Shielded: others may wait for the same grammar.
        await asyncio.shield(asyncio.wrap_future(grammar.compiling))
        return grammar

    async def _try(self, text: str, salt: str, parts: Sequence[Part]) -> Grammar:
        # A key may have many salts.
        async with self._turns.of(caller.get() or salt):
            # The request before may have brought it.
            if (grammar := self._engine.find(text, salt)) is not None:
                return grammar
            num_bytes = await self._trials.run(text, parts)
        self._engine.require_room(num_bytes)
        return self._engine.grammar(text, salt, num_bytes)

    def close(self) -> None:
        self._trials.close()
