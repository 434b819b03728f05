"""The page's style sheet: light and dark, wide and narrow, without external resources."""

CSS = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1f2328; --muted: #57606a; --line: #d8dee4; --soft: #f6f8fa;
  --accent: #0072b2; --shade: 213 94 0;
  --curve-0: #0072b2; --curve-1: #d55e00; --curve-2: #009e73;
  --curve-3: #b0568c; --curve-4: #b87f00; --curve-5: #2f93cf;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15191e; --ink: #e6eaee; --muted: #9aa5b1; --line: #313941; --soft: #1c2127;
    --accent: #5ab4e5; --shade: 230 120 40;
    --curve-0: #5ab4e5; --curve-1: #f08a4b; --curve-2: #3cc79b;
    --curve-3: #e39bc6; --curve-4: #f0b93a; --curve-5: #9ad4f5;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 66rem;
  background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .75rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 3rem 0 .75rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; }
h3 span { font-weight: 400; }
p { max-width: 44rem; margin: .5rem 0; }
.eyebrow { color: var(--muted); margin: 0 0 .25rem; }
.lead { font-size: 1.1rem; }
.note { color: var(--muted); }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .9em; }
code { overflow-wrap: anywhere; }
pre {
  background: var(--soft); border: 1px solid var(--line); border-radius: 6px;
  padding: .75rem 1rem; overflow-x: auto;
}
.scroll { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .4rem 1.25rem .4rem 0; }
th:last-child, td:last-child { padding-right: 0; }
th { font-weight: 500; }
thead th { color: var(--muted); }
tr { border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; }
td.number { white-space: nowrap; }
thead th { overflow-wrap: anywhere; min-width: 5rem; }
tbody th .note { font-weight: 400; font-size: .9rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
  gap: 0 3rem; }
.bars { display: grid; grid-template-columns: max-content minmax(4rem, 1fr) max-content;
  gap: .3rem .9rem; align-items: center; margin: .5rem 0 1rem; max-width: 44rem;
  font-variant-numeric: tabular-nums; }
.bars .track { background: var(--soft); border-radius: 3px; }
.bars .fill { display: block; height: 1rem; border-radius: 3px; min-width: 2px;
  background: var(--muted); opacity: .45; }
.bars .own { background: var(--accent); opacity: 1; }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
  gap: 1.75rem 2rem; }
figure { margin: 0; min-width: 0; }
figcaption { margin-bottom: .4rem; }
figcaption span { display: block; color: var(--muted); }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: inherit; }
.sentence { display: flex; flex-wrap: wrap; align-items: flex-end; gap: .1rem .15rem;
  margin: 1.25rem 0 .25rem; }
.token { display: inline-flex; flex-direction: column; align-items: center; line-height: 1.3; }
.token .original { font-size: .8rem; color: var(--muted); text-decoration: line-through; }
.token .text { padding: .1rem .35rem; border-radius: 4px; white-space: pre;
  border: 2px solid transparent;
  background: rgb(var(--shade) / calc(var(--prob) * .55)); }
.token .prob { font-size: .7rem; color: var(--muted); font-variant-numeric: tabular-nums; }
.token.replaced .text { border-color: var(--ink); font-weight: 600; }
.token.suspected .prob { color: var(--ink); font-weight: 700; }
dl { columns: 2 26rem; column-gap: 3rem; }
dl div { break-inside: avoid; padding-bottom: .9rem; }
dt { font-weight: 600; }
dt span { font-weight: 400; color: var(--muted); }
dd { margin: .1rem 0 0; }
details { margin: 1rem 0; }
summary { cursor: pointer; color: var(--muted); }
@media (max-width: 30rem) {
  body { padding: 1.5rem 1rem 3rem; }
  th, td { padding-right: .75rem; }
}
@media print { body { max-width: none; } figure, .sentence { break-inside: avoid; } }
"""
