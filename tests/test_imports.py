"""The import rules of docs/architecture.md hold, read from the source."""

import ast
import functools
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.v1 import generation_pb2, model_pb2, propose_pb2, sampling_pb2, verify_pb2

ROOT = Path(__file__).parent.parent
SERVICES = ("draft_server", "target_server", "coordinator", "gateway")
PACKAGES = ("paceline", *SERVICES)
# Modules besides paceline/rpc that translate between messages and domain values.
MESSAGE_FILES = {
    "coordinator/servicer.py", "coordinator/request_reader.py", "coordinator/prompt_reader.py", "coordinator/generate_response.py", "coordinator/__main__.py", "coordinator/remote/link.py", "coordinator/remote/pending.py",
    "coordinator/remote/target.py", "coordinator/remote/sequence.py", "coordinator/remote/branches.py", "coordinator/drafters/remote_drafter.py", "coordinator/drafters/following.py", "coordinator/drafters/translated.py",
    "paceline/serving/main.py", "paceline/serving/servicer.py", "paceline/serving/job_kind.py", "paceline/serving/proposing.py",
    "target_server/verifying.py", "paceline/client.py",
}  # fmt: skip
# What only messages can do.
MESSAGE_METHODS = {
    "ByteSize", "ClearField", "CopyFrom", "FromString", "HasField", "ListFields", "MergeFrom", "MergeFromString",
    "ParseFromString", "SerializeToString", "SetInParent", "WhichOneof",
}  # fmt: skip
# Fields that share their name with something of a library: grpc, typer, numpy, Path, tokenizers.
FOREIGN_NAMES = {"add_special_tokens", "code", "command", "commands", "data", "open"}


def source_files() -> list[Path]:
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    return [file for file in files if ROOT / "paceline" / "v1" not in file.parents]


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def nodes_of(file: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(file.read_text())))


def imports(file: Path) -> Iterator[str]:
    """Every module a file imports, also inside functions."""
    for node in nodes_of(file):
        yield from imported_by(node)


def imported_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def violations(inside: tuple[str, ...], forbidden: tuple[str, ...]) -> list[str]:
    return [
        f"{module_name(file)} imports {imported}"
        for file in source_files()
        if within(module_name(file), *inside)
        for imported in imports(file)
        if within(imported, *forbidden)
    ]


@pytest.mark.parametrize("service", SERVICES)
def test_services_do_not_import_each_other(service: str) -> None:
    others = tuple(other for other in SERVICES if other != service)
    # A target server's process can have a draft server too.
    found = [
        each for each in violations((service,), others) if not each.startswith("target_server.__main__ imports draft_")
    ]
    assert found == []


def test_of_the_library_only_the_command_line_imports_services() -> None:
    found = violations(("paceline",), SERVICES)
    assert [line for line in found if not line.startswith("paceline.cli.")] == []
    found = violations(PACKAGES, ("paceline.cli",))
    assert [line for line in found if not line.startswith(("paceline.cli", "paceline.loadtest.__main__ "))] == []


def test_the_gateway_is_a_client_like_any_other() -> None:
    found = violations(
        ("gateway",), ("paceline.engine", "paceline.serving", "paceline.v1", "grpc", "torch", "transformers")
    )
    assert found == []


def test_the_load_harness_is_a_client_like_any_other() -> None:
    assert violations(("paceline.rpc", "paceline.engine", "paceline.serving", *SERVICES), ("paceline.loadtest",)) == []


def test_distillation_stands_on_the_engine_alone() -> None:
    assert (
        violations(
            ("paceline.distillation",),
            (*SERVICES, "paceline.loadtest", "paceline.cli", "paceline.rpc", "paceline.serving"),
        )
        == []
    )
    # The command line imports it when it is asked for.
    found = violations(PACKAGES, ("paceline.distillation",))
    assert [line for line in found if not line.startswith(("paceline.cli.distill ", "paceline.distillation."))] == []


def test_a_gpus_engine_and_triton_are_imported_only_where_there_is_one() -> None:
    found = [
        line
        for line in violations(PACKAGES, ("paceline.engine.cuda", "triton"))
        if not line.startswith("paceline.engine.cuda.")
    ]
    # Inside a function, after it was asked whether there is one.
    assert {line.split()[0] for line in found} == {"paceline.engine.engine"}


def test_what_a_service_tells_of_itself_is_told_in_one_way() -> None:
    others = ("torch", "grpc", "paceline.engine", "paceline.rpc", "paceline.serving", "paceline.v1", *SERVICES)
    assert violations(("paceline.observability",), others) == []
    found = violations(PACKAGES, ("prometheus_client.REGISTRY", "prometheus_client.start_http_server"))
    assert {line.split()[0] for line in found} == {"paceline.observability.exposition"}


def test_opentelemetry_is_imported_in_one_file_which_is_imported_where_traces_are_asked_for() -> None:
    found = violations(PACKAGES, ("opentelemetry", "paceline.observability.otlp"))
    assert {line.split()[0] for line in found} == {"paceline.observability.otlp", "paceline.observability.traces"}
    at_start = run_at_import(ast.parse((ROOT / "paceline/observability/traces.py").read_text()))
    assert [node.module for node in at_start if isinstance(node, ast.ImportFrom) and "otlp" in str(node.module)] == []


def test_ray_is_imported_in_its_own_package_which_no_other_imports() -> None:
    found = violations(PACKAGES, ("ray", "paceline.ray"))
    assert [line for line in found if not line.startswith("paceline.ray.")] == []
    assert (
        violations(("paceline.ray",), ("torch", "paceline.engine", "paceline.serving", "paceline.v1", *SERVICES)) == []
    )


def test_engine_knows_nothing_of_grpc() -> None:
    assert violations(("paceline.engine",), ("grpc", "paceline.v1", "paceline.rpc", "paceline.serving")) == []


def test_what_speaks_grpc_to_users_knows_nothing_of_torch() -> None:
    inside = ("paceline.rpc", "paceline.client", "paceline.cli", "coordinator", "paceline.loadtest")
    assert violations(inside, ("torch", "paceline.engine", "paceline.serving")) == []


def test_leaf_modules_import_at_most_errors() -> None:
    assert violations(("paceline.errors",), ("paceline", *SERVICES)) == []
    leaves = ("paceline.sampling_params", "paceline.noise", "paceline.theory", "paceline.simulation")
    found = violations(leaves, ("paceline", *SERVICES))
    beside_sampling = violations(("paceline.speculation_params",), ("paceline", *SERVICES))
    found += [line for line in beside_sampling if not line.split()[-1].startswith("paceline.sampling_params")]
    assert [line for line in found if not line.split()[-1].startswith(("paceline.errors", "paceline.checks"))] == []


def touches_messages(file: Path) -> bool:
    """Whether the file is one of those that may."""
    return str(file.relative_to(ROOT)) in MESSAGE_FILES or within(module_name(file), "paceline.rpc")


def names_given(tree: ast.AST) -> Iterator[str]:
    """Names that a file gives to functions, classes and attributes of its own."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def message_names() -> set[str]:
    """Methods and fields that messages have and no class of ours has."""
    files = [generation_pb2, model_pb2, propose_pb2, sampling_pb2, verify_pb2]
    messages = [message for file in files for message in file.DESCRIPTOR.message_types_by_name.values()]
    fields = {field.name for message in messages for field in message.fields}
    own = {
        name
        for file in source_files()
        if not touches_messages(file)
        for name in names_given(ast.parse(file.read_text()))
    }
    return MESSAGE_METHODS | (fields - own - FOREIGN_NAMES)


def test_messages_are_imported_only_where_they_are_translated() -> None:
    for file in source_files():
        if not touches_messages(file):
            assert not [name for name in imports(file) if within(name, "paceline.v1")], module_name(file)


def test_messages_are_touched_only_where_they_are_translated() -> None:
    names = message_names()
    assert {"tail_tokens", "support_sizes", "engine_steps"} < names, "nothing to look for"
    assert [
        f"{module_name(file)}:{node.lineno} .{node.attr}"
        for file in source_files()
        if not touches_messages(file)
        for node in nodes_of(file)
        if isinstance(node, ast.Attribute) and node.attr in names
    ] == []


def test_every_file_that_may_touch_messages_is_there() -> None:
    assert [name for name in MESSAGE_FILES if not (ROOT / name).is_file()] == []


@functools.cache
def import_graph() -> dict[str, set[str]]:
    """Returns the modules that each module imports.

    `from package import module` needs the module; the package itself is being imported already.
    """
    known = {module_name(file): file for file in source_files()}
    packages = {name for name, file in known.items() if file.name == "__init__.py"}
    return {name: {target for target in imports(file) if target in known} - packages for name, file in known.items()}


def test_no_import_cycles() -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for target in import_graph()[name]:
                visit(target, (*path, name))
            done.add(name)

    for name in import_graph():
        visit(name, ())


def test_remote_caches_know_requests_as_data() -> None:
    """They reach nothing that reads chats or splits answers."""
    reached, waiting = set[str](), [name for name in import_graph() if within(name, "coordinator.remote")]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += import_graph()[name]
    assert "coordinator.request" in reached
    assert {name for name in reached if within(name, "coordinator.tools")} == {"coordinator.tools.offered_tools"}


def siblings(file: Path) -> Iterator[tuple[str, str, str]]:
    """For each module that a file imports: the package that holds both, and its two children that meet there.

    `paceline.rpc.server` imports `paceline.observability.logs`: paceline, rpc, observability.
    """
    own = module_name(file).split(".")
    for imported in imports(file):
        other = imported.split(".")
        depth = next((at for at, (a, b) in enumerate(zip(own, other, strict=False)) if a != b), 0)
        if depth:
            yield ".".join(own[:depth]), own[depth], other[depth]


def test_packages_and_their_neighbors_import_each_other_in_one_direction() -> None:
    arrows: dict[str, set[tuple[str, str]]] = {}
    # A __main__ is a way in: nobody imports it.
    for file in (each for each in source_files() if each.name != "__main__.py"):
        for parent, importer, imported in siblings(file):
            arrows.setdefault(parent, set()).add((importer, imported))
    found = {parent: on_cycles(pairs) for parent, pairs in arrows.items()}
    assert {parent: pairs for parent, pairs in found.items() if pairs} == {}


def on_cycles(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Pairs of which each reaches the other, in the order of the alphabet, joined by at least one arrow."""
    reached = set(arrows)
    while more := {(a, d) for a, b in reached for c, d in arrows if b == c} - reached:
        reached |= more
    return {(min(a, b), max(a, b)) for a, b in arrows if a != b and (b, a) in reached}


def test_a_planted_cycle_of_packages_is_found() -> None:
    arrows = {("settings", "rpc"), ("rpc", "errors"), ("rpc", "tls"), ("tls", "settings"), ("cli", "settings")}
    assert on_cycles(arrows) == {("rpc", "settings"), ("rpc", "tls"), ("settings", "tls")}


def test_no_type_checking_blocks_hide_imports() -> None:
    assert [module_name(file) for file in source_files() if "TYPE_CHECKING" in file.read_text()] == []


def run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """What is executed when a module is imported: everything but the bodies of functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            # Defaults and decorators are evaluated in the enclosing scope.
            yield from (
                inner for part in (child.args, *getattr(child, "decorator_list", ())) for inner in ast.walk(part)
            )
        else:
            yield child
            yield from run_at_import(child)


def test_environment_is_not_read_at_import() -> None:
    for file in source_files():
        nodes = list(run_at_import(ast.parse(file.read_text())))
        names = {node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in nodes}
        assert not names & {"environ", "environb", "getenv"}, module_name(file)


def test_importing_what_users_start_does_not_load_torch() -> None:
    modules = (
        "paceline.client",
        "paceline.rpc.server",
        "coordinator.__main__",
        "paceline.loadtest.__main__",
        "paceline.cli",
    )
    # In one process: who loads torch first is the culprit.
    code = "; ".join(f"import {module}; print('{module}', 'torch' in sys.modules)" for module in modules)
    command = [sys.executable, "-c", f"import sys; {code}"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"{module} False" for module in modules]


def test_torchs_compiler_is_not_imported_before_a_model_needs_transformers_modules() -> None:
    """It takes as long as all other imports of a model server together."""
    known = {module_name(file): file for file in source_files()}
    reached, waiting = set(), ["paceline.engine.engine"]
    while waiting:
        if (name := waiting.pop()) not in reached:
            reached.add(name)
            at_start = run_at_import(ast.parse(known[name].read_text())) if name in known else ()
            waiting += [each for node in at_start for each in imported_by(node)]
    assert "paceline.engine.cpu.llama" in reached
    compiling = ("transformers.masking_utils", "transformers.modeling_utils", "transformers.integrations")
    assert [name for name in reached if within(name, *compiling)] == []


def test_every_package_is_installed() -> None:
    """setuptools finds packages by their names and by `__init__.py`."""
    find = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    assert sorted(find["include"]) == sorted(f"{package}*" for package in PACKAGES)
    folders = {file.parent for package in PACKAGES for file in (ROOT / package).rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


READING = {"count", "endswith", "find", "fullmatch", "index", "match", "partition", "removeprefix", "removesuffix", "replace", "rpartition", "search", "split", "startswith"}  # fmt: skip


def readers_of_texts(source: str) -> list[int]:
    """The lines that look into the text of an exception: what a program needs to know is in its class and attributes."""
    tree = ast.parse(source)
    caught = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name} | {"error"}

    def is_text(node: ast.AST) -> bool:
        """Whether it is `str(error)`, or `error.details()` of a gRPC call."""
        match node:
            case ast.Call(func=ast.Name("str" | "repr"), args=[ast.Name(name)]):
                return name in caught
            case ast.Call(func=ast.Attribute(ast.Name(name), "details" | "debug_error_string")):
                return name in caught
        return False

    lines = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(receiver, method), args=given) if method in READING:
                if any(map(is_text, (receiver, *given))):
                    lines.append(node.lineno)
            case ast.Compare(left=left, comparators=others) if any(map(is_text, (left, *others))):
                lines.append(node.lineno)
    return lines


def test_no_code_reads_the_text_of_an_error() -> None:
    found = {module_name(file): lines for file in source_files() if (lines := readers_of_texts(file.read_text()))}
    assert found == {}


@pytest.mark.parametrize("planted", [
    "str(error).startswith('no coordinator')", "'handshake' in str(error)", "re.match('x', str(error))",
    "error.details().partition(';')", "str(error) == 'away'",
])  # fmt: skip
def test_a_planted_reader_of_an_errors_text_is_found(planted: str) -> None:
    assert readers_of_texts(f"try:\n    f()\nexcept ValueError as error:\n    print({planted})\n") == [4]
