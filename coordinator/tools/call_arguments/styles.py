"""The styles of arguments that are known. Another one is a file beside these, and a name here."""

from coordinator.tools.call_arguments.json_arguments import JsonArguments
from coordinator.tools.call_arguments.keyword_arguments import KeywordArguments
from coordinator.tools.call_arguments.style import ArgumentsStyle
from coordinator.tools.call_arguments.tagged_arguments import TaggedArguments

# In the order in which a template is compared with them.
STYLES: tuple[type[ArgumentsStyle], ...] = (JsonArguments, TaggedArguments, KeywordArguments)
