from paceline.client import AsyncClient as AsyncClient
from paceline.client import Client as Client
from paceline.formats import OutputFormat as OutputFormat
from paceline.infill import Infill as Infill
from paceline.rpc.tls import Tls as Tls
from paceline.sampling import SamplingParams as SamplingParams
from paceline.speculation import SpeculationParams as SpeculationParams

__version__: str
