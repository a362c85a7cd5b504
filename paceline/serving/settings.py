"""Settings that both model servers have: the engine's, and the server's own. No torch: `--help` answers at once."""

from pydantic import Field

from paceline.engine.config import EngineConfig
from paceline.settings import GrpcSettings, ListenAddress, ServiceSettings


class ModelServerSettings(GrpcSettings, ServiceSettings, EngineConfig):  # type: ignore[misc]  # both say how pydantic treats them
    """Flags of a model server."""

    listen: ListenAddress = Field("127.0.0.1:50051", description="HOST:PORT or unix:PATH")
    step_timeout: float = Field(
        300.0,
        gt=0,
        le=86400,
        description="seconds after which a step of the engine counts as hung, and the server ends itself",
    )
    check_integrity: bool = Field(
        False, description="whenever idle, check the cache's bookkeeping and end at a fault (for tests)"
    )
