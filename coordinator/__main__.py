"""Starts a coordinator: `python -m coordinator`."""

import asyncio
import logging
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from coordinator.acceptance import SyntheticAcceptance
from coordinator.admission import ActiveGenerations, Admission
from coordinator.config import CoordinatorSettings
from coordinator.drafters.custom import load_drafter
from coordinator.drafters.drafter import Resources
from coordinator.drafters.token_index import SuffixCache
from coordinator.generations import Generations
from coordinator.grammars import Grammars
from coordinator.policy.costs import CostModel
from coordinator.policy.experience import Experience
from coordinator.policy.policies import Policies
from coordinator.remote.link import read_tokenizer
from coordinator.remote.pool import Pool
from coordinator.remote.target import SameModel, identity_of
from coordinator.request_reader import RequestReader
from coordinator.servicer import GenerationServicer
from coordinator.telemetry import CoordinatorMetrics, CoordinatorState
from coordinator.tokenizer import Tokenizer
from coordinator.tools.template_report import summary_of
from coordinator.unread import UnreadAnswers
from coordinator.vocabulary_translation import Translation, Vocabularies
from coordinator.warmup_prompt import WarmupPrompt
from paceline.errors import ConfigError, Unavailable
from paceline.keys import KeyRing
from paceline.observability.exposition import exposed, new_registry
from paceline.observability.spans import Spans
from paceline.observability.traces import traced
from paceline.rpc.address_source import AddressSource
from paceline.rpc.metadata import KeyCheck
from paceline.rpc.server import DRAIN_S, Server, require_free_address, run, wait_for_signal
from paceline.settings import parse_settings
from paceline.shares import WeightOf, same_weight
from paceline.v1 import generation_pb2, model_pb2, model_pb2_grpc

log = logging.getLogger(__name__)
# Interval at which the health status is updated from the target link.
READINESS_S = 0.5


async def serve(settings: CoordinatorSettings) -> None:
    """Serves until SIGTERM or SIGINT, then drains."""
    registry = new_registry("coordinator")
    with exposed(registry, settings.metrics, "coordinator"), traced(settings.traces, "coordinator") as spans:
        await _serve(settings, registry, spans)


async def _serve(settings: CoordinatorSettings, registry: CollectorRegistry, spans: Spans) -> None:
    ring = KeyRing(settings.api_keys) if settings.api_keys is not None else None
    require_free_address(settings.listen)
    target = Pool("target", AddressSource("target", settings.target), SameModel().check, settings.servers_tls)
    pools: list[Pool] = [target]
    grammars: Grammars | None = None
    try:
        files, model_info = await _wait_for_target(target, settings.connect_timeout)
        tokenizer = Tokenizer(files)
        grammars = Grammars(files["tokenizer.json"], model_info.vocab_size, model_info.eos_token_ids)
        draft = _draft_pool(settings, model_info, Vocabularies(tokenizer, model_info.vocab_size))
        if draft is not None:
            pools.append(draft)
            await _wait_for_draft(draft, settings.connect_timeout)
        metrics = CoordinatorMetrics(registry)
        weight_of = same_weight if ring is None else ring.weight_of
        generations = _generations(settings, target, draft, tokenizer, model_info, metrics, weight_of)
        registry.register(
            CoordinatorState(
                generations.admission, pools, generations.unread, generations.policies.resources.ahead_stats
            )
        )
        defaults = settings.speculation_defaults
        generations.policies.check(defaults)
        reader = RequestReader(tokenizer, grammars, generations.policies, defaults, settings.share_between_keys)
        interceptors = [] if ring is None else [KeyCheck(ring, metrics.count_unauthenticated)]
        server = Server(settings.listen, interceptors, settings.tls, settings.reflection)
        kept = None
        if settings.warmup_prompt is not None:
            kept = WarmupPrompt(
                Path(settings.warmup_prompt), model_info.name, model_info.vocab_size, model_info.max_model_len
            )
        servicer = GenerationServicer(draft, reader, generations, defaults, spans, kept)
        server.add_service(generation_pb2.DESCRIPTOR.services_by_name["Generation"], servicer)
        log.info("coordinator: chat template: %s", summary_of(tokenizer, reader.prompts.chats))
        keys = "no API key required" if ring is None else f"{len(ring)} API keys"
        log.info("coordinator: listening on %s (%s), %s", await server.start(), settings.tls.said, keys)
        followers = [asyncio.create_task(_follow(target, server))]
        if kept is not None:
            followers.append(asyncio.create_task(kept.keep(target, generations.read)))
        await wait_for_signal()
        for each in followers:
            each.cancel()
        log.info("coordinator: draining for up to %.0f s", DRAIN_S)
        await server.stop(DRAIN_S)
    finally:
        if grammars is not None:
            grammars.close()
        for pool in pools:
            await pool.stop()


def _draft_pool(settings: CoordinatorSettings, target: model_pb2.ModelInfo, vocabularies: Vocabularies) -> Pool | None:
    if settings.draft == "none":
        return None

    async def translate(model_info: model_pb2.ModelInfo, stub: Any) -> Translation | None:
        if model_info.tokenizer_fingerprint == target.tokenizer_fingerprint:
            return None
        fingerprint, read = model_info.tokenizer_fingerprint, partial(read_tokenizer, stub)
        return await vocabularies.translation(model_info.name, fingerprint, model_info.vocab_size, read)

    addresses = AddressSource("draft", settings.draft)
    return Pool("draft", addresses, lambda address, model_info: None, settings.servers_tls, translate)


def _generations(
    settings: CoordinatorSettings, target: Pool, draft: Pool | None, tokenizer: Tokenizer, model_info: model_pb2.ModelInfo,
    metrics: CoordinatorMetrics, weight_of: WeightOf,
) -> Generations:  # fmt: skip
    active = ActiveGenerations()
    admission = Admission(settings.max_num_seqs, settings.max_queue_size, target.has_room, weight_of)
    target.on_change = admission.admit_waiting
    custom = load_drafter(settings.custom_drafter) if settings.custom_drafter else None
    suffix_cache = SuffixCache(settings.suffix_cache_tokens) if settings.suffix_cache_tokens else None
    synthetic = None
    if settings.synthetic_acceptance_rate is not None:
        synthetic = SyntheticAcceptance(settings.synthetic_acceptance_rate)
        log.warning(
            "coordinator: synthetic acceptance with probability %g; the output is meaningless", synthetic.chance
        )
    return Generations(
        target=target,
        identity=identity_of(model_info),
        tokenizer=tokenizer,
        admission=admission,
        policies=Policies(
            Resources(draft, custom, suffix_cache, settings.ngram_shape, targets=target),
            Experience(CostModel(active, lambda: target.forward_times)),
        ),
        target_timeout_s=settings.target_timeout,
        active=active,
        metrics=metrics,
        unread=UnreadAnswers(settings.max_unread_memory),
        synthetic=synthetic,
    )


async def _follow(target: Pool, server: Server) -> None:
    while True:
        await server.set_serving(target.is_up)
        await asyncio.sleep(READINESS_S)


async def _wait_for_target(target: Pool, timeout_s: float) -> tuple[dict[str, bytes], model_pb2.ModelInfo]:
    """Returns the target's tokenizer files and model info."""
    try:
        await target.start(timeout_s)
        await target.wait_usable(timeout_s)
    except Unavailable as error:
        raise ConfigError(str(error)) from error
    assert target.model_info is not None, "a target is up"
    return await read_tokenizer(model_pb2_grpc.ModelStub(target.channel)), target.model_info


async def _wait_for_draft(draft: Pool, timeout_s: float) -> None:
    """Raises ConfigError without a draft, but does not wait for one where they come and go."""
    if not draft.is_fixed:
        draft.follow()
        return
    try:
        await draft.start(timeout_s)
        await draft.wait_usable(timeout_s)
    except Unavailable as error:
        raise ConfigError(f"{error}; start one, or use --draft none") from error


def main() -> None:
    settings = parse_settings(CoordinatorSettings, "coordinator")
    run(lambda: serve(settings), settings.log_format, settings.log_level)


if __name__ == "__main__":
    main()
