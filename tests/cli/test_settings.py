"""Flags > environment > paceline.toml > defaults, for processes and for commands; and what is wrong is named."""

from pathlib import Path

import pytest

from coordinator.config import CoordinatorSettings
from draft_server.config import DraftSettings
from gateway.config import GatewaySettings
from paceline.cli.stack import make_stack
from paceline.errors import ConfigError, InvalidArgument
from paceline.settings import Settings, as_flags, parse_settings
from paceline.speculation_params import Bounds, EntropyAdaptive
from target_server.config import TargetSettings
from tests.certificates import Authority


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_toml(text: str) -> None:
    Path("paceline.toml").write_text(text)


def parse(monkeypatch: pytest.MonkeyPatch, *flags: str) -> CoordinatorSettings:
    monkeypatch.setattr("sys.argv", ["coordinator", *flags])
    return parse_settings(CoordinatorSettings, "coordinator")


def test_each_source_overrules_those_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse(monkeypatch).max_num_seqs == 256
    write_toml("[coordinator]\nmax-num-seqs = 3\n")
    assert parse(monkeypatch).max_num_seqs == 3
    monkeypatch.setenv("PACELINE_COORDINATOR_MAX_NUM_SEQS", "5")
    assert parse(monkeypatch).max_num_seqs == 5
    assert parse(monkeypatch, "--max-num-seqs", "7").max_num_seqs == 7


def test_the_default_is_hybrid_and_adaptive() -> None:
    settings = CoordinatorSettings()
    assert (settings.drafter, settings.num_speculative_tokens) == ("hybrid", "adaptive")


def test_each_source_may_say_a_part_of_the_draft_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_COORDINATOR_DRAFT_MAX", "12")
    assert parse(monkeypatch).speculation_defaults.num_speculative_tokens == Bounds(0, 12)
    write_toml("[coordinator]\ndraft_min = 1\nentropy_beta = 0.7\n")
    monkeypatch.setenv("PACELINE_COORDINATOR_DRAFT_MAX", "6")
    found = parse(monkeypatch, "--num-speculative-tokens", "entropy").speculation_defaults.num_speculative_tokens
    assert found == EntropyAdaptive(Bounds(1, 6), 0.7)


@pytest.mark.parametrize(
    ("toml", "parts"),
    [
        ("[coordinator]\nspeed = 11\n", ["paceline.toml, table [coordinator]", "'speed'"]),
        ('[coordinator]\ndraft = "unix:/a?b"\n', ["--draft", "'unix:/a?b'", "107 bytes", ", # ? %"]),
        ("[coordinator]\nmax_num_seqs = 0\n", ["--max-num-seqs", "greater than or equal to 1"]),
        ("[coordinator]\ncoupled = true\n", ["paceline.toml, table [coordinator]", "'coupled'"]),
        ("[coordinator]\nmax_unread_memory = 1\n", ["error: max_unread_memory is 1: "]),
        ("[coordinator\n", ["paceline.toml"]),
        ("speed = 11\n", ["paceline.toml", "'speed'", "[target]"]),
    ],
)
def test_what_is_wrong_in_the_file_is_named(
    toml: str, parts: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_toml(toml)
    with pytest.raises(SystemExit) as ended:
        parse(monkeypatch)
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert [part for part in ("error: ", *parts) if part not in error] == []


def test_up_passes_on_what_was_given_and_nothing_else() -> None:
    write_toml('[draft]\nquantization = "none"\n[target]\nmodel = "dummy:tiny"\n')
    deployment = make_stack(target={"dtype": "float32"}, draft={"dtype": "float32"})
    assert deployment.target == ["--dtype", "float32"]
    assert deployment.draft == ["--dtype", "float32"]
    assert deployment.coordinator == []


def test_flags_say_what_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "speculation": False,
        "rule": "match",
        "max_num_seqs": 9,
        "num_speculative_tokens": "entropy",
        "no_keys": True,
    }
    settings = parse(monkeypatch, *as_flags(given))
    assert {name: getattr(settings, name) for name in given} == given


def test_model_servers_lock_each_other_out_only_where_they_share_a_device() -> None:
    assert make_stack().shares_device
    assert make_stack(target={"device": "cuda"}, draft={"device": "cuda"}).shares_device
    assert not make_stack(target={"device": "cuda"}).shares_device
    assert not make_stack(draft={"model": "none"}).shares_device


def test_one_draft_and_one_target_server_share_a_process_on_a_cpu() -> None:
    assert make_stack().colocates_draft
    assert not make_stack(colocates_draft=False).colocates_draft
    assert not make_stack(num_targets=2).colocates_draft
    assert not make_stack(num_drafts=2).colocates_draft
    assert not make_stack(draft={"model": "none"}).colocates_draft
    assert not make_stack(target={"device": "cuda"}, draft={"device": "cuda"}).colocates_draft


def test_on_a_gpu_target_and_draft_share_its_memory_unless_told() -> None:
    deployment = make_stack(target={"device": "cuda"}, draft={"device": "cuda", "gpu_memory_utilization": 0.2})
    assert deployment.target[-2:] == ["--gpu-memory-utilization", "0.6"]
    assert deployment.draft is not None
    assert deployment.draft[-2:] == ["--gpu-memory-utilization", "0.2"]


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"coordinator": {"listen": "foo"}}, ["--listen", "'foo'", "HOST:PORT"]),
        ({"coordinator": {"listen": "127.0.0.1:99999"}}, ["--listen", "99999", "65535"]),
        ({"coordinator": {"listen": "127.0.0.1:0"}}, ["--listen", "[1, 65535]"]),
        ({"coordinator": {"listen": "unix:/tmp/a,b"}}, ["--listen", "'unix:/tmp/a,b'", "107 bytes", ", # ? %"]),
        ({"coordinator": {"draft": "unix:/tmp/a#b"}}, ["--draft", "'unix:/tmp/a#b'", "107 bytes", ", # ? %"]),
        ({"coordinator": {"target": "unix:/tmp/a%b"}}, ["--target", "'unix:/tmp/a%b'", "107 bytes", ", # ? %"]),
        ({"target": {"listen": "unix://tmp/x"}}, ["--listen", "'unix://tmp/x'", "absolute PATH"]),
        ({"gateway": {"listen": "unix:/tmp/a?b"}}, ["--http-listen", "'unix:/tmp/a?b'", "107 bytes", ", # ? %"]),
        ({"gateway": {"coordinators": "unix:/tmp/a?b"}}, ["--coordinators", "'unix:/tmp/a?b'", "107 bytes", ", # ? %"]),
        ({"coordinator": {"listen": "0.0.0.0:50050"}}, ["--listen 0.0.0.0:50050", "--api-keys FILE", "--no-keys"]),
        ({"coordinator": {"api_keys": "keys", "no_keys": True}}, ["--api-keys and --no-keys", "one of them"]),
        ({"coordinator": {"drafter": "custom"}}, ["--drafter custom", "--custom-drafter"]),
        ({"coordinator": {"num_speculative_tokens": "17"}}, ["--num-speculative-tokens", "[0, 16]"]),
        (
            {"coordinator": {"num_speculative_tokens": "4", "draft_max": 6}},
            ["draft_max is 6", "num_speculative_tokens is adaptive or entropy"],
        ),
        ({"coordinator": {"entropy_beta": 0.5}}, ["entropy_beta is 0.5", "unless num_speculative_tokens is entropy"]),
        ({"coordinator": {"draft_min": 9}}, ["draft_min is 9", "[0, draft_max], which is 8"]),
        ({"coordinator": {"traces": "collector"}}, ["--traces", "'collector'", "https://HOST:PORT"]),
        ({"target": {"traces": "ftp://collector:4317"}}, ["--traces", "HOST:PORT"]),
        ({"draft": {"traces": "unix:/collector"}}, ["--traces", "HOST:PORT"]),
        ({"target": {"model": "dummy:tiny", "block_size": 12}}, ["--block-size", "multiple of 8"]),
        ({"draft": {"quantization": "int3"}}, ["--quantization", "'auto', 'none', 'int8' or 'int4'"]),
        ({"target": {"device": "tpu"}}, ["--device", "'cpu' or 'cuda'"]),
        ({"target": {"kv_cache_memory": "much"}}, ["--kv-cache-memory", "'much'"]),
        ({"draft": {"kv_cache_dtype": "int4"}}, ["--kv-cache-dtype", "'auto', 'bfloat16' or 'int8'", "'int4'"]),
    ],
)
def test_bad_settings_are_named_before_anything_starts(settings: dict, parts: list[str]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make_stack(**settings)
    text = str(caught.value)
    assert "\n" not in text
    assert [part for part in parts if part not in text] == []


def test_a_bad_file_of_keys_is_known_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="can't read the API keys in nowhere"):
        make_stack(coordinator={"api_keys": "nowhere"})
    Path("keys").write_text("nonsense\n")
    with pytest.raises(ConfigError, match=r"^keys, line 1: "):
        make_stack(coordinator={"api_keys": "keys"})


@pytest.mark.parametrize("where", ["flag", "environment", "file"])
def test_every_source_may_say_that_no_keys_are_wanted(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--listen", "0.0.0.0:50050"]
    if where == "flag":
        flags.append("--no-keys")
    elif where == "environment":
        monkeypatch.setenv("PACELINE_COORDINATOR_NO_KEYS", "true")
    else:
        write_toml("[coordinator]\nno_keys = true\n")
    assert parse(monkeypatch, *flags).no_keys


def test_settings_are_frozen() -> None:
    for settings in (CoordinatorSettings(), DraftSettings(), TargetSettings()):
        with pytest.raises(ValueError, match="frozen"):
            settings.listen = "127.0.0.1:1"


def test_a_commands_defaults_come_from_its_table(paceline) -> None:
    services = "".join(
        f'[{service}]\nlog_level = "error"\n' for service in ("target", "draft", "coordinator", "gateway")
    )
    write_toml(f"[plan]\nalpha = 0.8\ndraft-cost = 0.2\njson = true\n{services}")
    ran = paceline("plan")
    assert (ran.code, '"alpha": 0.8' in ran.out) == (0, True), ran.err
    ran = paceline("plan", "--alpha", "0.9")
    assert '"alpha": 0.9' in ran.out


SERVES = ("tls_cert", "tls_key", "tls_client_ca")
CALLS = ("servers_tls_cert", "servers_tls_key", "servers_tls_ca")


@pytest.mark.parametrize(("settings", "fields"), [
    (TargetSettings, ("compute_lock_file", *SERVES)), (DraftSettings, ("compute_lock_file", *SERVES)),
    (CoordinatorSettings, ("api_keys", *SERVES, *CALLS)), (GatewaySettings, ("api_keys", *SERVES, *CALLS)),
])  # fmt: skip
def test_a_tilde_in_a_services_setting_is_the_users_home(
    settings: type[Settings], fields: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    issued = Authority(tmp_path / "own").issue("it")
    files = {"cert": issued.cert, "key": issued.key, "ca": issued.ca}
    expected = {field: str(files.get(field.rpartition("_")[2], tmp_path / "file")) for field in fields}
    lines = [f'{field} = "{path.replace(str(tmp_path), "~")}"' for field, path in expected.items()]
    write_toml("\n".join([f"[{settings.toml_table}]", *lines]))
    found = settings()
    assert {field: getattr(found, field) for field in fields} == expected


def test_a_tilde_in_a_commands_setting_is_the_users_home(
    paceline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_toml('[plan]\nalpha = 0.8\ndraft_cost = 0.2\npng = "~/plot.png"\n[generate]\nprompts = "~/prompts"\n')
    assert paceline("plan").code == 0
    assert (tmp_path / "plot.png").is_file()
    assert f"--prompts {tmp_path}/prompts: no such file" in paceline("generate").err
    monkeypatch.setenv("PACELINE_UP_TLS_CERT", "~/cert")
    assert f"can't read {tmp_path}/cert" in paceline("up", "--tls-key=~/key").err
    monkeypatch.setenv("PACELINE_TLS_CA", "~/ca")
    assert f"PACELINE_TLS_CA: can't read {tmp_path}/ca" in paceline("chat").err


def test_the_environment_overrules_a_commands_table(paceline, monkeypatch: pytest.MonkeyPatch) -> None:
    write_toml("[plan]\nalpha = 0.8\ndraft_cost = 0.2\njson = true\n")
    monkeypatch.setenv("PACELINE_PLAN_ALPHA", "0.7")
    assert '"alpha": 0.7' in paceline("plan").out


def test_a_variable_bears_the_name_of_its_flag(paceline, monkeypatch: pytest.MonkeyPatch) -> None:
    # The parameter of --json has another name: `json` is a module.
    monkeypatch.setenv("PACELINE_PLAN_JSON", "1")
    assert '"alpha": 0.8' in paceline("plan", "--alpha", "0.8", "--draft-cost", "0.2").out


@pytest.mark.parametrize(
    ("toml", "parts"),
    [
        ("[plan]\nspeed = 1\n", ["paceline.toml, table [plan]", "'speed'"]),
        ("[plans]\nalpha = 1\n", ["[plans]", "generate"]),
        ("alpha = 1\n", ["'alpha'", "[generate]"]),
    ],
)
def test_a_name_that_no_command_knows_is_named(paceline, toml: str, parts: list[str]) -> None:
    write_toml(toml)
    ran = paceline("plan", "--alpha", "0.5", "--draft-cost", "0.1")
    assert ran.code == 2
    assert [part for part in ("error: ", *parts) if part not in ran.err] == []


def test_config_errors_have_one_root() -> None:
    write_toml("[coordinator\n")
    with pytest.raises(ConfigError, match=r"paceline\.toml"):
        CoordinatorSettings()
