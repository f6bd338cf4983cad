"""What a step of a run leaves in the folder of the run, and what it reads there from other steps."""
from pathlib import Path

from kit.data import DataError
from kit.run.provenance import from_files, make_room, own_results, set_aside, unfit, write_mark
from kit.run.workflow import load_costs, note_settings, report_problems, save_costs, write_table
from kit.submit import read_submission, write_submission


class Results:
    """The results of one step. Each is written whole, with what it was made from; nothing else is overwritten.

    Parameters
    ----------
    out : str or Path
        The folder of the run.
    step : str
        The name of the step, as that of its notebook.
    data_root : str or Path
        The prepared data, as from `open_data`.
    settings : dict, optional
        The settings of the step, {name: plain value}; they are noted for the ledger.

    Examples
    --------
    Predictions of your own become a member of the ensemble if they are saved like this: ::

        results = Results("submissions/my-run", "my model", data_root)
        made_from = from_data(data_root, ["layout:xla:random"], "train", "test")
        results.save_costs("predictions/layout_xla_random/mine_seed0.test.npz", costs, made_from)
    """

    def __init__(self, out, step, data_root, settings=None):
        self.out, self.step, self.data_root, self.made, self.read = Path(out), step, data_root, set(), []
        if settings is not None:
            note_settings(out, step, settings)

    def save(self, name, write, made_from):
        """Write one result; what else is there at this name is moved aside before.

        Parameters
        ----------
        name : str
            Where, in the folder of the run.
        write : callable
            Is called with the path, and writes the file.
        made_from : dict of str to str
            From `from_data`, `from_code`, `from_files` and `from_settings`.

        Returns
        -------
        Path
        """
        path = self.out / name
        make_room(path, self.out)
        write(path)
        self.mark(path, made_from)
        return path

    def mark(self, path, made_from):
        """Write down what a result was made from that is written already; arguments as for `save`."""
        write_mark(path, self.out, self.step, made_from)
        self.made.add(Path(path))

    def save_costs(self, name, costs, made_from):
        """Save predictions {ID: cost (c,)}; the other arguments and the result are as for `save`."""
        return self.save(name, lambda path: save_costs(path, costs), made_from)

    def save_table(self, name, table, made_from):
        """Save a DataFrame as CSV; the other arguments and the result are as for `save`."""
        return self.save(name, lambda path: write_table(path, table), made_from)

    def save_submission(self, costs, made_from):
        """Save submission.csv; a submission with rows that the new one lacks is moved aside, and a line says so.

        Parameters
        ----------
        costs : dict of str to ndarray, shape (c,)
            As for `write_submission`.
        made_from : dict of str to str
            As for `save`.

        Returns
        -------
        Path
        """
        path = self.out / "submission.csv"
        try:
            rows = read_submission(path).keys() if path.is_file() else set()
        except (DataError, ValueError):
            rows = set()                                         # not a submission; `save` moves it aside
        lost = rows - costs.keys()
        if lost:
            of = ", ".join(sorted({name.rpartition(":")[0] for name in lost}))
            print(f"note  the submission of {len(rows)} rows in {self.out} has {len(lost)} rows, of {of}, that the new "
                  f"one lacks; it is kept as {set_aside(path, self.out)}")
        return self.save("submission.csv", lambda place: write_submission(costs, place), made_from)

    def unfit(self, path):
        """Why a result in the folder of the run cannot be used, as text; None if it can."""
        return unfit(path, self.out, self.data_root)

    def load_costs(self, path):
        """Read predictions.

        Returns
        -------
        dict of str to ndarray, shape (c,)

        Raises
        ------
        DataError
            If the file is not whole, or was not made from what is there now.
        """
        why = self.unfit(path)
        if why:
            raise DataError(f"{why}; run the step again that makes it")
        self.read.append(Path(path))
        return load_costs(path)

    def load_members(self, folder, collections):
        """Read what models predicted; files that cannot be used are left out, named, and reported as problems.

        Parameters
        ----------
        folder : str
            "predictions" or "baselines".
        collections : sequence of str

        Returns
        -------
        dict of (str, str, str) to dict
            {(`folder`, collection, "valid" or "test"): {member: {ID: cost (c,)}}}.
        """
        found = {(folder, c, split): {} for c in collections for split in ("valid", "test")}
        for place, members in found.items():
            for path in sorted(Path(self.out, folder, place[1].replace(":", "_")).glob(f"*.{place[2]}.npz")):
                try:
                    members[path.name.split(".")[0]] = self.load_costs(path)
                except DataError as fault:
                    print(f"left out: {fault}")
                    report_problems(self.out / "problems" / f"{self.step}.jsonl", path, [str(fault)])
        return found

    def from_read(self, folder="", collection=""):
        """What a result was made from: what was read of this folder and collection; "": of all.

        Parameters
        ----------
        folder, collection : str

        Returns
        -------
        dict of str to str
        """
        start = "/".join(filter(None, [folder, collection.replace(":", "_")]))
        return {name: sha for name, sha in from_files(self.out, self.read).items() if name.startswith(f"file {start}")}

    def retire(self, collections):
        """Move aside what this step of this run made earlier for these collections, but not now.

        Parameters
        ----------
        collections : sequence of str
            Checkpoints stay where they are.
        """
        stems = [collection.replace(":", "_") for collection in collections]
        for path in own_results(self.out, self.step):
            name = path.relative_to(self.out)
            if path not in self.made and name.parts[0] != "checkpoints" and any(stem in str(name) for stem in stems):
                print(f"note  {path} is of an earlier run of this step; it is kept as {set_aside(path, self.out)}")
