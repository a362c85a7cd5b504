"""A collector of traces. OTLP's own service is small, and the usual programs that have it do not come with Python."""

import concurrent.futures
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Received:
    """A span as it came."""

    service: str
    name: str
    trace_id: str
    span_id: str
    # "": the trace begins with it.
    parent_id: str
    # The names of opentelemetry.proto.trace.v1: SPAN_KIND_SERVER, STATUS_CODE_ERROR and so on.
    kind: str
    status: str
    message: str
    attributes: dict[str, Any]
    started_ns: int
    ended_ns: int


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what it gets."""

    def __init__(self, credentials: grpc.ServerCredentials | None = None) -> None:
        """`credentials`: for TLS; None: without."""
        self.spans: list[Received] = []
        # What came with each batch.
        self.metadata: list[dict[str, Any]] = []
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        listen = "127.0.0.1:0"
        port = (
            self._server.add_insecure_port(listen)
            if credentials is None
            else self._server.add_secure_port(listen, credentials)
        )
        self.address = f"127.0.0.1:{port}"
        self._server.start()

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.metadata.append(dict(context.invocation_metadata()))
        for of_service in request.resource_spans:
            service = values(of_service.resource.attributes)["service.name"]
            for scope in of_service.scope_spans:
                self.spans += [received(service, span) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def close(self) -> None:
        self._server.stop(None).wait()

    def wait(self, number: int, **fields: Any) -> list[Received]:
        """Waits for this many spans with these fields. Raises AssertionError on timeout."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(found := self.find(**fields)) < number:
            assert time.monotonic() < deadline_s, f"{[(each.service, each.name) for each in found]} for {fields}"
            time.sleep(0.02)
        return found

    def find(self, **fields: Any) -> list[Received]:
        return [
            span for span in list(self.spans) if all(getattr(span, name) == value for name, value in fields.items())
        ]


def received(service: str, span: Any) -> Received:
    def name_of(field: str, owner: Any) -> str:
        return str(owner.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number[getattr(owner, field)].name)

    return Received(
        service, span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), name_of("kind", span),
        name_of("code", span.status), span.status.message, values(span.attributes), span.start_time_unix_nano,
        span.end_time_unix_nano,
    )  # fmt: skip


def values(attributes: Iterable[Any]) -> dict[str, Any]:
    return {each.key: value(each.value) for each in attributes}


def value(any_value: Any) -> Any:
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return [value(each) for each in any_value.array_value.values]
    return getattr(any_value, kind)
