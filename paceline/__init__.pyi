from paceline.client import AsyncClient as AsyncClient
from paceline.client import Client as Client
from paceline.infill_prompt import Infill as Infill
from paceline.output_format import OutputFormat as OutputFormat
from paceline.rpc.tls import Tls as Tls
from paceline.sampling_params import SamplingParams as SamplingParams
from paceline.speculation_params import SpeculationParams as SpeculationParams

__version__: str
