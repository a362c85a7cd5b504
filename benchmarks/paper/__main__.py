"""Tables 1 to 5 and figures 1 to 5 of 2211.17192 for a pair of models, with the paper's numbers.

python -m benchmarks.paper [--out docs/paper] [--target smollm2-135m] [--draft smollm2-135m-draft]
                           [--prompts FILE.jsonl] [--tokens 10000] [--count 4] [--walltime-tokens 40]
                           [--again PART ...] [--only PART ...]

Each part is kept in OUT/parts and not measured again; `--again` without names measures all again, `--only` measures no
others. Parts: texts, alpha-0, alpha-1, ngram-memory, traces, walltime, walltime-int8. The target runs in its dtype
(`--target-quantization none`), so that the target in int8 is another model.
"""

import argparse
from pathlib import Path

from paceline.serving.main import prepare_process

prepare_process()

from benchmarks.deployment import DRAFT, MODEL  # noqa: E402
from benchmarks.paper.report import PARTS, write_report  # noqa: E402
from benchmarks.paper.results import Parts, Setup  # noqa: E402
from paceline.checks import require  # noqa: E402
from paceline.errors import PacelineError  # noqa: E402

# As in the parts' setup: independent of the repository's folder.
OWN_PROMPTS = Path("tests/data/prompts.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/paper"))
    parser.add_argument("--target", default=MODEL)
    parser.add_argument("--target-quantization", default="none")
    parser.add_argument("--draft", default=DRAFT)
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS)
    parser.add_argument("--tokens", type=int, default=10_000, help="of the target's own tokens at each temperature")
    parser.add_argument("--count", type=int, default=4, help="prompts of each task in the walltime parts")
    parser.add_argument("--walltime-tokens", type=int, default=40, help="tokens of each of their answers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--again", nargs="*", choices=PARTS, metavar="PART")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help="measure no other; those there are used"
    )
    arguments = parser.parse_args()
    try:
        for name in ("tokens", "count"):
            require(getattr(arguments, name) >= 1, f"--{name}", getattr(arguments, name), "at least 1")
        require(arguments.walltime_tokens >= 8, "--walltime-tokens", arguments.walltime_tokens, "at least 8")
        setup = Setup(
            arguments.target, arguments.target_quantization, arguments.draft, str(arguments.prompts),
            arguments.tokens, arguments.seed,
        )  # fmt: skip
        again = () if arguments.again is None else arguments.again or arguments.only
        parts = Parts(arguments.out, setup, again)
        write_report(arguments.out, parts, setup, arguments.count, arguments.walltime_tokens, arguments.only)
    except PacelineError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
