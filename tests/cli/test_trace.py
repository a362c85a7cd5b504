"""`paceline generate --trace`: a line for each run of the target, to be read with colors and without."""

import json
from pathlib import Path

import pytest

from paceline.cli.printing import line
from paceline.client import Chunk, Client, RoundTrace, TracedDraft
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, Rule, SpeculationParams
from tests.services import Trio

FLAGS = ("--raw", "--max-tokens", 40, "--ignore-eos", "--num-speculative-tokens", 4, "--drafter", "model")


def trace(*proposed: TracedDraft, num_accepted: int = 0, drafter: str = "model", reason: str = "") -> RoundTrace:
    return RoundTrace(7, drafter, reason, 4, list(proposed), num_accepted, [0.25], [0.125], [7], 3100, 20400, 100, 600)


def drafted(text: str, accepted: bool, *numbers: float) -> TracedDraft:
    return TracedDraft(1, text, accepted, *numbers)


REJECTING = Chunk(
    text=" the sky",
    token_ids=[1, 2],
    origins="AR",
    text_lengths=[4, 4],
    trace=trace(
        drafted(" the", True, 0.5, 0.75, 0.9), drafted(" sea\n", False, 0.8, 0.1, 0.6), drafted(".", False),
        num_accepted=1,
    ),
)  # fmt: skip


def test_a_round_is_a_line_of_tokens_numbers_and_times() -> None:
    assert line(REJECTING).plain == (
        "   7 | k 4  model | +·the -·sea\\n >·sky ~. | q 0.50 0.80 | p 0.75 0.10 | r 0.90 0.60 | "
        "H 0.25 | smoothed 0.12 | allows 7 | draft 3.1, target 20.4, queued 0.1, rpc 0.6 ms"
    )


def test_each_kind_of_token_has_a_color_and_a_sign_of_its_own() -> None:
    shown = line(REJECTING)
    colors = {shown.plain[span.start]: span.style for span in shown.spans}
    assert colors == {"+": "green", "-": "red", ">": "blue", "~": "dim"}


@pytest.mark.parametrize(
    ("chunk", "tokens"),
    [
        (Chunk(" a b", [1, 2], "AB", [2, 2], trace=trace(drafted(" a", True), num_accepted=1)), "model | +·a *·b |"),
        (Chunk(" a", [1], "T", [2], trace=trace(drafter="none", reason="no match")), "no match | *·a |"),
        (Chunk("", [5], "T", [0], trace=trace(drafter="none", reason="no match")), "no match | *[5] |"),
        (
            Chunk(" a", [1], "A", [2], trace=trace(drafted(" a", True), drafted(" b", False), num_accepted=1)),
            "model | +·a ~·b |",
        ),
    ],
    ids=["all accepted", "nothing proposed", "no text yet", "ended by a draft"],
)  # fmt: skip
def test_rounds_without_a_rejection_have_no_correction(chunk: Chunk, tokens: str) -> None:
    assert tokens in line(chunk).plain


def test_trace_prints_a_line_for_each_run_of_the_target(paceline, unlike_trio: Trio) -> None:
    flags = (*FLAGS, "--temperature", 0.9, "--seed", 3, "--rule", "rejection", "--trace")
    ran = paceline("generate", "t3 t1", "--address", unlike_trio.address, *flags)
    assert ran.code == 0, ran.err
    with Client(unlike_trio.address) as client:
        done = client.complete(
            "t3 t1",
            SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.9, seed=3),
            SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4, rule=Rule.REJECTION),
            raw=True,
        )
    assert done.finish is not None
    lines = ran.out.splitlines()
    assert lines.pop() == ""
    assert [int(each.split("|")[0]) for each in lines] == list(range(done.finish.speculation.rounds + 1))
    words = [word for each in lines for word in each.split(" | ")[2].split()]
    kept = [word[1:].removeprefix("·") for word in words if word[0] in "+>*"]
    # The text goes on with the prompt's: it begins with a space.
    assert ["", *kept] == done.text.split(" ")
    assert sum(word[0] == "+" for word in words) == done.finish.speculation.accepted
    assert "+ accepted draft, - rejected draft" in ran.err


def test_colors_come_where_they_are_forced(paceline, unlike_trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    flags = (*FLAGS, "--temperature", 0.9, "--seed", 3, "--trace")
    ran = paceline("generate", "t3 t1", "--address", unlike_trio.address, *flags)
    assert "\x1b[32m+" in ran.out
    assert "\x1b[31m-" in ran.out
    assert "\x1b[34m>" in ran.out


def test_trace_json_writes_an_object_for_each_round_of_each_sample(paceline, unlike_trio: Trio, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    flags = (*FLAGS, "--temperature", 0.9, "--n", 2, "--json", "--trace-json", file)
    ran = paceline("generate", "t3 t1", "--address", unlike_trio.address, *flags)
    assert ran.code == 0, ran.err
    records = [json.loads(each) for each in file.read_text().splitlines()]
    for sample in map(json.loads, ran.out.splitlines()):
        own = [record for record in records if record["choice"] == sample["choice"]]
        assert [record["round"] for record in own] == list(range(sample["speculation"]["rounds"] + 1))
        assert [token for record in own for token in record["token_ids"]] == sample["token_ids"]
        assert "".join(record["text"] for record in own) == sample["text"]
    assert set(records[0]) == {
        "index", "choice", "round", "drafter", "reason", "draft_tokens", "proposed", "num_accepted", "entropies",
        "smoothed_entropies", "allowed_draft_tokens", "draft_us", "target_us", "queued_us", "rpc_us", "token_ids", "text",
        "draft_model",
    }  # fmt: skip


def test_settings_of_the_entropy_rule_say_how_it_smooths_and_what_it_allows(
    paceline, unlike_trio: Trio, tmp_path: Path
) -> None:
    file = tmp_path / "trace.jsonl"
    ran = paceline(
        "generate", "t3 t1", "--address", unlike_trio.address, *FLAGS, "--num-speculative-tokens", "entropy", "--trace",
        "--trace-json", file, draft_min=1, draft_max=6, entropy_beta=0.75,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    records = [json.loads(each) for each in file.read_text().splitlines()]
    lines = [each for each in ran.out.splitlines() if " | allows " in each]
    looked = [record for record in records if record["entropies"]]
    assert looked
    smoothed = 0.0
    for record, shown in zip(looked, lines, strict=True):
        # Over decided positions: the accepted ones and the next one.
        for entropy, found in zip(record["entropies"], record["smoothed_entropies"], strict=True):
            smoothed = 0.75 * smoothed + 0.25 * entropy
            assert found == pytest.approx(smoothed, abs=1e-6)
        allowed = [round(6 - 5 * each) for each in record["smoothed_entropies"]]
        assert record["allowed_draft_tokens"] == allowed
        assert f" | allows {' '.join(map(str, allowed))} | " in shown
        smoothed = record["smoothed_entropies"][: record["num_accepted"] + 1][-1]


def test_what_does_not_go_together_is_refused(paceline, tmp_path: Path) -> None:
    both = paceline("generate", "hi", "--trace", "--json")
    assert both.code != 0
    assert "use --trace-json FILE with --json" in both.err
    nowhere = paceline("generate", "hi", "--trace-json", tmp_path / "no" / "file")
    assert nowhere.code != 0
    assert "--trace-json" in nowhere.err
    missing = paceline("generate", "hi", "--prediction", tmp_path / "none.txt")
    assert missing.code != 0
    assert "--prediction" in missing.err


def test_a_predicted_output_is_taken_from_a_file(paceline, tiny_trio: Trio, tmp_path: Path) -> None:
    with Client(tiny_trio.address) as client:
        plain = client.complete("t5", SamplingParams(max_tokens=40, ignore_eos=True), raw=True)
    file = tmp_path / "prediction.txt"
    file.write_text(plain.text)
    flags = (*FLAGS, "--prediction", file, "--json")
    ran = paceline("generate", "t5", "--address", tiny_trio.address, *flags)
    record = json.loads(ran.out)
    assert record["token_ids"] == plain.token_ids
    assert record["speculation"]["prediction_accepted"] > 20


def test_a_trace_that_can_not_be_written_is_told_before_anything_is_asked(paceline) -> None:
    # There nobody, whatever he may do, makes a file.
    ran = paceline("generate", "hi", "--trace-json", "/proc/trace.json")
    assert (ran.code, ran.out, ran.err) == (1, "", "error: --trace-json /proc/trace.json: No such file or directory\n")
