"""A chat ends with any token that the model names as an end."""

from dataclasses import replace
from pathlib import Path

from paceline.client import AsyncClient
from paceline.sampling_params import SamplingParams
from tests.byte_level import write_byte_level_model
from tests.conftest import SMALL_FLAGS
from tests.hosted import Host
from tests.model_folder import change_json

END_OF_TURN = 300
# The end of a turn is the likeliest token by far, once it may come.
ENDING = SamplingParams(temperature=0, max_tokens=8, min_tokens=3, logit_bias={END_OF_TURN: 100.0})


async def test_a_chat_ends_with_an_end_that_only_generation_config_names(host: Host, tmp_path: Path) -> None:
    write_byte_level_model(tmp_path)
    change_json(tmp_path / "generation_config.json", eos_token_id=[0, END_OF_TURN])
    flags = ("--model", str(tmp_path), *SMALL_FLAGS)
    async with AsyncClient(host.trio(flags, flags).address) as client:
        done = await client.complete("Why?", ENDING)
        endless = await client.complete("Why?", replace(ENDING, ignore_eos=True))
    assert done.finish is not None
    assert endless.finish is not None
    assert (done.finish.reason, len(done.token_ids)) == ("stop", 4)
    assert (endless.finish.reason, len(endless.token_ids)) == ("length", 8)
