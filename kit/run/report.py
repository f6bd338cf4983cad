"""One self-contained page about a run: scores, what was trained on what, pictures, warnings, what to type next.

It is made from what a run leaves in its folder (see kit/run/workflow.py), so it can be written again at any time. No
file or address is needed to look at it.
"""
import base64
import html
import json
import re
from pathlib import Path

import pandas as pd

from kit.files import replace_file

SHOWN = ("03", "04", "05")       # notebooks whose pictures are open; those of the others unfold
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 74rem; padding: 1rem; color: #1a1a1a }
body { overflow-wrap: anywhere } .warning li { white-space: pre-line }
h1 { font-size: 1.6rem; margin: 0.5rem 0 } h2 { font-size: 1.2rem; margin: 2rem 0 0.5rem }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: 0.9rem; white-space: nowrap }
th, td { padding: 0.2rem 0.7rem 0.2rem 0; text-align: left; border-bottom: 1px solid #ddd }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums }
tr.first td { font-weight: 600 } .bar { display: block; width: 12rem; height: 1.1rem }
figure { margin: 1rem 0 } img { max-width: 100%; height: auto } figcaption { font-size: 0.85rem; color: #555 }
code, pre { font: 0.85rem/1.4 ui-monospace, monospace; background: #f4f4f4; overflow-wrap: anywhere }
pre { padding: 0.6rem; white-space: pre-wrap } .warning { border-left: 4px solid #c60; padding-left: 0.7rem }
.fine { border-left: 4px solid #2a7; padding-left: 0.7rem } summary { cursor: pointer }
"""


def write_report(out, next_step, problems=()):
    """Write `out`/report.html.

    Parameters
    ----------
    out : str or Path
        The folder of a run. Whatever it lacks, the page lacks.
    next_step : str
        The command to type next.
    problems : sequence of (str, str)
        Path and reason of each file that was left out, or of a fault of the submission.

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
    parts = [f"<h1>{escaped(out.name)}</h1>"]
    if csv.is_file():
        rows = sum(1 for line in csv.read_text().splitlines() if line) - 1
        said = "does not pass the check, see the warnings" if any(Path(p) == csv for p, _ in problems) else "checked"
        parts.append(f"<p><code>submission.csv</code>: {rows} rows, {said}.</p>")
    if problems:
        lines = "".join(f"<li>{escaped(why if path in why else f'{path}: {why}')}</li>" for path, why in problems)
        parts.append(f'<h2>Warnings</h2><div class="warning"><ul>{lines}</ul></div>')
    else:
        parts.append('<p class="fine">No file was left out.</p>')
    parts += [scores_section(out), training_section(out), pictures_section(out)]
    parts.append(f"<h2>Next</h2><pre>{escaped(next_step)}</pre>")
    page = (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escaped(out.name)}</title>'
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n'
            f'<body>{"".join(parts)}</body></html>\n')
    replace_file(out / "report.html", page)
    return out / "report.html"


def escaped(value):
    """Text as it may stand between tags."""
    return html.escape(str(value))


def html_table(head, rows, numbers=(), first=()):
    """An HTML table: column names, rows of ready cells; which columns are numbers, which rows are set off."""
    kind = ['<th class="number">' if name in numbers else "<th>" for name in head]
    lines = ["<tr>" + "".join(f"{tag}{escaped(name)}</th>" for tag, name in zip(kind, head)) + "</tr>"]
    for place, row in enumerate(rows):
        cells = "".join(f"{tag.replace('th', 'td', 1)}{cell}</td>" for tag, cell in zip(kind, row))
        lines.append(f'<tr{" class=first" if place in first else ""}>{cells}</tr>')
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def scores_section(out):
    """The table of scores.csv, each with its interval drawn from 0 to 1 and the ceiling as a line."""
    path = out / "scores.csv"
    table = pd.read_csv(path) if path.is_file() else pd.DataFrame()
    if not len(table) or not {"collection", "model", "score", "low", "high", "graphs", "seeds", "split"} <= {*table}:
        return ""
    rows = []
    for row in table.to_dict("records"):
        lead = "" if pd.isna(row.get("lead")) or row["model"] == "ensemble" else (
            f"{row['lead']:+.3f} ({row['lead low']:+.3f} to {row['lead high']:+.3f})")
        ceiling = row.get("ceiling", float("nan"))
        rows.append((escaped(row["collection"]), escaped(row["model"]), f"{row['score']:.3f}",
                     f"{row['low']:.3f} to {row['high']:.3f}", "" if pd.isna(ceiling) else f"{ceiling:.3f}",
                     interval_bar(row["score"], row["low"], row["high"], ceiling), lead,
                     escaped(f"{row['graphs']} graph{'s' * (row['graphs'] != 1)}, {row['seeds']} "
                             f"seed{'s' * (row['seeds'] != 1)}, {row['split']}")))
    head = ("collection", "model", "score", "95% interval", "ceiling", "", "lead of the ensemble", "on")
    first = [i for i, model in enumerate(table["model"]) if model == "ensemble"]
    return ("<h2>Scores</h2><p>Kendall's tau for layouts, 2 - (best of five) / (best of all) for tiles; bars from 0 to "
            "1, the upright line is the noise ceiling.</p>"
            + html_table(head, rows, {"score", "ceiling"}, first))


def interval_bar(score, low, high, ceiling):
    """A score and its interval as a small drawing; all from 0 to 1."""
    x = [100 * min(max(0.0 if pd.isna(v) else v, 0), 1) for v in (score, low, high, ceiling)]
    mark = "" if pd.isna(ceiling) else f'<line x1="{x[3]:.1f}" x2="{x[3]:.1f}" y1="0" y2="10" stroke="#000"/>'
    return (f'<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label="{score:.3f}">'
            f'<rect width="100" height="10" fill="#f1f1f1"/><rect x="{x[1]:.1f}" y="2" height="6" '
            f'width="{max(x[2] - x[1], 0.5):.1f}" fill="#9cc3e6"/>'
            f'<rect x="{max(x[0] - 0.5, 0):.1f}" width="1" height="10" fill="#0b5394"/>{mark}</svg>')


def training_section(out):
    """One row a trained model, from the run records beside the checkpoints."""
    rows = []
    for path in sorted((out / "checkpoints").glob("*.json")):
        about = json.loads(path.read_text())
        curve, memory = about["curve"], about["peak_memory"]
        score = curve["score"][-1] if curve["score"] else None
        rows.append((escaped(re.sub(r"-[0-9a-f]{8}$", "", path.stem)), escaped(about["model"]),
                     f"{about['parameters']:,}", about["graphs"], about["settings"]["steps"],
                     f"{about['configs_seen']:,}", f"{about['seconds']:.0f}",
                     "" if memory is None else f"{memory >> 20:,}", loss_line(curve["loss"]),
                     "" if score is None else f"{score:.3f}"))
    head = ("trained on, model, seed", "network", "weights", "graphs", "steps", "configurations seen", "seconds",
            "peak memory, MiB", "loss", "validation score")
    return "<h2>What was trained on what</h2>" + html_table(head, rows, {*head[2:8], head[9]}) if rows else ""


def loss_line(losses):
    """The learning curve as a small drawing, first value at the top left."""
    known = [value for value in losses if value is not None]
    if len(known) < 2:
        return ""
    low, high = min(known), max(known)
    points = " ".join(f"{100 * i / (len(known) - 1):.1f},{1 + 8 * (high - v) / ((high - low) or 1):.1f}"
                      for i, v in enumerate(known))
    return (f'<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" '
            f'aria-label="{known[0]:.3f} to {known[-1]:.3f}"><polyline points="{points}" fill="none" stroke="#0b5394" '
            'vector-effect="non-scaling-stroke"/></svg>')


def pictures_section(out):
    """The pictures of the executed notebooks, each under the heading that it stands below there."""
    parts = []
    for path in sorted((out / "notebooks").glob("*.ipynb")):
        heading, figures = path.stem, []
        for cell in json.loads(path.read_text())["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                found = re.findall(r"^#+ (.*)", source, flags=re.M)
                heading = found[-1] if found else heading
            for output in cell.get("outputs", ()):
                image = "".join(output.get("data", {}).get("image/png", "")).replace("\n", "")
                if image and is_png(image):
                    figures.append(f'<figure><img alt="{escaped(heading)}" src="data:image/png;base64,{image}">'
                                   f"<figcaption>{escaped(heading)}</figcaption></figure>")
        if figures:
            opened = " open" if path.stem.startswith(SHOWN) else ""
            parts.append(f"<details{opened}><summary>{escaped(path.stem)}</summary>{''.join(figures)}</details>")
    return "<h2>Pictures</h2>" + "".join(parts) if parts else ""


def is_png(text):
    """Whether base64 text holds a PNG and nothing else that a page could run."""
    try:
        return base64.b64decode(text, validate=True).startswith(b"\x89PNG")
    except ValueError:
        return False
