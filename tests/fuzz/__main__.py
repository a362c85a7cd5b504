"""Messages that nobody should send, at every gRPC door, against real processes.

python -m tests.fuzz [--messages 20000] [--seed 0] [--door coordinator|draft|target]

Prints for each door how many messages were sent, the statuses that came back, and the longest gap in the text of a bystander. Exits with 1
at a violation, and prints the message that did it. The same seed sends the same messages.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.byte_fallback import write_byte_fallback_model
from tests.fuzz.campaign import Report, attack
from tests.fuzz.doors import Door, coordinators_door, model_servers_door
from tests.services import Trio, start_trio

# The cache is full now and then.
FLAGS = (
    "--dtype", "float32", "--quantization", "none", "--kv-cache-memory", "1MiB", "--block-size", "16", "--threads", "1", "--check-integrity",
)  # fmt: skip
DOORS = ("coordinator", "draft", "target")


def open_door(name: str, trio: Trio) -> Door:
    match name:
        case "draft":
            return model_servers_door("Draft", trio.draft.address)
        case "target":
            return model_servers_door("Target", trio.target.address)
        case _:
            return coordinators_door(trio.address)


def flags(folder: Path) -> tuple[str, ...]:
    """Of both model servers. Their model's tokenizer does more with odd tokens than one of whole words."""
    write_byte_fallback_model(folder)
    return ("--model", str(folder), *FLAGS)


async def run(name: str, trio: Trio, count: int, seed: int) -> Report:
    door = open_door(name, trio)
    try:
        return await attack(trio, door, count, seed)
    finally:
        await door.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--door", choices=DOORS, help="default: all, one after the other")
    arguments = parser.parse_args()
    # Hypothesis is busy beside the event loop, which must not wait long for the interpreter.
    sys.setswitchinterval(0.0005)
    num_violations = 0
    for name in [arguments.door] if arguments.door else DOORS:
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
