"""The page's one style sheet: light and dark by the reader's own setting, narrow and wide, on screen and on paper."""

STYLE = """
:root { color-scheme: light dark;
  --paper: #fcfcfa; --card: #ffffff; --ink: #1a1a1a; --quiet: #595959; --rule: #d9d9d4; --band: #f1f1ec;
  --same: #00694c; --differs: #a83a00; --maybe: #7a5600; --line: #005a8d;
  --same-back: #e3f3ec; --differs-back: #fbe9e0; --maybe-back: #faf0d7; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #16181c; --card: #1e2126; --ink: #e9e7e2; --quiet: #a9a8a3; --rule: #3a3e45; --band: #22262c;
  --same: #5fd0a6; --differs: #ff9a66; --maybe: #f0c453; --line: #6cb8ec;
  --same-back: #15332a; --differs-back: #3d2114; --maybe-back: #362b10; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.35rem; line-height: 1.35; margin: .4rem 0 .6rem; text-wrap: balance; }
h2 { font-size: 1.05rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 0 0 .4rem; }
p { margin: .4rem 0; max-width: 46rem; }
code, pre { font: .88em/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
pre { white-space: pre-wrap; background: var(--band); padding: .6rem .8rem; border-radius: 4px; margin: .4rem 0; }
.quiet { color: var(--quiet); }
.eyebrow { color: var(--quiet); font-size: .85rem; }
.verdict { display: inline-block; font-weight: 700; padding: .1rem .7rem; border-radius: 1rem; border: 1.5px solid; }
.same { color: var(--same); background: var(--same-back); }
.differs { color: var(--differs); background: var(--differs-back); }
.maybe { color: var(--maybe); background: var(--maybe-back); }
.card { background: var(--card); border: 1px solid var(--rule); border-left: 4px solid var(--differs);
  border-radius: 4px; padding: .8rem 1rem; margin: .6rem 0; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .15rem 1rem; margin: .4rem 0; }
dt { color: var(--quiet); }
dd { margin: 0; overflow-wrap: anywhere; }
ol.chain { list-style: none; padding: 0; margin: .4rem 0; border-left: 2px solid var(--rule); }
ol.chain li { padding: .15rem 0 .15rem 1.3rem; position: relative; overflow-wrap: anywhere; }
ol.chain .mark { position: absolute; left: -.62rem; width: 1.15rem; height: 1.15rem; line-height: 1.15rem; top: .3rem;
  text-align: center; border-radius: 50%; font-size: .75rem; font-weight: 700; background: var(--paper); }
ol.chain code { display: block; color: var(--quiet); }
.ok { color: var(--same); } .bad { color: var(--differs); } .off { color: var(--quiet); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; width: 100%; }
th, td { padding: .18rem .6rem .18rem 0; text-align: left; border-bottom: 1px solid var(--rule); white-space: nowrap; }
tbody th { font: .95em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
thead th { color: var(--quiet); font-weight: 600; }
.n { text-align: right; font-variant-numeric: tabular-nums; }
tr.local > * { background: var(--differs-back); } tr.local > :last-child { color: var(--differs); font-weight: 600; }
tr.inherited > :last-child { color: var(--maybe); }
details > summary { cursor: pointer; padding: .2rem 0; }
figure { margin: .4rem 0; } figcaption { color: var(--quiet); font-size: .88rem; max-width: 46rem; }
svg { display: block; min-width: 40rem; width: 100%; height: auto; color: var(--ink); }
svg text { font: 12px system-ui, sans-serif; fill: var(--quiet); }
svg text.name { font: 600 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: var(--differs); }
svg .band { fill: var(--band); } svg .grid { stroke: var(--rule); stroke-width: 1; }
svg .budget { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 6 4; } svg text.budget-text { fill: var(--ink); }
svg .total { fill: none; stroke: var(--line); stroke-width: 1.5; } svg .dot { fill: var(--line); }
svg .lead { stroke: var(--differs); stroke-width: 1; stroke-dasharray: 1 3; }
svg .stem { stroke: var(--quiet); stroke-width: 3; } svg .stem.over { stroke: var(--differs); stroke-width: 4; }
.key { display: inline-block; width: 1.6rem; height: .8em; vertical-align: -.05em; margin-right: .3rem; }
.key.a { background: linear-gradient(var(--line), var(--line)) center / 100% 2px no-repeat; }
.key.b { border-left: 4px solid var(--quiet); width: .6rem; } .key.c { border-left: 4px solid var(--differs); width: .6rem; }
.names code { margin-right: .5rem; white-space: nowrap; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; } }
@media print { .scroll { overflow: visible; } svg { min-width: 0; } .card, li { break-inside: avoid; } }
"""
