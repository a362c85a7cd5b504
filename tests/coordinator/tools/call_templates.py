"""Small chat templates that write calls as families of models do, and the format that each of them shows."""

from dataclasses import replace
from typing import NamedTuple

from coordinator.tools.call_arguments.json_arguments import JsonArguments
from coordinator.tools.call_arguments.keyword_arguments import KeywordArguments
from coordinator.tools.call_arguments.notation import JSON, PYTHON, Notation
from coordinator.tools.call_arguments.tagged_arguments import TaggedArguments
from coordinator.tools.call_formats import CALL_FORMATS, FUNCTION_IDS, HERMES, SHORT_IDS, CallFormat


class Family(NamedTuple):
    """calls: what the template writes for a message's calls. before: what it writes first in every message."""

    calls: str
    format: CallFormat
    turn_end: str = "<|im_end|>"
    before: str = ""

    @property
    def template(self) -> str:
        # A line break behind a block is the block's.
        body = f"{{% if m.tool_calls %}}{self.calls}".replace("%}\n", "%}{{ '\\n' }}")
        return (
            f"{MACROS}{{% if tools %}}[tools]{{{{ tools | tojson }}}}[/tools]{{% endif %}}{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n"
            f"{self.before}{{{{ m.content }}}}{body}{{% endif %}}{self.turn_end}\n{{% endfor %}}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        )


# Gemma 4's values, of any depth.
MACROS = (
    "{%- macro value(v) %}{% if v is string %}<|\"|>{{ v }}<|\"|>{% elif v is boolean %}{{ 'true' if v else 'false' }}{% elif v is mapping %}"
    "{{ '{' }}{% for k, e in v | dictsort %}{{ k }}:{{ value(e) }}{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}"
    "{% elif v is none or v is number %}{{ v }}{% else %}[{% for e in v %}{{ value(e) }}{% if not loop.last %},{% endif %}{% endfor %}]"
    "{% endif %}{% endmacro -%}"
)
RAW = "{{ v if v is string else v | tojson }}"
GEMMA = Notation('<|"|>', "none", ("true", "false", "None"), ",", ":", quotes_keys=False, sorts_keys=True)
TIGHT = replace(JSON, item_separator=",", key_separator=":")


def calls(body: str, between: str = "") -> str:
    """Returns a loop over calls, with f for the function and a for its arguments."""
    last = f"{{% if not loop.last %}}{{{{ {between!r} }}}}{{% endif %}}" if between else ""
    return (
        f"{{% for c in m.tool_calls %}}{{% set f = c.function %}}{{% set a = f.arguments %}}{body}{last}{{% endfor %}}"
    )


def items(body: str, between: str = "", order: str = ".items()") -> str:
    last = f"{{% if not loop.last %}}{{{{ {between!r} }}}}{{% endif %}}" if between else ""
    return f"{{% for k, v in a{order} %}}{body}{last}{{% endfor %}}"


def found(head: str, middle: str, tail: str, **more: object) -> CallFormat:
    return CallFormat("", head, middle, tail, **({"text_separator": ""} | more))  # type: ignore[arg-type]


def tagged(begin: str, between: str, end: str, separator: str = "", **more: object) -> TaggedArguments:
    return TaggedArguments(begin, between, end, separator, **more)  # type: ignore[arg-type]


JSON_CALL = '{"name": "{{ f.name }}", "arguments": {{ a | tojson }}}'
OBJECT = ('{"name": "', '", "arguments": ', "}")
QWEN_CODER = tagged("<parameter=", ">\n", "\n</parameter>\n")
DSML_TYPES = tuple((kind, '" string="false">') for kind in ("integer", "number", "boolean", "null", "object", "array"))
FAMILIES: dict[str, Family] = {
    "Hermes": Family(
        calls(f"\n<tool_call>\n{JSON_CALL}\n</tool_call>"), replace(HERMES, lead="\n", text_separator="\n"),
    ),
    "Hermes, tight": Family(
        calls('<tool_call>{"name":"{{ f.name }}","arguments":{{ a | tojson(separators=(",", ":")) }}}</tool_call>'),
        found('<tool_call>{"name":"', '","arguments":', "}</tool_call>", arguments=JsonArguments(TIGHT)),
    ),
    "Granite 20B": Family(
        calls(f"<function_call> {JSON_CALL}", " "), found('<function_call> {"name": "', *OBJECT[1:], separator=" "),
    ),
    "Nemotron": Family(
        f"<TOOLCALL>[{calls(JSON_CALL, ', ')}]</TOOLCALL>",
        found(*OBJECT, calls_begin="<TOOLCALL>[", calls_end="]</TOOLCALL>", separator=", "),
    ),
    "Qwen3-Coder": Family(
        calls("\n<tool_call>\n<function={{ f.name }}>\n" + items(f"<parameter={{{{ k }}}}>\n{RAW}\n</parameter>\n") + "</function>\n</tool_call>"),
        found("<tool_call>\n<function=", ">\n", "</function>\n</tool_call>", separator="\n", lead="\n", text_separator="\n", arguments=QWEN_CODER),
    ),
    "Qwen3-Coder, words of Python": Family(
        calls("<tool_call>\n<function={{ f.name }}>\n" + items("<parameter={{ k }}>\n{{ v | tojson if v is mapping or (v is sequence and v is not string) else v | string }}\n</parameter>\n") + "</function>\n</tool_call>"),
        found("<tool_call>\n<function=", ">\n", "</function>\n</tool_call>", arguments=replace(QWEN_CODER, scalars=replace(JSON, words=PYTHON.words))),
    ),
    "Seed": Family(
        calls("<seed:tool_call>\n<function={{ f.name }}>\n" + items(f"<parameter={{{{ k }}}}>{RAW}</parameter>\n") + "</function>\n</seed:tool_call>"),
        found("<seed:tool_call>\n<function=", ">\n", "</function>\n</seed:tool_call>", arguments=tagged("<parameter=", ">", "</parameter>\n")),
    ),
    "GLM": Family(
        calls("\n<tool_call>{{ f.name }}\n" + items(f"<arg_key>{{{{ k }}}}</arg_key>\n<arg_value>{RAW}</arg_value>\n") + "</tool_call>"),
        found("<tool_call>", "\n", "</tool_call>", separator="\n", lead="\n", text_separator="\n", arguments=tagged("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n")),
    ),
    "GLM, turns that end in what follows": Family(
        calls("\n<tool_call>{{ f.name }}\n" + items(f"<arg_key>{{{{ k }}}}</arg_key>\n<arg_value>{RAW}</arg_value>\n") + "</tool_call>") + "<|observation|>",
        found("<tool_call>", "\n", "</tool_call>", separator="\n", lead="\n", text_separator="\n", arguments=tagged("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n")),
        turn_end="{% if not m.tool_calls %}<|user|>{% endif %}",
    ),
    "MiniMax": Family(
        "\n<minimax:tool_call>\n" + calls('<invoke name="{{ f.name }}">\n' + items(f'<parameter name="{{{{ k }}}}">{RAW}</parameter>\n') + "</invoke>\n") + "</minimax:tool_call>",
        found('<invoke name="', '">\n', "</invoke>\n", calls_begin="<minimax:tool_call>\n", calls_end="</minimax:tool_call>", lead="\n", text_separator="\n",
              arguments=tagged('<parameter name="', '">', "</parameter>\n")),
    ),
    "DeepSeek, DSML": Family(
        "\n\n<｜DSML｜calls>\n" + calls('<｜DSML｜invoke name="{{ f.name }}">\n' + items(
            f"<｜DSML｜parameter name=\"{{{{ k }}}}\" string=\"{{{{ 'true' if v is string else 'false' }}}}\">{RAW}</｜DSML｜parameter>", "\n",
        ) + "\n</｜DSML｜invoke>\n") + "</｜DSML｜calls>",
        found('<｜DSML｜invoke name="', '">\n', "\n</｜DSML｜invoke>\n", calls_begin="<｜DSML｜calls>\n", calls_end="</｜DSML｜calls>", lead="\n\n", text_separator="\n\n",
              arguments=tagged('<｜DSML｜parameter name="', '" string="true">', "</｜DSML｜parameter>", "\n", typed=DSML_TYPES)),
    ),
    "DeepSeek V3": Family(
        "<｜tool▁calls▁begin｜>" + calls("<｜tool▁call▁begin｜>{{ c.type }}<｜tool▁sep｜>{{ f.name }}\n```json\n{{ '' + a }}\n```<｜tool▁call▁end｜>", "\n") + "<｜tool▁calls▁end｜>",
        found("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>", calls_begin="<｜tool▁calls▁begin｜>",
              calls_end="<｜tool▁calls▁end｜>", separator="\n"),
    ),
    "DeepSeek V3.1": Family(
        "<｜tool▁calls▁begin｜>" + calls("<｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>{{ a | tojson }}<｜tool▁call▁end｜>") + "<｜tool▁calls▁end｜>",
        found("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", calls_begin="<｜tool▁calls▁begin｜>", calls_end="<｜tool▁calls▁end｜>"),
    ),
    "Kimi K2": Family(
        "<|calls_begin|>" + calls("<|call_begin|>{{ c.id }}<|argument_begin|>{{ a | tojson }}<|call_end|>") + "<|calls_end|>",
        found("<|call_begin|>functions.", ":$INDEX<|argument_begin|>", "<|call_end|>", calls_begin="<|calls_begin|>", calls_end="<|calls_end|>", ids=FUNCTION_IDS),
    ),
    "Cohere": Family(
        "<|START_ACTION|>[\n{{ '    ' }}" + calls('{"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ f.name }}", "parameters": {{ a | tojson }}}', ",\n    ") + "\n]<|END_ACTION|>",
        found('{"tool_call_id": "$INDEX", "tool_name": "', '", "parameters": ', "}", calls_begin="<|START_ACTION|>[\n    ", calls_end="\n]<|END_ACTION|>", separator=",\n    "),
        turn_end="<|END_OF_TURN_TOKEN|>", before="{% if m.role == 'assistant' and m.tool_calls %}<|START_THINKING|><|END_THINKING|>{% endif %}",
    ),
    "Command R+": Family(
        "\nAction:\n```json\n[\n{{ '    ' }}" + calls('{\n        "tool_name": "{{ f.name }}",\n        "parameters": {{ a | tojson(indent=4) | indent(8) }}\n    }', ",\n    ") + "\n]```",
        found('{\n        "tool_name": "', '",\n        "parameters": ', "\n    }", calls_begin="Action:\n```json\n[\n    ", calls_end="\n]```", separator=",\n    ",
              lead="\n", text_separator="\n", arguments=JsonArguments(replace(JSON, indent=4, margin=8))),
    ),
    "Falcon": Family(
        "<tool_call>\n{{ m.tool_calls | tojson(indent=2) }}\n</tool_call>",
        found('{\n    "id": "$ID",\n    "type": "function",\n    "function": {\n      "name": "', '",\n      "arguments": ', "\n    }\n  }",
              calls_begin="<tool_call>\n[\n  ", calls_end="\n]\n</tool_call>", separator=",\n  ", arguments=JsonArguments(replace(JSON, indent=2, margin=6))),
    ),
    "Gemma 4": Family(
        calls("<|tool_call>call:{{ f.name }}{{ '{' }}" + items("{{ k }}:{{ value(v) }}", ",", " | dictsort") + "{{ '}' }}<tool_call|>"),
        found("<|tool_call>call:", "{", "}<tool_call|>", arguments=KeywordArguments(":", ",", GEMMA, GEMMA, GEMMA)),
    ),
    "LFM2": Family(
        "<|tool_call_start|>[" + calls("{{ f.name }}(" + items("{{ k }}={% if v is string %}'{{ v }}'{% elif v is mapping %}{{ v | tojson }}{% else %}{{ v | string }}{% endif %}", ", ") + ")", ", ") + "]<|tool_call_end|>",
        found("", "(", ")", calls_begin="<|tool_call_start|>[", calls_end="]<|tool_call_end|>", separator=", ",
              arguments=KeywordArguments("=", ", ", Notation("'", "none", PYTHON.words, ", ", "=", False), JSON, PYTHON)),
    ),
    "Python with JSON": Family(
        "<function_calls>\n" + calls("{{ f.name }}(" + items("{{ k }}={{ v | tojson }}", ", ") + ")\n") + "</function_calls>",
        found("", "(", ")\n", calls_begin="<function_calls>\n", calls_end="</function_calls>",
              arguments=KeywordArguments("=", ", ", Notation('"', "json", JSON.words, ", ", "=", False), JSON, JSON)),
    ),
    "Llama 4": Family(
        "[" + calls("{{ f.name }}(" + items('{{ k }}="{{ v }}"', ", ") + ")", ", ") + "]",
        found("", "(", ")", calls_begin="[", calls_end="]", separator=", ",
              arguments=tagged("", '="', '"', ", ", scalars=replace(JSON, words=PYTHON.words), objects=PYTHON, arrays=PYTHON)),
    ),
    "functionary": Family(
        calls("<function={{ f.name }}>{{ a | tojson }}</function>"), found("<function=", ">", "</function>"), turn_end="<|eom_id|>",
    ),
    "xLAM": Family(
        f"[{calls(JSON_CALL, ', ')}]", found(*OBJECT, calls_begin="[", calls_end="]", separator=", "),
    ),
    "Apertus": Family(
        "<|tools_prefix|>[" + calls('{"{{ f.name }}": {{ a | tojson }}}', ", ") + "]<|tools_suffix|>",
        found('{"', '": ', "}", calls_begin="<|tools_prefix|>[", calls_end="]<|tools_suffix|>", separator=", "),
    ),
    "Llama 3": Family(
        "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}" + calls('{"name": "{{ f.name }}", "parameters": {{ a | tojson }}}'),
        replace(CALL_FORMATS[-1], calls_begin="", text_separator="", is_single=True), turn_end="<|eot_id|>",
    ),
    "Mistral": Family(
        calls("[TOOL_CALLS]{{ f.name }}[ARGS]{{ a | tojson }}"), replace(CALL_FORMATS[1], ids="any", text_separator=""), turn_end="</s>",
    ),
    "Mistral, ids": Family(
        "{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}{% endfor %}"
        + calls("[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ c.id }}[ARGS]{{ a | tojson }}"),
        found("[TOOL_CALLS]", "[CALL_ID]$ID[ARGS]", "", ids=SHORT_IDS), turn_end="</s>",
    ),
    "Mistral, a list": Family(
        f"[TOOL_CALLS] [{calls(JSON_CALL.removesuffix('}') + ', ' + chr(34) + 'id' + chr(34) + ': ' + chr(34) + '{{ c.id }}' + chr(34) + '}', ', ')}]",
        found(*OBJECT[:2], ', "id": "$ID"}', calls_begin="[TOOL_CALLS] [", calls_end="]", separator=", "), turn_end="</s>",
    ),
}  # fmt: skip
