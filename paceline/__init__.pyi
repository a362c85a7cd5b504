from paceline.client import AsyncClient as AsyncClient
from paceline.client import Client as Client
from paceline.sampling import SamplingParams as SamplingParams
from paceline.sampling import SpeculationParams as SpeculationParams

__version__: str
