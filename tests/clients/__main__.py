"""Runs coding agents and SDKs, unmodified, against the gateway.

python -m tests.clients [--only codex,claude] [--folder .clients] [--install] [--record]

No client reaches a network. A scripted model makes each write files, and meets it with calls that are cut, errors, silence
and a prompt that is too long. Exits with 1 if one does not do as its makers intend.
"""

import argparse
import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.clients.clients import CLIENTS, Client
from tests.clients.harness import SITUATIONS, Harness, Run, harness, judge
from tests.clients.packages import PACKAGES
from tests.clients.recording import RECORDED, record

ROOT = Path(__file__).parents[2]


def enter_namespaces() -> None:
    """Runs this program again without a network, and so that all its processes end with it."""
    own = ("--net", "--pid", "--fork", "--kill-child", "--mount-proc")
    users = () if os.geteuid() == 0 else ("--map-root-user",)
    os.execvp("unshare", ["unshare", *users, *own, sys.executable, "-m", "tests.clients", *sys.argv[1:]])


def chosen(client: Client, words: list[str]) -> list[str]:
    """Returns the client's situations of which a word is said: "codex", "cut", "codex silence"."""
    return [name for name in client.situations if any(word in f"{client.name} {name}" for word in words)]


async def run_all(words: list[str], folder: Path, records: bool) -> bool:
    """Prints a table. Returns whether all passed."""
    passed = True
    print(f"{'':24}{'version':10}" + "".join(f"{name:11}" for name in SITUATIONS) + "first prompt")
    async with harness(folder) as clients:
        for client in CLIENTS.values():
            situations = chosen(client, words)
            if not situations:
                continue
            print(f"{client.name:24}{PACKAGES[client.package].version:10}", end="", flush=True)
            if not all(PACKAGES[each].is_installed(folder / each) for each in (client.package, "node")):
                print("skipped: not installed, see `make clients`")
                continue
            runs, problems = await run_one(client, list(RECORDED) if records else situations, clients)
            passed &= not problems
            for name, problem in problems.items():
                report(name, problem, runs[name])
            if records and not problems:
                record(client, runs)
    return passed


async def run_one(client: Client, situations: list[str], clients: Harness) -> tuple[dict[str, Run], dict[str, str]]:
    """Prints the rest of a row. Returns runs and problems by situation."""
    runs: dict[str, Run] = {}
    problems: dict[str, str] = {}
    for name in SITUATIONS:
        outcome = ""
        if name in situations:
            runs[name] = await clients.run(client, SITUATIONS[name])
            if (problem := judge(runs[name], client, name)) is not None:
                problems[name] = problem
            outcome = "FAILS" if problem else "ends" if name in client.gives_up else "passes"
        print(f"{outcome:11}", end="", flush=True)
    lengths = [len(run.script.prompts[0].ids) for run in runs.values() if run.script.prompts]
    print(f"{max(lengths, default=0)} tokens", flush=True)
    return runs, problems


def report(name: str, problem: str, run: Run) -> None:
    print(f"\n{name}: {problem}")
    for each in run.exchanges:
        print(f"  {each.path} {each.status} {each.answer[-500:].decode(errors='replace')!r}")
    print(f"  files: {run.files}\n  output: {run.output[-3000:]}\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="clients and situations, separated by commas: codex,aider cut")
    parser.add_argument("--folder", type=Path, default=ROOT / ".clients", help="where clients are installed")
    parser.add_argument("--install", action="store_true", help="install what is missing, and nothing else")
    parser.add_argument("--record", action="store_true", help="keep for tests/gateway what clients send")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.install:
        for name, packages in PACKAGES.items():
            if not packages.is_installed(folder / name):
                packages.install(folder / name)
        return
    if [name for _, name in socket.if_nameindex()] != ["lo"]:
        enter_namespaces()
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    sys.exit(not asyncio.run(run_all(options.only.split(","), folder, options.record)))


if __name__ == "__main__":
    main()
