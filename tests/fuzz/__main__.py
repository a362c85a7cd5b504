"""Messages that nobody should send, to every gRPC service, against real processes.

python -m tests.fuzz [--messages 20000] [--seed 0] [--service coordinator|draft|target]

Prints for each service how many messages were sent, the statuses that came back, and the longest gap in the text of a bystander. Exits with 1
at a violation, and prints the message that did it. The same seed sends the same messages.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.byte_fallback import write_byte_fallback_model
from tests.fuzz.campaign import Report, attack
from tests.fuzz.services import FuzzedService, coordinator_service, model_service
from tests.services import Trio, start_trio

# The cache is full now and then.
FLAGS = (
    "--dtype", "float32", "--quantization", "none", "--kv-cache-memory", "1MiB", "--block-size", "16", "--threads", "1", "--check-integrity",
)  # fmt: skip
SERVICES = ("coordinator", "draft", "target")


def open_service(name: str, trio: Trio) -> FuzzedService:
    match name:
        case "draft":
            return model_service(name, trio.draft.address)
        case "target":
            return model_service(name, trio.target.address)
        case _:
            return coordinator_service(trio.address)


def flags(folder: Path) -> tuple[str, ...]:
    """Of both model servers. Their model's tokenizer does more with odd tokens than one of whole words."""
    write_byte_fallback_model(folder)
    return ("--model", str(folder), *FLAGS)


async def run(name: str, trio: Trio, count: int, seed: int) -> Report:
    service = open_service(name, trio)
    try:
        return await attack(trio, service, count, seed)
    finally:
        await service.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--service", choices=SERVICES, help="default: all, one after the other")
    arguments = parser.parse_args()
    # Hypothesis is busy beside the event loop, which must not wait long for the interpreter.
    sys.setswitchinterval(0.0005)
    num_violations = 0
    for name in [arguments.service] if arguments.service else SERVICES:
        with tempfile.TemporaryDirectory(prefix="paceline-fuzz-") as folder:
            of_model = flags(Path(folder))
            with start_trio(Path(folder), of_model, of_model) as trio:
                report = asyncio.run(run(name, trio, arguments.messages, arguments.seed))
            print(report, flush=True)
            num_violations += len(report.violations)
    print(f"violations = {num_violations}")
    sys.exit(num_violations > 0)


if __name__ == "__main__":
    main()
