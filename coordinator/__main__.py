"""`python -m coordinator`: one coordinator."""

import asyncio
import logging

from prometheus_client import CollectorRegistry

from coordinator.admission import Admission
from coordinator.choosing.active_generations import ActiveGenerations
from coordinator.choosing.experience import Experience
from coordinator.config import CoordinatorSettings
from coordinator.drafting.custom import load_drafter
from coordinator.drafting.factory import Proposers
from coordinator.drafting.recent_answers import RecentAnswers
from coordinator.generations import Generations
from coordinator.metrics import CoordinatorMetrics, CoordinatorState
from coordinator.remote.link import Link, LinkKind
from coordinator.remote.same_model import SameModel
from coordinator.requests import RequestReader
from coordinator.servicer import GenerationServicer
from coordinator.synthetic import SyntheticAcceptance
from coordinator.text import Tokenizer
from coordinator.unread import UnreadAnswers
from paceline.errors import ConfigError, Unavailable
from paceline.keys import KeyRing
from paceline.observability.exposition import exposed, new_registry
from paceline.observability.spans import Spans
from paceline.observability.traces import traced
from paceline.rpc.metadata import KeyCheck
from paceline.rpc.server import DRAIN_S, Server, require_free_address, run, wait_for_signal
from paceline.settings import parse_settings
from paceline.v1 import draft_pb2, draft_pb2_grpc, generation_pb2, model_pb2, target_pb2, target_pb2_grpc

log = logging.getLogger(__name__)
# How often health follows the target.
READINESS_S = 0.5

TARGET = LinkKind("target", target_pb2_grpc.TargetStub, target_pb2.TargetRequest)
DRAFT = LinkKind("draft", draft_pb2_grpc.DraftStub, draft_pb2.DraftRequest)


async def serve(settings: CoordinatorSettings) -> None:
    """Connects to both servers, serves until SIGTERM or SIGINT, then drains."""
    registry = new_registry("coordinator")
    with exposed(registry, settings.metrics, "coordinator"), traced(settings.traces, "coordinator") as spans:
        await _serve(settings, registry, spans)


async def _serve(settings: CoordinatorSettings, registry: CollectorRegistry, spans: Spans) -> None:
    ring = KeyRing(settings.api_keys) if settings.api_keys is not None else None
    require_free_address(settings.listen)
    target = Link(TARGET, settings.target, SameModel(settings.target).check, settings.servers_tls)
    links = [target]
    try:
        tokenizer, card = await _wait_for_target(target, settings.connect_timeout)
        draft = _draft_link(settings, card)
        if draft is not None:
            links.append(draft)
            await _wait_for_draft(draft, settings.connect_timeout)
        metrics = CoordinatorMetrics(registry)
        generations = _generations(settings, target, draft, tokenizer, card, metrics)
        registry.register(CoordinatorState(generations.admission, links, generations.unread))
        defaults = settings.speculation_defaults
        generations.proposers.check(defaults.drafter)
        reader = RequestReader(tokenizer, generations.proposers, defaults)
        interceptors = [] if ring is None else [KeyCheck(ring, metrics.count_unauthenticated)]
        server = Server(settings.listen, interceptors, settings.tls, settings.reflection)
        servicer = GenerationServicer(draft, reader, generations, defaults, spans)
        server.add_service(generation_pb2.DESCRIPTOR.services_by_name["Generation"], servicer)
        asked = "nobody for a key" if ring is None else f"for one of {len(ring)} API keys"
        log.info("coordinator: listening on %s (%s); asks %s", await server.start(), settings.tls.said, asked)
        readiness = asyncio.create_task(_follow(target, server))
        await wait_for_signal()
        readiness.cancel()
        log.info("coordinator: draining for up to %.0f s", DRAIN_S)
        await server.stop(DRAIN_S)
    finally:
        for link in links:
            await link.stop()


def _draft_link(settings: CoordinatorSettings, target: model_pb2.ModelCard) -> Link | None:
    """None: work without a draft server."""
    if settings.draft == "none":
        return None
    return Link(DRAFT, settings.draft, lambda card: check_same_tokenizer(card, target), settings.servers_tls)


def _generations(
    settings: CoordinatorSettings, target: Link, draft: Link | None, tokenizer: Tokenizer, card: model_pb2.ModelCard,
    metrics: CoordinatorMetrics,
) -> Generations:  # fmt: skip
    """What generations share. `card`: the target's. Raises ConfigError for a custom drafter that can't be loaded."""
    active = ActiveGenerations()
    custom = load_drafter(settings.custom_drafter) if settings.custom_drafter else None
    recent = RecentAnswers(settings.recent_tokens) if settings.recent_tokens else None
    synthetic = None
    if settings.synthetic_acceptance is not None:
        synthetic = SyntheticAcceptance(settings.synthetic_acceptance)
        log.warning("coordinator: drafts are accepted with a chance of %g: this is no real text", synthetic.chance)
    return Generations(
        target=target,
        tokenizer=tokenizer,
        admission=Admission(settings.max_running, settings.max_waiting, card.total_blocks * card.block_size),
        proposers=Proposers(draft, custom, Experience(active), recent, settings.ngram_shape),
        patience_s=settings.patience,
        active=active,
        metrics=metrics,
        unread=UnreadAnswers(settings.max_unread_memory),
        synthetic=synthetic,
        recent=recent,
    )


async def _follow(target: Link, server: Server) -> None:
    """Health says SERVING while the target is there: without it there is no output, though requests wait for it."""
    while True:
        await server.set_serving(target.is_up)
        await asyncio.sleep(READINESS_S)


def check_same_tokenizer(draft: model_pb2.ModelCard, target: model_pb2.ModelCard) -> None:
    """Raises ConfigError, naming both models and the difference, if their token ids mean different things."""
    if draft.tokenizer_fingerprint == target.tokenizer_fingerprint:
        return
    if draft.vocab_size != target.vocab_size:
        difference = f"{draft.vocab_size} token ids against {target.vocab_size}"
    else:
        difference = f"as many token ids, but other tokens ({draft.tokenizer_fingerprint} against {target.tokenizer_fingerprint})"
    raise ConfigError(
        f"draft model {draft.name!r} and target model {target.name!r} have different tokenizers: {difference}"
    )


async def _wait_for_target(target: Link, timeout_s: float) -> tuple[Tokenizer, model_pb2.ModelCard]:
    """Raises ConfigError if there is none."""
    target.start()
    try:
        await target.wait_usable(timeout_s)
    except Unavailable as error:
        raise ConfigError(str(error)) from error
    assert target.channel is not None
    assert target.card is not None
    files: dict[str, bytes] = {}
    async for piece in target_pb2_grpc.TargetStub(target.channel).Tokenizer(target_pb2.TokenizerRequest()):
        files[piece.file_name] = files.get(piece.file_name, b"") + piece.data
    return Tokenizer(files), target.card


async def _wait_for_draft(draft: Link, timeout_s: float) -> None:
    """Raises ConfigError if the draft can't be used at all; waits for one that is only slow to come."""
    draft.start()
    try:
        await draft.wait_usable(timeout_s)
    except Unavailable as error:
        raise ConfigError(f"{error}; start one, or say --draft none") from error


def main() -> None:
    settings = parse_settings(CoordinatorSettings, "coordinator")
    run(lambda: serve(settings), settings.log_format, settings.log_level)


if __name__ == "__main__":
    main()
