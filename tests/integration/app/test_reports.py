"""The report on a run that really ran: it verifies, and whatever is changed in its file or in the database is named."""

import asyncio
import csv
import io
import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from learnloop_service.app.cli.main import app
from learnloop_service.app.db.json_text import canonical
from learnloop_service.app.reports.page import page
from learnloop_service.app.reports.rollouts import HASHED
from learnloop_service.app.reports.signature import public_text, signing_key
from learnloop_service.app.reports.verify import read_report
from tests.fakes.scripted_learning import ScriptedLoop
from tests.fonts import needs_font
from tests.integration.app.changed_rows import change
from tests.integration.app.emails import make_run
from tests.integration.app.ended_runs import EndedRun, EndedRuns
from tests.integration.app.keyed import keyed
from tests.integration.app.sales_runs import MANY, SALES
from tests.integration.app.served import run_with, served, settings_for


async def _command(ended: EndedRun, *arguments: str) -> Any:
    url = ["--url", str(ended.client.base_url)]
    return await asyncio.to_thread(CliRunner().invoke, app, ["report", *arguments, *url])


async def test_a_report_verifies_and_whatever_was_changed_is_named(ended_runs: EndedRuns, data_dir: Path) -> None:
    async with ended_runs.copy(data_dir, **MANY) as ended:
        file = data_dir / "new" / "run.html"
        written = await _command(ended, ended.run["run_id"], "--output", str(file))
        assert (written.exit_code, written.output) == (0, f"wrote {file}\n"), written.output
        good = await _command(ended, "verify", str(file))
        assert good.exit_code == 0, good.output
        assert "all of it agrees" in good.output
        content = file.read_text()
        assert len(content.encode()) < 500_000
        assert ended.run["verdict"]["text"].replace("+", "&#x2B;") in content or ended.run["verdict"]["text"] in content

        changed = data_dir / "changed.html"
        changed.write_text(re.sub(r'("mean_reward":)[-\d.e]+', r"\g<1>0.123", content, count=1))
        bad = await _command(ended, "verify", str(changed), "--offline")
        assert bad.exit_code == 1
        assert re.search(r"before training: mean reward: the file says 0.123, \S+ is right", bad.output)

        row = "id = (SELECT id FROM trajectory WHERE kind = 'train' AND reward IS NOT NULL ORDER BY seq LIMIT 1)"
        await change(ended.database_url, f"UPDATE trajectory SET reward = reward + 0.25 WHERE {row}")
        await change(ended.database_url, "UPDATE iteration SET reward_median = 0.125 WHERE iteration = 1")
        verification = json.loads((await _command(ended, "verify", str(file), "--json")).output)
        names = {difference["name"] for difference in verification["differences"]}
        assert not verification["ok"]
        assert {difference["than"] for difference in verification["differences"]} == {"the service"}
        assert {"iteration 1.rewards.median", "digest of iterations 1 to 1"} < names
        [id] = {name.split()[1].rstrip(":") for name in names if name.startswith("rollout")}
        assert {f"rollout {id}: reward", f"rollout {id}: sha256"} < names


async def test_a_forged_report_does_not_pass(ended_runs: EndedRuns, data_dir: Path) -> None:
    async with ended_runs.copy(data_dir, **SALES) as ended:
        file, forged = data_dir / "run.html", data_dir / "forged.html"
        await _command(ended, ended.run["run_id"], "-o", str(file))
        written = file.read_text()

        async def verified(content: str, *options: str) -> Any:
            forged.write_text(content)
            return await _command(ended, "verify", str(forged), *options)

        def changed(**parts: Any) -> str:
            report = read_report(written)
            for part, values in parts.items():
                report[part] = values if isinstance(values, list) else report[part] | values
            return page(report)

        sentence = ended.run["verdict"]["text"]
        invented = [{"evaluation_id": "01K", "judge": "ruler", "text": "All of it is right."}]
        other_page = changed(written={"renderer": "0" * 16}).replace(f">{sentence}<", ">It learned it all.<")
        for content, name in (
            (other_page, "written.renderer"),
            (changed(run={"status": "running", "iterations_done": 1}), "run.status"),
            (changed(rejudgings=invented), "rejudging 01K.text"),
            (changed(written={"system": "Linux H100"}), "written.system"),
            (changed(written={"machine_price_per_hour": 0.01}), "written.machine_price_per_hour"),
            (changed(more=["It is the best one."]), "page, "),
            (written.replace(f">{sentence}<", ">It learned it all.<"), "signature, by the key"),
        ):
            verification = await verified(content)
            assert verification.exit_code == 1, (name, verification.output)
            assert f"  {name}" in verification.output, (name, verification.output)

        dated = await verified(changed(written={"at": "2031-01-01T00:00:00+00:00"}))
        [first, *_] = dated.output.splitlines()
        assert first == "NOT VERIFIED: the time at which it says that it was written (2031-01-01T00:00:00+00:00)"
        offline = await verified(changed(rejudgings=invented), "--offline")
        assert offline.output.startswith("NOT VERIFIED: that a service wrote it, and with that the run,")
        assert offline.output.endswith("all else agrees\n")

        key = (await ended.client.get("/.well-known/learnloop-report-key")).raise_for_status().json()["x"]
        with_key = await verified(written, "--offline", "--key", key)
        assert with_key.exit_code == 0, with_key.output
        assert "the service signed the file as it is" in with_key.output
        for content, other in ((written.replace(f">{sentence}<", ">Well.<"), key), (written, public_text(OTHER))):
            refused = await verified(content, "--offline", "--key", other)
            assert (refused.exit_code, "differ from the service's signature" in refused.output) == (1, True)


OTHER = signing_key(b"the key of another service")


async def test_the_hash_of_a_rollout_is_that_of_the_stored_trajectory(ended_runs: EndedRuns, data_dir: Path) -> None:
    async with ended_runs.copy(data_dir, **SALES) as ended:
        path = f"/runs/{ended.run['run_id']}/report"
        report = (await ended.client.get(path, params={"form": "json"})).raise_for_status().json()
        assert report["rollouts"]["listed"] == report["rollouts"]["total"] == 12 + 14 + 20 + 3
        row = dict(zip(report["rollouts"]["columns"], report["rollouts"]["batches"][-1]["rows"][0], strict=True))
        stored = (await ended.client.get(f"/trajectories/{row['id']}")).raise_for_status().json()
        assert sha256(canonical({name: stored[name] for name in HASHED}).encode()).hexdigest() == row["sha256"]


@needs_font
async def test_it_comes_in_four_forms_and_is_never_a_page_of_the_service(ended_runs: EndedRuns, data_dir: Path) -> None:
    async with ended_runs.copy(data_dir, **SALES) as ended:
        path = ended.run["links"]["report"]
        for form, kind in {
            "html": "text/html",
            "json": "application/json",
            "svg": "image/svg+xml",
            "png": "image/png",
        }.items():
            response = (await ended.client.get(path, params={"form": form})).raise_for_status()
            assert response.headers["content-type"].startswith(kind)
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["content-disposition"] == f'attachment; filename="{ended.run["run_id"]}.{form}"'
        assert int.from_bytes(response.content[16:20], "big") == 1200
        assert int.from_bytes(response.content[20:24], "big") == 630
        card = data_dir / "card.png"
        assert (await _command(ended, ended.run["run_id"], "--card", str(card))).exit_code == 0
        assert card.read_bytes()[16:24] == response.content[16:24]
        assert (await ended.client.get(path, params={"form": "pdf"})).status_code == 422


async def test_tables_have_the_figures_of_the_run(ended_runs: EndedRuns, data_dir: Path) -> None:
    async with ended_runs.copy(data_dir, **SALES) as ended:
        assert (await _command(ended, ended.run["run_id"], "--tables", str(data_dir / "tables"))).exit_code == 0
        tables = {
            file.stem: list(csv.DictReader(io.StringIO(file.read_text()))) for file in (data_dir / "tables").iterdir()
        }
        assert [row["iteration"] for row in tables["iterations"]] == ["0", "1", "2"]
        means = [row["rewards"]["mean"] for row in ended.run["iterations"]]
        assert [float(row["reward_mean"]) if row["reward_mean"] else None for row in tables["iterations"]] == means
        assert all(float(row["timing.total_s"]) >= 0 for row in tables["iterations"])
        successes = [float(row["success"]) for row in tables["evaluations"]]
        assert successes == [row["success"] for row in ended.run["evaluations"]]
        assert (
            float(tables["evaluations"][-1]["success_low"])
            <= successes[-1]
            <= float(tables["evaluations"][-1]["success_high"])
        )
        assert len(tables["rollouts"]) == 12 + 14 + 20 + 3
        assert "email" in json.loads(tables["rollouts"][0]["outcome"])


async def test_what_others_wrote_is_no_formula(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        body = {"iterations": 1, "model": {"name": "formula"}}
        run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        for sign in ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "\t", "\r", "\n"):
            formula = f"{sign}1+1".replace("\r", "\\r").replace("\n", "\\n")
            await change(database_url, f"UPDATE iteration SET no_signal = E'{formula}' WHERE iteration = 1")
            response = (await client.get(f"/runs/{run_id}/tables/iterations")).raise_for_status()
            assert response.headers["content-disposition"] == 'attachment; filename="iterations.csv"'
            [_, row] = csv.DictReader(io.StringIO(response.text, newline=""))
            assert row["no_signal"] == f"'{sign}1+1"
        assert (await client.get("/runs/none/tables/rollouts")).status_code == 404
        assert (await client.get(f"/runs/{run_id}/tables/events")).status_code == 422


async def test_a_report_tells_no_secret_of_the_settings(data_dir: Path, database_url: str) -> None:
    async with keyed(data_dir, database_url) as service:
        run_id = await make_run(service.database, graph=[{"api_key": "a-very-secret-value", "id": "a"}])
        headers = await service.headers("learnloop")
        response = await service.client.get(f"/runs/{run_id}/report", headers=headers)
        assert response.status_code == 200
        assert "a-very-secret-value" not in response.text
        assert "No held-out evaluation yet" in response.text
        assert (await service.client.get(f"/runs/{run_id}/report")).status_code == 401
        other = await service.headers("another")
        assert (await service.client.get(f"/runs/{run_id}/report", headers=other)).status_code == 404


async def test_deleted_trajectories_are_not_a_difference(ended_runs: EndedRuns, data_dir: Path) -> None:
    async with ended_runs.copy(data_dir, **SALES) as ended:
        file = data_dir / "run.html"
        await _command(ended, ended.run["run_id"], "-o", str(file))
        await change(ended.database_url, 'UPDATE run SET pruned = \'{"trajectories": "2026-11-26T00:00:00Z"}\'')
        await change(ended.database_url, "DELETE FROM trajectory", rows=49)
        verification = await _command(ended, "verify", str(file))
        assert verification.exit_code == 0, verification.output
        assert "deleted trajectories because of their age" in " ".join(verification.output.split())


@pytest.mark.parametrize(
    ("arguments", "said"), [(("verify", "{}"), "cannot verify"), (("01K", "--card", "x.pdf"), ".svg")]
)
def test_what_cannot_be_done_is_said(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (file := tmp_path / "other.html").write_text("<p>not a report</p>")
    ran = CliRunner().invoke(app, ["report", *(argument.format(file) for argument in arguments)])
    assert ran.exit_code == 1
    assert said in str(ran.output) + str(ran.exception)
