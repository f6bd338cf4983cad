"""Execute the notebooks, and keep their outputs in notebooks/*.ipynb, for readers of the repository.

`python .ci/outputs.py` does what README.md's first command does with 00 to 09. Then it runs 10 to 13 in the same
folder; the studies 10 and 11 take most of an hour. Work that is finished there is not repeated. Code and text of the
notebooks stay as they are; pictures become small PNGs. Paths are those of a clone. Nothing of a machine, of a moment or
of a token is kept.

Each notebook with outputs has a digest of its code in its metadata. A notebook whose code has changed since is named by
`--check`, and a test fails. `--clear` takes all outputs out again.
"""
import argparse
import base64
import hashlib
import io
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
from PIL import Image

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = str(PROJECT), str(PROJECT / "notebooks")         # a clone runs without installing
from kit.files import replace_file  # noqa: E402
from lab.run.code import plain_code  # noqa: E402

COMMAND = "python .ci/outputs.py"
SHOWN = "colours"                               # in the metadata of a picture: its flat colours before it was reduced
FLAT_PIXELS, ALIKE = 30, 4                      # what a flat colour fills; of 255 in each channel
KEY = "outputs_of"                              # in a notebook's metadata: digest of the code that made the outputs
LAST = "14"                                     # 20 runs on Colab alone
MOST_BYTES = 400_000                            # of a notebook
WIDTH = 910                                     # pixels, as the widest picture of README.md
COLOURS = 64, 32, 16, 8                         # of a picture; fewer where a notebook grows too large
OTHERS = "10", "11", "13"                 # one at a time: 13 shows seconds
ADDRESS = re.compile(r" at 0x[0-9a-f]+")        # in memory
STYLE = re.compile(r"T_[0-9a-f]{5}(?=[\"_ ])")   # pandas draws a name for each table
NO_RULES = '<style type="text/css">\n</style>\n'
CELL_NAMES = re.compile(r'(?<=<t[hd])(?: id="T_\w+")? class="[\w ]+"(?: (?=>))?|(?<=<table) id="T_\w+"')
ABSOLUTE = re.compile(r"(?<![\w./:~<-])/(?:home|root|Users|tmp|var|mnt|work|opt|data|private)/[\w.-]+")


class OutputError(ValueError):
    """An executed notebook that cannot be kept: why, and what to do."""


def code_of(book):
    """The code cells of a notebook as text without comments and layout; those that papermill added do not count."""
    cells = [cell.source for cell in book.cells if cell.cell_type == "code"
             and "injected-parameters" not in cell.metadata.get("tags", [])]
    try:
        return [plain_code(cell) for cell in cells]
    except SyntaxError:                          # such as %time of IPython
        return cells


def digest_of(book):
    """A digest of the code of a notebook; comments, text cells and outputs do not change it."""
    return hashlib.sha256(json.dumps(code_of(book)).encode()).hexdigest()


def flat_colours(pixels):
    """The colours that fill areas or lines, those of a legend among them: pixels (h, w, 3) uint8 -> (k, 3) uint8.

    The blurred edges of letters and marks have many more colours; none of these fills `FLAT_PIXELS` pixels that stand
    in rows or columns of four. Of colours that look alike, the first has the most pixels and stands for all.
    """
    runs, numbers = [], packed(pixels)
    for lines in (numbers, numbers.T):
        same = lines[:, 1:] == lines[:, :-1]
        runs.append(lines[:, 3:][same[:, 2:] & same[:, 1:-1] & same[:, :-2]])
    found, count = np.unique(np.concatenate(runs), return_counts=True)
    found = found[np.argsort(-count, kind="stable")][:(count >= FLAT_PIXELS).sum()]
    return unlike(np.empty((0, 3), np.uint8), unpacked(found), ALIKE, len(found))


def packed(pixels):
    """Colours (..., 3) as one number each (...)."""
    return pixels.astype(np.int32) @ np.array((1 << 16, 1 << 8, 1), np.int32)


def unpacked(numbers):
    """The inverse of `packed`."""
    return numbers[..., None] >> np.array((16, 8, 0), np.int32) & 255


def unlike(kept, others, distance, most):
    """`kept` and the first of `others` that differ from all before by more than `distance`, at most `most` in all."""
    kept, others, nearest = [*kept], others.astype(int), np.full(len(others), 256)
    for place in range(most):
        if place >= len(kept):
            if not (nearest > distance).any():
                break
            kept.append(others[(nearest > distance).argmax()])
        nearest = np.minimum(nearest, abs(others - kept[place]).max(axis=1))
    return np.array(kept, np.uint8).reshape(-1, 3)


def palette_of(pixels, colours):
    """At most 256 colours for a picture: its flat colours, then frequent ones that differ most, up to `colours`."""
    found, count = np.unique(packed(pixels), return_counts=True)
    found, chosen = unpacked(found[np.argsort(-count, kind="stable")]), flat_colours(pixels)[:256]
    for distance in (48, 24, 12, 6, 0):          # far colours first, so that rare ones have a place, too
        chosen = unlike(chosen, found, distance, max(colours, len(chosen)))
    return chosen


def on_white(png, width=WIDTH):
    """A PNG as pixels (h, w, 3) uint8 on white, at most `width` pixels wide."""
    with Image.open(io.BytesIO(png)) as picture:
        layers = picture.convert("RGBA")
    flat = Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers).convert("RGB")
    if flat.width > width:
        flat = flat.resize((width, round(flat.height * width / flat.width)), Image.Resampling.LANCZOS)
    return np.asarray(flat)


def small_picture(pixels, colours):
    """Pixels (h, w, 3) uint8 -> a PNG with at most `colours` colours, or as many as are flat."""
    palette = palette_of(pixels, colours)
    found, place = np.unique(packed(pixels), return_inverse=True)
    nearest = np.concatenate([((part[:, None] - palette.astype(int)) ** 2).sum(axis=2).argmin(axis=1)
                              for part in np.array_split(unpacked(found), len(found) // 4096 + 1)])
    reduced = Image.fromarray(nearest[place].reshape(pixels.shape[:2]).astype(np.uint8), "P")
    reduced.putpalette(palette.tobytes())
    made = io.BytesIO()
    reduced.save(made, "PNG", optimize=True)
    return made.getvalue()


def plain(text, places):
    """Text without what differs between machines and runs; `places`: {absolute path: what stands in its place}."""
    for place, words in sorted(places.items(), key=lambda pair: -len(pair[0])):
        text = text.replace(place, words)
    return ADDRESS.sub("", text)


def light_table(html):
    """A table of pandas without the names of its cells, if it has no rule of style that needs them."""
    return CELL_NAMES.sub("", html.removeprefix(NO_RULES)) if html.startswith(NO_RULES) else html


def strange(text):
    """What of a text must not be kept, in words; None if there is nothing."""
    secrets = [value for name, value in os.environ.items()
               if re.search("TOKEN|SECRET|PASSWORD|API_KEY|KAGGLE_KEY", name) and len(value) >= 8]
    if any(secret in text for secret in secrets):
        return "a token"
    found = ABSOLUTE.search(text) or re.search(re.escape(str(Path.home())) + r"/[\w.-]+", text)
    if found:
        return f"the absolute path {found[0]}"
    name = socket.gethostname()
    return f"the name of this machine, {name}" if len(name) > 5 and re.search(rf"\b{re.escape(name)}\b", text) else None


def kept_outputs(outputs, number, places, colours, width=WIDTH):
    """The outputs of a cell as they are kept: lines joined, the richest form of each result, `number` as its count."""
    kept, tables = [], {}
    for output in outputs:
        if output.output_type == "stream":
            text = plain(output.text, places)
            if kept and kept[-1].output_type == "stream" and kept[-1].name == output.name:
                kept[-1].text += text
            else:
                kept.append(nbformat.v4.new_output("stream", name=output.name, text=text))
        elif output.output_type in ("display_data", "execute_result"):
            form = next(form for form in ("image/png", "text/html", "text/markdown", "text/plain")
                        if form in output.data)
            content = output.data[form]
            more = {"execution_count": number} if output.output_type == "execute_result" else {}
            if form == "image/png":
                pixels = on_white(base64.b64decode(content), width)
                content = base64.b64encode(small_picture(pixels, colours)).decode() + "\n"
                more["metadata"] = {SHOWN: " ".join(bytes(colour).hex() for colour in flat_colours(pixels))}
            else:
                content = STYLE.sub(lambda found: tables.setdefault(found[0], f"T_{number:02d}_{len(tables)}"),
                                    light_table(plain(content, places)))
            kept.append(nbformat.v4.new_output(output.output_type, data={form: content}, **more))
        else:
            raise OutputError(f"cell {number} ended with an error; repair it, or run the notebook again")
    for output in kept:
        text = output.get("text", "") + "".join(v for k, v in output.get("data", {}).items() if k != "image/png")
        if why := strange(text):
            raise OutputError(f"the output of cell {number} has {why}; print something else there")
    return kept


def with_outputs(book, executed, places=None, colours=COLOURS[0], width=WIDTH):
    """A notebook with the outputs of its executed copy; code, text and other metadata stay as they are.

    Parameters
    ----------
    book, executed : NotebookNode
        As `nbformat.read` gives them.
    places : dict of str to str, optional
        {absolute path: what stands in its place}.
    colours, width : int
        Of pictures, at most; the width in pixels.

    Returns
    -------
    NotebookNode

    Raises
    ------
    OutputError
        If the copy has other code, ended with an error, or shows a path, a token or the name of this machine.
    """
    if code_of(book) != code_of(executed):
        raise OutputError(f"the executed copy has other code; run {COMMAND} again")
    cells = [cell for cell in executed.cells if cell.cell_type == "code"
             and "injected-parameters" not in cell.metadata.get("tags", [])]
    made = nbformat.from_dict(json.loads(json.dumps(book)))
    for number, (cell, other) in enumerate(zip([c for c in made.cells if c.cell_type == "code"], cells), 1):
        cell.execution_count = number
        cell.outputs = kept_outputs(other.outputs, number, places or {}, colours, width)
    made.metadata[KEY] = digest_of(book)
    return made


def without_outputs(book):
    """A notebook as it is written: no outputs, no counts, no digest."""
    made = nbformat.from_dict(json.loads(json.dumps(book)))
    made.metadata.pop(KEY, None)
    for cell in made.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return made


def text_of(book):
    """A notebook as the text of its file."""
    return nbformat.writes(book).rstrip("\n") + "\n"


def fitting(book, executed, places):
    """The text of a notebook with outputs, with fewer colours in its pictures where it is larger than `MOST_BYTES`."""
    for colours in COLOURS:
        text = text_of(with_outputs(book, executed, places, colours))
        if len(text.encode()) <= MOST_BYTES:
            return text
    raise OutputError(f"has {len(text.encode()) // 1000} kB with its outputs, and at most {MOST_BYTES // 1000} are "
                      "kept; show less in its cells")


def faults(paths):
    """What is wrong with the outputs of notebooks: a list of sentences that name the command.

    A notebook with outputs has the digest of its code. Either all notebooks have outputs, or none.
    """
    books = {path: nbformat.read(path, nbformat.NO_CONVERT) for path in paths}
    some, found = any(KEY in book.metadata for book in books.values()), []
    for path, book in books.items():
        cure = f"; run {COMMAND} --only {path.stem[:2]}"
        shows = any(cell.get("outputs") or cell.get("execution_count") for cell in book.cells)
        if KEY not in book.metadata and (some or shows):
            found.append(f"{path.name}: {'others have outputs, and it has none' * (not shows)}"
                         f"{'has outputs of unknown code' * shows}{cure}")
        elif KEY in book.metadata and book.metadata[KEY] != digest_of(book):
            found.append(f"{path.name}: its code has changed since its outputs were made{cure}")
        elif path.stat().st_size > MOST_BYTES:
            found.append(f"{path.name}: has more than {MOST_BYTES // 1000} kB{cure}")
    return found


def notebooks(only=None):
    """Paths of the notebooks that keep outputs, 00 to 13, in order; `only`: starts of names, separated by commas."""
    starts = tuple(start.strip() for start in (only or "").split(",") if start.strip())
    paths = sorted(path for path in (PROJECT / "notebooks").glob("[0-9]*.ipynb") if path.stem < LAST)
    return [path for path in paths if not starts or path.stem.startswith(starts)]


def commands(paths, out, size, ledger, main=False):
    """The calls of run.py that execute some notebooks; `main`: 00 to 09 all, as the first command of README.md."""
    start = [sys.executable, str(PROJECT / "notebooks" / "run.py"), "--data-root", "measured", "--size", size,
             "--out", str(out)]
    first = [path.stem[:2] for path in paths if path.stem[:2] not in OTHERS]
    given = ["-p", f"ledger={ledger}"] if main or "06" in first else []
    calls = [[*start, *([] if main else ["--only", ",".join(first)]), *given]] if first else []
    calls += [[*start, "--only", number] for number in OTHERS if any(p.stem.startswith(number) for p in paths)]
    return calls


def main(argv=None):
    """Execute what the command line asks for, and keep the outputs; gives back the exit status."""
    parser = argparse.ArgumentParser(prog="outputs.py", description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="03,04", help="only notebooks whose names start with these")
    parser.add_argument("--size", choices=("tiny", "small"), default="small", help="of the work")
    parser.add_argument("--check", action="store_true", help="only say which outputs are not of the code that is there")
    parser.add_argument("--clear", action="store_true", help="only take all outputs out")
    args = parser.parse_args(argv)
    paths = notebooks(args.only)
    if args.check:
        print(*faults(notebooks()), sep="\n", end="\n" * bool(faults(notebooks())))
        return int(bool(faults(notebooks())))
    if args.clear:
        for path in paths:
            replace_file(path, text_of(without_outputs(nbformat.read(path, nbformat.NO_CONVERT))))
        return 0
    return execute(paths, args)


def execute(paths, args):
    """Execute notebooks, and keep their outputs -> the exit status."""
    out = (PROJECT / "submissions" / "measured").resolve()
    # an own ledger: the table of 06 then has this run alone, and not those of whoever executes it
    for call in commands(paths, out, args.size, PROJECT / "data" / "outputs", not args.only):
        status = subprocess.run(call, cwd=PROJECT).returncode
        if status:
            return status
    places = {f"{out}{os.sep}": "submissions/measured/", str(out): "submissions/measured",
              f"{PROJECT}{os.sep}": "", str(PROJECT): "."}
    for path in paths:
        executed = nbformat.read(out / "notebooks" / path.name, 4)
        try:
            text = fitting(nbformat.read(path, nbformat.NO_CONVERT), executed, places)
        except OutputError as fault:
            print(f"outputs.py: {path.name}: {fault}", file=sys.stderr)
            return 2
        replace_file(path, text)
        print(f"notebooks/{path.name}: {len(text.encode()) // 1000} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
