"""The process that tries grammars: `python -m coordinator.trial_process`, started by `coordinator/trials.py`.

It reads the tokenizer once and forks for each trial, so that a trial costs a few milliseconds and its death nobody else
anything. Standard input is the control socket: first the tokenizer, then one end of a connection for each trial. The fork
reads a request from it, a line with the sizes of texts and the texts: the grammar and its parts. It answers in JSON. If the
fork dies, this process writes by which signal. If the connection or the control socket is closed, it kills the fork.
"""

import contextlib
import json
import os
import random
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from paceline.errors import InvalidArgument
from paceline.grammar import NO_TEXT, compile_grammar, in_one_line, make_tokenizer

# Below that of any thread which uses grammars, so that none of them runs out of stack where a trial has not.
STACK_BYTES = 1 << 20
# Processor time and memory of a trial. All tools of a large agent take a fifth of a second.
MAX_CPU_S, MAX_BYTES = 1.0, 128 << 20
# Fixed text at a grammar's beginning, which is tokenized again for each of its tokens.
MAX_FORCED_TOKENS = 4096
# Tokens of each text that a trial feeds, and those tried for each: some end the text.
NUM_FED, NUM_TRIED = 8, 4
# Processor time of a mask, which delays all requests.
MAX_MASK_S = 0.05
# The head of the control socket's first message: the sizes of what follows.
HEAD = struct.Struct("!II")


def main() -> None:
    control = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    with control.makefile("rb", buffering=0) as stream:
        tokenizer = _read_tokenizer(stream)
    control.sendall(b"\n")
    _Trials(control, tokenizer).serve()


def _read_tokenizer(stream: Any) -> LLTokenizer | InvalidArgument:
    num_options, num_bytes = HEAD.unpack(_read(stream, HEAD.size))
    options = json.loads(_read(stream, num_options))
    try:
        return make_tokenizer(_read(stream, num_bytes), options["vocab_size"], options["eos_token_ids"])
    except InvalidArgument as error:
        return error


def _read(stream: BinaryIO, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = stream.read(count - len(parts))
        if not part:
            sys.exit(0)
        parts += part
    return bytes(parts)


class _Trials:
    """The forks and their connections."""

    def __init__(self, control: socket.socket, tokenizer: LLTokenizer | InvalidArgument) -> None:
        self._control, self._tokenizer = control, tokenizer
        self._connections: dict[int, socket.socket] = {}
        self._poll = select.epoll()

    def serve(self) -> None:
        """Serves until the control socket is closed."""
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        control = self._control.fileno()
        self._poll.register(control, select.EPOLLIN)
        self._poll.register(woken, select.EPOLLIN)
        while True:
            ready = {found for found, _ in self._poll.poll()}
            for connection in ready - {control, woken}:
                self._kill(connection)
            if control in ready and not self._begin():
                for pid in self._connections:
                    os.kill(pid, signal.SIGKILL)
                return
            # Last: the next trial may get a descriptor that is closed here, and what was ready is of the one before.
            if woken in ready:
                os.read(woken, 4096)
                self._reap()

    def _begin(self) -> bool:
        """Forks for the next trial. Returns whether there is one."""
        said, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        if not said:
            return False
        connection = socket.socket(fileno=descriptors[0])
        pid = os.fork()
        if pid == 0:
            # What ends when this process does must not wait for the fork.
            for other in (self._control, *self._connections.values()):
                other.close()
            _try(connection, self._tokenizer)
        self._connections[pid] = connection
        # The client's end is closed; its request has been written before.
        self._poll.register(connection, select.EPOLLRDHUP)
        return True

    def _kill(self, descriptor: int) -> None:
        for pid, connection in self._connections.items():
            if connection.fileno() == descriptor:
                os.kill(pid, signal.SIGKILL)
                self._poll.unregister(descriptor)

    def _reap(self) -> None:
        while self._connections:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            connection = self._connections.pop(pid)
            with contextlib.suppress(FileNotFoundError):
                self._poll.unregister(connection)
            if status:
                # 0 if it has answered nothing for another reason.
                _answer(connection, died=os.WTERMSIG(status))
            connection.close()


def _answer(connection: socket.socket, **said: Any) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(said).encode())


def _try(connection: socket.socket, tokenizer: LLTokenizer | InvalidArgument) -> NoReturn:
    """Runs a trial and ends the process, with 1 if there is no answer."""
    answers: list[dict[str, Any]] = []
    try:
        signal.set_wakeup_fd(-1)
        with connection.makefile("rb") as stream:
            text, *parts = [_read(stream, size).decode() for size in json.loads(stream.readline())]
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        _limit()
        threading.stack_size(STACK_BYTES)
        thread = threading.Thread(target=lambda: answers.append(_run(tokenizer, text, parts)))
        thread.start()
        thread.join()
        _answer(connection, **answers[0])
    finally:
        os._exit(not answers)


def _limit() -> None:
    """A trial dies by SIGPROF after its time, and by SIGABRT if it can't allocate."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = _num_bytes("VmSize") + MAX_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)


def _run(tokenizer: LLTokenizer | InvalidArgument, text: str, parts: Sequence[str]) -> dict[str, Any]:
    """Returns the answer: the memory that the compiled grammar takes, or what is wrong with it."""
    before = _num_bytes("RssAnon")
    try:
        if isinstance(tokenizer, InvalidArgument):
            raise tokenizer
        matcher = compile_grammar(tokenizer, text)
        num_forced = len(matcher.deep_copy().compute_ff_tokens())
        if num_forced > MAX_FORCED_TOKENS:
            allowed = f"at most {MAX_FORCED_TOKENS} tokens"
            raise InvalidArgument(
                "format", f"begins with {num_forced} tokens of fixed text; {allowed} may be", allowed=allowed
            )
        num_bytes = _num_bytes("RssAnon") - before
        _feed(matcher.deep_copy())
        # The library frees a grammar by recursion too.
        del matcher
    except InvalidArgument as error:
        at, problem = _find_part(parts)
        return {"problem": problem or error.problem, "allowed": error.allowed, "part": at}
    except MemoryError:
        return {"died": signal.SIGABRT}
    return {"num_bytes": num_bytes}


def _feed(matcher: LLMatcher) -> None:
    """Takes two short texts. Raises InvalidArgument if one meets a limit or a token costs too much."""
    coin = random.Random(0)
    # First ids are those of single characters in most vocabularies, so that little is taken at once.
    _follow(matcher.deep_copy(), lambda ids: ids[:NUM_TRIED])
    _follow(matcher.deep_copy(), lambda ids: ids[[coin.randrange(len(ids)) for _ in range(NUM_TRIED)]])


def _follow(matcher: LLMatcher, choose: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> None:
    for _ in range(NUM_FED):
        again = matcher.deep_copy()
        mask, took_s = _mask(matcher)
        # What the first builds is kept.
        if took_s > MAX_MASK_S and _mask(again)[1] > MAX_MASK_S:
            raise InvalidArgument("format", f"takes more than {MAX_MASK_S * 1000:g} ms for a token")
        ids = np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))
        for token in [] if matcher.is_error() or not len(ids) else choose(ids).tolist():
            after = matcher.deep_copy()
            after.consume_token(token)
            if after.is_error() or not after.is_stopped():
                break
        else:
            break
        matcher = after
        if matcher.is_error():
            break
    if matcher.is_error() and not matcher.get_error().startswith(NO_TEXT):
        raise InvalidArgument("format", f"reaches a limit within a few tokens: {in_one_line(matcher.get_error())}")


def _mask(matcher: LLMatcher) -> tuple[bytes, float]:
    """Returns the tokens that may follow, and the processor time that it took."""
    began_s = time.thread_time()
    return matcher.compute_bitmask(), time.thread_time() - began_s


def _find_part(parts: Sequence[str]) -> tuple[int | None, str]:
    """Returns which part of a refused grammar is refused alone, and why."""
    for at, part in enumerate(parts):
        is_error, said = LLMatcher.validate_grammar_with_warnings(part)
        if is_error:
            return at, " ".join(said[0].split())
    return None, ""


def _num_bytes(kind: str) -> int:
    """Returns this process's memory of a kind (proc(5), status)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{kind}:"))


if __name__ == "__main__":
    main()
