"""The contenders' turns: each answers each group of prompts, in an order that rotates."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from benchmarks.peers.engines import INSTALL, Contender, WorkerPlan
from benchmarks.peers.protocol import Settings
from benchmarks.peers.worker import Worker, WorkerFailed

# Generated before anything is timed: memory is touched, kernels are chosen, threads are made.
WARM_UP_TOKENS = 8


@dataclass(slots=True)
class Row:
    """What one contender did with all prompts, `at_once` at a time."""

    name: str
    at_once: int
    # Wall time of each group, prefill included; the same groups in every row.
    seconds: list[float] = field(default_factory=list)
    # A completion for each prompt.
    outputs: list[list[int]] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(map(len, self.outputs))

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / sum(self.seconds)


@dataclass(slots=True, eq=False)
class Entry:
    """A contender, the worker that answers for it, and what it did so far."""

    engine: str
    worker: Worker
    contender: Contender
    row: Row


class Contest:
    """Workers that are loaded and stopped, and which of them are still in."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """`say` gets a line of progress."""
        self._say = say
        self._workers: list[tuple[WorkerPlan, Worker]] = []
        self.versions: list[str] = []
        # Engine -> why some of it, or all, is not in.
        self.missing: dict[str, str] = {}

    @contextmanager
    def running(self, plans: list[WorkerPlan], settings: Settings) -> Iterator[None]:
        """Starts the workers one after another, and ends them after the block."""
        with ExitStack() as stack:
            for plan in plans:
                if plan.is_installed:
                    self._start(plan, settings, stack)
                else:
                    self._drop(plan.engine, f"not installed; {INSTALL} installs it")
            yield

    def run(self, prompts: list[list[int]], tokens: int, at_once: int) -> list[Row]:
        """All answer all prompts. Who fails has no row."""
        entries = [
            Entry(plan.engine, worker, contender, Row(contender.name, at_once))
            for plan, worker in self._workers
            for contender in plan.contenders
            if at_once == 1 or not contender.alone
        ]
        groups = [prompts[start : start + at_once] for start in range(0, len(prompts), at_once)]
        for entry in entries:
            self._take_turn(entry, groups[0], WARM_UP_TOKENS, counts=False)
        for turn, group in enumerate(groups):
            first = turn % len(entries) if entries else 0
            for entry in entries[first:] + entries[:first]:
                self._take_turn(entry, group, tokens)
            self._say(f"{at_once} at once: {turn + 1} of {len(groups)}")
        return [entry.row for entry in entries if len(entry.row.outputs) == len(prompts)]

    def _start(self, plan: WorkerPlan, settings: Settings, stack: ExitStack) -> None:
        try:
            worker = Worker(
                plan.python, plan.module, replace(settings, ngrams=plan.ngrams, weights=plan.weights), plan.environment
            )
        except WorkerFailed as failure:
            self._drop(plan.engine, f"did not start: {failure}")
            return
        stack.callback(worker.close)
        self._workers.append((plan, worker))
        if worker.version not in self.versions:
            self.versions.append(worker.version)
        self._say(f"ready: {', '.join(contender.name for contender in plan.contenders)}")

    def _take_turn(self, entry: Entry, group: list[list[int]], tokens: int, counts: bool = True) -> None:
        if not any(worker is entry.worker for _, worker in self._workers):
            return
        try:
            answer = entry.worker.ask(group, tokens, entry.contender.mode)
        except WorkerFailed as failure:
            self._workers = [(plan, worker) for plan, worker in self._workers if worker is not entry.worker]
            self._drop(entry.engine, f"failed at {entry.contender.name}: {failure}")
            return
        if counts:
            entry.row.seconds.append(answer.seconds)
            entry.row.outputs.extend(answer.token_ids)

    def _drop(self, engine: str, reason: str) -> None:
        if engine not in self.missing:
            self._say(f"without {engine}: {reason}")
        self.missing[engine] = reason
