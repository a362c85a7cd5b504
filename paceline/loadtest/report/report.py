"""All that a run found, and its JSON form."""

from dataclasses import asdict, dataclass
from typing import Any

from paceline.loadtest.figures import Figures, Run, figures_of
from paceline.loadtest.loads import Load
from paceline.loadtest.record import Record
from paceline.loadtest.slo import Slo

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Point:
    """One load: what each variant did under it, by name."""

    load: Load
    runs: dict[str, Run]
    figures: dict[str, Figures]

    @classmethod
    def of(cls, load: Load, runs: dict[str, Run], slo: Slo | None) -> "Point":
        return cls(load, runs, {name: figures_of(run, slo) for name, run in runs.items()})


@dataclass(frozen=True, slots=True)
class Report:
    """A whole run."""

    # Local time with its offset, ISO 8601.
    began: str
    # Whom it asked: models, data types, version.
    deployment: dict[str, str]
    # What it asked, by option.
    settings: dict[str, str]
    slo: Slo | None
    points: list[Point]

    @property
    def records(self) -> list[Record]:
        return [record for point in self.points for run in point.runs.values() for record in run.records]

    @property
    def is_sweep(self) -> bool:
        return len(self.points) > 1


def as_record(report: Report) -> dict[str, Any]:
    """The object of `--json`: figures as in `figures.py`, and every request."""
    return {
        "format_version": FORMAT_VERSION,
        "began": report.began,
        "deployment": report.deployment,
        "settings": report.settings,
        "slo_ms": None if report.slo is None else asdict(report.slo),
        "points": [
            {
                "load": asdict(point.load),
                "variants": [
                    {"name": name, **asdict(figures), "records": [_request(each) for each in point.runs[name].records]}
                    for name, figures in point.figures.items()
                ],
            }
            for point in report.points
        ],
    }


def _request(record: Record) -> dict[str, Any]:
    return {
        "index": record.index,
        "tokens": record.tokens,
        "ttft_ms": record.ttft_ms,
        "itl_ms": record.mean_itl_ms,
        "e2e_ms": record.e2e_ms,
        "failure": None if record.failure is None else asdict(record.failure),
    }
