"""Trainings that take several sessions on Kaggle: each ending of a session, with the real client and a local server."""
import json

import numpy as np
import pytest
from kaggle_server import USER
from test_remote import LOG, TILE, finished, planned, states, watch
from test_remote import notebook as notebook

TIMED_OUT = "Your notebook was stopped because it ran for longer than the maximum runtime"
MODELS = ("tile_xla-tile-0-0123456789abcdef", "tile_xla-tile-1-89abcdef01234567")


def left(server, steps, status="COMPLETE", record=True, log="[]", lost=(), **more):
    """A session that ended; `steps`: of each model whose checkpoint it left. `lost`: names that are listed no more."""
    found = {}
    for name, done in zip(MODELS, steps):
        found |= {f"results/store/{name}.pt": f"weights after {done} steps".encode(),
                  f"results/store/{name}.json": json.dumps({"steps_done": done, "steps": 100}).encode()}
    if record:
        found["results/unfinished/03_train_tile.json"] = b"{}"
    files = []
    for name, data in found.items():
        if name.removeprefix("results/store/") not in lost:
            path = f"/output/{len(server.files)}"
            server.files[path] = data
            files.append((name, path))
    return {"status": status, "files": files, "log": log, **more}


def cut(server, steps, why=TIMED_OUT, **more):
    """A session that Kaggle ended."""
    return left(server, steps, "ERROR", record=False, failureMessage=why, **more)


@pytest.fixture
def season(kaggle, tmp_path, tiny_hidden, notebook):
    """(what each push becomes, in order) -> a function that runs the command -> (what failed, sources of each push)."""
    def script(*sessions):
        coming = iter(sessions)
        kaggle.machine = lambda body: (lambda made: made(kaggle) if callable(made) else made)(next(coming))

        def command():
            failed = watch(planned(TILE), notebook, tmp_path, tiny_hidden)
            return failed, [body.get("kernelDataSources") or [] for body in kaggle.pushed]
        return command
    script.server, script.folder, script.root = kaggle, tmp_path, tiny_hidden
    script.done = lambda server: finished(server, tiny_hidden, TILE)
    return script


def refs_of(server):
    return [body["slug"] for body in server.pushed]


def refs(season):
    return refs_of(season.server)


def test_sessions_follow_each_other_until_all_is_trained_and_then_predictions_are_fetched(season):
    command = season(lambda s: left(s, [40]), lambda s: left(s, [100, 7]), season.done)
    failed, sources = command()
    first, second, third = refs(season)
    assert failed == [] and sources == [[], [first], [second]] and states(season.folder) == ["fetched"]
    assert (second, third) == (f"{first}-2", f"{first}-3")
    said = season.server.said()
    assert f"{first}: to be continued; the next session goes on from its checkpoints, 1 model with 40 steps" in said
    assert "2 models with 107 steps together" in said
    assert command() == ([], sources)                    # nothing is pushed again


def test_a_session_without_progress_is_the_last_one_and_the_next_command_goes_on(season):
    command = season(lambda s: left(s, [40]), lambda s: left(s, [40, 0]), season.done)
    (_, why), = command()[0]
    assert why == ("failed on Kaggle: the session made no progress, so another one would make none: give each session "
                   "more hours with -p hours=HOURS, or shorten the recipe")
    failed, sources = command()
    assert failed == [] and sources == [[], refs(season)[:1], refs(season)[1:2]]


@pytest.mark.parametrize("why", [TIMED_OUT, "The machine was preempted"])
def test_a_session_that_kaggle_ended_goes_on_from_its_last_checkpoint(season, why):
    failed, sources = season(lambda s: cut(s, [40], why), lambda s: cut(s, [60], why), season.done)()
    assert failed == [] and sources == [[], refs(season)[:1], refs(season)[1:2]]
    said = season.server.said()
    assert f"{refs(season)[0]}: was cut ({why}); the next session goes on from its checkpoints, 1 model with 40" in said


def test_a_session_whose_output_is_lost_starts_again_but_only_once(season):
    def lost(server):
        return cut(server, [])
    command = season(lost, lost, lambda s: left(s, [3]), lost, season.done)
    (_, why), = command()[0]
    assert why == f"failed on Kaggle: {TIMED_OUT}, a second time without progress" and len(refs(season)) == 2
    said = season.server.said()
    assert "and left nothing new; the next session starts again from the beginning\n" in said
    failed, sources = command()
    assert failed == [] and sources == [[], [], [], refs(season)[2:3], refs(season)[2:3]]
    assert "starts again from the session before, 1 model with 3 steps together" in season.server.said()


@pytest.mark.parametrize("ending, sentence", [
    (lambda s: cut(s, [40], "Your notebook threw an error"), "Your notebook threw an error"),
    (lambda s: cut(s, [40], None, log=json.dumps([{"data": "ValueError: no\n"}])), "error"),
    (lambda s: left(s, [40], "CANCEL_ACKNOWLEDGED", record=False), "cancel_acknowledged")])
def test_what_failed_or_was_cancelled_goes_on_only_with_the_next_command(season, ending, sentence):
    command = season(ending, season.done)
    (_, why), = command()[0]
    assert why.splitlines()[0] == (f"failed on Kaggle: {sentence}; the same command goes on from its checkpoints, 1 "
                                   "model with 40 steps together")
    assert command()[0] == [] and season.server.pushed[1]["kernelDataSources"] == refs(season)[:1]


def test_results_that_an_output_lost_are_made_again_from_its_checkpoints(season):
    def incomplete(server):
        done = finished(server, season.root, TILE)
        files = [pair for pair in done["files"] if "/costs-" not in pair[0]]
        return {**done, "files": files + left(server, [100], record=False)["files"]}
    command = season(incomplete, season.done)
    (_, why), = command()[0]
    assert "the notebook did not leave it" in why and "goes on from its checkpoints, 1 model" in why
    failed, sources = command()
    assert failed == [] and sources == [[], refs(season)[:1]]


@pytest.mark.parametrize("how", ["not listed", "link expired"])
def test_a_checkpoint_that_an_output_lost_is_taken_from_the_session_before(season, how):
    def second(server):
        made = left(server, [70, 30], lost=[f"{MODELS[0]}.pt"] if how == "not listed" else ())
        place = next(number for number, pair in enumerate(made["files"]) if pair[0].endswith(f"{MODELS[0]}.json"))
        if how == "link expired":
            made["files"][place] = made["files"][place][0], "/gone"
        return made
    failed, sources = season(lambda s: left(s, [40]), second, season.done)()
    assert failed == [] and sources == [[], refs(season)[:1], refs(season)[:2]]
    assert f"note  {refs(season)[1]}: its output lost {MODELS[0]}; this model" in season.server.said()


def test_an_output_that_kaggle_does_not_have_any_more_is_told(season):
    command, take = season(lambda s: left(s, [40]), lambda s: left(s, [60]), season.done), season.server.on_SaveKernel

    def forget(body):
        if len(refs(season)) == 1:                       # somebody deleted the first notebook
            del season.server.kernels[refs(season)[0]]
        return take(body)
    season.server.on_SaveKernel = forget
    assert command()[0] == []
    first, second, _ = refs(season)
    assert f"{second}: Kaggle does not have the output of {first}; its models start again from the beginning\n" in (
        season.server.said())


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_whatever_happens_to_sessions_they_come_to_an_end_and_none_trains_what_an_earlier_one_has(season, seed):
    """A Kaggle that draws how each session ends; it keeps its own account of the steps in each output."""
    rng, outputs, runs, server = np.random.default_rng(seed), {}, [], season.server

    def start(body):
        sources = body.get("kernelDataSources") or []
        assert all(ref in outputs for ref in sources)
        begins = max([outputs[ref] for ref in sources], default=0)
        runs.append((begins, max(outputs.values(), default=0)))
        ends = min(100, begins + int(rng.integers(0, 60)))
        how = rng.choice(["clean", "cut", "lost", "threw"], p=[0.5, 0.2, 0.2, 0.1])
        if how != "lost":
            outputs[body["slug"]] = ends
        if ends == 100 and how == "clean":
            return season.done(server)
        if how == "clean":
            return left(server, [ends])
        words = TIMED_OUT if how != "threw" else "Your notebook threw an error"
        return cut(server, [ends] * (how != "lost"), words, log=json.dumps(LOG))
    command = season()
    server.machine = start
    for _ in range(8):                                   # commands; each one ends by itself
        failed, _ = command()
        if not failed:
            break
    assert not failed and states(season.folder) == ["fetched"], failed
    assert all(begins == best for begins, best in runs) and len(runs) < 30
    assert all(ref.startswith(f"{USER}/") for ref in refs(season)) and len({*refs(season)}) == len(runs)
