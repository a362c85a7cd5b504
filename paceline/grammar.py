"""Which tokens may follow, by a grammar: the same function of the completion on the coordinator and on both servers.

    GrammarEngine   compiles grammars for one tokenizer, in threads of its own
    Grammar         a compiled grammar, or one that will be
    Guide           a place in it: where a completion has led

A guide's state is the tokens it has taken. It is never carried over or sent, so that a rejected draft, a fork or a
restarted server needs no rule of its own: `at` starts again where the completion differs and takes what is new.

All matchers of a grammar share one automaton, which grows with every text until it reaches a limit for all of them. So a
guide at a limit goes on with an automaton of its own, and fails if it fills that too within few tokens: another's text
never fails it, and no text compiles a grammar at each of its tokens.

The library is native code: a text can end the process that compiles it. The coordinator tries each new grammar in a
process made for that (`coordinator/trials.py`), with a smaller stack than any thread that uses it later.

Matchers are never rolled back. llguidance 1.9.1 sometimes restores another state than it had: after `"},` and a rejected
` ["`, the token ` {"` led into a string value instead of a key. Copies are exact.
"""

import functools
import json
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import version
from typing import Any, TypeVar, cast

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from paceline.errors import InvalidArgument, ResourceExhausted

# The library's version is part of what a seed means.
GRAMMAR_ENGINE = f"llguidance {version('llguidance')}"
MAX_GRAMMAR_CHARACTERS = 1 << 20
# Compiled grammars that are kept for later requests, and all that are in use.
MAX_KEPT_BYTES, MAX_BYTES = 256 << 20, 1 << 30
# What the library allocates for the smallest grammar.
LEAST_BYTES = 1 << 17
# Of the threads that compile. The library recurses over a grammar's rules.
STACK_BYTES = 64 << 20
# What one grammar may take: to compile, and for each token.
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 1_000_000, "step_lexer_fuel": 50_000, "step_max_items": 50_000, "max_lexer_states": 20_000,
    "verbose_errors": False,
}  # fmt: skip
# Of rules that a client has written. They may be ambiguous, and a place's cost is then cubic in the items of its row: with
# these limits a token takes some tens of milliseconds at worst. JSON needs as many items for objects of some hundred
# properties, but is cheap there.
WRITTEN_LIMITS = LIMITS | {"step_max_items": 5000, "max_items_in_row": 700}
WRITTEN = '"name": "written", "lark_grammar": '
# Tokens between automata of a guide's own.
RENEW_EVERY = 64
# Tokens between copies of a matcher, and copies kept: enough to go back over a round's drafts without starting from the
# beginning.
COPY_EVERY, NUM_COPIES = 16, 3
# How the library's errors say that a token may not follow, and that none may.
NOT_ALLOWED, NO_TEXT = "satisfy the grammar", "NoExtension"
# Of one grammar among several: a Lark text or a JSON Schema, and its name.
Rules = dict[str, Any]
T = TypeVar("T")
# Bit i % 32 of word i // 32: whether token i may follow.
Mask = NDArray[np.uint32]  # [ceil(vocab_size / 32)]


def make_tokenizer(tokenizer_json: bytes, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
    """Raises InvalidArgument."""
    try:
        return LLTokenizer(tokenizer_json.decode(), n_vocab=vocab_size, eos_token=list(eos_token_ids))
    except Exception as error:  # whatever a tokenizer has that the library does not know
        raise InvalidArgument("format", f"can't be kept to with this model's tokenizer: {error}") from None


def written_rules(lark: str) -> Rules:
    """Returns a client's rules, which have other limits than those of formats that are made here."""
    return {"name": "written", "lark_grammar": lark}


def grammar_text(*rules: Rules) -> str:
    """Returns a grammar in llguidance's form: the first rules, which may refer to others by name."""
    match rules:
        case [{"lark_grammar": lark, **others}] if not others:
            return str(lark)
    return json.dumps({"grammars": rules})


def compile_grammar(tokenizer: LLTokenizer, text: str) -> LLMatcher:
    """Raises InvalidArgument."""
    limits = WRITTEN_LIMITS if WRITTEN in text else LIMITS
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=LLParserLimits(**limits))
    # Some errors are found by the first mask.
    probe = matcher.deep_copy()
    probe.compute_bitmask()
    if probe.is_error():
        raise InvalidArgument("format", f"can't be used: {in_one_line(probe.get_error())}")
    return matcher


class GrammarEngine:
    """Compiles grammars for one tokenizer. Thread-safe; nothing is built before the first grammar."""

    def __init__(self, tokenizer_json: bytes, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._eos_token_ids = frozenset(eos_token_ids)
        self._make_tokenizer = functools.partial(make_tokenizer, tokenizer_json, vocab_size, list(eos_token_ids))
        self._tokenizer: LLTokenizer | None = None
        # By salt and text: how long compiling takes must not tell what others use.
        self._kept: OrderedDict[tuple[str, str], Grammar] = OrderedDict()
        self._num_kept_bytes = 0
        self._in_use: weakref.WeakSet[Grammar] = weakref.WeakSet()
        self._lock, self._tokenizer_lock = threading.Lock(), threading.Lock()
        # Two, so that one grammar that takes long does not delay all others.
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="grammar")

    def find(self, text: str, salt: str = "") -> "Grammar | None":
        """Returns a grammar that is kept, compiled or on its way."""
        with self._lock:
            if (grammar := self._kept.get((salt, text))) is not None:
                self._kept.move_to_end((salt, text))
            return grammar

    def grammar(self, text: str, salt: str = "", num_bytes: int = 0) -> "Grammar":
        """Begins to compile a grammar in llguidance's form, or finds it. `num_bytes`: what it takes, as measured before."""
        if (grammar := self.find(text, salt)) is not None:
            return grammar
        compile_it = functools.partial(self._compile, text)
        with self._lock:
            compile_again = functools.partial(self._submit, compile_it)
            grammar = Grammar(compile_again, self._eos_token_ids, max(num_bytes, LEAST_BYTES, len(text)))
            self._in_use.add(grammar)
            self._kept[salt, text] = grammar
            self._num_kept_bytes += grammar.num_bytes
            while self._num_kept_bytes > MAX_KEPT_BYTES and len(self._kept) > 1:
                self._num_kept_bytes -= self._kept.popitem(last=False)[1].num_bytes
        return grammar

    def require_room(self, num_bytes: int) -> None:
        """Raises ResourceExhausted if generations hold too many grammars for one more."""
        with self._lock:
            num_used = sum(grammar.num_bytes for grammar in self._in_use)
        if num_used + num_bytes > MAX_BYTES:
            raise ResourceExhausted("the formats of running requests take all memory that is set aside for formats")

    def _submit(self, compile_it: Callable[[], LLMatcher]) -> "Future[LLMatcher]":
        # The pool starts its threads here.
        before = threading.stack_size(STACK_BYTES)
        try:
            return self._threads.submit(compile_it)
        finally:
            threading.stack_size(before)

    def _compile(self, text: str) -> LLMatcher:
        with self._tokenizer_lock:
            self._tokenizer = self._tokenizer or self._make_tokenizer()
        return compile_grammar(self._tokenizer, text)


class Grammar:
    def __init__(
        self, compile_it: "Callable[[], Future[LLMatcher]]", eos_token_ids: frozenset[int], num_bytes: int = 0
    ) -> None:
        """`num_bytes`: what it takes in memory."""
        self.compiling, self.eos_token_ids, self.num_bytes = compile_it(), eos_token_ids, num_bytes
        self._compile_again = compile_it

    def separate(self, spent: LLMatcher) -> LLMatcher:
        """Returns a matcher that shares its automaton with no other guide. New guides don't get `spent` either."""
        compiling = self._compile_again()
        if self.compiling.result() is spent:
            self.compiling = self._compile_again()
        return compiling.result()

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
        # What it is a copy of, and that with an automaton of its own, which has it since so many tokens.
        self._source = cast(LLMatcher, None)
        self._own: LLMatcher | None = None
        self._separate_since: int | None = None
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
        forked._own, forked._separate_since = self._own, self._separate_since
        return forked

    def _ask(
        self, completion: Sequence[int], question: Callable[[LLMatcher], T], may_renew: bool = True
    ) -> tuple[T, bool]:
        """Asks the matcher that has taken the completion. At a limit it asks once more, with an automaton of its own.

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
            raise InvalidArgument("format", f"{problem}: {in_one_line(error)}")
        self._copies, self._own = {}, None
        if not may_renew or self._is_separate_at(len(completion)):
            raise InvalidArgument("format", f"reached a limit: {in_one_line(error)}")
        self._own, self._separate_since = self._grammar.separate(self._source), len(completion)
        return self._ask(completion, question, may_renew=False)

    def _is_separate_at(self, num_tokens: int) -> bool:
        return self._separate_since is not None and num_tokens < self._separate_since + RENEW_EVERY

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
            self._source = self._own or self._grammar.compiling.result()
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


def in_one_line(error: str) -> str:
    """Shortens the library's report, which shows the text again and says what is wrong with it in its last line."""
    if error.startswith(NO_TEXT):
        return "it allows no text"
    first, *rest = error.strip().split("\n")
    reason = next((line for line in reversed(rest) if line.startswith("error: ")), "")
    return f"{first[:200]} {reason}".rstrip()
