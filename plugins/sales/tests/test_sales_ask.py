"""`learnloop ask` for emails, against an HTTP service."""

from tests.fakes.scripted_sales import HOSTILE, SCENARIOS, ScriptedSales
from tests.fakes.scripted_service import RUN_ID, serving
from tests.integration.cli.conftest import Learnloop


def test_asks_for_an_email(learnloop: Learnloop) -> None:
    task, right = SCENARIOS[1].task, SCENARIOS[1].reference["email"]
    options = ("--prospect", task["prospect"], "--company", task["company"], "--role", "Data Lead")
    with serving(ScriptedSales()) as service:
        ran = learnloop("ask", "--run", RUN_ID, *options, "--start", "a", "--start", "b", "--url", service.url)
    assert ran.exit_code == 0, ran.stderr
    assert service.asks == [
        {
            "run_id": RUN_ID,
            "prospect": task["prospect"],
            "company": task["company"],
            "role": "Data Lead",
            "start": ["a", "b"],
        }
    ]
    lines = ran.stdout.splitlines()
    assert lines[0] == right["subject"]
    assert " ".join(right["body"].split()) in " ".join(ran.stdout.split())
    assert f"cites       {', '.join(right['citations'])}" in lines


def test_an_email_cannot_steer_the_terminal(learnloop: Learnloop) -> None:
    task = SCENARIOS[0].task
    options = ("--prospect", task["prospect"], "--company", task["company"], "--graph", task["graph"])
    with serving(ScriptedSales()) as service:
        ran = learnloop("ask", "--model", "learnloop/tiny", *options, "--url", service.url)
    assert service.asks[0]["graph"] == task["graph"]
    assert "\x1b" in HOSTILE
    assert "\x1b" not in ran.stdout
    assert "[bold red]Hello[/bold red]" in ran.stdout


def test_no_email_is_said(learnloop: Learnloop) -> None:
    task = SCENARIOS[1].task
    options = ("--prospect", task["prospect"], "--company", task["company"])
    with serving(ScriptedSales()) as service:
        ran = learnloop("ask", "--model", "learnloop/tiny", *options, "--url", service.url)
    assert ran.stdout.splitlines()[0] == "(no answer)"
