"""A target server with a draft head drafts behind each round: the same, whatever its cache went through."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.rpc.model_messages import floats_from_bytes
from tests.conftest import TINY
from tests.draft_heads import WRITERS
from tests.hosted import Host, HostedService, RefusedStart
from tests.mtp_models import write_mtp
from tests.serving.raw_session import RawSession, opening, release, truncate, verify

MATCH, INVALID_ARGUMENT, FAILED_PRECONDITION = 1, 3, 9
BLOCK_SIZE, NUM_NEXT = 8, 5
PROMPT = [number * 37 % 500 for number in range(29)]
NOTHING = torch.empty(0)
# Cache sizes that hold one sequence of 40 tokens and a half.
EVICTING = {
    "own": "64KiB",
    "eagle": "64KiB",
    "dflash": "100KiB",
    "modules": "64KiB",
    "hybrid": "290KiB",
    "experts": "200KiB",
}


def flags_of_folder(folder: Path, kind: str = "eagle3") -> tuple[str, ...]:
    WRITERS[kind](folder / "head")
    return "--draft-head", str(folder / "head")


def flags_of_mtp(folder: Path, kind: str) -> tuple[str, ...]:
    """The checkpoint has the head, which is used unasked."""
    write_mtp(folder / "model", kind, vocab_size=512)
    return "--model", str(folder / "model")


def flags_of_modules(folder: Path) -> tuple[str, ...]:
    return *flags_of_folder(folder), "--implementation", "transformers"


# The targets, and the format of their heads: our own layers, transformers', a hybrid with recurrent ones, a mixture of experts.
TARGETS: dict[str, tuple[str, Callable[[Path], tuple[str, ...]]]] = {
    "own": ("eagle3", flags_of_folder),
    "eagle": ("eagle", partial(flags_of_folder, kind="eagle")),
    "dflash": ("dflash", partial(flags_of_folder, kind="dflash")),
    "modules": ("eagle3", flags_of_modules),
    "hybrid": ("mtp", partial(flags_of_mtp, kind="qwen3_5_text")),
    "experts": ("mtp", partial(flags_of_mtp, kind="glm4_moe")),
}


def start_target(host: Host, folder: Path, kind: str, *flags: str) -> HostedService:
    """flags: in place of the usual ones."""
    # Of a prompt and many drafts a step feeds a part.
    options = (*TINY, "--block-size", str(BLOCK_SIZE), "--max-num-batched-tokens", "32", *TARGETS[kind][1](folder))
    return host.start("target_server", *options, *flags)


@pytest.fixture(scope="session", params=TARGETS)
def heads_target(
    request: pytest.FixtureRequest, host: Host, tmp_path_factory: pytest.TempPathFactory
) -> SimpleNamespace:
    service = start_target(host, tmp_path_factory.mktemp("head"), request.param)
    return SimpleNamespace(address=service.address, kind=request.param, format=TARGETS[request.param][0])


@pytest.fixture
def target(heads_target: SimpleNamespace) -> Iterator[RawSession]:
    session = RawSession(heads_target)  # type: ignore[arg-type]
    yield session
    session.close()


class Opened:
    """A sequence of its own: no other shares its prefixes, unless they have one salt."""

    number = 0

    def __init__(
        self, target: RawSession, temperature: float = 0.0, salt: str | None = None, uses_head: bool = True,
        num_prompt_tokens: int = 1,
    ) -> None:  # fmt: skip
        Opened.number += 1
        self.target, self.id, self.length = target, target.next_sequence_id(), 0

        def fill(command: Any) -> None:
            opening(temperature)(command)
            command.open.cache_salt = f"own {Opened.number}" if salt is None else salt
            command.open.uses_draft_head = uses_head
            command.open.num_prompt_tokens = num_prompt_tokens

        target.ask(self.id, fill)

    def verify(self, tail: list[int], drafts: list[int] = (), num_next: int = NUM_NEXT, least: float = 0.0) -> Any:
        def fill(command: Any) -> None:
            verify(self.length, tail, list(drafts), rule=MATCH)(command)
            command.verify.num_next_drafts, command.verify.next_min_probability = num_next, least

        answer = self.target.ask(self.id, fill)
        assert answer.WhichOneof("answer") == "verify_result", answer
        self.length += len(tail) + len(drafts)
        return answer.verify_result

    def truncate(self, length: int) -> None:
        self.target.send(self.id, truncate(length))
        self.length = length


class Confidences(list[float]):
    """Equal up to what the rows beside them change."""

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Confidences)
        return list(self) == pytest.approx(list(other), rel=1e-4)


def drafts_of(result: Any) -> tuple[int, list[int], Confidences]:
    following = result.next_drafts
    confidences = floats_from_bytes(following.confidences, "confidences", len(following.tokens))
    return following.first_position, list(following.tokens), Confidences(confidences.tolist())


def fresh(target: RawSession, context: list[int], temperature: float = 0.0) -> tuple[list[int], Any]:
    """The target's token behind a context, and what is drafted behind that, of a new sequence that reads all at once."""
    sequence = Opened(target, temperature)
    result = sequence.verify(context)
    target.send(sequence.id, release)
    return list(result.tokens), drafts_of(result)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("num_accepted", range(4))
def test_drafts_follow_the_accepted_ones_and_the_target_s_token(
    target: RawSession, num_accepted: int, temperature: float
) -> None:
    sequence, context = Opened(target, temperature), [*PROMPT]
    [newest] = sequence.verify(context).tokens
    context.append(newest)
    drafts: list[int] = []
    for _ in range(3):
        drafts += fresh(target, [*context, *drafts], temperature)[0]
    if num_accepted < 3:
        drafts[num_accepted] = (drafts[num_accepted] + 1) % 500
    result = sequence.verify([newest], drafts)
    decided = [*context, *result.tokens[: num_accepted + 1]]
    assert decided[len(context) : -1] == drafts[:num_accepted]
    position, tokens, _ = drafts_of(result)
    assert (position, len(tokens)) == (len(decided), NUM_NEXT)
    tokens_there, expected = fresh(target, decided[:-1], temperature)
    assert tokens_there == decided[-1:]
    assert drafts_of(result) == expected


def test_no_rejected_draft_is_remembered(target: RawSession) -> None:
    """Rounds of wrong drafts, with and without drafts of the head's own behind them."""
    sequence, context = Opened(target), [*PROMPT]
    context += sequence.verify(context).tokens
    for number in range(12):
        wrong = [(number * 11 + each) % 500 for each in range(number % 5)]
        sequence.truncate(min(sequence.length, len(context) - 1))
        result = sequence.verify(context[sequence.length :], wrong, num_next=0 if number % 3 == 1 else NUM_NEXT)
        accepted = 0
        while accepted < len(wrong) and result.tokens[accepted] == wrong[accepted]:
            accepted += 1
        context += result.tokens[: accepted + 1]
        if number % 3 != 1:
            assert drafts_of(result) == fresh(target, context[:-1])[1]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_no_token_depends_on_the_head(target: RawSession, temperature: float) -> None:
    plain, sequence = Opened(target, temperature, uses_head=False), Opened(target, temperature)
    expected = list(plain.verify(PROMPT, num_next=0).tokens)
    while len(expected) < 60:
        expected += plain.verify(expected[-1:], num_next=0).tokens
    result, context, drafts, num_accepted = sequence.verify(PROMPT), [*PROMPT], list[int](), 0
    while True:
        accepted = num_agreed(result.tokens, drafts)
        context += result.tokens[: accepted + 1]
        num_accepted += accepted
        if len(context) >= len(PROMPT) + 60:
            break
        position, drafts, _ = drafts_of(result)
        assert position == len(context)
        sequence.truncate(len(context) - 1)
        # Also what the target itself would say, so that drafts are accepted, and what it would not.
        drafts = drafts if num_accepted % 3 else [*expected[len(context) - len(PROMPT) :][:2], 7]
        result = sequence.verify(context[-1:], drafts)
    assert context[len(PROMPT) :][:60] == expected[:60]
    assert num_accepted > 0


def num_agreed(tokens: Sequence[int], drafts: Sequence[int]) -> int:
    """How many drafts come before the first that is not the target's token."""
    pairs = enumerate(zip(tokens, drafts, strict=False))
    return next((number for number, (token, draft) in pairs if token != draft), len(drafts))


@pytest.mark.parametrize("length", [3, 8, 20])
def test_another_text_behind_a_truncate_is_read_afresh(target: RawSession, length: int) -> None:
    sequence = Opened(target)
    sequence.verify(PROMPT)
    sequence.truncate(length)
    sequence.verify([5, 6, 7], num_next=0)
    assert drafts_of(sequence.verify([8])) == fresh(target, [*PROMPT[:length], 5, 6, 7, 8])[1]


@pytest.mark.parametrize("num_wrong", [2, 3, 5, 12])
def test_a_round_in_two_steps_drafts_alike(target: RawSession, num_wrong: int) -> None:
    """Its second step feeds rejected drafts alone, or a part of them."""
    result = Opened(target).verify(PROMPT, [1] * num_wrong)
    assert result.tokens[0] != 1
    assert drafts_of(result) == fresh(target, PROMPT)[1]


def test_nothing_is_drafted_behind_the_end(target: RawSession) -> None:
    [newest] = fresh(target, PROMPT)[0]
    for name in ("eos_token_ids", "stop_token_ids"):
        sequence = Opened(target)
        ended = target.next_sequence_id()

        def fill(command: Any, name: str = name) -> None:
            opening(0.0)(command)
            command.open.uses_draft_head = True
            place = command.open if name == "eos_token_ids" else command.open.sampling
            getattr(place, name).append(newest)

        target.ask(ended, fill)
        sequence.id = ended
        result = sequence.verify(PROMPT)
        assert (list(result.tokens), list(result.next_drafts.tokens)) == ([newest], [])


@pytest.mark.parametrize("num_shared", range(BLOCK_SIZE, 3 * BLOCK_SIZE + 1))
def test_a_prefix_that_was_cached_drafts_alike(target: RawSession, num_shared: int) -> None:
    salt = f"shared {num_shared}"
    context = [*PROMPT[:num_shared], *((each * 5 + 1) % 500 for each in PROMPT[num_shared:])]
    # Recurrent layers keep their state at the last full block of what a client calls the prompt.
    first = Opened(target, salt=salt, num_prompt_tokens=num_shared + 1)
    first.verify(PROMPT, num_next=0)
    target.send(first.id, release)
    result = Opened(target, salt=salt).verify(context)
    assert result.cached_tokens == num_shared // BLOCK_SIZE * BLOCK_SIZE
    assert drafts_of(result) == fresh(target, context)[1]


@pytest.mark.parametrize("length", range(BLOCK_SIZE, 2 * BLOCK_SIZE))
def test_a_prefix_that_rounds_have_filled_drafts_alike(
    target: RawSession, heads_target: SimpleNamespace, length: int
) -> None:
    """The second and third block end at each position of a round: at a token of the prompt, a draft, or the target's token."""
    salt, context = f"rounds behind {length}", PROMPT[:length]
    first = Opened(target, salt=salt, num_prompt_tokens=length + 1)
    context += first.verify(context).tokens
    for _ in range(4):
        right = [*fresh(target, context)[0]]
        right += fresh(target, [*context, *right])[0]
        wrong = (fresh(target, [*context, *right])[0][0] + 1) % 500
        first.truncate(len(context) - 1)
        context += first.verify(context[-1:], [*right, wrong]).tokens[:3]
    first.truncate(len(context) - 1)
    first.verify(context[-1:])
    target.send(first.id, release)
    for num_read in range(length + 1, len(context) + 1):
        reader = Opened(target, salt=salt)
        result = reader.verify(context[:num_read])
        target.send(reader.id, release)
        # Recurrent layers keep no state behind the prompt.
        num_cached = length if heads_target.kind == "hybrid" else num_read - 1
        assert result.cached_tokens == num_cached // BLOCK_SIZE * BLOCK_SIZE
        assert drafts_of(result) == fresh(target, context[:num_read])[1]


def test_what_others_have_read_is_no_prefix(target: RawSession) -> None:
    """The head has not read a sequence that does not use it, so its blocks have nothing of the head."""
    others = Opened(target, salt="others", uses_head=False)
    others.verify(PROMPT, num_next=0)
    target.send(others.id, release)
    result = Opened(target, salt="others").verify(PROMPT)
    assert result.cached_tokens == 0
    assert drafts_of(result) == fresh(target, PROMPT)[1]


@pytest.mark.parametrize("length", range(BLOCK_SIZE, 2 * BLOCK_SIZE + 1))
def test_a_fork_drafts_alike(target: RawSession, length: int) -> None:
    parent, child = Opened(target), Opened(target)
    parent.verify(PROMPT)

    def fork(command: Any) -> None:
        command.fork.parent_sequence_id, command.fork.length = parent.id, length

    target.send(child.id, fork)
    child.length = length
    of_child, of_parent = child.verify([7, 8, 9]), parent.verify([3, 4])
    assert drafts_of(of_child) == fresh(target, [*PROMPT[:length], 7, 8, 9])[1]
    assert drafts_of(of_parent) == fresh(target, [*PROMPT, 3, 4])[1]


def test_a_replay_after_an_eviction_drafts_alike(host: Host, tmp_path: Path, heads_target: SimpleNamespace) -> None:
    """The cache holds one sequence and a half, so an older one takes the blocks of a younger one."""
    flags = ("--kv-cache-memory", EVICTING[heads_target.kind], "--max-model-len", "64", "--no-prefix-caching")
    session = RawSession(start_target(host, tmp_path, heads_target.kind, *flags))
    contexts = [[(each * step + 1) % 500 for each in range(40)] for step in (3, 7)]
    expected = []
    for context in contexts:
        alone = Opened(session)
        expected.append(drafts_of(alone.verify(context)))
        session.send(alone.id, release)
    older, younger = Opened(session), Opened(session)
    for _ in range(2):
        assert drafts_of(younger.verify(contexts[1])) == expected[1]
        assert drafts_of(older.verify(contexts[0])) == expected[0]
        failure = session.ask(younger.id, verify(younger.length, [1], rule=MATCH)).failure
        assert (failure.status.code, failure.cache_length) == (FAILED_PRECONDITION, 0)
        older.truncate(0)
        younger.truncate(0)
    session.close()


def test_several_sequences_draft_as_each_alone(target: RawSession) -> None:
    contexts = [PROMPT[: 5 + 6 * number] for number in range(5)]
    sequences = [Opened(target, uses_head=number != 2) for number in range(5)]

    def asking(context: list[int], num_next: int) -> Any:
        def fill(command: Any) -> None:
            verify(0, context, rule=MATCH)(command)
            command.verify.num_next_drafts = num_next

        return fill

    commands = [
        (each.id, asking(context, number))
        for number, (each, context) in enumerate(zip(sequences, contexts, strict=True))
    ]
    answers = [target.answer(each).verify_result for each in target.send_together(commands)]
    for number, (answer, context) in enumerate(zip(answers, contexts, strict=True)):
        _, tokens, _ = drafts_of(Opened(target).verify(context, num_next=number))
        assert list(answer.next_drafts.tokens) == ([] if number == 2 else tokens)
        assert len(tokens) == number


@pytest.mark.parametrize("num_tokens", range(1, 2 * BLOCK_SIZE + 1))
def test_behind_a_context_of_any_length_all_are_drafted(
    target: RawSession, heads_target: SimpleNamespace, num_tokens: int
) -> None:
    """Each has a place in the cache. No more are drafted than a head can."""
    for num_next, most in ((NUM_NEXT, NUM_NEXT), (16, 5 if heads_target.format == "dflash" else 16)):
        _, tokens, _ = drafts_of(Opened(target).verify(PROMPT[:num_tokens], num_next=num_next))
        assert len(tokens) == most


def test_drafting_stops_where_it_is_not_sure(target: RawSession) -> None:
    [everything] = [Opened(target).verify(PROMPT)]
    confidences = floats_from_bytes(everything.next_drafts.confidences, "confidences", NUM_NEXT)
    least = float(confidences[0] * confidences[1] * 0.99)
    stopped = Opened(target).verify(PROMPT, least=least).next_drafts
    assert list(stopped.tokens) == list(everything.next_drafts.tokens[:3])


def test_what_can_not_be_drafted_is_refused_by_name(target: RawSession, heads_target: SimpleNamespace) -> None:
    def asking(**fields: Any) -> Any:
        def fill(command: Any) -> None:
            verify(0, PROMPT, [1], rule=fields.pop("rule", MATCH))(command)
            for name, value in fields.items():
                setattr(command.verify, name, value)

        return fill

    cases = {
        "num_next_drafts is 17; it must be in [0, 16]": asking(num_next_drafts=17),
        "next_min_probability is 2.0; it must be in [0, 1]": asking(num_next_drafts=1, next_min_probability=2),
        "num_next_drafts is 'set'; it must be left out under `rejection`": asking(num_next_drafts=1, rule=2),
        "num_next_drafts is 'set'; it must be left out under": asking(num_next_drafts=1, lenience=0.5),
    }
    for said, fill in cases.items():
        failure = target.ask(Opened(target).id, fill).failure
        assert failure.status.code == INVALID_ARGUMENT
        assert said in failure.status.message
    assert target.describe().draft_head.format == heads_target.format
    assert [each.num_tokens for each in target.describe().draft_head.forward_times] == [1, 2, 4, 8]


def test_transformers_layers_draft_as_our_own(host: Host, tmp_path: Path) -> None:
    """The same target with the same head: what it reads of the hidden states, embeddings and output rows."""
    found = []
    for kind in ("own", "modules"):
        folder = tmp_path / kind
        folder.mkdir()
        session = RawSession(start_target(host, folder, kind))
        found.append(
            [fresh(session, PROMPT[:length], temperature) for length in (1, 9, 29) for temperature in (0.0, 0.9)]
        )
        session.close()
    assert found[0] == found[1]


@pytest.mark.parametrize(("changes", "flags", "said"), [
    ({}, ("--draft-head", "none"), ""),
    ({"mtp.fc.weight": NOTHING}, (), "without a draft head: fc.weight is missing"),
    ({"mtp.layers.0.mlp.up_proj.weight": NOTHING}, (), "layers.0.mlp.up_proj.weight is missing"),
    ({"mtp.norm.weight": torch.ones(8)}, (), r"without a draft head: norm.weight has shape (8,); it must be (64,)"),
])  # fmt: skip
def test_a_checkpoint_s_head_that_is_not_used_is_left_out(
    host: Host, tmp_path: Path, changes: dict[str, torch.Tensor], flags: tuple[str, ...], said: str
) -> None:
    write_mtp(tmp_path / "model", "qwen3_5_text", changes, vocab_size=512)
    service = host.start("target_server", *TINY, "--model", str(tmp_path / "model"), *flags)
    session = RawSession(service)
    assert not session.describe().HasField("draft_head")
    assert len(Opened(session, uses_head=False).verify(PROMPT, num_next=0).tokens) == 1
    session.close()
    assert said in service.log.read_text()


def test_the_cache_s_blocks_have_room_for_the_head(host: Host, tmp_path: Path) -> None:
    write_mtp(tmp_path / "model", "glm4_moe", vocab_size=512)
    options = (*TINY, "--model", str(tmp_path / "model"), "--block-size", str(BLOCK_SIZE))
    # float32 keys and values of two heads of 32 features, in four layers; and the head's, with a hidden state of 64.
    layer_bytes, state_bytes = 2 * 2 * 32 * BLOCK_SIZE * 4, 64 * BLOCK_SIZE * 4
    for flags, block_bytes in (((), 5 * layer_bytes + state_bytes), (("--draft-head", "none"), 4 * layer_bytes)):
        session = RawSession(host.start("target_server", *options, *flags))
        assert session.describe().total_blocks == (16 << 20) // block_bytes
        session.close()


def test_a_target_without_a_head_refuses(host: Host, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/target.sock"
    host.start("target_server", "--listen", address, *TINY)
    session = RawSession(SimpleNamespace(address=address))  # type: ignore[arg-type]
    sequence = Opened(session)

    def fill(command: Any) -> None:
        verify(0, PROMPT, rule=MATCH)(command)
        command.verify.num_next_drafts = 1

    assert "no draft head" in session.ask(sequence.id, fill).failure.status.message
    assert not session.describe().HasField("draft_head")
    session.close()


def test_a_head_that_is_not_there_ends_the_start(host: Host, tmp_path: Path) -> None:
    with pytest.raises(RefusedStart, match="draft_head '/nowhere'"):
        host.start("target_server", "--listen", f"unix:{tmp_path}/t.sock", *TINY, "--draft-head", "/nowhere")
