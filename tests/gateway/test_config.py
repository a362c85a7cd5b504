"""Settings of the gateway that end it before it begins."""

import sys

import pytest

from gateway.config import GatewaySettings
from paceline.keys import ENVIRONMENT
from paceline.settings import parse_settings


def test_a_bad_key_in_the_environment_is_a_line_and_exit_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ENVIRONMENT, "two words")
    monkeypatch.setattr(sys, "argv", ["gateway"])
    with pytest.raises(SystemExit) as caught:
        parse_settings(GatewaySettings, "gateway")
    assert caught.value.code == 2
    told = "error: PACELINE_API_KEY must be 1 to 512 printable ASCII characters without spaces\n"
    assert capsys.readouterr().err == told


def test_the_first_served_name_is_reported_unless_it_is_a_pattern() -> None:
    names = {"ours,gpt-*": "ours", " ours , other": "ours", "gpt-*,ours": None, "": None}
    assert {each: GatewaySettings(served_model_name=each).reported_model_name for each in names} == names
