"""Runs are compared, receivers of events are looked after, mail and demonstrations are stored, all by the pages."""

import json
import re
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import FilePayload, expect

from tests.browser.visit import Visit
from tests.conditions import answered, until
from tests.fakes.faulty_receiver import faulty_receiver
from tests.fakes.mailboxes import mbox, questions
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.imitating_runs import demonstrations
from tests.integration.app.served import run_with, served, settings_for

pytestmark = pytest.mark.long


async def test_runs_are_compared_deliveries_sent_again_and_data_is_stored(
    visit: Visit, data_dir: Path, database_url: str
) -> None:
    settings = settings_for(data_dir, database_url, allowed_private_hosts="127.0.0.0/8")
    async with faulty_receiver() as receiver, served(settings, ScriptedLoop()) as client:
        await visit.open(str(client.base_url).rstrip("/"), "/webhooks")
        await _make_endpoint(visit, receiver.url)
        for name, rate in (("slow", 0.001), ("quick", 0.002)):
            body = {"iterations": 1, "model": {"name": name}, "learning_rate": rate}
            run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
            await run_with(client, run_id, "completed")
        await _compare(visit)
        await answered(lambda: _delivered(client), bool)  # what a page shows of it is as old as the page
        await _send_again(visit, receiver.url)
        await until(lambda: len(receiver.arrivals) > len({arrival.id for arrival in receiver.arrivals}))
        await _store_mail(visit)
        await _make_questions(visit)
        await _upload_questions(visit)
        await _store_demonstrations(visit)
        await _learn_from_them(visit, client)
        await _import_conversations(visit)
        await _import_questions(visit)


async def _make_endpoint(visit: Visit, address: str) -> None:
    await visit.text("New endpoint").click()
    await visit.page.get_by_label("Address", exact=True).fill("not an address")
    await visit.button("Create").click()
    await expect(visit.page.get_by_label("Address", exact=True)).to_have_attribute("aria-invalid", "true")
    await visit.page.get_by_label("Address", exact=True).fill(address)
    await visit.button("Create").click()
    await expect(visit.text("It is shown only now")).to_be_visible()


async def _compare(visit: Visit) -> None:
    page = visit.page
    await visit.link("Runs").first.click()
    for name in ("slow", "quick"):
        await page.get_by_label(f"Compare learnloop/{name}").check()
    await visit.button("Compare 2 runs").click()
    figures = page.get_by_role("region", name="Figures and settings")
    await expect(figures.get_by_role("row", name="learning_rate")).to_contain_text("0.001")
    await expect(figures.get_by_role("row", name="learning_rate")).to_contain_text("0.002")
    await expect(figures.get_by_role("row", name="seed")).to_have_count(0)  # it is the same in both


async def _delivered(client: httpx.AsyncClient) -> list[Any]:
    """What the one endpoint has received, as the service knows it."""
    [endpoint] = (await client.get("/webhooks")).json()["items"]
    page = await client.get(f"/webhooks/{endpoint['id']}/deliveries", params={"state": "delivered"})
    items: list[Any] = page.raise_for_status().json()["items"]
    return items


async def _send_again(visit: Visit, address: str) -> None:
    await visit.link("Webhooks").click()
    await visit.link(address).click()
    first = visit.page.get_by_role("row").filter(has_text="delivered").first
    await first.get_by_role("button", name="Redeliver").click()


async def _store_mail(visit: Visit) -> None:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "ann@a.example", "bob@b.example", "The launch"
    message["Date"], message["Message-ID"] = "Mon, 02 Nov 2026 10:00:00 +0000", "<one@a.example>"
    message.set_content("It is on Friday.")
    await visit.link("Data").click()
    mail = FilePayload(name="team mail.eml", mimeType="message/rfc822", buffer=message.as_bytes())
    await visit.page.get_by_label("Upload an inbox").set_input_files(mail)
    await expect(visit.text("Stored 1 email as team-mail, version 1.")).to_be_visible()
    await expect(visit.page.get_by_role("row").filter(has_text="team-mail")).to_contain_text("version 1")


async def _make_questions(visit: Visit) -> None:
    """Mail without questions is no dead end: the start form says what is missing and makes it."""
    await visit.go("/start")
    mail = FilePayload(name="team.mbox", mimeType="application/mbox", buffer=mbox(60))
    await visit.page.get_by_label("Upload an inbox").set_input_files(mail)
    await expect(visit.text("team has no questions yet.")).to_be_visible()
    assert await visit.inaccessible() == []
    await visit.button("Make questions").click()
    await expect(visit.page.get_by_role("status").filter(has_text="The agent learns from")).to_be_visible()
    await visit.button("Start the run").click()
    await expect(visit.page).to_have_url(re.compile("/ui/runs/"))


async def _upload_questions(visit: Visit) -> None:
    await visit.go("/data")
    row = visit.page.get_by_role("region", name="Inboxes").get_by_role("row").filter(has_text="team-mail")
    await row.get_by_role("button", name="Make questions").click()
    await expect(row.get_by_role("alert")).to_contain_text("Upload more mail, or store questions of your own")
    await visit.page.get_by_label("About the inbox").select_option("team")
    upload = visit.page.get_by_label("Upload questions")
    bad = FilePayload(name="questions.jsonl", mimeType="application/jsonl", buffer=b'{"question": "When?"}\n{')
    await upload.set_input_files(bad)
    await expect(visit.text("Line 2 is not JSON")).to_be_visible()
    good = "\n".join(json.dumps(question) for question in questions()).encode()
    await upload.set_input_files(FilePayload(name="q.jsonl", mimeType="application/jsonl", buffer=good))
    await expect(visit.text("Stored 6 questions as team, version 2.")).to_be_visible()


async def _store_demonstrations(visit: Visit) -> None:
    upload = visit.page.get_by_label("Upload demonstrations")
    bad = demonstrations(1) + b'{"messages": []}'
    await upload.set_input_files(FilePayload(name="talks.jsonl", mimeType="application/jsonl", buffer=bad))
    await expect(visit.page.get_by_role("alert").filter(has_text="line 2: messages")).to_be_visible()
    good = FilePayload(name="talks.jsonl", mimeType="application/jsonl", buffer=demonstrations(2))
    await upload.set_input_files(good)
    await expect(visit.text("Stored 2 demonstrations as talks, version 1.")).to_be_visible()
    await visit.page.get_by_role("row").filter(has_text="talks").get_by_role("link").click()
    await expect(visit.text("2 conversations")).to_be_visible()


async def _import_conversations(visit: Visit) -> None:
    await visit.link("Data").first.click()
    page = visit.page
    stars = [{"prompt": f"question {number}", "response": "so", "rating": number % 5 + 1} for number in range(50)]
    content = "\n".join(json.dumps(line) for line in [*stars, {"prompt": "unrated", "response": "so"}, {"odd": 1}])
    file = FilePayload(name="chats.jsonl", mimeType="application/jsonl", buffer=content.encode())
    await page.get_by_label("Import a file").set_input_files(file)
    await expect(page.get_by_role("alert").filter(has_text="numbers from 1 to 5")).to_be_visible()
    await page.get_by_label("Liked from").fill("4")
    await page.get_by_label("Liked from").press("Tab")
    await expect(visit.text("20 liked, 30 disliked, 1 without a clear opinion")).to_be_visible()
    await expect(visit.text("30 tasks as chats (preview)")).to_be_visible()
    await visit.button("Import").click()
    await expect(visit.text("30 tasks as chats, version 1")).to_be_visible()
    left_out = page.get_by_role("table", name="What was left out")
    await expect(left_out.get_by_role("row").filter(has_text="it has no opinion")).to_contain_text("51")
    await expect(left_out.get_by_role("row").filter(has_text="it has none of: messages")).to_contain_text("52")


async def _import_questions(visit: Visit) -> None:
    await visit.go("/data")
    page = visit.page
    colors = ("rot", "grün", "blau", "weiß", "gelb", "grau")
    rows = "".join(f"{number};Welche Farbe hat die Lampe {color}?;{color}\n" for number, color in enumerate(colors))
    content = f'Nr;Text;Farbe\n{rows};ohne Antwort;\n"offen;x;y'.encode("cp1252")
    file = FilePayload(name="Lampen & mehr.csv", mimeType="text/csv", buffer=content)
    await page.get_by_label("Import a file").set_input_files(file)
    await expect(visit.text("name the column of the question")).to_be_visible()
    await page.get_by_label("Column of the questions").select_option("Text")
    await page.get_by_label("Column of the answers").select_option("Farbe")
    await expect(page.get_by_role("table", name="First rows")).to_contain_text("Lampe grün?")
    await expect(visit.text("6 tasks as lampen-mehr (preview)")).to_be_visible()
    await expect(visit.text("learnloop bases add")).to_be_visible()
    assert await visit.inaccessible() == []
    await visit.button("Import").click()
    await expect(visit.text("6 tasks as lampen-mehr, version 1")).to_be_visible()
    left_out = page.get_by_role("table", name="What was left out")
    await expect(left_out.get_by_role("row").filter(has_text="it has no answer")).to_contain_text("8")
    await expect(left_out.get_by_role("row").filter(has_text="a quote is opened")).to_contain_text("9")
    await expect(page.get_by_role("row").filter(has_text="answers").filter(has_text="lampen-mehr")).to_be_visible()
    await visit.link("Start a run on them").click()
    await expect(page.get_by_label("Environment", exact=True)).to_have_value("answers")
    await expect(page.get_by_label("Scenarios", exact=True)).to_have_value("lampen-mehr")
    await expect(page.get_by_label("Judge", exact=True)).to_have_value("reference")
    await expect(page.get_by_label("End when little is left to learn")).to_have_value("false")  # its default


async def _learn_from_them(visit: Visit, client: httpx.AsyncClient) -> None:
    page = visit.page
    await visit.go("/start")
    await visit.text("Warm start").click()
    await page.get_by_label("Demonstrations", exact=True).select_option("the environment's own oracle")
    await page.get_by_label("Epochs").fill("3")
    await visit.button("Start the run").click()
    await expect(page.get_by_label("Scenarios that it solves")).to_have_attribute("aria-invalid", "true")
    more = FilePayload(name="more talks.jsonl", mimeType="application/jsonl", buffer=demonstrations(3))
    await page.get_by_label("Upload demonstrations").set_input_files(more)
    await expect(page.get_by_label("Demonstrations", exact=True)).to_have_value("more-talks")
    assert await visit.inaccessible() == []
    await visit.button("Start the run").click()
    await expect(page).to_have_url(re.compile("/ui/runs/"))
    run_id = page.url.rsplit("/", 1)[-1]
    warm_start = (await client.get(f"/runs/{run_id}")).json()["request"]["warm_start"]
    assert (warm_start["demonstrations"]["name"], warm_start["demonstrations"]["count"]) == ("more-talks", 3)
    assert warm_start["epochs"] == 3
