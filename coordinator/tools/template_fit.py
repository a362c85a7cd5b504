"""Fits conversations to the model's chat template: nothing that a client sends is refused or dropped, as far as it can be helped."""

from collections.abc import Callable
from typing import Any

from coordinator.tools.roles import Roles
from coordinator.tools.template_probes import Messages, TemplateProbes
from coordinator.tools.tool_turns import ToolTurns


class TemplateFit:
    def __init__(self, render: Callable[[Messages], str], write: Callable[[dict[str, Any]], str]) -> None:
        """`render`: raises InvalidArgument. `write`: returns a message's text and calls as the model writes them."""
        probes = TemplateProbes(render)
        self._roles, self._turns = Roles(probes), ToolTurns(probes, write)

    def fit(self, messages: Messages) -> Messages:
        systems, others = self._roles.fit_systems(messages)
        fitted = self._roles.fit_turns(self._turns.fit(others, bool(systems)), bool(systems))
        return self._roles.place_system([*systems, *fitted])
