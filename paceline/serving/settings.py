"""Settings that both model servers have: the engine's, and the server's own. No torch: `--help` answers at once."""

from pydantic import Field

from paceline.engine.config import EngineConfig
from paceline.settings import ListenAddress, Settings


class ModelServerSettings(Settings, EngineConfig):  # type: ignore[misc]  # both say how pydantic treats them
    """Flags of a model server."""

    listen: ListenAddress = Field("127.0.0.1:50051", description="HOST:PORT or unix:PATH")
    check_integrity: bool = Field(
        False, description="whenever idle, check the cache's bookkeeping and end at a fault (for tests)"
    )
