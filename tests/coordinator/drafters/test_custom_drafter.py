"""--custom-drafter: what is loaded, what is refused and how, and the documentation's own example."""

import re
from pathlib import Path

import pytest

from coordinator.drafters.custom import load_drafter
from paceline.errors import ConfigError
from tests.coordinator.contexts import decide, make_context

ROOT = Path(__file__).parents[3]
EXAMPLE = "examples.copy_drafter:make_drafter"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user's module, found as `python -m` finds it: through the path."""
    (tmp_path / "their_drafter.py").write_text("def make(request): pass\nnumber = 5\n")
    (tmp_path / "their_broken_drafter.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "their_drafter"


def test_factory_is_the_one_named(module: str) -> None:
    factory = load_drafter(f"{module}:make")
    assert (factory.__module__, factory.__name__) == (module, "make")


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("their_drafter", "PACKAGE.MODULE:FACTORY"),
        ("their_drafter:", "PACKAGE.MODULE:FACTORY"),
        (":make", "PACKAGE.MODULE:FACTORY"),
        ("", "PACKAGE.MODULE:FACTORY"),
        ("no_such_package.drafter:make", "No module named 'no_such_package'"),
        ("their_broken_drafter:make", "No module named 'not_installed_anywhere'"),
        ("their_drafter:made", "has no 'made'"),
        ("their_drafter:number", "'number' is of type int, which can't be called"),
    ],
)
def test_what_can_not_be_loaded_says_so_and_why(module: str, path: str, wrong: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_drafter(path)
    assert str(caught.value).startswith(f"--custom-drafter {path!r}: ")
    assert wrong in str(caught.value)
    assert "\n" not in str(caught.value)


def test_documentation_shows_the_example_as_it_is() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "speculation.md").read_text(), re.DOTALL)
    assert (ROOT / "examples" / "copy_drafter.py").read_text() in blocks
    assert f"--custom-drafter {EXAMPLE}" in (ROOT / "docs" / "speculation.md").read_text()


async def test_example_copies_what_followed_in_the_prompt() -> None:
    context = make_context([5, 1, 5, 2, 3, 4])
    drafter = load_drafter(EXAMPLE)(context.request)
    assert (await drafter.propose(context, 4)).tokens == [], "nothing follows the prompt's last token"
    decide(context, [5])
    # The last 5, not the first.
    assert (await drafter.propose(context, 4)).tokens == [2, 3, 4]
    assert (await drafter.propose(context, 2)).tokens == [2, 3]
    assert (await drafter.propose(context, 0)).tokens == []
    drafter.truncate(len(context) - 1)
    decide(context, [9])
    assert (await drafter.propose(context, 4)).tokens == [], "9 is not in the prompt"
    drafter.release()
