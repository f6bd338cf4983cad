"""Bundle notebooks with the kit inside: nothing to install, no internet, for Kaggle and Colab.

`python notebooks/bundle.py` makes one notebook of 03 to 06, from training to the submission. With `--weights`, it makes
one of 05 and 06 that trains nothing: it predicts from the published weights of a run. Each bundle lies in a folder of
its own beside kernel-metadata.json, so that `kaggle kernels push -p FOLDER` runs it on Kaggle: private,
with a GPU, the competition's files and no internet. On Colab upload it, with the data where
`kit.data.find_data_root` looks.
"""
import argparse
import ast
import base64
import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = str(PROJECT), str(PROJECT / "notebooks")         # a clone runs without installing
from kit.data import DataError  # noqa: E402
from kit.files import unwritable_named  # noqa: E402
from kit.kaggle import COMPETITION, MACHINE, KaggleError  # noqa: E402
from kit.kaggle.notebooks import TITLE_MOST, check_notebook  # noqa: E402
from lab.data import wanted  # noqa: E402

HOMES = {"kit": PROJECT / "kit", "lab": PROJECT / "notebooks" / "lab"}        # the packages that travel
STEPS = "03,04,05,06"                           # from the data to submission.csv
COMBINES = "05,06"                              # the same from predictions on
FOLDED = {"_kg_hide-input": True, "_kg_hide-output": True,                         # Kaggle
          "jupyter": {"source_hidden": True, "outputs_hidden": True}}              # JupyterLab
# unpacked files of the kit are on the path before an installed kit of another version
UNPACK = '''import base64
import io
import sys
import tarfile
import tempfile
from pathlib import Path

packed = """
{packed}
"""
kit_folder = tempfile.mkdtemp()          # goes with the machine
with tarfile.open(fileobj=io.BytesIO(base64.b85decode("".join(packed.split())))) as archive:
    for member in archive:
        path = Path(kit_folder, member.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(archive.extractfile(member).read())
sys.path.insert(0, kit_folder)'''
LINE = 1000                                     # letters in a line of what is packed
ATTACHED = """import os
from pathlib import Path

for name in {datasets}:
    for place in (Path("/kaggle/input/datasets", name), Path("/kaggle/input", name.split("/")[1])):
        if (place / "tile").is_dir() or (place / "layout").is_dir():
            os.environ.setdefault("TPUGRAPHS_ROOT", str(place))       # where the data is looked for first"""
PREDICT = """import os
import tempfile
from pathlib import Path

from lab.data import wanted
from lab.packed_weights import find_weights, open_ranked, predict_from_weights

weights, data_root, collections = {settings}
{device}
places = Path("/kaggle/input/datasets", weights), Path("/kaggle/input", weights.split("/")[1])
folder = find_weights(places)
root = open_ranked(data_root, collections, tempfile.mkdtemp())
os.environ["TPUGRAPHS_ROOT"] = str(root)        # where 05 and 06 look for the data first
predict_from_weights(folder, root, None, wanted(collections), device)"""
ABOUT_WEIGHTS = """## Predict from weights
The checkpoints of a finished run lie in the Kaggle Dataset `{weights}`. Nothing is trained here. Each checkpoint \
ranks the validation and test graphs. Specialists learn from training graphs, so their costs of the same graphs come \
with the checkpoints. The predictions are those of the run, and 05 and 06 make the same submission of them."""
# Kaggle submits a file at the top of the output of a notebook
TO_TOP = """import shutil

print(shutil.copyfile(csv, "submission.csv"))"""
# in the parameters cell, before any data is read: a GPU that is missing or cannot be used ends the notebook at once
ANY_DEVICE = "from kit.train_parts import find_device\n\ndevice = find_device()"
ANY_GPU = """from pathlib import Path

from kit.train_parts import find_device

device = find_device(needs_gpu=Path("/kaggle/working").is_dir())"""
NOT_THERE = ", else the measured programs that come with the kit"       # a bundle has no room for them
THIS_DEVICE = "from kit.train_parts import check_device\n\ncheck_device(device)"


def place(name):
    """Where a file of a package is, such as kit/data.py."""
    return HOMES[name.partition("/")[0]].parent / name


def kit_files(sources):
    """Files of the kit that some code needs, directly or through each other: sorted names, such as kit/data.py."""
    files, todo = {"kit/__init__.py"}, list(sources)
    while todo:
        for node in ast.walk(ast.parse(todo.pop())):
            parts = (node.module or "").split(".") if isinstance(node, ast.ImportFrom) else [""]
            if parts[0] not in HOMES:
                continue
            named = [parts, *([*parts, alias.name] for alias in node.names)]
            found = {"/".join(some) + ".py" for some in named if some[1:]}
            found |= {"/".join([*some[:end], "__init__.py"]) for some in named for end in range(1, len(some) + 1)}
            found = {name for name in found if place(name).is_file()} - files
            todo += [place(name).read_text("utf-8") for name in found]
            files |= found
    return sorted(files)


def tables(paths, names):
    """Tables and programs that lie beside notebooks or modules and are named in their code: {name: content}.

    Those of notebooks lie beside the packages, as `lab.BESIDE` says.
    """
    found, beside = {}, [(Path(), path) for path in paths]
    for folder, path in [*beside, *((Path(name).parent, place(name)) for name in names)]:
        text = path.read_text("utf-8")
        found |= {(folder / table.name).as_posix(): table.read_bytes()
                  for kind in ("*.csv*", "*.hlo.pb") for table in sorted(path.parent.glob(kind)) if table.name in text}
    return found


def packed(files):
    """{name: content} as text: a compressed archive, which is a third of the files; equal files give equal text."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:xz") as archive:
        for name, content in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    text = base64.b85encode(made.getvalue()).decode()           # no letter of it is special in a string or in JSON
    return "\n".join(text[start:start + LINE] for start in range(0, len(text), LINE))


def bundle(parameters, datasets=(), machine=MACHINE, weights=None):
    """Make one notebook of several, with what they need of the kit; no cell of theirs is changed but the settings.

    `datasets`: Kaggle Datasets "owner/slug"; the first one that holds tile/ or layout/ is the data root there.
    `weights`: None, or {"weights": the Kaggle Dataset "owner/slug" that the predictions come from, "data_root",
    "collections"}, the last two as in the parameters of a notebook.
    `machine`: as in `kernel_metadata`; unless it is None, a notebook on Kaggle ends at once if it got no GPU.
    `parameters`: {path of a notebook: {name: value}}, in the order in which they run. The values stand below the
    notebook's own in its parameters cell; a `device` that is not given is a GPU where there is one.
    """
    books = {path: nbformat.read(path, 4).cells for path in parameters}
    code = [c.source for cells in books.values() for c in cells if c.cell_type == "code"]
    for cell in [c for cells in books.values() for c in cells if c.cell_type == "code"]:
        cell.outputs, cell.execution_count = [], None            # those of .ci/outputs.py are of another run
    anywhere = ANY_GPU if machine else ANY_DEVICE
    rank = [PREDICT.format(settings=", ".join(map(repr, weights.values())), device=anywhere)] if weights else []
    names = kit_files([*code, *rank, ANY_GPU, THIS_DEVICE])
    files = {name: place(name).read_text("utf-8").encode() for name in names} | tables(books, names)
    version = hashlib.sha256(b"".join(name.encode() + content for name, content in files.items())).hexdigest()[:12]
    cells = [new_markdown_cell(
        f"# {' '.join(path.stem for path in books)}, with the kit inside\n"
        f"Runs alone, without internet. The data is found by itself where the competition is attached (Kaggle) or "
        f"unpacked to `tpugraphs` (Colab). Settings are in the parameters cell of each "
        f"step.\n\n## The kit\nVersion {version}, with the files as they are in its repository. They are packed, "
        f"because Kaggle takes notebooks of at most 1 MB. The next cell unpacks them to `kit_folder`, where you can "
        f"read them."),
        new_code_cell(UNPACK.format(packed=packed(files)), metadata=FOLDED)]
    cells += [new_code_cell(ATTACHED.format(datasets=json.dumps([*datasets])))] if datasets else []
    cells += [new_markdown_cell(ABOUT_WEIGHTS.format(**weights)), *map(new_code_cell, rank)] if weights else []
    for path, own in books.items():
        for cell in own:
            if "parameters" in cell.metadata.get("tags", []):
                cell.source = cell.source.replace(NOT_THERE, "")
                declared = {node.targets[0].id for node in ast.parse(cell.source).body if isinstance(node, ast.Assign)}
                given = "\n".join(["# as bundled", *(f"{k} = {v!r}" for k, v in parameters[path].items())])
                cell.source += f"\n\n{given}" if parameters[path] else ""
                if "device" in declared:
                    cell.source += f"\n\n{THIS_DEVICE if 'device' in parameters[path] else anywhere}"
            cells.append(cell)
    cells += [new_code_cell(TO_TOP)] if weights else []
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number:03d}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})


def kernel_metadata(name, owner=None, datasets=(), machine=MACHINE):
    """The content of kernel-metadata.json for a bundle called `name`.

    `datasets`: Kaggle Datasets "owner/slug" that the notebook gets, besides the competition's files. `machine`: one of
    Kaggle's names for machines with GPUs; None: a machine without a GPU.
    """
    return {"id": f"{owner}/{name}" if owner else name, "title": name.replace("-", " "), "code_file": f"{name}.ipynb",
            "language": "python", "kernel_type": "notebook", "is_private": True, "enable_gpu": machine is not None,
            **({"machine_shape": machine} if machine else {}), "enable_tpu": False, "enable_internet": False,
            "dataset_sources": [*datasets], "competition_sources": [COMPETITION], "kernel_sources": [],
            "model_sources": []}


def write_bundle(folder, book, about):
    """Write a bundle and its `about`, from `kernel_metadata`, to a folder of its name in `folder` -> that folder.

    KaggleError, before anything is written, if Kaggle would refuse it.
    """
    place = Path(folder, Path(about["code_file"]).stem)
    check_notebook(about["code_file"], nbformat.writes(book), about["title"])
    with unwritable_named(place):
        place.mkdir(parents=True, exist_ok=True)
        nbformat.write(book, place / about["code_file"])
        (place / "kernel-metadata.json").write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    return place


def main(argv=None):
    """Bundle what the command line asks for."""
    from arguments import assignment, check, collected, dataset, folder, machine, select, share_out
    from dry_run import show_plan
    from steps import RunError, show
    parser = argparse.ArgumentParser(prog="bundle.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", metavar="03,04", help=f"notebooks whose names start with these; {STEPS}, or "
                        f"{COMBINES} with --weights")
    parser.add_argument("--out", metavar="DIR", default="bundle", help="folder of the bundle; default: %(default)s")
    parser.add_argument("--collections", metavar="A,B", help="default: all five")
    parser.add_argument("--data-root", metavar="DIR", help="where the data is there, if not in the usual places")
    parser.add_argument("--size", choices=("tiny", "small"), help="of the work; tiny only tries the cells")
    parser.add_argument("--owner", metavar="NAME", help="your name on Kaggle; `kaggle kernels push` needs it")
    parser.add_argument("--dataset", type=dataset, action="append", default=[], metavar="OWNER/SLUG",
                        help="a Kaggle Dataset that the notebook gets, such as prepared data; may be repeated")
    parser.add_argument("--weights", type=dataset, metavar="OWNER/SLUG", help="train nothing: predict from the weights "
                        "in this Kaggle Dataset, which notebooks/weights.py has published")
    parser.add_argument("--machine", metavar="NAME", help=f"the machine on Kaggle; default: {MACHINE}, which has two "
                        "T4; cpu: one without a GPU")
    parser.add_argument("--dry-run", action="store_true", help="only print the notebook, its machine, its data and "
                        "its hours")
    parser.add_argument("-p", type=assignment, action="append", default=[], metavar="NAME=VALUE",
                        help="a parameter, for every notebook that declares it")
    args = parser.parse_args(argv)
    try:
        if args.data_root == "measured":
            raise RunError("--data-root measured: measured programs do not travel in a bundle; run.py trains on them "
                           "here, in minutes")
        notebooks = select(args.only or (COMBINES if args.weights else STEPS))[1]
        numbers = [n.stem[:2] for n in notebooks]
        if args.weights and numbers != COMBINES.split(","):
            raise RunError(f"--weights makes one notebook of {COMBINES}: remove any other --only")
        options = {"collections": wanted(args.collections)} if args.collections else {}
        options |= {name: value for name, value in (("data_root", args.data_root), ("size", args.size)) if value}
        trained, sources = None, args.dataset
        if args.weights:
            trained = {"weights": args.weights, "data_root": options.pop("data_root", None),
                       "collections": options.get("collections")}
            sources = list(dict.fromkeys([*args.dataset, args.weights]))
        asked = collected(args.p)
        parameters = share_out(notebooks, options, asked)
        check(notebooks, asked, there=True)
        shape, out = machine(args.machine, asked.get("device")), folder("--out", args.out)
        name = "-".join(["tpugraphs-kit", *numbers])
        if len(name) > TITLE_MOST:
            name = f"tpugraphs-kit-{numbers[0]}-to-{numbers[-1]}"
        about = kernel_metadata(name, args.owner, sources, shape)
        if args.dry_run:
            show_plan([(about, parameters)])
        else:
            book = bundle(parameters, datasets=args.dataset, machine=shape, weights=trained)
            print(show(write_bundle(out, book, about)))
            if not args.owner:
                print("note  `kaggle kernels push` needs your name on Kaggle: give it as --owner NAME", file=sys.stderr)
    except (RunError, DataError, KaggleError, OSError) as error:
        cure = "; --out DIR names another folder" if isinstance(error, OSError) else ""
        print(f"bundle.py: {error}{cure}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
