"""Draws the charts of the load test's HTML page with matplotlib, as SVG elements."""

import io
from dataclasses import dataclass, field
from html import escape
from typing import Any

# Most color-blind readers can tell them apart (after Okabe and Ito).
VARIANT_COLORS = ("#0b6fb8", "#d55e00", "#00866a", "#b8528f", "#b98500", "#3aa0d8", "#6a50b8", "#7a5a48")
PART_COLORS = ("#8f99a8", "#44aa99", "#4b3fa0", "#d9c45a", "#8c8a2e", "#882255")
WIDTH_INCHES, HEIGHT_INCHES, BAR_INCHES = 5.0, 3.2, 0.4
STYLE: dict[Any, Any] = {
    # The reader's own font; names of variants are not TeX.
    "svg.fonttype": "none",
    "text.parse_math": False,
    # The same figures give the same file.
    "svg.hashsalt": "paceline",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#8884",
}


@dataclass(frozen=True, slots=True)
class Series:
    points: list[tuple[float, float]]
    # Labels of the points; a line without labels has no markers.
    labels: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Axes:
    """Both axes begin at 0 unless `x_ticks` are given."""

    title: str
    x: str
    y: str
    # End of the y axis; defaults to the largest value.
    y_top: float | None = None
    # All ticks of the x axis, at least two.
    x_ticks: list[int] | None = None


def line_chart(axes: Axes, series: list[Series]) -> str:
    import matplotlib

    if not any(each.points for each in series):
        return empty_chart()
    with matplotlib.rc_context(STYLE):
        figure, plot = new_figure(HEIGHT_INCHES)
        for number, each in enumerate(series):
            color = color_of(number, VARIANT_COLORS)
            marker = "o" if each.labels else ""
            plot.plot([x for x, _ in each.points], [y for _, y in each.points], color=color, marker=marker)
            for label, point in zip(each.labels, each.points, strict=False):
                plot.annotate(label, point, xytext=(4, 4), textcoords="offset points")
        plot.set(xlabel=axes.x, ylabel=axes.y)
        plot.set_ylim(0, axes.y_top)
        if axes.x_ticks is None:
            plot.set_xlim(left=0)
        else:
            plot.set_xticks(axes.x_ticks)
        plot.grid(axis="y")
        return as_svg(figure, axes.title)


def stacked_bars(title: str, unit: str, rows: dict[str, dict[str, float]]) -> str:
    """Draws a bar per row, from the top, with its parts side by side and their sum behind it."""
    import matplotlib

    if not any(sum(parts.values()) > 0 for parts in rows.values()):
        return empty_chart()
    with matplotlib.rc_context(STYLE):
        figure, plot = new_figure(BAR_INCHES * (len(rows) + 1))
        for row, parts in enumerate(rows.values()):
            end = 0.0
            for number, value in enumerate(parts.values()):
                plot.barh(row, value, left=end, color=color_of(number, PART_COLORS))
                end += value
            plot.annotate(f"{end:.3g} {unit}", (end, row), xytext=(4, 0), textcoords="offset points", va="center")
        plot.set_yticks(range(len(rows)), list(rows))
        plot.invert_yaxis()
        plot.margins(x=0.2)
        plot.set_xlabel(unit)
        return as_svg(figure, title)


def empty_chart() -> str:
    return "<p>nothing was measured</p>"


def legend(names: list[str], colors: tuple[str, ...] = VARIANT_COLORS) -> str:
    keys = (
        f'<i style="background: {color_of(number, colors)}"></i>{escape(name)}' for number, name in enumerate(names)
    )
    return f'<p class="legend">{"".join(f"<span>{key}</span>" for key in keys)}</p>'


def color_of(number: int, colors: tuple[str, ...]) -> str:
    return colors[number % len(colors)]


def new_figure(height_inches: float) -> tuple[Any, Any]:
    # Takes a second to import.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def as_svg(figure: Any, title: str) -> str:
    file = io.StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=True, metadata=no_metadata)
    # HTML has no XML declaration.
    _, _, svg = file.getvalue().partition("<svg ")
    return f'<svg role="img" aria-label="{escape(title)}" {svg}'
