"""Reads from the source what each test depends on.

A node of the graph is a file. In tests/, each definition is a node of its own as well, `tests/services.py::free_port`:
who asks for a free port does not start all services.
"""

import ast
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGES = {"paceline", "draft_server", "target_server", "coordinator", "gateway", "benchmarks", "tests"}
NAMES = "|".join(sorted(PACKAGES))
# What a program in a string imports: `python -c`.
IMPORTED = re.compile(rf"\b(?:from|import) ((?:{NAMES})\b[\w.]*)(?: import (\w+))?")
DOTTED = re.compile(rf"(?:{NAMES})(?:\.\w+)*\.?")


def module_name(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def is_test(file: str) -> bool:
    return file.startswith("tests/") and Path(file).name.startswith("test_") and file.endswith(".py")


def names_of(statement: ast.stmt) -> list[str]:
    """What a statement of a module defines."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def is_automatic(statement: ast.stmt) -> bool:
    """Whether it is a fixture that nobody has to ask for."""
    decorators = getattr(statement, "decorator_list", [])
    return any("autouse=True" in ast.unparse(each) for each in decorators)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a statement says, functions inside included."""

    imports: list[ast.Import | ast.ImportFrom]
    strings: set[str]
    arguments: set[str]
    names: set[str]


@cache
def facts_of(statement: ast.stmt) -> Facts:
    facts = Facts([], set(), set(), set())
    for node in ast.walk(statement):
        match node:
            case ast.Name():
                facts.names.add(node.id)
            case ast.Constant(str(string)):
                facts.strings.add(string)
            case ast.arg():
                facts.arguments.add(node.arg)
            case ast.Import() | ast.ImportFrom():
                facts.imports.append(node)
    return facts


class Dependencies:
    """The graph of the tree in `root`. `changed` may name files that are gone: who still imports them is found."""

    def __init__(self, root: Path, files: Iterable[str], changed: Iterable[str] = ()) -> None:
        self._files = {*files, *changed}
        self.sources = {
            file: (root / file).read_text() if (root / file).is_file() else ""
            for file in self._files
            if file.endswith(".py")
        }
        self.tests = {file for file in self.sources if is_test(file) and (root / file).is_file()}
        self._modules = {module_name(file): file for file in self.sources}
        self._trees = {file: ast.parse(source) for file, source in self.sources.items()}
        self._parts = {file: self._parts_of(file) for file in self.sources if file.startswith("tests/")}
        self._needed_by: dict[str, set[str]] = defaultdict(set)
        self._data_names: dict[str, set[str]] = defaultdict(set)
        for file, tree in self._trees.items():
            self._add(file, tree.body)
            for part, statements in self._parts.get(file, {}).items():
                self._add(f"{file}::{part}", statements)

    def ways_to(self, changed: Iterable[str]) -> dict[str, list[str]]:
        """For each file that depends on something changed, the shortest way there: itself first."""
        nodes = [node for file in sorted(changed) for node in self._nodes_of(file)]
        nexts: dict[str, str | None] = dict.fromkeys(nodes)
        queue = deque(nodes)
        for file in sorted(changed):
            for reader in self._readers_of(file):
                if reader not in nexts:
                    nexts[reader] = file
                    queue.append(reader)
        while queue:
            node = queue.popleft()
            for other in sorted(self._needed_by[node]):
                if other not in nexts:
                    nexts[other] = node
                    queue.append(other)
        return {node: list(_follow(node, nexts)) for node in nexts if node in self.sources}

    def read_by_tests(self, changed: Iterable[str]) -> set[str]:
        """Which of these files a test depends on."""
        return {file for file in changed if self.tests & self.ways_to([file]).keys()}

    def _nodes_of(self, file: str) -> list[str]:
        return [file, f"{file}::", *(f"{file}::{part}" for part in self._parts.get(file, ()))]

    def _parts_of(self, file: str) -> dict[str, list[ast.stmt]]:
        parts: dict[str, list[ast.stmt]] = defaultdict(list)
        for statement in self._trees[file].body:
            for name in names_of(statement):
                parts[name].append(statement)
        return dict(parts)

    def _add(self, node: str, statements: list[ast.stmt]) -> None:
        file, _, part = node.partition("::")
        facts = [facts_of(statement) for statement in statements]
        needed = {target for each in facts for statement in each.imports for target in self._imports(statement)}
        strings = {string for each in facts for string in each.strings}
        # `python -m NAME` starts a service; elsewhere its name may only be a word.
        starts = file in self._parts or "-m" in strings
        needed.update(target for string in strings for target in self._named(string, starts))
        if file in self._parts:
            needed.update(self._fixtures(file, strings.union(*(each.arguments for each in facts))))
        if part:
            names = {name for each in facts for name in each.names}
            needed.update(f"{file}::{name}" for name in names & self._parts[file].keys() - {part})
            bound = self._bindings(file)
            needed.update(target for name in names for target in bound.get(name, ()))
        for target in needed - {node}:
            self._needed_by[target].add(node)
        self._data_names[node] = {name.strip("/") for name in strings if name.strip("/.")}

    def _imports(self, statement: ast.Import | ast.ImportFrom) -> Iterator[str]:
        """The nodes that an import statement needs."""
        for alias in statement.names:
            yield from self._imported(statement, alias)

    def _imported(self, statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> Iterator[str]:
        if isinstance(statement, ast.Import):
            yield from self._resolve(alias.name, None)
        elif statement.module:
            yield from self._resolve(statement.module, alias.name)

    def _resolve(self, module: str, name: str | None) -> Iterator[str]:
        if name and f"{module}.{name}" in self._modules:
            module, name = f"{module}.{name}", None
        file = self._modules.get(module)
        if file is None:
            return
        yield f"{file}::{name}" if name in self._parts.get(file, ()) else file
        # Its packages are imported first; what they import later, when asked for a name, is not needed.
        while "." in module:
            module = module.rpartition(".")[0]
            if parent := self._modules.get(module):
                yield f"{parent}::"

    @cache  # noqa: B019 - one graph a process
    def _bindings(self, file: str) -> dict[str, list[str]]:
        """What each imported name of a helper stands for."""
        bound: dict[str, list[str]] = defaultdict(list)
        for statement in self._trees[file].body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                for alias in statement.names:
                    name = (alias.asname or alias.name).partition(".")[0]
                    bound[name] += self._imported(statement, alias)
        return bound

    def _named(self, string: str, starts: bool) -> Iterator[str]:
        """The modules that a string names: to start them, to import or to patch something in them."""
        for module, name in IMPORTED.findall(string):
            yield from self._resolve(module.rstrip("."), name or None)
        if not DOTTED.fullmatch(string):
            return
        if starts and f"{string}.__main__" in self._modules:
            yield from self._resolve(f"{string}.__main__", None)
        if string.endswith("."):  # f"coordinator.drafters.{name}"
            yield from (file for name, file in self._modules.items() if name.rpartition(".")[0] == string[:-1])
        while "." in string.strip("."):
            if string in self._modules:
                yield from self._resolve(string, None)
                return
            string = string.rpartition(".")[0]

    def _fixtures(self, file: str, names: set[str]) -> Iterator[str]:
        """The fixtures of the folder's conftest.py, and of those above, that are asked for or need not be."""
        for folder in Path(file).parents:
            conftest = str(folder / "conftest.py")
            if conftest not in self._parts:
                continue
            if conftest != file:
                yield f"{conftest}::"
            for name, statements in self._parts[conftest].items():
                if name in names or (conftest != file and any(map(is_automatic, statements))):
                    yield f"{conftest}::{name}"

    def _readers_of(self, file: str) -> Iterator[str]:
        """The nodes that name this file, or a folder it is in, as what they read."""
        path = Path(file)
        if path.suffix == ".py" and path.parts[0] in PACKAGES:
            return
        folders = {str(folder) for folder in path.parents} - {".", *PACKAGES}
        for node, names in self._data_names.items():
            source = node.partition("::")[0]
            # Tests name folders from the root; other sources those next to them.
            here = f"{Path(source).parent}/"
            named = {folder.removeprefix(here) for folder in folders if folder.startswith(here)}
            named |= folders if source in self._parts else set()
            if not names.isdisjoint({file, path.name} | named):
                yield node


def _follow(node: str, nexts: Mapping[str, str | None]) -> Iterator[str]:
    """The nodes on the way, without those that stand for the same file."""
    at: str | None = node
    before = ""
    while at is not None:
        file = at.partition("::")[0]
        if file != before:
            yield file
        at, before = nexts[at], file
