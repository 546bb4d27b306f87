"""The report page's style sheet: light, dark, narrow and printed."""

from __future__ import annotations

CSS = """\
:root {
  color-scheme: light dark;
  --paper: #fdfdfc; --ink: #1c1d1f; --soft: #5d6168; --line: #d9dadd; --fill: #f4f4f1;
  --published: #1f5f99; --bad: #b3261e; --plot: #ffffff;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #17181a; --ink: #e8e8e6; --soft: #a0a4ab; --line: #36393e; --fill: #202225;
    --published: #8fbdec; --bad: #f2867d; --plot: #f7f7f5;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 80rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif;
}
header { border-bottom: 2px solid var(--ink); margin-bottom: 2rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
p, li, dd { max-width: 52rem; }
header p { color: var(--soft); margin: 0 0 1rem; max-width: 60rem; }
a { color: var(--published); }
figure { margin: .5rem 0 1.5rem; }
figcaption { color: var(--soft); font-size: .85rem; line-height: 1.45; margin-top: .5rem; max-width: 60rem; }
.scroll { overflow-x: auto; }
.scroll:focus-visible { outline: 2px solid var(--published); }
table {
  border-collapse: collapse; font-size: .82rem; line-height: 1.35; font-variant-numeric: tabular-nums;
  border-top: 1.5px solid var(--ink); border-bottom: 1.5px solid var(--ink);
}
th, td { padding: .35rem .5rem; vertical-align: baseline; }
thead th { font-weight: 600; vertical-align: bottom; max-width: 7.25rem; }
thead tr:last-child th { border-bottom: 1px solid var(--ink); }
.groups th { text-align: center; font-weight: 600; color: var(--soft); padding-bottom: 0; }
.groups th:not(:empty) { box-shadow: inset 0 -1px var(--line); }
.left { text-align: left; }
.num { text-align: right; }
td.num { white-space: nowrap; }
td.left.note { min-width: 9rem; }
td.left { max-width: 26rem; overflow-wrap: break-word; }
tbody th { font-weight: 600; white-space: nowrap; }
tbody tr:nth-child(even) { background: var(--fill); }
.published { color: var(--published); font-style: italic; font-family: Georgia, "Times New Roman", "DejaVu Serif", serif; }
.note { color: var(--soft); }
.bad { color: var(--bad); }
.best { font-weight: 700; }
.plot { display: inline-block; max-width: 100%; margin-right: 1rem; vertical-align: top; }
.plot svg { background: var(--plot); border: 1px solid var(--line); border-radius: 4px; max-width: 100%; height: auto; display: block; }
.plot figcaption { max-width: 34rem; }
ul { padding-left: 1.2rem; }
dl { display: grid; grid-template-columns: minmax(8rem, max-content) 1fr; gap: .25rem 1.2rem; font-size: .88rem; margin: .5rem 0; }
dt { color: var(--soft); overflow-wrap: anywhere; }
dd { margin: 0; overflow-wrap: anywhere; }
summary { cursor: pointer; color: var(--soft); font-size: .88rem; }
@media (max-width: 40rem) {
  body { padding: 1.25rem .9rem 3rem; font-size: 15px; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .6rem; }
  tbody th { white-space: normal; }
  .plot svg { max-width: none; width: 38rem; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  .scroll { overflow: visible; }
  table { font-size: 7.5pt; }
  th, td { padding: .2rem .3rem; }
  figure { break-inside: avoid; }
  details:not([open]) { display: none; }
}
"""
