"""Startup and shutdown."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry

from paceline.engine.engine_config import ModelRole
from paceline.errors import ConfigError
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


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model with an address of its own.

    make_kinds: returns the kinds of jobs (`paceline.serving.job_kind`) that it executes, by its engine and the servicer of
    the model served before it in the same process, if there is one.
    """

    settings: ModelServerSettings
    role: ModelRole
    make_kinds: Callable[[Any, Any], Sequence[Any]]


async def serve_models(models: Sequence[ServedModel]) -> None:
    """Loads the models, serves until SIGTERM or SIGINT, then drains. Raises ConfigError if it can't."""
    prepare_process()
    from paceline.serving.watchdog import end_after, watch

    for model in models:
        require_free_address(model.settings.listen)
        _check_process(model.settings, models[0].settings, is_alone=len(models) == 1)
    device_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")
    async with AsyncExitStack() as stack:
        running: list[_RunningModel] = []
        # Load before listening, so that an address that answers can serve.
        for model in models:
            running.append(await _load(model, device_thread, stack, running[-1].servicer if running else None))
        for each in running:
            each.engine.worker.checks_integrity = each.model.settings.check_integrity
        *beside, worker = (each.engine.worker for each in running)
        worker.start(device_thread, beside)
        stack.callback(worker.stop)
        for each in running:
            watchdog = asyncio.create_task(watch(each.engine.worker, each.model.settings.step_timeout))
            stack.callback(watchdog.cancel)
            await each.listen()
        await _wait_for_end(worker.wait_stopped())
        # Otherwise a hung device thread would keep the process alive.
        last_resort = end_after(DRAIN_S + 5.0)
        await asyncio.gather(*(each.drain() for each in running))
    last_resort.cancel()


def _check_process(settings: ModelServerSettings, first: ModelServerSettings, is_alone: bool) -> None:
    """Raises ConfigError for what two models in one process can't have."""
    if is_alone:
        return
    if settings.device != "cpu":
        # A GPU's memory is divided by process.
        raise ConfigError(f"device is {settings.device!r}; for two models in one process it must be 'cpu'")
    if settings.threads != first.threads:
        raise ConfigError(f"threads is {settings.threads}; for two models in one process it must be the same for both")


@dataclass(frozen=True, slots=True)
class _RunningModel:
    model: ServedModel
    engine: Any
    servicer: Any
    server: Server

    async def listen(self) -> None:
        settings, engine = self.model.settings, self.engine
        address = await self.server.start()
        log.info(
            "%s: %s (%s, %s, %s layers) on %s (%s), KV cache %d blocks of %d tokens (%s), rows independent: %s",
            self.model.role.name, settings.model, settings.dtype, engine.quantization, engine.model.implementation, address,
            settings.tls.said, engine.pool.num_blocks, engine.pool.block_size, settings.kv_dtype,
            not engine.check.variant_parts,
        )  # fmt: skip

    async def drain(self) -> None:
        log.info("%s: draining for up to %.0f s", self.model.role.name, DRAIN_S)
        await self.server.set_serving(False)
        await self.servicer.drain(DRAIN_S)
        await self.server.stop(1.0)


async def _load(
    model: ServedModel, device_thread: ThreadPoolExecutor, stack: AsyncExitStack, before: Any
) -> _RunningModel:
    """`stack`: ends what it opens. `before`: servicer of the model served before it."""
    from paceline.serving.servicer import ModelServicer

    settings, role = model.settings, model.role
    registry = new_registry(role.name)
    stack.enter_context(exposed(registry, settings.metrics, role.name))
    spans = stack.enter_context(traced(settings.traces, role.name))
    engine = await _build(settings, role, device_thread, registry, spans)
    server = Server(settings.listen, tls=settings.tls, reflects=settings.reflection)
    servicer = ModelServicer(engine, role.name, model.make_kinds(engine, before), before)
    server.add_service(model_pb2.DESCRIPTOR.services_by_name["Model"], servicer)
    # Coordinators of versions 1 and 2 ask these services: so they name both versions.
    for older in ("paceline.v1.Draft", "paceline.v1.Target"):
        server.add_fixed_answer(older, "Describe", model_pb2.ModelInfo(protocol_version=PROTOCOL_VERSION))
    return _RunningModel(model, engine, servicer, server)


async def _build(
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
    """Returns at SIGTERM or SIGINT. Raises the exception that ended the device thread."""
    signal, failure = asyncio.ensure_future(wait_for_signal()), asyncio.ensure_future(stopped)
    await asyncio.wait({signal, failure}, return_when=asyncio.FIRST_COMPLETED)
    if failure.done():
        log.critical("the device thread crashed; the server exits")
        await failure
