"""What goes wrong, and how it is put right again."""

import asyncio
import signal
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from coordinator.__main__ import READINESS_S
from paceline.client import AsyncClient
from paceline.errors import Unavailable
from paceline.rpc.health import instance_at, is_serving
from paceline.rpc.heartbeat import STALL_S
from paceline.sampling_params import SamplingParams
from paceline.v1 import model_pb2
from tests.faults.deployment import WITHOUT_HEAD, Deployment
from tests.services import free_and_total_blocks

# The link looks every STALL_S / 10, health every READINESS_S; the rest is for a busy machine.
NOTICED_S = STALL_S * 1.1 + READINESS_S + 3.0
# What no message of ours decodes from: a tag that never ends.
UNDECODABLE = b"\xff" * 32


@dataclass(slots=True)
class Scene:
    """Where a fault falls. `place`: a service, or who is behind a link."""

    deployment: Deployment
    impatient: AsyncClient
    place: str
    following: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return all(task.done() for task in self.following)

    async def until_over(self) -> None:
        while not self.is_over:
            await asyncio.sleep(0.05)


class Fault(ABC):
    """`strike` is done at once, in the phase that was waited for; `mend` is what an operator would do."""

    @abstractmethod
    def strike(self, scene: Scene) -> None: ...

    async def mend(self, scene: Scene) -> None:  # noqa: B027 a cut link needs no mending
        """Raises AssertionError where something else than what docs/operations.md says is seen meanwhile."""


class Kill(Fault):
    """SIGKILL, and a new process."""

    def strike(self, scene: Scene) -> None:
        scene.deployment.services[scene.place].process.kill()

    async def mend(self, scene: Scene) -> None:
        await asyncio.to_thread(scene.deployment.services[scene.place].process.wait)
        await scene.deployment.restart(scene.place)


class Terminate(Fault):
    """SIGTERM, as `docker stop` sends it, and a new process."""

    def strike(self, scene: Scene) -> None:
        scene.deployment.services[scene.place].process.send_signal(signal.SIGTERM)

    async def mend(self, scene: Scene) -> None:
        status = await asyncio.to_thread(scene.deployment.services[scene.place].process.wait, 30)
        assert status == 0, f"it ended with {status}"
        await scene.deployment.restart(scene.place)


@dataclass(slots=True)
class Stop(Fault):
    """SIGSTOP for a while: a pause of the machine."""

    seconds: float

    def strike(self, scene: Scene) -> None:
        scene.deployment.services[scene.place].process.send_signal(signal.SIGSTOP)

    async def mend(self, scene: Scene) -> None:
        try:
            await asyncio.sleep(self.seconds)
        finally:
            scene.deployment.services[scene.place].process.send_signal(signal.SIGCONT)


@dataclass(slots=True)
class LongStop(Stop):
    """So long that it must be noticed: of the target by the coordinator's health, of the draft by answers that end without
    it. What does not need the stopped server goes on."""

    async def mend(self, scene: Scene) -> None:
        deployment, loop = scene.deployment, asyncio.get_running_loop()
        goes_on_s = loop.time() + self.seconds
        try:
            if scene.place == "draft":
                async with asyncio.timeout(self.seconds):
                    await scene.until_over()
            else:
                async with asyncio.timeout(NOTICED_S):
                    while await asyncio.to_thread(is_serving, deployment.coordinator):
                        await asyncio.sleep(0.1)
                await free_and_total_blocks(deployment.services["draft"])
                assert await asyncio.to_thread(instance_at, deployment.services["gateway"].address) is not None
            await asyncio.sleep(goes_on_s - loop.time())
        finally:
            deployment.services[scene.place].process.send_signal(signal.SIGCONT)


class Cut(Fault):
    """The link's connections are reset."""

    def strike(self, scene: Scene) -> None:
        scene.deployment.proxies[scene.place].cut()


class Undecodable(Fault):
    """An answer of bytes that are no message."""

    def strike(self, scene: Scene) -> None:
        scene.deployment.proxies[scene.place].forge_next_answer(lambda ids: UNDECODABLE)


class UnknownKind(Fault):
    """An answer of a kind that a later version may have."""

    def strike(self, scene: Scene) -> None:
        proxy = scene.deployment.proxies[scene.place]

        def forge(ids: list[int]) -> bytes:
            response = model_pb2.SessionResponse()
            for command_id in ids:
                response.answers.add(command_id=command_id)
            return bytes(response.SerializeToString())

        proxy.forge_next_answer(forge)


class OtherWeights(Kill):
    """SIGKILL, and a new process with another model. A draft may be another; a target may not."""

    async def mend(self, scene: Scene) -> None:
        deployment, place = scene.deployment, scene.place
        await asyncio.to_thread(deployment.services[place].process.wait)
        own = tuple(deployment.services[place].process.args[5:])
        pair = deployment.pair
        flags = own[: len(own) - len(getattr(pair, place))]
        if place == "draft":
            await deployment.restart(place, *flags, *pair.target)
            await scene.until_over()
        else:
            await deployment.restart(place, *flags, *pair.draft, *WITHOUT_HEAD)
            await self._expect_refusal(scene)
            assert not any(task.done() for task in scene.following), "an answer went on with another model"
        deployment.services[place].kill()
        await deployment.restart(place, *own)

    async def _expect_refusal(self, scene: Scene) -> None:
        try:
            await scene.impatient.complete([1, 2, 3], SamplingParams(max_tokens=4))
            said = "nothing: it was used"
        except Unavailable as error:
            said = str(error)
        assert "has another weights" in said, said


FAULTS: dict[str, Fault] = {
    "kill": Kill(), "stop-5s": Stop(5.0), "stop-60s": LongStop(60.0), "term": Terminate(), "cut": Cut(),
    "undecodable": Undecodable(), "unknown-kind": UnknownKind(), "other-weights": OtherWeights(),
}  # fmt: skip
