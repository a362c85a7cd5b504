"""Startup and shutdown."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from prometheus_client import CollectorRegistry

from paceline.engine.engine_config import ModelRole
from paceline.observability.exposition import exposed, new_registry
from paceline.observability.spans import Spans
from paceline.observability.traces import traced
from paceline.rpc.model_messages import PROTOCOL_VERSION
from paceline.rpc.server import DRAIN_S, Server, require_free_address, wait_for_signal
from paceline.serving.settings import ModelServerSettings
from paceline.v1 import model_pb2

log = logging.getLogger(__name__)
# How long an idle OpenMP thread spins before it sleeps. No spinning slows each product; the library's default keeps the
# core from the other model server for long after a forward pass.
SPIN_COUNT = "10000"


def prepare_process() -> None:
    """Sets what torch and transformers read from the environment when they are imported."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    # No progress bars in the log.
    os.environ.setdefault("TQDM_DISABLE", "1")


async def serve_model(
    settings: ModelServerSettings,
    role: ModelRole,
    make_kinds: Callable[[Any], Sequence[Any]],
) -> None:
    """Loads the model, serves until SIGTERM or SIGINT, then drains. Raises ConfigError if it can't.

    `make_kinds`: returns the kinds of jobs (`paceline.serving.job_kind`) that the server executes with its engine.
    """
    registry = new_registry(role.name)
    with exposed(registry, settings.metrics, role.name), traced(settings.traces, role.name) as spans:
        await _serve(settings, role, make_kinds, registry, spans)


async def _serve(
    settings: ModelServerSettings,
    role: ModelRole,
    make_kinds: Callable[[Any], Sequence[Any]],
    registry: CollectorRegistry,
    spans: Spans,
) -> None:
    prepare_process()
    from paceline.serving.servicer import ModelServicer
    from paceline.serving.watchdog import end_after, watch

    name = role.name
    require_free_address(settings.listen)
    # Load before listening, so that an address that answers can serve.
    device_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")
    engine = await _load(settings, role, device_thread, registry, spans)
    server = Server(settings.listen, tls=settings.tls, reflects=settings.reflection)
    servicer = ModelServicer(engine, name, make_kinds(engine))
    server.add_service(model_pb2.DESCRIPTOR.services_by_name["Model"], servicer)
    # Coordinators of versions 1 and 2 ask these services: so they name both versions.
    for older in ("paceline.v1.Draft", "paceline.v1.Target"):
        server.add_fixed_answer(older, "Describe", model_pb2.ModelInfo(protocol_version=PROTOCOL_VERSION))
    engine.worker.start(device_thread, settings.check_integrity)
    watchdog = asyncio.create_task(watch(engine.worker, settings.step_timeout))
    try:
        address = await server.start()
        log.info(
            "%s: %s (%s, %s, %s layers) on %s (%s), KV cache %d blocks of %d tokens (%s), rows independent: %s",
            name, settings.model, settings.dtype, engine.quantization, engine.model.implementation, address, settings.tls.said,
            engine.pool.num_blocks, engine.pool.block_size, settings.kv_dtype, not engine.check.variant_parts,
        )  # fmt: skip
        await _wait_for_end(engine.worker.wait_stopped())
        log.info("%s: draining for up to %.0f s", name, DRAIN_S)
        await server.set_serving(False)
        # Otherwise a hung device thread would keep the process alive.
        last_resort = end_after(DRAIN_S + 5.0)
        await servicer.drain(DRAIN_S)
        await server.stop(1.0)
    finally:
        watchdog.cancel()
        engine.worker.stop()
    last_resort.cancel()


async def _load(
    settings: ModelServerSettings,
    role: ModelRole,
    device_thread: ThreadPoolExecutor,
    registry: CollectorRegistry,
    spans: Spans,
) -> Any:
    from paceline.engine.engine import Engine, build_engine
    from paceline.serving.telemetry import EngineState, SequenceSpans, StepMetrics

    loop = asyncio.get_running_loop()
    on_step = StepMetrics(registry).on_step
    on_close = SequenceSpans(spans, settings.model).on_close if spans.are_kept else None

    def build() -> Engine:
        return build_engine(
            settings, role, loop, lambda text: log.info("%s: %s", role.name, text), on_step=on_step, on_close=on_close
        )

    engine = await loop.run_in_executor(device_thread, build)
    if engine.check.variant_parts and role.batch_invariant:
        log.warning(
            "results depend on the rest of the batch (%s): output may differ with and without speculation",
            ", ".join(engine.check.variant_parts),
        )
    registry.register(EngineState(engine))
    return engine


async def _wait_for_end(stopped: Coroutine[Any, Any, None]) -> None:
    """Returns at SIGTERM or SIGINT. Raises the exception that ended the worker."""
    signal, failure = asyncio.ensure_future(wait_for_signal()), asyncio.ensure_future(stopped)
    await asyncio.wait({signal, failure}, return_when=asyncio.FIRST_COMPLETED)
    if failure.done():
        log.critical("the device thread crashed; the server exits")
        await failure
