"""One self-contained page about a run: scores, what was trained, pictures, warnings, and the next command.

The page is made from the files in the folder of a run (see lab/run/folder.py), so it can be written again at any
time. It loads no file and no address.
"""
import base64
import io
import json
import re
from pathlib import Path

import jinja2
import numpy as np
import pandas as pd

from kit.data import COLLECTIONS, DataError
from kit.files import replace_file
from lab.run.folder import TRAINS, Folder
from lab.scores import SCORE_COLUMNS
from lab.season.history import read_season

SHOWN = ("03", "04", "05")       # the pictures of these notebooks are open; the others are folded
_NUMBERS = ("score", "low", "high", "ceiling", "lead", "lead low", "lead high", "graphs", "seeds")      # in scores.csv
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 86rem; padding: 1rem; color: #1a1a1a }
body { overflow-wrap: anywhere } .warning li { white-space: pre-line }
h1 { font-size: 1.6rem; margin: 0.5rem 0 } h2 { font-size: 1.2rem; margin: 2rem 0 0.5rem }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: 0.85rem; width: 100% }
th, td { padding: 0.2rem 0.6rem 0.2rem 0; text-align: left; border-bottom: 1px solid #ddd; overflow-wrap: normal }
th { vertical-align: bottom } td { white-space: nowrap } td.long { white-space: normal; min-width: 24rem }
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
<tr{% if row.model == "ensemble" or (row.run and row.run == run) %} class="first"{% endif %}>
{%- for name, value in row.items() if name != "x" %}<td{% if name in numbers %} class="number"
{%- elif name.startswith("changed") %} class="long"{% endif %}>
{%- if name == "0 to 1" %}{% call bar(value) %}<rect width="100" height="10" fill="#f1f1f1"/>
{%- if row.x.width %}<rect x="{{ row.x.low }}" y="2" height="6" width="{{ row.x.width }}" fill="#9cc3e6"/>{% endif %}
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
{%- if on_valid %}
<p class="warning">Models were trained on the validation graphs, too ({{ on_valid }}). A score on them would mean
nothing, so there is none.</p>
{%- endif %}
{%- if trained %}
<h2>What was trained on what</h2>
{{- table(trained, ("weights", "graphs", "steps", "configurations seen", "seconds", "MiB at most", "validation")) }}
{%- endif %}
{%- if season %}
<h2>The season</h2><p>The runs in the ledger, in the order in which their CSVs were first recorded. "Validation" is the
mean over the collections; brackets hold 95% intervals. This run is in bold.</p>
{%- if remarks %}<ul>{% for line in remarks %}<li>{{ line }}</li>{% endfor %}</ul>{% endif %}
{{- table(season, ("no.", "public", "private", "models")) }}
{%- if drawn %}
<figure><img alt="validation against leaderboard" src="data:image/png;base64,{{ drawn }}">
<figcaption>Numbers are the first column of the table.</figcaption></figure>
{%- endif %}
{%- endif %}
{%- if pictures %}
<h2>Pictures</h2>
{%- for stem, opened, figures in pictures %}
<details{% if opened %} open{% endif %}><summary>{{ stem }}
{%- if now is not none and stem not in now %}, of an earlier run: data, settings or code may have changed since
{%- endif %}</summary>
{%- for heading, image in figures %}
<figure><img alt="{{ heading }}" src="data:image/png;base64,{{ image }}"><figcaption>{{ heading }}</figcaption></figure>
{%- endfor %}</details>
{%- endfor %}
{%- endif %}
<h2>Next</h2><pre>{{ next_step }}</pre></body></html>
"""


def write_report(path, out, next_step, problems=(), title=None, ledger=None, now=None):
    """Write the page about the run in `out` to `path`. Sections without files in the folder are left out.

    `next_step` is the command to type next. `problems` are (path, reason) for each file that was left out, or for each
    fault of the submission. `title` says what was run on which data; None: the name of the folder. `ledger`: the folder
    of the ledger; None: the parent of `out`. A run that is in the ledger gets its place in the season shown. `now`: the
    names of the notebooks that this run made or found up to date; the page says that pictures of other notebooks are of
    an earlier run. None: all. A file that cannot be read is named among the page's warnings, and in a printed line.
    """
    out, unread = Path(out), []
    submission, scores = out / "submission.csv", out / "scores.csv"
    lines = submission.read_bytes().splitlines() if submission.is_file() else []
    tables = [scores] * (scores.is_file() and str(scores) not in dict(problems))
    books = [path for path in sorted(out.glob("notebooks/*.ipynb")) if not path.name.endswith(".partial.ipynb")]
    shown = {
        "scores": [_score_row(row) for table in _readable(read_scores, tables, unread)
                   for row in table.to_dict("records")],
        "trained": _readable(_training_row, _records(out), unread),
        "pictures": [(stem, opened and (now is None or stem in now), figures)
                     for stem, opened, figures in _readable(_figures, books, unread) if figures],
        **_season(out, Path(ledger or out.parent), unread)}
    noted = Folder(out, out).settings(COLLECTIONS)
    shown["on_valid"] = ", ".join(step for step, own in noted.items() if own.get("use_valid"))
    for _, why in unread:
        print(f"not in the report: {why}", flush=True)
    page = jinja2.Environment(autoescape=True).from_string(PAGE)
    replace_file(path, page.render(
        title=title or out.name, rows=sum(map(bool, lines)) - 1 if lines else None,
        faulty=any(Path(path) == submission for path, _ in problems),
        problems=[*problems, *unread], next_step=next_step, now=now, **shown))


def _season(out, ledger, unread):
    """What the page shows of the ledger, if the run has an entry there."""
    if not (ledger / f"{out.name}.json").is_file():
        return {}
    season = read_season(ledger)
    unread += [(str(ledger), season.problem)] if season.problem else []
    points = season.points()
    return {"season": season.rows(), "remarks": season.remarks(), "run": out.name,
            "drawn": _drawn(points) if points else None}


def _drawn(points):
    """The picture of a season as base64 text; the imports take a second, which `import lab.season` need not take."""
    from matplotlib.figure import Figure

    from lab.plots import validation_against_leaderboard
    file, figure = io.BytesIO(), Figure(figsize=(8, 4.5), dpi=100, layout="constrained")
    validation_against_leaderboard(points, figure.subplots(), "validation against leaderboard")
    figure.savefig(file, format="png")
    return base64.b64encode(file.getvalue()).decode()


def _records(out):
    """The records of the finished trainings that predictions come from."""
    used = {name for section in Folder(out).sections(*TRAINS.values()) for name in section["used"]}
    paths = [path for path in sorted(out.glob("store/*.json")) if path.stem in used]
    return [path for path in paths if b'"steps_done"' not in path.read_bytes()]


def _readable(read, paths, unread):
    """What `read` gives for each path that it can read; (path, reason) of each other path goes to `unread`."""
    found = []
    for path in paths:
        try:
            found.append(read(path))
        except DataError as fault:
            unread.append((str(path), str(fault)))
    return found


def read_scores(path):
    """Read a scores.csv -> DataFrame; DataError if a column is missing or a number is none, such as 0,5 for 0.5."""
    try:
        table = pd.read_csv(path, keep_default_na=False, na_values=[""], index_col=False)
    except (OSError, ValueError) as fault:               # pandas' own errors are ValueErrors
        raise DataError(f"{path}: is empty or no table ({type(fault).__name__}); run notebook 05 again") from fault
    if not {*SCORE_COLUMNS} <= {*table}:
        raise DataError(f"{path}: has the columns {', '.join(table)}; expected {', '.join(SCORE_COLUMNS)}")
    numbers = table[[name for name in _NUMBERS if name in table]].apply(pd.to_numeric, errors="coerce")
    wrong = [name for name in numbers if (numbers[name].isna() & table[name].notna()).any()]
    if wrong or table["score"].isna().any():
        raise DataError(f"{path}: {(wrong or ['score'])[0]} is no number in each line; expected numbers, such as 0.5")
    return table.assign(**numbers)


def _score_row(row):
    """A row of scores.csv as shown; "x" holds the positions of the marks in the row's bar, 0 to 100."""
    at = {name: 100 * min(max(row.get(name, 0), 0), 1) for name in ("score", "low", "high", "ceiling")}
    lead, ceiling = row.get("lead", np.nan), row.get("ceiling", np.nan)
    interval = "" if pd.isna(row["low"]) else f"{row['low']:.3f} to {row['high']:.3f}"
    ends = "" if pd.isna(row.get("lead low", np.nan)) else f" ({row['lead low']:+.3f} to {row['lead high']:+.3f})"
    return {
        "collection": row["collection"], "model": row["model"], "score": f"{row['score']:.3f}",
        "95% interval": interval or "one graph: no interval",
        "ceiling": "" if pd.isna(ceiling) else f"{ceiling:.3f}", "0 to 1": f"{row['score']:.3f}",
        "lead of the ensemble": "" if pd.isna(lead) or row["model"] == "ensemble" else f"{lead:+.3f}{ends}",
        "graphs": f"{row['graphs']} graph{'s' * (row['graphs'] != 1)}, {row['seeds']} "
                  f"seed{'s' * (row['seeds'] != 1)}, {row['split']}",
        "x": {name: f"{value:.1f}" for name, value in at.items()}
        | {"score": f"{max(at['score'] - 0.5, 0):.1f}",
           "width": f"{max(at['high'] - at['low'], 0.5):.1f}" if interval else ""}}


def read_record(path):
    """Read the record of a training, as `kit.train_parts.run_record` makes it; DataError if no row can be made."""
    try:
        about = json.loads(Path(path).read_bytes())
        _row_of(path, about)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as fault:
        raise DataError(f"{path}: is no record of a training; delete it") from fault
    return about


def _training_row(path):
    """A row on one trained model, from the record beside its checkpoint."""
    return _row_of(path, read_record(path))


def _row_of(path, about):
    """The row on a model with this record; "x" holds the points of the loss curve."""
    losses, score = ([value for value in about["curve"][name] if value is not None] for name in ("loss", "score"))
    low, high, last = min(losses, default=0), max(losses, default=0), max(len(losses) - 1, 1)
    memory = about["peak_memory"]
    return {
        "trained on, model, seed": re.sub(r"-[0-9a-f]{16}$", "", path.stem), "network": about["model"],
        "weights": f"{about['parameters']:,}", "graphs": about["graphs"], "steps": about["settings"]["steps"],
        "configurations seen": f"{about['configs_seen']:,}", "seconds": f"{about['seconds']:.0f}",
        "MiB at most": "" if memory is None else f"{memory >> 20:,}",
        "loss": f"{losses[0]:.3f} to {losses[-1]:.3f}" if len(losses) > 1 else "",
        "validation": f"{score[-1]:.3f}" if score else "",
        "x": " ".join(f"{100 * i / last:.1f},{1 + 8 * (high - value) / ((high - low) or 1):.1f}"
                      for i, value in enumerate(losses))}


def _figures(path):
    """An executed notebook -> (its name, whether its pictures are open, [(heading above a picture, base64 PNG)])."""
    heading, figures = path.stem, []
    try:
        for cell in json.loads(path.read_bytes())["cells"]:
            if cell["cell_type"] == "markdown":
                heading = (re.findall(r"^#+ (.*)", "".join(cell["source"]), flags=re.M) or [heading])[-1]
            for output in cell.get("outputs", ()):
                image = "".join(output.get("data", {}).get("image/png", "")).replace("\n", "")
                if image:
                    figures.append((heading, image))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise DataError(f"{path}: is no executed notebook ({type(fault).__name__}); run it again") from fault
    return path.stem, path.stem.startswith(SHOWN), figures
