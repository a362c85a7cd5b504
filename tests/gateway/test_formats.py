"""Output formats: what reaches the coordinator from each field, and what is refused by the client's own name."""

import json
from typing import Any

import httpx2
import openai
import pydantic
import pytest

from gateway.format_fields import FORMATS, STRUCTURED_OUTPUTS, STRUCTURED_OUTPUTS_FIELDS
from paceline.errors import InvalidArgument
from paceline.output_format import OutputFormat
from paceline.rpc.model_messages import format_from_message
from tests.gateway.fake_coordinator import FakeCoordinator

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"const": "é"}}}
SCHEMA_TEXT = json.dumps(SCHEMA, ensure_ascii=False)
GBNF, LARK = 'root ::= "a" | "b"\n', '%llguidance {}\n\nstart: "a"\n     | "b"\n\n'
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "t1"}], "max_tokens": 4},
    "/v1/completions": {"prompt": "t1", "max_tokens": 4},
}


@pytest.fixture
def http(fake_http: httpx2.AsyncClient) -> httpx2.AsyncClient:
    return fake_http


def formats_of(coordinator: FakeCoordinator) -> list[OutputFormat | None]:
    return [format_from_message(each.format) for each in coordinator.asked]


def schema_format(**more: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, **more}}}


def structured(**options: Any) -> dict[str, Any]:
    return {"structured_outputs": options}


OF_SCHEMA = OutputFormat(SCHEMA_TEXT)
# What is asked, and what the coordinator gets.
TAKEN: dict[str, tuple[dict[str, Any], OutputFormat | None]] = {
    "text": ({"response_format": {"type": "text"}}, None),
    "nothing": (dict.fromkeys(("response_format", "structured_outputs", *FORMATS)), None),
    "json_object": ({"response_format": {"type": "json_object"}}, OutputFormat(json_object=True)),
    "json_object with llama.cpp's schema": ({"response_format": {"type": "json_object", "schema": SCHEMA}}, OF_SCHEMA),
    "json_schema": (schema_format(), OF_SCHEMA),
    "strict": (schema_format(strict=True, description="y"), OutputFormat(SCHEMA_TEXT, strict=True)),
    "not strict": (schema_format(strict=None), OF_SCHEMA),
    "any JSON": ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, OutputFormat("{}")),
    "compact": ({**schema_format(), **structured(disable_any_whitespace=True)}, OutputFormat(SCHEMA_TEXT, fixed_whitespace=True)),
    "structured_outputs.json": (structured(json=SCHEMA), OF_SCHEMA),
    "structured_outputs.json as a text": (structured(json=SCHEMA_TEXT), OF_SCHEMA),
    "structured_outputs.json, compact": (structured(json=SCHEMA, disable_any_whitespace=True), OutputFormat(SCHEMA_TEXT, fixed_whitespace=True)),
    "structured_outputs.json, with vLLM's defaults": (
        structured(json=SCHEMA, regex=None, disable_any_whitespace=False, disable_additional_properties=False, whitespace_pattern=None), OF_SCHEMA,
    ),
    "structured_outputs.json_object": (structured(json_object=True), OutputFormat(json_object=True)),
    "structured_outputs.regex": (structured(regex="[a-c]+"), OutputFormat(regex="[a-c]+")),
    "structured_outputs.choice": (structured(choice=["yes", "no"]), OutputFormat(choice=("yes", "no"))),
    "structured_outputs.grammar": (structured(grammar=LARK), OutputFormat(grammar=LARK)),
    "structured_outputs.grammar as GBNF": (structured(grammar=GBNF), OutputFormat(grammar=LARK)),
    "guided_json": ({"guided_json": SCHEMA}, OF_SCHEMA),
    "guided_json as a text": ({"guided_json": SCHEMA_TEXT}, OF_SCHEMA),
    "guided_json, compact": ({"guided_json": SCHEMA, **structured(disable_any_whitespace=True)}, OutputFormat(SCHEMA_TEXT, fixed_whitespace=True)),
    "guided_regex": ({"guided_regex": "a?"}, OutputFormat(regex="a?")),
    "guided_choice": ({"guided_choice": ["1"]}, OutputFormat(choice=("1",))),
    "guided_grammar": ({"guided_grammar": GBNF}, OutputFormat(grammar=LARK)),
    "llama.cpp's grammar": ({"grammar": GBNF}, OutputFormat(grammar=LARK)),
    "llama.cpp's json_schema": ({"json_schema": SCHEMA, "grammar": ""}, OF_SCHEMA),
}  # fmt: skip


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("name", TAKEN)
async def test_a_format_reaches_the_coordinator(
    http: httpx2.AsyncClient, coordinator: FakeCoordinator, path: str, name: str
) -> None:
    fields, expected = TAKEN[name]
    response = await http.post(path, json={**BODIES[path], **fields})
    assert response.status_code == 200, response.text
    assert formats_of(coordinator) == [expected]


def test_every_field_of_a_format_has_a_row() -> None:
    rows = [*FORMATS, *(f"structured_outputs.{name}" for name in STRUCTURED_OUTPUTS)]
    sent = {key for fields, _ in TAKEN.values() for key in fields}
    sent |= {
        f"structured_outputs.{key}" for fields, _ in TAKEN.values() for key in fields.get("structured_outputs") or {}
    }
    assert sent >= {*rows, "response_format", "structured_outputs.disable_any_whitespace"}
    refused = {param for _, param, _ in REFUSED.values()}
    assert refused >= {*rows, *(f"structured_outputs.{name}" for name in STRUCTURED_OUTPUTS_FIELDS.refused)}


RESPONSE, OUTPUTS = "response_format", "structured_outputs"
A_SCHEMA = "a JSON Schema, as an object or a text"
# What is asked, the field named, and words of the message.
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "a format as a text": ({RESPONSE: "json"}, RESPONSE, "an object"),
    "no type": ({RESPONSE: {}}, f"{RESPONSE}.type", "one of text, json_object, json_schema"),
    "a tag": ({RESPONSE: {"type": "structural_tag"}}, f"{RESPONSE}.type", "one of text, json_object, json_schema"),
    "a type that is a list": ({RESPONSE: {"type": []}}, f"{RESPONSE}.type", "one of text"),
    "an unknown key": ({RESPONSE: {"type": "json_object", "schemas": {}}}, f"{RESPONSE}.schemas", "unknown field"),
    "no json_schema": ({RESPONSE: {"type": "json_schema"}}, f"{RESPONSE}.json_schema", "an object with name and schema"),
    "no schema": (schema_format(schema=None), f"{RESPONSE}.json_schema.schema", A_SCHEMA),
    "a schema that is a list": (schema_format(schema=[]), f"{RESPONSE}.json_schema.schema", A_SCHEMA),
    "strict as a text": (schema_format(strict="yes"), f"{RESPONSE}.json_schema.strict", "true or false"),
    "an unknown key of json_schema": (schema_format(x=1), f"{RESPONSE}.json_schema.x", "unknown field"),
    "a long schema": (schema_format(schema={"const": "x" * 262144}), f"{RESPONSE}.json_schema.schema", "at most 262144 characters"),
    "structured_outputs as a text": ({OUTPUTS: "x"}, OUTPUTS, "an object"),
    "structured_outputs without a format": (structured(), OUTPUTS, "one of json, regex, choice, grammar, json_object"),
    "white space alone": (structured(disable_any_whitespace=True), OUTPUTS, "has no format"),
    "white space as a text": (structured(json={}, disable_any_whitespace="x"), f"{OUTPUTS}.disable_any_whitespace", "true or false"),
    "white space of a regex": (structured(regex="a", disable_any_whitespace=True), f"{OUTPUTS}.disable_any_whitespace", "without a JSON format"),
    "white space of a grammar": ({"grammar": LARK, **structured(disable_any_whitespace=True)}, f"{OUTPUTS}.disable_any_whitespace", "without a JSON format"),
    "an unknown option": (structured(json={}, backend="x"), f"{OUTPUTS}.backend", "unknown field"),
    "a pattern of white space": (structured(json={}, whitespace_pattern=" "), f"{OUTPUTS}.whitespace_pattern", "is not supported"),
    "no further properties": (
        structured(json={}, disable_additional_properties=True), f"{OUTPUTS}.disable_additional_properties", "is not supported",
    ),
    "structural_tag": (structured(structural_tag="{}"), f"{OUTPUTS}.structural_tag", "is not supported"),
    "json": (structured(json=True), f"{OUTPUTS}.json", A_SCHEMA),
    "json_object": (structured(json_object=1), f"{OUTPUTS}.json_object", "it must be true"),
    "regex": (structured(regex=""), f"{OUTPUTS}.regex", "a text that is not empty"),
    "choice": (structured(choice=[]), f"{OUTPUTS}.choice", "a list of texts"),
    "choice of numbers": (structured(choice=[1]), f"{OUTPUTS}.choice", "a list or tuple of texts"),
    "grammar": (structured(grammar=5), f"{OUTPUTS}.grammar", "a text that is not empty"),
    "guided_json": ({"guided_json": ""}, "guided_json", A_SCHEMA),
    "guided_regex": ({"guided_regex": ["a"]}, "guided_regex", "a text that is not empty"),
    "guided_choice": ({"guided_choice": "yes"}, "guided_choice", "a list of texts"),
    "a choice twice": ({"guided_choice": ["a", "a"]}, "guided_choice", "different texts"),
    "guided_grammar": ({"guided_grammar": "a ::= "}, "guided_grammar", "is not GBNF: No 'root' rule found"),
    "llama.cpp's grammar": ({"grammar": "root ::= ("}, "grammar", "is not GBNF"),
    "llama.cpp's json_schema": ({"json_schema": 5}, "json_schema", A_SCHEMA),
    "two of llama.cpp's": ({"json_schema": {}, "grammar": GBNF}, "grammar", "json_schema and grammar are given"),
    "two fields": ({**schema_format(), "guided_regex": "a"}, "guided_regex", f"{RESPONSE}.json_schema.schema and guided_regex are given"),
    "an object and a choice": ({RESPONSE: {"type": "json_object"}, **structured(choice=["a"])}, f"{OUTPUTS}.choice", f"{RESPONSE} and {OUTPUTS}.choice are given"),
    "two in one": (structured(json={}, regex="a"), f"{OUTPUTS}.regex", f"{OUTPUTS}.json and {OUTPUTS}.regex are given; give one of them"),
}  # fmt: skip


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("name", REFUSED)
async def test_a_format_is_refused_by_its_field(
    http: httpx2.AsyncClient, coordinator: FakeCoordinator, path: str, name: str
) -> None:
    fields, param, words = REFUSED[name]
    response = await http.post(path, json={**BODIES[path], **fields})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert param in error["message"]
    assert words in error["message"]
    assert coordinator.asked == []


# What is asked, the field that the coordinator names, and the field that the client knows.
RENAMED: dict[str, tuple[dict[str, Any], str, str]] = {
    "response_format": (schema_format(), "json_schema", f"{RESPONSE}.json_schema.schema"),
    "strict": (schema_format(strict=True), "strict", f"{RESPONSE}.json_schema.strict"),
    "any object": ({RESPONSE: {"type": "json_object"}}, "format", RESPONSE),
    "structured_outputs": (structured(grammar=LARK), "grammar", f"{OUTPUTS}.grammar"),
    "guided_json": ({"guided_json": {}}, "json_schema", "guided_json"),
    "llama.cpp's": ({"grammar": GBNF}, "grammar", "grammar"),
    "another field": (structured(regex="a"), "temperature", "temperature"),
    "no format": ({}, "format", "format"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", RENAMED)
async def test_a_coordinators_error_names_the_clients_field(
    http: httpx2.AsyncClient, coordinator: FakeCoordinator, name: str, stream: bool
) -> None:
    fields, field, param = RENAMED[name]
    coordinator.error = InvalidArgument(field, "can't be enforced")
    response = await http.post("/v1/completions", json={**BODIES["/v1/completions"], **fields, "stream": stream})
    event = json.loads(response.text.split("data: ")[2]) if stream else response.json()
    assert response.status_code == (200 if stream else 400)
    assert (event["error"]["param"], event["error"]["message"]) == (param, f"{param} can't be enforced")


async def test_a_format_goes_with_streams_samples_and_a_prediction(
    http: httpx2.AsyncClient, coordinator: FakeCoordinator
) -> None:
    more = {"n": 2, "prediction": {"type": "content", "content": "{}"}, "stream": True, **schema_format()}
    response = await http.post("/v1/completions", json={**BODIES["/v1/completions"], **more})
    assert response.text.endswith("data: [DONE]\n\n")
    [asked] = coordinator.asked
    assert (asked.sampling.n, asked.prediction_text, formats_of(coordinator)) == (2, "{}", [OF_SCHEMA])


async def test_each_prompt_has_the_format(http: httpx2.AsyncClient, coordinator: FakeCoordinator) -> None:
    response = await http.post("/v1/completions", json={"prompt": ["t1", "t2"], "guided_json": SCHEMA})
    assert response.status_code == 200
    assert formats_of(coordinator) == [OF_SCHEMA, OF_SCHEMA]


class Person(pydantic.BaseModel):
    name: str = ""


async def test_openais_parse_reads_an_object(http: httpx2.AsyncClient, coordinator: FakeCoordinator) -> None:
    async with openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=http) as client:
        body: Any = BODIES["/v1/chat/completions"]
        found = await client.chat.completions.parse(model="tiny", response_format=Person, **body)
    assert found.choices[0].message.parsed == Person()
    [format] = formats_of(coordinator)
    assert format is not None
    assert format.strict
    assert json.loads(format.json_schema)["required"] == ["name"]


async def test_forced_tokens_are_told(http: httpx2.AsyncClient) -> None:
    path = "/v1/chat/completions"
    whole = (await http.post(path, json={**BODIES[path], **schema_format()})).json()
    assert whole["paceline"]["speculation"]["forced"] == 1
    streamed = await http.post(path, json={**BODIES[path], **schema_format(), "stream": True, "trace": True})
    chunks = [json.loads(line.removeprefix("data: ")) for line in streamed.text.split("\n\n") if "paceline" in line]
    emitted = chunks[0]["choices"][0]["paceline"]["emitted"]
    assert emitted == [
        {"token_id": 1, "text": "1", "origin": "target"}, {"token_id": 2, "text": "2", "origin": "forced"},
    ]  # fmt: skip
