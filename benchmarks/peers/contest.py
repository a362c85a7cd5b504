"""The contenders' turns: each answers each group of prompts, in a rotating order."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from benchmarks.peers.engines import INSTALL, Contender, WorkerPlan
from benchmarks.peers.footprint import Footprint
from benchmarks.peers.protocol import Settings
from benchmarks.peers.worker import Worker, WorkerFailed

# A turn is quiet while others take less than this share of the cores' time. Ticks of a clock make short turns look worse.
QUIET = 0.08
# Generated before anything is timed: memory is touched, kernels are chosen, threads are made.
WARM_UP_TOKENS = 8


@dataclass(slots=True)
class Row:
    """Results of one contender with all prompts, `at_once` at a time, for `asked_tokens` tokens each."""

    name: str
    at_once: int
    asked_tokens: int
    # Tokens of the first group's prompts.
    prompt_tokens: int
    # Wall time of each group, prefill included; the same groups in every row.
    seconds: list[float] = field(default_factory=list)
    # Others' share of the cores' time, of each group.
    others: list[float] = field(default_factory=list)
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
    """A contender, its worker, and its results."""

    engine: str
    worker: Worker
    contender: Contender
    row: Row


class Contest:
    """Loaded and stopped workers, and which of them remain."""

    def __init__(self, say: Callable[[str], None], repeats: int = 0) -> None:
        """`say` gets lines of progress. `repeats`: maximum repeats of a disturbed turn."""
        self._say, self._repeats = say, repeats
        self._workers: list[tuple[WorkerPlan, Worker]] = []
        self.versions: list[str] = []
        # Engine -> why some of it, or all, is not in.
        self.missing: dict[str, str] = {}

    @contextmanager
    def running(self, plans: list[WorkerPlan], settings: Settings) -> Iterator[None]:
        """Starts the workers one after another; ends them after the block."""
        with ExitStack() as stack:
            for plan in plans:
                if plan.is_installed:
                    self._start(plan, settings, stack)
                else:
                    self._drop(plan.engine, f"not installed; {INSTALL} installs it")
            yield

    def run(self, prompts: list[list[int]], lengths: Sequence[int], at_once: int) -> list[Row]:
        """All answer all prompts, once with each of `lengths` new tokens. A worker that fails has no row."""
        groups = [prompts[start : start + at_once] for start in range(0, len(prompts), at_once)]
        prompt_tokens = sum(map(len, groups[0]))
        entries = [
            Entry(plan.engine, worker, contender, Row(contender.name, at_once, tokens, prompt_tokens))
            for plan, worker in self._workers
            for contender in plan.contenders
            if at_once == 1 or not contender.alone
            for tokens in lengths
        ]
        for entry in entries[:: len(lengths)]:
            self._take_turn(entry, groups[0], WARM_UP_TOKENS, counts=False)
        for turn, group in enumerate(groups):
            first = turn % len(entries) if entries else 0
            for entry in entries[first:] + entries[:first]:
                self._take_turn(entry, group, entry.row.asked_tokens)
            self._say(f"{at_once} at once: {turn + 1} of {len(groups)}")
        return [entry.row for entry in entries if len(entry.row.outputs) == len(prompts)]

    def footprints(self) -> list[Footprint]:
        """Returns footprints of the remaining workers."""
        return [worker.footprint(plan.name) for plan, worker in self._workers]

    def _start(self, plan: WorkerPlan, settings: Settings, stack: ExitStack) -> None:
        try:
            worker = Worker(
                plan.python,
                plan.module,
                replace(settings, drafter=plan.drafter, weights=plan.weights),
                plan.environment,
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
            for _ in range(self._repeats if counts else 0):
                if answer.others < QUIET:
                    break
                again = entry.worker.ask(group, tokens, entry.contender.mode)
                answer = min(answer, again, key=lambda each: each.others)
        except WorkerFailed as failure:
            self._workers = [(plan, worker) for plan, worker in self._workers if worker is not entry.worker]
            self._drop(entry.engine, f"failed at {entry.contender.name}: {failure}")
            return
        if counts:
            entry.row.seconds.append(answer.seconds)
            entry.row.others.append(answer.others)
            entry.row.outputs.extend(answer.token_ids)

    def _drop(self, engine: str, reason: str) -> None:
        if engine not in self.missing:
            self._say(f"without {engine}: {reason}")
        self.missing[engine] = reason
