"""One self-contained page about a run: scores, what was trained, pictures, warnings, and the next command.

The page is made from the files in the folder of a run (see kit/run/workflow.py), so it can be written again at any
time. It loads no file and no address.
"""
import base64
import json
import re
from pathlib import Path

import jinja2
import pandas as pd

from kit.files import replace_file
from kit.run.workflow import SCORE_COLUMNS

SHOWN = ("03", "04", "05")       # the pictures of these notebooks are open; the others unfold
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 86rem; padding: 1rem; color: #1a1a1a }
body { overflow-wrap: anywhere } .warning li { white-space: pre-line }
h1 { font-size: 1.6rem; margin: 0.5rem 0 } h2 { font-size: 1.2rem; margin: 2rem 0 0.5rem }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: 0.85rem; width: 100% }
th, td { padding: 0.2rem 0.6rem 0.2rem 0; text-align: left; border-bottom: 1px solid #ddd; overflow-wrap: normal }
th { vertical-align: bottom } td { white-space: nowrap }
.number { text-align: right; font-variant-numeric: tabular-nums }
tr.first td { font-weight: 600 } .bar { display: block; width: 8rem; height: 1.1rem }
figure { margin: 1rem 0 } img { max-width: 100%; height: auto } figcaption { font-size: 0.85rem; color: #555 }
code, pre { font: 0.85rem/1.4 ui-monospace, monospace; background: #f4f4f4; overflow-wrap: anywhere }
pre { padding: 0.6rem; white-space: pre-wrap } .warning { border-left: 4px solid #c60; padding-left: 0.7rem }
.fine { border-left: 4px solid #2a7; padding-left: 0.7rem } summary { cursor: pointer }
</style></head>
<body><h1>{{ title }}</h1>
{%- if rows is not none %}
<p><code>submission.csv</code>: {{ rows }} rows, {{ "does not pass the check, see the warnings" if faulty
                                                     else "checked" }}.</p>
{%- endif %}
{%- if problems %}
<h2>Warnings</h2><div class="warning"><ul>
{%- for path, why in problems %}<li>{{ why if path in why else path ~ ": " ~ why }}</li>{% endfor %}</ul></div>
{%- else %}
<p class="fine">No file was left out.</p>
{%- endif %}
{%- if scores %}
<h2>Scores</h2><p>Kendall's tau for layouts, 2 - (best of five) / (best of all) for tiles. A bar goes from 0 to 1: the
band is the 95% interval, the upright black line is the noise ceiling. "Lead" is how far the ensemble is ahead.</p>
<div class="wide"><table><tr><th>collection</th><th>model</th><th class="number">score</th><th>95% interval</th>
<th class="number">ceiling</th><th></th><th>lead of the ensemble</th><th>graphs</th></tr>
{%- for s in scores %}
<tr{% if s.model == "ensemble" %} class="first"{% endif %}><td>{{ s.collection }}</td><td>{{ s.model }}</td>
<td class="number">{{ "%.3f" % s.score }}</td><td>{{ "%.3f to %.3f" % (s.low, s.high) }}</td>
<td class="number">{{ "%.3f" % s.ceiling if s.ceiling is not none }}</td>
<td><svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label="{{ "%.3f" % s.score }}">
<rect width="100" height="10" fill="#f1f1f1"/>
<rect x="{{ s.x.low }}" y="2" height="6" width="{{ s.x.width }}" fill="#9cc3e6"/>
<rect x="{{ s.x.score }}" width="1" height="10" fill="#0b5394"/>
{%- if s.ceiling is not none %}<line x1="{{ s.x.ceiling }}" x2="{{ s.x.ceiling }}" y1="0" y2="10" stroke="#000"/>
{%- endif %}</svg></td>
<td>{{ s.ahead }}</td><td>{{ s.graphs }} graph{{ "s" if s.graphs != 1 }}, {{ s.seeds }} seed{{ "s" if s.seeds != 1 }},
{{ s.split }}</td></tr>
{%- endfor %}</table></div>
{%- endif %}
{%- if trained %}
<h2>What was trained on what</h2>
<div class="wide"><table><tr><th>trained on, model, seed</th><th>network</th><th class="number">weights</th>
<th class="number">graphs</th><th class="number">steps</th><th class="number">configurations seen</th>
<th class="number">seconds</th><th class="number">peak memory, MiB</th><th>loss</th>
<th class="number">validation score</th></tr>
{%- for name, about in trained %}
<tr><td>{{ name }}</td><td>{{ about.model }}</td><td class="number">{{ "{:,}".format(about.parameters) }}</td>
<td class="number">{{ about.graphs }}</td><td class="number">{{ about.settings.steps }}</td>
<td class="number">{{ "{:,}".format(about.configs_seen) }}</td><td class="number">{{ "%.0f" % about.seconds }}</td>
<td class="number">{{ "{:,}".format(about.peak_memory // 1048576) if about.peak_memory is not none }}</td>
<td>{% if about.line %}<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img"
aria-label="{{ about.range }}"><polyline points="{{ about.line }}" fill="none" stroke="#0b5394"
vector-effect="non-scaling-stroke"/></svg>{% endif %}</td>
<td class="number">{{ "%.3f" % about.curve.score[-1] if about.curve.score and about.curve.score[-1] is not none }}</td>
</tr>
{%- endfor %}</table></div>
{%- endif %}
{%- if pictures %}
<h2>Pictures</h2>
{%- for stem, opened, figures in pictures %}
<details{% if opened %} open{% endif %}><summary>{{ stem }}</summary>
{%- for heading, image in figures %}
<figure><img alt="{{ heading }}" src="data:image/png;base64,{{ image }}"><figcaption>{{ heading }}</figcaption></figure>
{%- endfor %}</details>
{%- endfor %}
{%- endif %}
<h2>Next</h2><pre>{{ next_step }}</pre></body></html>
"""


def write_report(out, next_step, problems=(), title=None):
    """Write `out`/report.html.

    Parameters
    ----------
    out : str or Path
        The folder of a run. Sections without files in the folder are left out.
    next_step : str
        The command to type next.
    problems : sequence of (str, str)
        Path and reason for each file that was left out, or for each fault of the submission.
    title : str, optional
        What was run on which data. None: the name of the folder.

    Returns
    -------
    Path

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp(), "my-run")
    >>> write_report(folder, "python notebooks/run.py").name
    'report.html'
    """
    out = Path(out)
    csv = out / "submission.csv"
    rows = sum(1 for line in csv.read_text().splitlines() if line) - 1 if csv.is_file() else None
    page = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(PAGE)
    replace_file(out / "report.html", page.render(
        title=title or out.name, rows=rows, faulty=any(Path(path) == csv for path, _ in problems),
        problems=list(problems), scores=_scores(out), trained=_trained(out), pictures=_pictures(out),
        next_step=next_step))
    return out / "report.html"


def _scores(out):
    """Rows of scores.csv with the positions of their bars, 0 to 100, and the lead of the ensemble as text."""
    path = out / "scores.csv"
    table = pd.read_csv(path) if path.is_file() else pd.DataFrame()
    if not {*SCORE_COLUMNS} <= {*table}:
        return []
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    for row in rows:
        score, low, high, ceiling = (100 * min(max(row.get(name) or 0.0, 0), 1)
                                     for name in ("score", "low", "high", "ceiling"))
        row |= {"ceiling": row.get("ceiling"), "ahead": "",
                "x": {"score": f"{max(score - 0.5, 0):.1f}", "low": f"{low:.1f}", "ceiling": f"{ceiling:.1f}",
                      "width": f"{max(high - low, 0.5):.1f}"}}
        if row.get("lead") is not None and row["model"] != "ensemble":
            row["ahead"] = f"{row['lead']:+.3f} ({row['lead low']:+.3f} to {row['lead high']:+.3f})"
    return rows


def _trained(out):
    """(name, run record with its loss as a line) per trained model, from the records beside the checkpoints."""
    found = []
    for path in sorted((out / "checkpoints").glob("*.json")):
        about = json.loads(path.read_text())
        known = [value for value in about["curve"]["loss"] if value is not None]
        about |= {"line": "", "range": ""}
        if len(known) > 1:
            low, high, last = min(known), max(known), len(known) - 1
            about["line"] = " ".join(f"{100 * i / last:.1f},{1 + 8 * (high - value) / ((high - low) or 1):.1f}"
                                     for i, value in enumerate(known))
            about["range"] = f"{known[0]:.3f} to {known[-1]:.3f}"
        found.append((re.sub(r"-[0-9a-f]{8}$", "", path.stem), about))
    return found


def _pictures(out):
    """(notebook, whether its pictures are open, [(heading above a picture, base64 PNG)]) per executed notebook."""
    found = []
    for path in sorted((out / "notebooks").glob("*.ipynb")):
        heading, figures = path.stem, []
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "markdown":
                heading = (re.findall(r"^#+ (.*)", "".join(cell["source"]), flags=re.M) or [heading])[-1]
            for output in cell.get("outputs", ()):
                image = "".join(output.get("data", {}).get("image/png", "")).replace("\n", "")
                if image and _is_png(image):
                    figures.append((heading, image))
        if figures:
            found.append((path.stem, path.stem.startswith(SHOWN), figures))
    return found


def _is_png(text):
    """Whether base64 text holds a PNG and nothing else that a page could run."""
    try:
        return base64.b64decode(text, validate=True).startswith(b"\x89PNG")
    except ValueError:
        return False
