"""Which tokens may follow, by a grammar: the same function of the completion on the coordinator and on both servers.

    GrammarEngine   compiles grammars for one tokenizer, in a thread of its own
    Grammar         a compiled grammar, or one that will be
    Guide           a place in it: where a completion has led

A guide's state is the tokens it has taken. It is never carried over or sent, so that a rejected draft, a fork or a
restarted server needs no rule of its own: `at` starts again where the completion differs and takes what is new.

All matchers of a grammar share one automaton, which grows with every text until it reaches a limit for all of them. So a
guide at a limit compiles the grammar again, and fails only if its own text alone reaches the limit.

Matchers are never rolled back. llguidance 1.9.1 sometimes restores another state than it had: after `"},` and a rejected
` ["`, the token ` {"` led into a string value instead of a key. Copies are exact.
"""

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import version
from typing import TypeVar, cast

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from paceline.errors import InvalidArgument

# The library's version is part of what a seed means.
GRAMMAR_ENGINE = f"llguidance {version('llguidance')}"
MAX_GRAMMAR_CHARACTERS = 1 << 20
# Compiled grammars that are kept.
MAX_GRAMMARS = 64
# What one grammar may take: to compile, and for each token. No text can take a server longer than some milliseconds.
LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000, step_lexer_fuel=50_000, step_max_items=20_000, max_lexer_states=20_000, verbose_errors=False
)  # fmt: skip
# Tokens between copies of a matcher, and copies kept: enough to go back over a round's drafts without starting from the
# beginning.
COPY_EVERY, NUM_COPIES = 16, 3
# How the library's errors say that a token may not follow, and that none may.
NOT_ALLOWED, NO_TEXT = "satisfy the grammar", "NoExtension"
T = TypeVar("T")
# Bit i % 32 of word i // 32: whether token i may follow.
Mask = NDArray[np.uint32]  # [ceil(vocab_size / 32)]


class GrammarEngine:
    """Compiles grammars for one tokenizer. Thread-safe; nothing is built before the first grammar."""

    def __init__(self, tokenizer_json: bytes, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer_json, self._vocab_size = tokenizer_json, vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._tokenizer: LLTokenizer | None = None
        self._known: OrderedDict[str, Grammar] = OrderedDict()
        self._lock = threading.Lock()
        # Compiling can take a tenth of a second, and the tokenizer some seconds.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")

    def grammar(self, text: str) -> "Grammar":
        """Begins to compile a grammar in llguidance's form, or finds it compiled."""
        with self._lock:
            grammar = self._known.pop(text, None)
            if grammar is None:
                compile_it = functools.partial(self._compile, text)
                grammar = Grammar(self._thread.submit(compile_it), frozenset(self._eos_token_ids), compile_it)
            self._known[text] = grammar
            if len(self._known) > MAX_GRAMMARS:
                self._known.popitem(last=False)
        return grammar

    def _compile(self, text: str) -> LLMatcher:
        if self._tokenizer is None:
            try:
                self._tokenizer = LLTokenizer(
                    self._tokenizer_json.decode(), n_vocab=self._vocab_size, eos_token=self._eos_token_ids
                )
            except Exception as error:  # whatever a tokenizer has that the library does not know
                raise InvalidArgument("format", f"can't be kept to with this model's tokenizer: {error}") from None
        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=LIMITS)
        # Some errors are found by the first mask.
        probe = matcher.deep_copy()
        probe.compute_bitmask()
        if probe.is_error():
            raise InvalidArgument("format", f"can't be used: {_in_one_line(probe.get_error())}")
        return matcher


class Grammar:
    def __init__(
        self, compiling: "Future[LLMatcher]", eos_token_ids: frozenset[int], compile_again: Callable[[], LLMatcher]
    ) -> None:
        self.compiling, self.eos_token_ids = compiling, eos_token_ids
        self._compile_again = compile_again

    def renew(self, spent: LLMatcher) -> None:
        """Compiles it again, in some milliseconds, unless another guide has replaced `spent` already."""
        if self.compiling.result() is spent:
            self.compiling = Future()
            self.compiling.set_result(self._compile_again())

    def guide(self) -> "Guide":
        return Guide(self)

    @property
    def unenforced(self) -> list[str]:
        """Returns what the library leaves out of a JSON Schema that is not strict, in its words."""
        return list(self.compiling.result().get_grammar_warnings())


class Guide:
    """Leads one sequence. Methods raise InvalidArgument if the grammar can't be compiled or reaches a limit."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._matcher: LLMatcher | None = None
        # What it is a copy of.
        self._source = cast(LLMatcher, None)
        # The tokens that the matcher has taken.
        self._taken: list[int] = []
        # The newest copies of the matcher, by number of tokens taken.
        self._copies: dict[int, LLMatcher] = {}

    def mask(self, completion: Sequence[int]) -> Mask:
        """Returns the tokens that may follow: EOS alone at the end, none if the vocabulary lacks what the grammar needs.

        Ignores an EOS in the completion and all that follows it. Raises InvalidArgument for a completion that the grammar
        does not allow.
        """
        packed, is_dead_end = self._ask(completion, LLMatcher.compute_bitmask)
        mask = np.frombuffer(packed, np.uint32)
        return np.zeros_like(mask) if is_dead_end else mask

    def forced(self, completion: Sequence[int]) -> int | None:
        """Returns the only token that may follow, if there is one and the text is not over."""
        tokens, is_dead_end = self._ask(
            completion, lambda matcher: [] if matcher.is_stopped() else matcher.compute_ff_tokens()
        )
        return int(tokens[0]) if tokens and not is_dead_end else None

    def is_over(self, completion: Sequence[int]) -> bool:
        """Returns whether nothing may follow but EOS."""
        is_stopped, is_dead_end = self._ask(completion, LLMatcher.is_stopped)
        return is_stopped and not is_dead_end

    def may_follow(self, completion: Sequence[int], token: int) -> bool:
        return allows(self.mask(completion), token)

    def fork(self) -> "Guide":
        """Returns an independent guide with the same state."""
        forked = Guide(self._grammar)
        forked._matcher = None if self._matcher is None else self._matcher.deep_copy()
        # Kept copies take no tokens, so both may start from them again.
        forked._source, forked._taken, forked._copies = self._source, list(self._taken), dict(self._copies)
        return forked

    def _ask(
        self, completion: Sequence[int], question: Callable[[LLMatcher], T], may_renew: bool = True
    ) -> tuple[T, bool]:
        """Asks the matcher that has taken the completion. At a limit it asks once more, after compiling the grammar again.

        Returns the answer, and whether no token may follow; the answer is then meaningless.
        """
        matcher = self._go_to(completion)
        # After an error a mask has EOS alone, and the text appears to be over.
        answer = question(matcher)
        if not matcher.is_error():
            return answer, False
        error = matcher.get_error()
        # It never leaves this state.
        self._matcher = None
        if error.startswith(NO_TEXT):
            return answer, True
        if NOT_ALLOWED in error:
            problem = f"does not allow the token at {len(self._taken)} of the completion"
            raise InvalidArgument("format", f"{problem}: {_in_one_line(error)}")
        if not may_renew:
            raise InvalidArgument("format", f"reached a limit: {_in_one_line(error)}")
        self._copies = {}
        self._grammar.renew(self._source)
        return self._ask(completion, question, may_renew=False)

    def _go_to(self, completion: Sequence[int]) -> LLMatcher:
        num_common = _common_length(self._taken, completion)
        if self._matcher is None or num_common < len(self._taken):
            self._start_again(num_common)
        matcher, taken = self._matcher, self._taken
        assert matcher is not None
        for token in completion[len(taken) :]:
            if token in self._grammar.eos_token_ids or not matcher.consume_token(token):
                break
            taken.append(token)
            if len(taken) % COPY_EVERY == 0:
                self._copies[len(taken)] = matcher.deep_copy()
                if len(self._copies) > NUM_COPIES:
                    del self._copies[min(self._copies)]
        return matcher

    def _start_again(self, most: int) -> None:
        """Goes back to the newest copy with at most `most` tokens, or to the beginning."""
        self._copies = {length: copy for length, copy in self._copies.items() if length <= most}
        length = max(self._copies, default=0)
        if length == 0:
            self._source = self._grammar.compiling.result()
        beginning = self._copies[length] if length else self._source
        self._matcher, self._taken = beginning.deep_copy(), self._taken[:length]


def allows(mask: Mask, token: int) -> bool:
    return bool(mask[token >> 5] >> np.uint32(token & 31) & np.uint32(1))


def is_dead_end(mask: Mask, allowed: Sequence[int], banned: Sequence[int]) -> bool:
    """Returns whether a mask has no token, or lists of token ids leave none. `allowed`: all if empty."""
    if allowed:
        return not any(allows(mask, token) and token not in banned for token in allowed)
    if not banned:
        return not mask.any()
    return int(np.bitwise_count(mask).sum()) == sum(allows(mask, token) for token in set(banned))


def _common_length(taken: list[int], completion: Sequence[int]) -> int:
    num = min(len(taken), len(completion))
    if taken[:num] == list(completion[:num]):
        return num
    return next(at for at in range(num) if taken[at] != completion[at])


def _in_one_line(error: str) -> str:
    """Shortens the library's report, which shows the text again and says what is wrong with it in its last line."""
    if error.startswith(NO_TEXT):
        return "it allows no text"
    first, *rest = error.strip().split("\n")
    reason = next((line for line in reversed(rest) if line.startswith("error: ")), "")
    return f"{first[:200]} {reason}".rstrip()
