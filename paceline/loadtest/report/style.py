"""The page's looks, light and dark. Nothing is fetched: fonts are the reader's own."""

# Colours that stay apart for most colour-blind readers (after Okabe and Ito); lighter ones on dark.
STYLE = (
    """
:root {
  color-scheme: light dark;
  --ground: #f6f7f9; --paper: #ffffff; --ink: #1b2330; --faint: #5c6675; --line: #dfe3e9; --stripe: #f3f5f8;
  --bad: #b3261e;
  --c0: #0b6fb8; --c1: #d55e00; --c2: #00866a; --c3: #b8528f; --c4: #b98500; --c5: #3aa0d8; --c6: #6a50b8;
  --c7: #7a5a48;
  --phase0: #8f99a8; --phase1: #44aa99; --phase2: #4b3fa0; --phase3: #d9c45a; --phase4: #8c8a2e; --phase5: #882255;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #10141b; --paper: #181e28; --ink: #e6eaf0; --faint: #9aa5b4; --line: #2d3644; --stripe: #1d2430;
    --bad: #ff8a80;
    --c0: #5ab0f0; --c1: #ff9248; --c2: #3fc9a4; --c3: #e88cc2; --c4: #e8bd4a; --c5: #8cd3f7; --c6: #a996f0;
    --c7: #c4a08c;
    --phase0: #7d8796; --phase1: #5cc4b3; --phase2: #8f84e0; --phase3: #e5d477; --phase4: #b5b34e; --phase5: #d0679b;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
main { max-width: 1240px; margin: 0 auto; padding: 36px 20px 60px; }
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
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 22px 26px; }
figure { margin: 0; min-width: 0; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--ink); font-size: 12.5px; }
.grid { stroke: var(--line); }
.axis { stroke: var(--faint); }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
.dot { stroke: var(--paper); stroke-width: 1.5; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0 0 12px; font-size: 13.5px; }
.key { display: inline-flex; align-items: center; gap: 7px; }
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
thead th { border-bottom: 2px solid var(--line); font-weight: 600; }
tbody tr:nth-child(even) td { background: var(--stripe); }
tr.heading th { text-align: left; padding-top: 16px; color: var(--faint); font-weight: 600; }
.meter { display: inline-block; width: 48px; height: 9px; border-radius: 5px; background: var(--line);
  margin-left: 8px; vertical-align: middle; }
.meter b { display: block; height: 100%; border-radius: 5px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 20px; margin: 0; }
dt { color: var(--faint); }
dd { margin: 0; overflow-wrap: anywhere; }
.point .scroll { margin-top: 22px; }
@media (max-width: 1000px) {
  .overview thead { display: none; }
  .overview tr { display: grid; grid-template-columns: repeat(auto-fill, minmax(130px, 1fr)); gap: 2px 14px;
    padding: 10px 0; border-bottom: 1px solid var(--line); }
  .overview td, .overview td:first-child { display: block; padding: 0; text-align: left; white-space: normal;
    background: none !important; }
  .overview td::before { content: attr(data-label); display: block; color: var(--faint); font-size: 12px; }
}
@media (max-width: 560px) { dl { grid-template-columns: 1fr; } dd { margin-bottom: 8px; } }
@media print { body { background: none; } section, details.point { break-inside: avoid; } }
"""
    + "".join(
        f".line.c{n} {{ stroke: var(--c{n}); }} .bar.c{n}, .dot.c{n} {{ fill: var(--c{n}); }} "
        f".key i.c{n}, .meter b.c{n} {{ background: var(--c{n}); }}\n"
        for n in range(8)
    )
    + "".join(
        f".bar.phase{n}, .key i.phase{n} {{ fill: var(--phase{n}); background: var(--phase{n}); }}\n" for n in range(6)
    )
)
