"""The page's looks, light and dark. Nothing is fetched: fonts are the reader's own."""

# Colours that stay apart for most colour-blind readers (after Okabe and Ito); lighter ones on dark.
STYLE = """
:root {
  color-scheme: light dark;
  --ground: #f6f7f9; --paper: #ffffff; --ink: #1b2330; --faint: #5c6675; --line: #dfe3e9; --stripe: #f3f5f8;
  --bad: #b3261e;
  --c0: #0b6fb8; --c1: #d55e00; --c2: #00866a; --c3: #b8528f; --c4: #b98500; --c5: #3aa0d8; --c6: #6a50b8;
  --c7: #7a5a48;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #10141b; --paper: #181e28; --ink: #e6eaf0; --faint: #9aa5b4; --line: #2d3644; --stripe: #1d2430;
    --bad: #ff8a80;
    --c0: #5ab0f0; --c1: #ff9248; --c2: #3fc9a4; --c3: #e88cc2; --c4: #e8bd4a; --c5: #8cd3f7; --c6: #a996f0;
    --c7: #c4a08c;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
main { max-width: 1120px; margin: 0 auto; padding: 36px 20px 60px; }
h1 { font-size: 27px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 19px; margin: 0 0 12px; }
h3 { font-size: 14px; margin: 0 0 6px; font-weight: 600; }
.faint { color: var(--faint); margin: 0; }
.bad { color: var(--bad); }
section, details.point {
  background: var(--paper); border: 1px solid var(--line); border-radius: 12px; padding: 20px 22px; margin-top: 20px;
}
details.point > summary { font-size: 19px; font-weight: 650; cursor: pointer; }
details.point[open] > summary { margin-bottom: 14px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(310px, 1fr)); gap: 22px 26px; }
figure { margin: 0; min-width: 0; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--faint); font-size: 11.5px; }
.grid { stroke: var(--line); }
.axis { stroke: var(--faint); }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
.dot { stroke: var(--paper); stroke-width: 1.5; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0 0 12px; font-size: 13.5px; }
.key { display: inline-flex; align-items: center; gap: 7px; }
.key i { width: 12px; height: 12px; border-radius: 3px; }
.scroll { overflow-x: auto; }
.overview th:nth-child(2), .overview td:nth-child(2) { text-align: left; }
.scroll + .faint { margin-top: 10px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { padding: 5px 9px; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; padding-left: 6px; }
thead th { border-bottom: 2px solid var(--line); font-weight: 600; }
tbody tr:nth-child(even) td { background: var(--stripe); }
tr.heading th { text-align: left; padding-top: 16px; color: var(--faint); font-weight: 600; }
.meter { display: inline-block; width: 72px; height: 9px; border-radius: 5px; background: var(--line);
  margin-left: 10px; vertical-align: middle; }
.meter b { display: block; height: 100%; border-radius: 5px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 20px; margin: 0; }
dt { color: var(--faint); }
dd { margin: 0; overflow-wrap: anywhere; }
.point .scroll { margin-top: 22px; }
@media (max-width: 560px) { dl { grid-template-columns: 1fr; } dd { margin-bottom: 8px; } }
@media print { body { background: none; } section, details.point { break-inside: avoid; } }
""" + "".join(
    f".line.c{n} {{ stroke: var(--c{n}); }} .bar.c{n}, .dot.c{n} {{ fill: var(--c{n}); }} "
    f".key i.c{n}, .meter b.c{n} {{ background: var(--c{n}); }}\n"
    for n in range(8)
)
