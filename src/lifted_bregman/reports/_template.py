"""The HTML of a page, as a jinja2 template: `page` is a `Page`, `light` and `dark` are palettes."""

TEMPLATE = """\
{% macro legend(chart) %}
{% if chart.curves | length > 1 %}
<ul class="legend" aria-label="Legend">
{% for name, colour, line in chart.legend() %}
<li><i style="border-top-style: {{ line }}; border-top-color: var(--curve-{{ colour }})"></i>{{ name }}</li>
{% endfor %}
</ul>
{% endif %}
{% endmacro %}
<!doctype html>
<html lang="en-GB">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ page.title }}</title>
<style>
:root { color-scheme: light dark; {{ light | colours }} }
@media (prefers-color-scheme: dark) {
  :root { {{ dark | colours }} }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 1.0625rem/1.6 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: clamp(1.6rem, 4vw, 2.3rem); line-height: 1.2; margin: 0 0 .75rem; text-wrap: balance; }
h2 { font-size: 1.35rem; line-height: 1.3; margin: 3rem 0 .75rem; }
h3 { font-size: 1.05rem; line-height: 1.4; margin: 1.75rem 0 .5rem; }
section { border-top: 1px solid var(--rule); margin-top: 3rem; }
section h2 { margin-top: 1rem; }
p { margin: .75rem 0; max-width: 46rem; }
.summary { font-size: 1.15rem; color: var(--soft); }
a { color: var(--link); }
nav ol { padding-left: 1.4rem; margin: 1.25rem 0; }
figure { margin: 1.75rem 0; }
img { display: block; width: 100%; height: auto; }
img.white { background: #ffffff; border-radius: .5rem; }
figcaption { color: var(--soft); font-size: .95rem; line-height: 1.5; margin: .75rem 0; max-width: 46rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .45rem 1.1rem .45rem 0; text-align: left; border-bottom: 1px solid var(--rule); }
th { font-weight: 600; border-bottom-width: 2px; vertical-align: bottom; }
.number { text-align: right; }
td.number { white-space: nowrap; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.75rem; list-style: none; margin: 0 0 .5rem; padding: 0; }
.legend i { display: inline-block; width: 2.25rem; margin-right: .6rem; vertical-align: .28em; border-top: 3px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); gap: 1.5rem 2rem; }
.charts h3 { font-size: 1rem; line-height: 1.4; margin: .5rem 0 .25rem; }
.charts svg { display: block; width: 100%; height: auto; max-width: 34rem; overflow: visible; }
.charts svg text, .charts svg tspan { font-family: system-ui, sans-serif; }
.strips { display: grid; grid-template-columns: minmax(max-content, 7rem) 1fr; gap: .5rem 1rem; max-width: 52rem; }
.strips > * { align-self: center; margin: 0; }
.strips img { image-rendering: pixelated; }
.finding { border-left: .3rem solid; margin: 1.25rem 0; max-width: 46rem; padding-left: .9rem; }
.finding > p { margin: 0; }
.finding > p:not(:first-child), details { color: var(--soft); font-size: .95rem; }
details p { margin: .35rem 0; }
pre { overflow-x: auto; padding: .9rem 1.1rem; border: 1px solid var(--rule); border-radius: .4rem; }
code { font: .95rem/1.5 ui-monospace, monospace; }
@media (max-width: 36rem) {
  main { padding-top: 1.5rem; }
  th, td { padding-right: .8rem; font-size: .95rem; }
  code { font-size: .85rem; }
  .strips { grid-template-columns: 1fr; gap: .2rem; }
  .strips img { margin-bottom: .6rem; }
}
</style>
</head>
<body>
<main>
<h1>{{ page.title }}</h1>
<p class="summary">{{ page.summary }}</p>
<nav aria-label="Contents">
<ol>
{% for section in page.sections %}
<li><a href="#section-{{ loop.index }}">{{ section.title }}</a></li>
{% endfor %}
</ol>
</nav>
{% for section in page.sections %}
<section aria-labelledby="section-{{ loop.index }}">
<h2 id="section-{{ loop.index }}">{{ section.title }}</h2>
{% for block in section.blocks %}
{% if block is figure %}
<figure>
<picture>
{% if block.dark %}
<source media="(prefers-color-scheme: dark)" srcset="{{ block.dark | data_uri }}">
{% endif %}
<img{% if not block.dark %} class="white"{% endif %} src="{{ block.path | data_uri }}" alt="{{ block.alt }}">
</picture>
<figcaption>{{ block.caption }}</figcaption>
</figure>
{% elif block is table %}
<figure>
<figcaption>{{ block.caption }}</figcaption>
<div class="scroll" tabindex="0" role="region" aria-label="{{ block.caption }}">
<table>
<thead><tr>
{% for name in block.header %}
<th scope="col"{% if block.is_numeric(loop.index0) %} class="number"{% endif %}>{{ name }}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for row in block.rows %}
<tr>
{% for value in row %}
<td{% if block.is_numeric(loop.index0) %} class="number"{% endif %}>{{ value | cell }}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
</div>
</figure>
{% elif block is charts %}
<figure>
{% if block.shared %}
{{ legend(block.charts[0]) }}
{% endif %}
<div class="charts">
{% for chart in block.charts %}
<div>
<h3>{{ chart.title }}{% if chart.logarithmic %} (log scale){% endif %}</h3>
{% if not block.shared %}
{{ legend(chart) }}
{% endif %}
<div role="img" aria-label="{{ chart.alt }}">{{ chart | drawing }}</div>
</div>
{% endfor %}
</div>
{% if block.caption %}
<figcaption>{{ block.caption }}</figcaption>
{% endif %}
</figure>
{% elif block is strips %}
<figure>
<div class="strips">
{% for strip in block.strips %}
<p>{{ strip.label }}</p>
<img src="{{ strip | strip_uri }}" alt="{{ strip.label }}: {{ block.alt }}">
{% endfor %}
</div>
<figcaption>{{ block.caption }}</figcaption>
</figure>
{% elif block is listing %}
<pre tabindex="0"><code>{{ block.text }}</code></pre>
{% elif block is heading %}
<h3>{{ block.text }}</h3>
{% elif block is finding %}
<div class="finding" style="border-color: var(--{{ block.colour }})">
<p><strong>{{ block.verdict }}</strong> · {{ block.statement }}</p>
{% for line in block.lines %}
<p>{{ line }}</p>
{% endfor %}
{% if block.more %}
<details>
<summary>{{ block.more[0] }}</summary>
{% for line in block.more[1] %}
<p>{{ line }}</p>
{% endfor %}
</details>
{% endif %}
{% for line in block.code %}
<p><code>{{ line }}</code></p>
{% endfor %}
</div>
{% else %}
<p>{{ block.text }}</p>
{% endif %}
{% endfor %}
</section>
{% endfor %}
</main>
</body>
</html>
"""
