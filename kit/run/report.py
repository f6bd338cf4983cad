"""One self-contained page about a run: scores, what was trained, pictures, warnings, and the next command.

The page is made from the files in the folder of a run (see kit/run/workflow.py), so it can be written again at any
time. It loads no file and no address.
"""
import base64
import json
import re
from pathlib import Path

import jinja2
import numpy as np
import pandas as pd

from kit.files import replace_file
from kit.run.workflow import SCORE_COLUMNS

SHOWN = ("03", "04", "05")       # the pictures of these notebooks are open; the others are folded
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
{%- macro bar(label) %}<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img"
aria-label="{{ label }}">{{ caller() }}</svg>{% endmacro %}
{%- macro table(rows, numbers) %}
<div class="wide"><table><tr>
{%- for name in rows[0] if name != "x" %}<th{% if name in numbers %} class="number"{% endif %}>{{ name }}</th>
{%- endfor %}</tr>
{%- for row in rows %}
<tr{% if row.model == "ensemble" %} class="first"{% endif %}>
{%- for name, value in row.items() if name != "x" %}<td{% if name in numbers %} class="number"{% endif %}>
{%- if name == "0 to 1" %}{% call bar(value) %}<rect width="100" height="10" fill="#f1f1f1"/>
<rect x="{{ row.x.low }}" y="2" height="6" width="{{ row.x.width }}" fill="#9cc3e6"/>
<rect x="{{ row.x.score }}" width="1" height="10" fill="#0b5394"/>
{%- if row.ceiling %}<line x1="{{ row.x.ceiling }}" x2="{{ row.x.ceiling }}" y1="0" y2="10" stroke="#000"/>
{%- endif %}{% endcall %}
{%- elif name == "loss" and value %}{% call bar(value) %}<polyline points="{{ row.x }}" fill="none" stroke="#0b5394"
vector-effect="non-scaling-stroke"/>{% endcall %}
{%- else %}{{ value }}{% endif %}</td>{% endfor %}</tr>
{%- endfor %}</table></div>
{%- endmacro %}
{%- if scores %}
<h2>Scores</h2><p>Kendall's tau for layouts, 2 - (best of five) / (best of all) for tiles. In a bar from 0 to 1, the
band is the 95% interval and the upright black line the noise ceiling. "Lead": score of the ensemble minus this one.</p>
{{- table(scores, ("score", "ceiling")) }}
{%- endif %}
{%- if trained %}
<h2>What was trained on what</h2>
{{- table(trained, ("weights", "graphs", "steps", "configurations seen", "seconds", "MiB at most", "validation")) }}
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
    """Write `out`/report.html and give back its path. Sections without files in the folder are left out.

    `next_step` is the command to type next. `problems` are (path, reason) for each file that was left out, or for each
    fault of the submission. `title` says what was run on which data; None: the name of the folder.
    """
    out = Path(out)
    csv = out / "submission.csv"
    rows = sum(1 for line in csv.read_text().splitlines() if line) - 1 if csv.is_file() else None
    page = jinja2.Environment(autoescape=True).from_string(PAGE)
    replace_file(out / "report.html", page.render(
        title=title or out.name, rows=rows, faulty=any(Path(path) == csv for path, _ in problems),
        problems=list(problems), scores=_scores(out), trained=_trained(out), pictures=_pictures(out),
        next_step=next_step))
    return out / "report.html"


def _scores(out):
    """The rows of scores.csv as shown; "x" holds the positions of the marks in a row's bar, 0 to 100."""
    path = out / "scores.csv"
    table = pd.read_csv(path) if path.is_file() else pd.DataFrame()
    rows = []
    for row in table.to_dict("records") if {*SCORE_COLUMNS} <= {*table} else ():
        at = {name: 100 * min(max(row.get(name, 0), 0), 1) for name in ("score", "low", "high", "ceiling")}
        lead, ceiling = row.get("lead", np.nan), row.get("ceiling", np.nan)
        rows.append({
            "collection": row["collection"], "model": row["model"], "score": f"{row['score']:.3f}",
            "95% interval": f"{row['low']:.3f} to {row['high']:.3f}",
            "ceiling": "" if pd.isna(ceiling) else f"{ceiling:.3f}", "0 to 1": f"{row['score']:.3f}",
            "lead of the ensemble": "" if pd.isna(lead) or row["model"] == "ensemble" else
            f"{lead:+.3f} ({row['lead low']:+.3f} to {row['lead high']:+.3f})",
            "graphs": f"{row['graphs']} graph{'s' * (row['graphs'] != 1)}, {row['seeds']} "
                      f"seed{'s' * (row['seeds'] != 1)}, {row['split']}",
            "x": {name: f"{value:.1f}" for name, value in at.items()}
            | {"score": f"{max(at['score'] - 0.5, 0):.1f}", "width": f"{max(at['high'] - at['low'], 0.5):.1f}"}})
    return rows


def _trained(out):
    """One row per trained model, from the records beside the checkpoints; "x" holds the points of the loss curve."""
    rows = []
    for path in sorted((out / "checkpoints").glob("*.json")):
        about = json.loads(path.read_text())
        losses, score = ([value for value in about["curve"][name] if value is not None] for name in ("loss", "score"))
        low, high, last = min(losses, default=0), max(losses, default=0), max(len(losses) - 1, 1)
        memory = about["peak_memory"]
        rows.append({
            "trained on, model, seed": re.sub(r"-[0-9a-f]{8}$", "", path.stem), "network": about["model"],
            "weights": f"{about['parameters']:,}", "graphs": about["graphs"], "steps": about["settings"]["steps"],
            "configurations seen": f"{about['configs_seen']:,}", "seconds": f"{about['seconds']:.0f}",
            "MiB at most": "" if memory is None else f"{memory >> 20:,}",
            "loss": f"{losses[0]:.3f} to {losses[-1]:.3f}" if len(losses) > 1 else "",
            "validation": f"{score[-1]:.3f}" if score else "",
            "x": " ".join(f"{100 * i / last:.1f},{1 + 8 * (high - value) / ((high - low) or 1):.1f}"
                          for i, value in enumerate(losses))})
    return rows


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
