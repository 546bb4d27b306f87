"""The report page's style sheet: light, dark, narrow and printed."""

from __future__ import annotations

from vitssl.report.figures.style import COLOURS, DARK_COLOURS


def _colours(colours: tuple[str, ...]) -> str:
    return " ".join(f"--arm-{i}: {colour};" for i, colour in enumerate(colours))


CSS = (
    ":root {\n  " + _colours(COLOURS) + "\n}\n"
    "@media (prefers-color-scheme: dark) { :root {\n  " + _colours(DARK_COLOURS) + "\n} }\n"
    "@media print { :root {\n  " + _colours(COLOURS) + "\n} }\n"
    """\
:root {
  color-scheme: light dark;
  --paper: #fdfdfc; --ink: #1c1d1f; --soft: #5d6168; --line: #dcdcda; --fill: #80808012; --shade: #00000030;
  --published: #1f5f99; --bad: #b3261e;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #17181a; --ink: #e8e8e6; --soft: #a0a4ab; --line: #36393e; --fill: #80808018; --shade: #000000b0;
    --published: #8fbdec; --bad: #f2867d;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.25rem 2rem 4rem; max-width: 86rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 var(--sans);
}
header { border-bottom: 2px solid var(--ink); padding-bottom: .8rem; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 0 0 .7rem; }
h3 { font-size: .95rem; margin: 0 0 .4rem; }
header p { color: var(--soft); margin: 0; }
header p + p { margin-top: .35rem; }
header .warning { color: var(--ink); }
a { color: var(--published); text-underline-offset: .15em; }
.links a { white-space: nowrap; margin-right: .9rem; }
nav { font-size: .84rem; color: var(--soft); margin-top: .35rem; }
.more { display: flex; flex-wrap: wrap; column-gap: 2.5rem; margin-top: 1rem; }
.more > section { flex: 1 1 auto; max-width: 100%; min-width: 0; border-top: 1px solid var(--line); }
.more > section { margin-top: 1.8rem; padding-top: 1.6rem; }
.more > section.whole { flex-basis: 100%; }
figure { margin: 0; min-width: 0; max-width: 100%; }
figcaption, .caption { color: var(--soft); font-size: .8rem; line-height: 1.45; margin-top: .45rem; }
.first { display: grid; gap: 1.6rem 2.5rem; padding-top: 1.6rem; }
.found ul { margin: 0; padding: 0; list-style: none; width: 0; min-width: 100%; }
.found li { padding: .55rem 0; border-top: 1px solid var(--line); }
.found li:first-child { font-size: 1.15rem; line-height: 1.4; }
.lead { display: block; font-size: .78rem; font-weight: 600; color: var(--soft); }
.front .block + .block, .main section + section { margin-top: 1.8rem; }
.found, .main, .front { min-width: 0; }
.row { display: flex; flex-wrap: wrap; gap: 1.6rem 2.5rem; align-items: flex-start; }
.row > figure, .row > .block { flex: 0 1 auto; }
.block { min-width: 0; max-width: 100%; }
@media (min-width: 64rem) {
  .first { grid-template: "found front" auto "main front" 1fr / minmax(31rem, max-content) minmax(24rem, 1fr); }
  .first.wide { grid-template: "found" auto "main" auto "front" auto / minmax(0, 1fr); }
  .first.wide .found ul { display: grid; grid-template-columns: 1fr 1fr; column-gap: 2.5rem; }
  .first.wide .front { display: flex; flex-wrap: wrap; gap: 1.8rem 2.5rem; }
  .first.wide .front .block { margin: 0; }
  .found { grid-area: found; }
  .main { grid-area: main; }
  .front { grid-area: front; }
  .more .lines, .pairs dl { columns: 2; column-gap: 2.5rem; }
  .lines li, .pairs dl div { break-inside: avoid; }
}
.scroll {
  overflow-x: auto; overflow-y: hidden;
  /* a shadow at the edge behind which there is more */
  background:
    linear-gradient(90deg, var(--paper) 40%, transparent) 0 0 / 3rem 100% local,
    linear-gradient(270deg, var(--paper) 40%, transparent) 100% 0 / 3rem 100% local,
    linear-gradient(90deg, var(--shade), transparent) 0 0 / .8rem 100% scroll,
    linear-gradient(270deg, var(--shade), transparent) 100% 0 / .8rem 100% scroll;
  background-repeat: no-repeat;
}
.scroll:focus-visible, th:focus-visible { outline: 2px solid var(--published); }
table {
  border-collapse: separate; border-spacing: 0; font-size: .84rem; line-height: 1.35; font-variant-numeric: tabular-nums;
  border-top: 1.5px solid var(--ink); border-bottom: 1.5px solid var(--ink);
}
th, td { padding: .36rem .55rem; vertical-align: baseline; }
th:first-child, td:first-child { padding-left: .25rem; }
thead th { font-weight: 600; vertical-align: bottom; max-width: 8.5rem; }
thead tr:last-child th { border-bottom: 1px solid var(--ink); }
thead th[tabindex] { cursor: pointer; }
thead th[tabindex]:hover { color: var(--published); }
th[aria-sort=ascending]::after { content: " \\2191"; }
th[aria-sort=descending]::after { content: " \\2193"; }
.groups th { text-align: center; font-weight: 600; color: var(--soft); padding-bottom: 0; max-width: none; }
.groups th:not(:empty) { box-shadow: inset 0 -1px var(--line); }
.left { text-align: left; }
.num { text-align: right; }
td.num { white-space: nowrap; }
td.left.note { min-width: 9rem; }
td.left { max-width: 26rem; overflow-wrap: break-word; }
tbody th { font-weight: 600; white-space: nowrap; }
tbody tr:nth-child(even) { background: var(--fill); }
.scroll th:first-child { position: sticky; left: 0; background-color: var(--paper); }
.scroll tbody tr:nth-child(even) > th:first-child { background-image: linear-gradient(var(--fill), var(--fill)); }
.cut th:first-child { box-shadow: 1px 0 var(--line); }
.cut > figcaption::before { content: "\\2194  Wider than the page: scroll sideways. "; color: var(--ink); }
.published { color: var(--published); font-style: italic; font-family: Georgia, "Times New Roman", "DejaVu Serif", serif; }
.note { color: var(--soft); }
.bad { color: var(--bad); }
.best { font-weight: 700; }
.plot svg { display: block; height: auto; max-width: 100%; }
figcaption { width: 0; min-width: max(100%, min(24rem, 100vw - 2rem)); }
.first:not(.wide) .front svg { width: 100%; max-width: 38rem; }
.row > .plot:not(.panels) { flex: 1 1 auto; max-width: 34rem; }
.row > .plot:not(.panels) svg { width: 100%; }
.files { font-size: .8rem; }
.seen img { display: block; image-rendering: pixelated; max-width: none; border-radius: 3px; }
.seen .strip { display: grid; grid-template-columns: auto auto; column-gap: .7rem; align-items: center; width: max-content; }
.seen .names { display: grid; font-size: .75rem; color: var(--soft); text-align: right; height: 100%; align-items: center; }
.switch > input { position: absolute; opacity: 0; pointer-events: none; }
.switch > label { cursor: pointer; font-size: .85rem; color: var(--soft); margin-right: 1rem; border-bottom: 2px solid transparent; }
.switch > input:checked + label { color: var(--ink); border-color: var(--ink); }
.switch > input:focus-visible + label { outline: 2px solid var(--published); }
.switch > figure { display: none; margin-top: .8rem; }
.switch > input:nth-of-type(1):checked ~ figure:nth-of-type(1) { display: block; }
.switch > input:nth-of-type(2):checked ~ figure:nth-of-type(2) { display: block; }
.switch > input:nth-of-type(3):checked ~ figure:nth-of-type(3) { display: block; }
pre {
  white-space: pre-wrap; overflow-wrap: anywhere; font: .88rem/1.5 var(--sans); background: var(--fill); border: 1px solid var(--line);
  border-radius: 4px; padding: .8rem 1rem; margin: 0; max-width: 62rem; user-select: all;
}
pre.trace { font: .75rem/1.4 ui-monospace, "DejaVu Sans Mono", monospace; user-select: auto; max-width: none; margin-top: .4rem; }
button { font: inherit; font-size: .8rem; margin-top: .5rem; }
button { color: var(--ink); background: var(--fill); border: 1px solid var(--line); border-radius: 4px; }
ul { padding-left: 1.2rem; margin: 0; }
li { overflow-wrap: break-word; }
dl { font-size: .86rem; margin: 0; }
dl div { display: grid; grid-template-columns: minmax(8rem, 13rem) 1fr; gap: .8rem; padding: .18rem 0; }
dt { color: var(--soft); overflow-wrap: anywhere; }
dd { margin: 0; overflow-wrap: anywhere; }
summary { cursor: pointer; color: var(--soft); font-size: .88rem; margin: .8rem 0 .4rem; }
@media (max-width: 40rem) {
  body { padding: 1.1rem .9rem 3rem; font-size: 15px; }
  h1 { font-size: 1.45rem; }
  dl div { grid-template-columns: 1fr; gap: 0; padding: .3rem 0; }
  tbody th { white-space: normal; max-width: 40vw; overflow-wrap: break-word; }
  th, td { padding: .36rem .32rem; }
  .interval { display: block; }
  .seen .strip { width: auto; }
  .seen img { max-width: 100%; height: auto; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  .scroll { overflow: visible; }
  table { font-size: 7.5pt; }
  th, td { padding: .2rem .3rem; }
  figure { break-inside: avoid; }
  .plot svg { min-width: 0 !important; }
  details:not([open]), button, .switch > label { display: none; }
}
"""
)
