"""Logs as text or JSON. Lines logged while a request is served carry its id."""

import json
import logging
import sys
import time
from contextvars import ContextVar
from typing import Any, Literal

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
# The log level applies to these. Libraries stay at INFO or above: some write thousands of lines at DEBUG.
OWN_LOGGERS = ("__main__", "paceline", "coordinator", "gateway", "draft_server", "target_server")

# Id of the current request, or "". Tasks inherit it from the call that starts them.
request_id: ContextVar[str] = ContextVar("request_id", default="")


def with_fields(**fields: Any) -> dict[str, Any]:
    return {"fields": fields}


def set_up_logs(form: LogFormat, level: LogLevel) -> None:
    """Sends all logs to stderr; `level` applies to Paceline's own."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(level=max(number, logging.INFO), handlers=[handler], force=True)
    for name in OWN_LOGGERS:
        logging.getLogger(name).setLevel(number)


class TextFormatter(logging.Formatter):
    """TIME LEVEL message name=value …"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        words = [f"{name}={_word(value)}" for name, value in _fields_of(record).items()]
        return " ".join([super().formatMessage(record), *words])


class JsonFormatter(logging.Formatter):
    """JSON objects: time (UTC, RFC 3339), level, logger, message, and the fields."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__()
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _fields_of(record: logging.LogRecord) -> dict[str, Any]:
    # Formatting happens in the context of the log call.
    current, given = request_id.get(), getattr(record, "fields", {})
    return {"request_id": current, **given} if current else given


def _word(value: Any) -> str:
    """Quotes a value if needed, so that client data can't forge a field or line."""
    text = str(value)
    is_plain = text and text.isprintable() and not set(text) & set(' "=')
    return text if is_plain else json.dumps(text)
