"""`learnloop train`: starts a run from a YAML file and flags, and follows it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.options import AsJson, DataDir, config_file, own_url, setting
from learnloop_service.app.cli.run_report import expected_text, print_defaults, print_run
from learnloop_service.app.cli.run_request import overlay, parse_settings, read_graph_file, read_run_file
from learnloop_service.app.cli.service_process import service_at
from learnloop_service.app.cli.terminal import print_json, progress, results, say
from learnloop_service.app.cli.watching import RunDisplay, page_of, run_to_end

_File = Annotated[
    Path | None,
    typer.Argument(parser=config_file, metavar="FILE", help="YAML file with the fields of POST /learn-loop."),
]
_Name = Annotated[str | None, typer.Option(help="What to call the run. \\[default: what differs from the defaults]")]
_Environment = Annotated[str | None, typer.Option(help="Environment to train in.")]
_Graph = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="JSON file with the graph, if the environment takes one."),
]
_Judge = Annotated[str | None, typer.Option(help="Judge that scores the rollouts.")]
_Model = Annotated[str | None, typer.Option(help="Name of the model; an existing model is trained further.")]
_BaseModel = Annotated[str | None, typer.Option(help="Base model for a new model.")]
_Demonstrations = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Stored demonstrations to learn from first, as NAME or NAME@VERSION."),
]
_Prompt = Annotated[str | None, typer.Option(metavar="NAME", help="Stored prompt, as NAME or NAME@VERSION.")]
_Iterations = Annotated[int | None, typer.Option(help="Number of training iterations.")]
_Groups = Annotated[int | None, typer.Option(help="Scenarios per iteration.")]
_Rollouts = Annotated[int | None, typer.Option(help="Rollouts per scenario.")]
_MaxTurns = Annotated[int | None, typer.Option(help="Maximum turns per rollout.")]
_LearningRate = Annotated[float | None, typer.Option(help="Learning rate.")]
_MaxStaleness = Annotated[int | None, typer.Option(help="Iterations that rollouts may run ahead of training.")]
_Seed = Annotated[int | None, typer.Option(help="Random seed.")]
_Settings = Annotated[list[str] | None, setting("Any other field, such as evaluation.every=5; repeatable.")]
_Url = Annotated[str | None, own_url("run")]
_Detach = Annotated[
    bool, typer.Option("--detach", help="Start the run at the service at --url and return immediately.")
]


def train(
    file: _File = None,
    name: _Name = None,
    environment: _Environment = None,
    graph: _Graph = None,
    judge: _Judge = None,
    model: _Model = None,
    base_model: _BaseModel = None,
    demonstrations: _Demonstrations = None,
    prompt: _Prompt = None,
    iterations: _Iterations = None,
    groups: _Groups = None,
    rollouts: _Rollouts = None,
    max_turns: _MaxTurns = None,
    learning_rate: _LearningRate = None,
    max_staleness: _MaxStaleness = None,
    seed: _Seed = None,
    settings: _Settings = None,
    url: _Url = None,
    detach: _Detach = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Train an agent and watch it learn. Ctrl-C cancels the run."""
    if detach and url is None:
        raise typer.BadParameter("requires a running service; give --url", param_hint="--detach")
    flags = {
        "name": name,
        "environment.name": environment,
        "judge.name": judge,
        "model.name": model,
        "model.base_model": base_model,
        "warm_start.demonstrations.dataset": demonstrations,
        "prompt": prompt,
        "iterations": iterations,
        "groups_per_iteration": groups,
        "rollouts_per_group": rollouts,
        "max_turns": max_turns,
        "learning_rate": learning_rate,
        "pipeline.max_staleness": max_staleness,
        "seed": seed,
    }
    request = _request(file, graph, settings or (), flags)
    with service_at(url, data_dir) as service:
        if detach:
            return _show_accepted(service, service.start_run(request), as_json)
        with RunDisplay(progress) as display:
            run = run_to_end(service, request, display)
    print_json(run) if as_json else print_run(run)
    raise typer.Exit(0 if run["status"] == "completed" else 1)


def _request(
    file: Path | None, graph: Path | None, settings: Sequence[str], flags: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the request for a run. Flags override settings, and settings override the file."""
    given = {path: value for path, value in flags.items() if value is not None}
    if graph:
        given["graph"] = read_graph_file(graph)
    return overlay(read_run_file(file) if file else {}, {**parse_settings(settings), **given})


def _show_accepted(service: Service, accepted: Any, as_json: bool) -> None:
    if as_json:
        print_json(accepted)
        return
    results.print(f"run {accepted['run_id']} is {accepted['status']}")
    for warning in accepted["warnings"]:
        results.print(f"warning: {warning}", style="yellow", markup=False)
    print_defaults(accepted.get("defaults", {}))
    if "expected" in accepted:
        results.print(expected_text(accepted["expected"]))
    say(f"watch it: learnloop runs watch {accepted['run_id']} --url {service.url}")
    say(f"watch it in a browser: {page_of(service.url, accepted['run_id'])}")
