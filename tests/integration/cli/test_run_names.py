"""Runs by the names that tables show: the end of their ids, or `latest`."""

import pytest

from tests.fakes.scripted_service import RUN_ID, ScriptedService
from tests.integration.cli.conftest import Learnloop

OTHER = "01KAJ3M7F5T2V8Q9X0C4D6E8GB"


@pytest.mark.parametrize(
    "named", ["latest", RUN_ID[-6:], RUN_ID[-6:].lower(), f"…{RUN_ID[-6:]}", f"run-{RUN_ID.lower()}", RUN_ID[:22]]
)
def test_a_run_is_found_by_what_tables_show(learnloop: Learnloop, service: ScriptedService, named: str) -> None:
    service.listed = [RUN_ID, "01KAHZZZZZT2V8Q9X0C4D6E8GB"]
    ran = learnloop("runs", "show", named, "--url", service.url, "--json")
    assert ran.exit_code == 0, ran.stderr
    assert ran.json["run_id"] == RUN_ID


def test_a_part_of_several_ids_says_which_runs_it_could_be(learnloop: Learnloop, service: ScriptedService) -> None:
    service.listed = [RUN_ID, OTHER]
    ran = learnloop("runs", "cancel", RUN_ID[:10], "--url", service.url)
    assert (ran.exit_code, service.cancelled) == (1, False)
    assert f"'{RUN_ID[:10]}' could be any of 2 runs; give more of the id:" in ran.stderr
    for id in service.listed:
        assert f"\n  {id}  mail, running" in ran.stderr


def test_what_fits_no_run_is_refused_by_the_service(learnloop: Learnloop, service: ScriptedService) -> None:
    for named in ("7ZZZZZ", "nowhere", "mail"):
        ran = learnloop("runs", "show", named, "--url", service.url)
        assert (ran.exit_code, f"There is no run '{named}'." in ran.stderr) == (1, True)


def test_there_is_no_latest_run_before_the_first(learnloop: Learnloop, service: ScriptedService) -> None:
    service.listed = []
    ran = learnloop("runs", "show", "latest", "--url", service.url)
    assert (ran.exit_code, "there is no run yet" in ran.stderr) == (1, True)


@pytest.mark.parametrize("named", ["latest", RUN_ID[-6:]])
def test_other_commands_name_runs_alike(learnloop: Learnloop, service: ScriptedService, named: str) -> None:
    service.listed = [RUN_ID]
    at = ("--url", service.url)
    assert learnloop("ask", "When?", "--run", named, *at).exit_code == 0
    assert learnloop("ask", "When?", "--model", f"{named}@3", *at).exit_code == 1  # a base model answers nothing
    assert [ask.get("run_id") or ask["model"] for ask in service.asks] == [RUN_ID, f"{RUN_ID}@3"]
    learnloop("eval", "--run", named, "--model", f"{named}@2", "--model", "learnloop/tiny", *at)
    assert service.evaluations == [
        {"run_id": RUN_ID, "models": [{"model": f"{RUN_ID}@2"}, {"model": "learnloop/tiny"}]}
    ]
    learnloop("releases", "start", "learnloop/live", "--run", named, *at)
    assert service.releases == [{"model": "learnloop/mail", "step": 1}]  # its best checkpoint
