"""SVG charts and the CSS of the load test's HTML page."""

import math
import re
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 440, 280
LEFT, RIGHT, TOP, BOTTOM = 56, 20, 14, 44
BAR_HEIGHT, BAR_GAP = 22, 12
# The page's colours, light and dark. c0 to c7 are for variants, phase0 to phase5 for the parts of a round; most
# colour-blind readers can tell them apart (after Okabe and Ito).
COLOURS = {
    "ground": ("#f6f7f9", "#10141b"),
    "paper": ("#ffffff", "#181e28"),
    "ink": ("#1b2330", "#e6eaf0"),
    "faint": ("#5c6675", "#9aa5b4"),
    "rule": ("#dfe3e9", "#2d3644"),
    "stripe": ("#f3f5f8", "#1d2430"),
    "bad": ("#b3261e", "#ff8a80"),
    "c0": ("#0b6fb8", "#5ab0f0"),
    "c1": ("#d55e00", "#ff9248"),
    "c2": ("#00866a", "#3fc9a4"),
    "c3": ("#b8528f", "#e88cc2"),
    "c4": ("#b98500", "#e8bd4a"),
    "c5": ("#3aa0d8", "#8cd3f7"),
    "c6": ("#6a50b8", "#a996f0"),
    "c7": ("#7a5a48", "#c4a08c"),
    "phase0": ("#8f99a8", "#7d8796"),
    "phase1": ("#44aa99", "#5cc4b3"),
    "phase2": ("#4b3fa0", "#8f84e0"),
    "phase3": ("#d9c45a", "#e5d477"),
    "phase4": ("#8c8a2e", "#b5b34e"),
    "phase5": ("#882255", "#d0679b"),
}
NUM_COLOURS = len([name for name in COLOURS if re.fullmatch(r"c\d", name)])


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: list[tuple[float, float]]
    colour: int
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
    x_ticks: list[float] | None = None


def ticks(top: float, about: int = 5) -> list[float]:
    if not 0 < top < math.inf:
        return [0.0, 1.0]
    rough = top / about
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (size, 2 * size, 5 * size, 10 * size) if step >= rough * 0.999)
    count = math.ceil(top / step - 1e-9)
    return [index * step for index in range(count + 1)]


def line_chart(axes: Axes, series: list[Series]) -> str:
    points = [point for each in series for point in each.points]
    if not points:
        return empty_chart(axes.title)
    x_ticks = axes.x_ticks or ticks(max(x for x, _ in points))
    y_ticks = ticks(axes.y_top or max(y for _, y in points))

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0]) * (WIDTH - LEFT - RIGHT)
        return across, HEIGHT - BOTTOM - y / y_ticks[-1] * (HEIGHT - TOP - BOTTOM)

    parts = [_grid(axes, [(tick, *place(tick, 0)) for tick in x_ticks], [(tick, *place(0, tick)) for tick in y_ticks])]
    for each in series:
        placed = [place(x, y) for x, y in each.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        shown = f'<polyline class="line c{each.colour % NUM_COLOURS}" points="{path}"/>'
        markers = [_marker(*spot, label, each) for spot, label in zip(placed, each.labels, strict=False)]
        parts.append(f"<g><title>{escape(each.name)}</title>{shown}{''.join(markers)}</g>")
    return _svg(axes.title, HEIGHT, "".join(parts))


def stacked_bars(title: str, unit: str, rows: dict[str, dict[str, float]]) -> str:
    top = max((sum(parts.values()) for parts in rows.values()), default=0.0)
    if top <= 0:
        return empty_chart(title)
    label_width = min(150, 16 + 8 * max(len(name) for name in rows))
    height = TOP + len(rows) * (BAR_HEIGHT + BAR_GAP)
    scale = (WIDTH - label_width - 76) / top
    drawn = []
    for number, (name, parts) in enumerate(rows.items()):
        y, x = TOP + number * (BAR_HEIGHT + BAR_GAP), float(label_width)
        drawn.append(_text(label_width - 8, y + BAR_HEIGHT / 2 + 4, name, "end"))
        for colour, (part, value) in enumerate(parts.items()):
            drawn.append(
                f'<rect class="bar phase{colour}" x="{x:.1f}" y="{y}" width="{value * scale:.1f}" '
                f'height="{BAR_HEIGHT}"><title>{escape(f"{name}, {part}: {value:.3g} {unit}")}</title></rect>'
            )
            x += value * scale
        drawn.append(_text(x + 6, y + BAR_HEIGHT / 2 + 4, f"{sum(parts.values()):.3g} {unit}", "start"))
    return _svg(title, height, "".join(drawn))


def empty_chart(title: str) -> str:
    return _svg(title, 80, _text(WIDTH / 2, 44, "nothing was measured", "middle"))


def legend(names: list[str], kind: str = "c") -> str:
    items = (
        f'<span class="key"><i class="{kind}{index % NUM_COLOURS}"></i>{escape(name)}</span>'
        for index, name in enumerate(names)
    )
    return f'<p class="legend">{"".join(items)}</p>'


def _svg(title: str, height: float, content: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">{content}</svg>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _marker(x: float, y: float, label: str, series: Series) -> str:
    dot = f'<circle class="dot c{series.colour % NUM_COLOURS}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    # Near the right edge the label goes to the left.
    anchor, shift = ("end", -7) if x > WIDTH - RIGHT - 50 else ("start", 7)
    return dot + _text(x + shift, y - 6, label, anchor)


def _grid(axes: Axes, x_ticks: list[tuple[float, float, float]], y_ticks: list[tuple[float, float, float]]) -> str:
    """A tick is (value, x, y)."""
    foot = HEIGHT - BOTTOM
    parts = []
    for value, _, y in y_ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 7, y + 4, f"{value:,g}", "end"))
    for value, x, _ in x_ticks:
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{foot}" y2="{foot + 4}"/>')
        parts.append(_text(x, foot + 17, f"{value:,g}", "middle"))
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{foot}" y2="{foot}"/>')
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, axes.x, "middle"))
    middle = (TOP + foot) / 2
    parts.append(
        f'<text transform="translate(13 {middle:.0f}) rotate(-90)" text-anchor="middle">{escape(axes.y)}</text>'
    )
    return "".join(parts)


LAYOUT = """\
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
main { max-width: 1240px; margin: 0 auto; padding: 36px 20px 60px; }
h1 { font-size: 27px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 19px; margin: 0 0 12px; }
h3 { font-size: 14px; margin: 0 0 6px; font-weight: 600; }
.faint { margin: 0; }
section, details.point {
  background: var(--paper); border: 1px solid var(--rule); border-radius: 12px; padding: 20px 22px; margin-top: 20px;
}
details.point > summary { font-size: 19px; font-weight: 650; cursor: pointer; }
details.point[open] > summary { margin-bottom: 14px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 22px 26px; }
figure { margin: 0; min-width: 0; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--ink); font-size: 12.5px; }
.grid { stroke: var(--rule); }
.axis { stroke: var(--faint); }
.line { fill: none; stroke: currentColor; stroke-width: 2.2; stroke-linejoin: round; }
.bar, .dot { fill: currentColor; }
.dot { stroke: var(--paper); stroke-width: 1.5; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0 0 12px; font-size: 13.5px; }
.key { display: inline-flex; align-items: center; gap: 7px; }
.key i, .meter b { background: currentColor; }
.key i { width: 12px; height: 12px; border-radius: 3px; }
.scroll { overflow-x: auto; }
.overview th:nth-child(2), .overview td:nth-child(2) { text-align: left; }
.overview { font-size: 13.5px; }
.overview th, .overview td { padding: 5px 6px; }
.overview th { white-space: normal; vertical-align: bottom; }
.scroll + .faint { margin-top: 10px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { padding: 5px 9px; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; padding-left: 6px; }
thead th { border-bottom: 2px solid var(--rule); font-weight: 600; }
tbody tr:nth-child(even) td { background: var(--stripe); }
tr.heading th { text-align: left; padding-top: 16px; color: var(--faint); font-weight: 600; }
.meter { display: inline-block; width: 48px; height: 9px; border-radius: 5px; background: var(--rule);
  margin-left: 8px; vertical-align: middle; }
.meter b { display: block; height: 100%; border-radius: 5px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 20px; margin: 0; }
dt { color: var(--faint); }
dd { margin: 0; overflow-wrap: anywhere; }
.point .scroll { margin-top: 22px; }
@media (max-width: 1000px) {
  .overview thead { display: none; }
  .overview tr { display: grid; grid-template-columns: repeat(auto-fill, minmax(130px, 1fr)); gap: 2px 14px;
    padding: 10px 0; border-bottom: 1px solid var(--rule); }
  .overview td, .overview td:first-child { display: block; padding: 0; text-align: left; white-space: normal;
    background: none !important; }
  .overview td::before { content: attr(data-label); display: block; color: var(--faint); font-size: 12px; }
}
@media (max-width: 560px) { dl { grid-template-columns: 1fr; } dd { margin-bottom: 8px; } }
@media print { body { background: none; } section, details.point { break-inside: avoid; } }
"""


def stylesheet() -> str:
    light, dark = ("".join(f"--{name}: {pair[theme]}; " for name, pair in COLOURS.items()) for theme in (0, 1))
    classes = "".join(f".{name} {{ color: var(--{name}); }}\n" for name in COLOURS)
    return (
        f":root {{ color-scheme: light dark; {light}}}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n{LAYOUT}{classes}"
    )
