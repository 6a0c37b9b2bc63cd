"""What a run leaves: the folder, the downloads, node scores, emails and costs."""

import asyncio
import dataclasses
import io
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from sqlalchemy import ColumnElement
from sqlalchemy.exc import InterfaceError

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Trajectory
from learnloop_service.app.results import documents
from learnloop_service.app.results.files import ResultsFiles
from learnloop_service.app.worker import drive
from learnloop_service.judges.base import JudgeCall
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.types import IterationResult
from tests.conditions import answered, until
from tests.fakes.sales_agent import GRAPH, SUBJECT, WAY, sales_agent, silent_agent
from tests.fakes.scripted_chat import scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.integration.app.sales_runs import MANY, SALES, completed, sales_service
from tests.integration.app.served import run_once, run_with, served, settings_for

if TYPE_CHECKING:  # it imports us
    from tests.integration.app.ended_runs import EndedRuns


async def _downloads(client: httpx.AsyncClient, run: Any, limit: int = 200) -> dict[str, bytes]:
    contents = {}
    params: dict[str, Any] = {"limit": limit}
    while True:
        page = (await client.get(run["results_path"], params=params)).raise_for_status().json()
        for item in page["items"]:
            response = (await client.get(item["url"])).raise_for_status()
            assert response.headers["content-type"] == item["content_type"]
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["content-disposition"] == f'attachment; filename="{item["name"]}"'
            assert item["bytes"] in (None, len(response.content))
            contents[item["name"]] = response.content
        if page["next_cursor"] is None:
            return contents
        params["cursor"] = page["next_cursor"]


def _folder(data_dir: Path, run: Any) -> Path:
    assert run["results_path"] == f"/runs/{run['run_id']}/results"
    return data_dir / "runs" / str(run["run_id"]) / "results"


async def test_the_folder_and_the_downloads_are_the_same(ended_runs: "EndedRuns", data_dir: Path) -> None:
    async with ended_runs.copy(data_dir, **SALES) as ended:
        client, run = ended.client, ended.run
        folder = _folder(data_dir, run)
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        parts = ("email.json", "node_scores.json", "rewards.json", "trajectories.jsonl", "trajectories.parquet")
        assert files.keys() == {f"iter{n}_{part}" for n in range(3) for part in parts} | {"final_email.json"}
        assert run["results_error"] is None
        assert await _downloads(client, run) == files
        assert list(await _downloads(client, run, limit=4)) == [
            *(f"iter{n}_{part}" for n in range(3) for part in parts),
            "final_email.json",
        ]
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        assert await _downloads(client, run) == files


async def test_the_documents_say_what_the_api_says(ended_runs: "EndedRuns", data_dir: Path) -> None:
    async with ended_runs.copy(data_dir, **SALES) as ended:
        client, run = ended.client, ended.run
        files = await _downloads(client, run)
        iterations = (await client.get(run["links"]["iterations"])).json()["items"]
        for point in iterations:
            n = point["iteration"]
            assert json.loads(files[f"iter{n}_email.json"]) == point["email"]
            assert point["timing"]["reflect_s"] > 0
            rewards = json.loads(files[f"iter{n}_rewards.json"])
            assert {name: rewards[name] for name in point["rewards"]} == point["rewards"]
            reported = [{"iteration": n, **evaluation} for evaluation in rewards["evaluations"]]
            assert reported == [row for row in run["evaluations"] if row["iteration"] == n]
            scores = (await client.get(run["links"]["node-scores"], params={"iteration": n})).json()
            assert json.loads(files[f"iter{n}_node_scores.json"]) == scores["node_scores"]
        assert files["final_email.json"] == files["iter2_email.json"]
        email = iterations[2]["email"]
        assert (email["subject"], email["citations"], email["email_written"]) == (SUBJECT, list(WAY), True)
        assert email["scenario"]["task"]["start"] == ["job-quotes"]


async def test_trajectories_are_the_same_as_lines_and_as_a_table(ended_runs: "EndedRuns", data_dir: Path) -> None:
    async with ended_runs.copy(data_dir, **MANY) as ended:
        client, run = ended.client, ended.run
        files = await _downloads(client, run)
        lines = [json.loads(line) for line in files["iter1_trajectories.jsonl"].decode().split("\n")[:-1]]
        table = pq.ParquetFile(io.BytesIO(files["iter1_trajectories.parquet"]))
        rows = table.read().to_pylist()
        # 5 x 8 rollouts, 2 x 2 sampled and 2 greedy ones held out, and the showcase: more than one page.
        assert len(lines) == len(rows) == 5 * 8 + 2 * 2 + 2 + 1
        assert table.num_row_groups == 2
        for line, row in zip(lines, rows, strict=True):
            assert (await client.get(f"/trajectories/{line['id']}")).json() == line
            assert row["started_at"].isoformat() == line["started_at"].replace("Z", "+00:00")
            for name in line.keys() - {"started_at"}:
                is_json = isinstance(line[name], list | dict)
                assert (json.loads(row[name]) if is_json else row[name]) == line[name]
        assert {line["error"] is None for line in lines} == {True, False}
        assert [str(table.schema_arrow.field(name).type) for name in ("reward", "success", "step", "started_at")] == [
            "double",
            "bool",
            "int64",
            "timestamp[us, tz=UTC]",
        ]


async def test_node_scores_start_at_one_and_follow_rewards(ended_runs: "EndedRuns", data_dir: Path) -> None:
    async with ended_runs.copy(data_dir, **SALES) as ended:
        client, run = ended.client, ended.run
        path = run["links"]["node-scores"]
        first = (await client.get(path, params={"iteration": 0})).json()
        assert first["node_scores"] == {node["id"]: 1.0 for node in GRAPH}
        assert first["ranked"] == sorted(first["node_scores"])
        newest = (await client.get(path)).json()
        assert newest["iteration"] == 2
        assert newest["node_scores"] != first["node_scores"]
        values = [newest["node_scores"][id] for id in newest["ranked"]]
        assert values == sorted(values, reverse=True)
        missing = await client.get(path, params={"iteration": 3})
        assert missing.status_code == 404
        assert "iteration 3" in missing.json()["detail"]


async def test_an_agent_that_wrote_nothing_is_told_so(data_dir: Path, database_url: str) -> None:
    async with sales_service(data_dir, database_url, silent_agent) as client:
        run = await completed(client, **SALES | {"iterations": 1})
        email = json.loads((await _downloads(client, run))["final_email.json"])
        assert (email["email_written"], email["subject"], email["body"], email["citations"]) == (False, "", "", [])
        assert email["success"] is False


async def test_an_environment_without_emails_has_neither_these_nor_node_scores(
    data_dir: Path, database_url: str
) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        run = await completed(client, iterations=1)
        files = await _downloads(client, run)
        parts = ("rewards.json", "trajectories.jsonl", "trajectories.parquet")
        assert list(files) == [f"iter{n}_{part}" for n in range(2) for part in parts]
        assert (await client.get(f"{run['results_path']}/iter1_email.json")).status_code == 404
        assert (await client.get(f"{run['results_path']}/final_email.json")).status_code == 404
        assert (await client.get(run["links"]["node-scores"])).status_code == 404
        iterations = (await client.get(run["links"]["iterations"])).json()["items"]
        assert [point["email"] for point in iterations] == [None, None]


async def test_without_the_library_there_are_no_tables(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "find_spec", lambda name: None)
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        run = await completed(client, iterations=1)
        names = list(await _downloads(client, run))
        assert names == [f"iter{n}_{part}" for n in range(2) for part in ("rewards.json", "trajectories.jsonl")]
        refused = await client.get(f"{run['results_path']}/iter1_trajectories.parquet")
        assert (refused.status_code, "Parquet needs the extra `tables`" in refused.json()["detail"]) == (404, True)


async def test_only_results_are_served(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        run = await completed(client, iterations=1)
        (_folder(data_dir, run) / ".iter1_rewards.json.unfinished").write_text("secret")
        assert (await client.get(f"{run['results_path']}/iter1_rewards.json")).status_code == 200
        for name in (
            "..%2f..%2f..%2fservice.lock",
            "%2e%2e",
            "iter01_rewards.json",
            "iter1_rewards.json%0a",
            "iter1_rewards.json%00",
            "iter%D9%A3_rewards.json",
            "iter2_rewards.json",
            "iter99999999999999999999_rewards.json",
            ".iter1_rewards.json.unfinished",
        ):
            response = await client.get(f"{run['results_path']}/{name}")
            assert response.status_code == 404, name
        assert (await client.get("/runs/none/results")).status_code == 404
        assert (await client.get("/runs/none/results/iter1_rewards.json")).status_code == 404


async def test_the_final_email_waits_for_the_end(data_dir: Path, database_url: str) -> None:
    gate = threading.Event()

    async def waiting_loop(*args: Any, **options: Any) -> AsyncGenerator[IterationResult, None]:
        async for result in learn_loop(*args, **options):
            yield result
            if result.iteration == 0:
                await until(gate.is_set)

    async with scripted_chat(sales_agent) as chat:
        backend = ScriptedBackend(chat.url)
        async with served(settings_for(data_dir, database_url), waiting_loop, backend) as client:  # type: ignore[arg-type]
            run = (await client.post("/learn-loop", json=SALES | {"iterations": 1})).json()
            folder = _folder(data_dir, run)
            await until((folder / "iter0_trajectories.parquet").exists, timeout_s=120)
            assert not (folder / "final_email.json").exists()
            assert (await client.get(f"{run['results_path']}/final_email.json")).status_code == 404
            assert "final_email.json" not in await _downloads(client, run)
            gate.set()
            await run_with(client, run["run_id"], "completed")
            assert (folder / "final_email.json").exists()


async def test_a_folder_that_cannot_be_made_fails_no_run(data_dir: Path, database_url: str) -> None:
    (data_dir / "runs").write_text("in the way")
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        run = await completed(client, iterations=1)
        assert run["results_error"].startswith("NotADirectoryError")
        listed = (await client.get(run["results_path"])).json()
        assert listed["error"] == run["results_error"]
        assert {item["bytes"] for item in listed["items"]} == {None}
        assert len(await _downloads(client, run)) == 6


async def test_a_disk_that_was_full_gets_what_it_missed(data_dir: Path, database_url: str) -> None:
    loop = ScriptedLoop(gates={1: threading.Event(), 2: threading.Event()})
    async with served(settings_for(data_dir, database_url), loop) as client:
        run = (await client.post("/learn-loop", json={"iterations": 2})).json()
        folder = _folder(data_dir, run)
        await until(lambda: (folder / "iter0_trajectories.parquet").exists())
        before = {path.name for path in folder.iterdir()}
        (folder / ".iter1_rewards.json.unfinished").symlink_to("/dev/full")
        loop.gates[1].set()
        stored = await run_once(client, run["run_id"], lambda run: run["results_error"] is not None)
        assert "No space left on device" in stored["results_error"]
        assert {path.name for path in folder.iterdir()} == before  # nothing by halves
        loop.gates[2].set()
        run = await run_with(client, run["run_id"], "completed")
        assert run["results_error"] is None
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == await _downloads(client, run)


async def test_trajectories_are_read_once_for_both_of_their_files(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, trajectories = [], documents.trajectories

    def noted(database: Database, limit: int, *conditions: ColumnElement[bool]) -> AsyncIterator[Sequence[Trajectory]]:
        _, iteration = conditions
        read.append(iteration.compile().params)
        return trajectories(database, limit, *conditions)

    monkeypatch.setattr(documents, "trajectories", noted)
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        run = await completed(client, iterations=1)
        assert read == [{"iteration_1": 0}, {"iteration_1": 1}]
        assert {path.name: path.read_bytes() for path in _folder(data_dir, run).iterdir()} == await _downloads(
            client, run
        )


async def test_files_are_written_beside_the_next_iteration_one_write_at_a_time(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write, writes = asyncio.Event(), Writes()
    write = ResultsFiles.write

    async def waiting_write(files: ResultsFiles, run_id: str, *, completed: bool = False) -> None:
        with writes.under_way(completed):
            await may_write.wait()
            await write(files, run_id, completed=completed)

    monkeypatch.setattr(ResultsFiles, "write", waiting_write)
    loop = ScriptedLoop()
    async with served(settings_for(data_dir, database_url), loop) as client:
        run = (await client.post("/learn-loop", json={"iterations": 2})).json()
        await until(loop.has_entered(1).is_set)
        run_id = run["run_id"]

        async def ask() -> Any:
            return (await client.get(f"/runs/{run_id}/iterations")).json()["items"]

        await answered(ask, lambda saved: len(saved) == 2)
        assert not loop.has_entered(2).is_set()  # it waits for the files of the baseline
        may_write.set()
        run = await run_with(client, run_id, "completed")
        assert writes == Writes(begun=[False, False, False, True], most=1)
        folder = _folder(data_dir, run)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == await _downloads(client, run)


@pytest.mark.parametrize("ending", ["failed", "cancelled"])
async def test_a_run_ends_as_it_does_though_its_files_cannot_be_told_of(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """The database goes away in a write that goes on when the run ends."""
    ends = asyncio.Event()
    write = ResultsFiles.write

    async def fails(files: ResultsFiles, run_id: str, *, completed: bool = False) -> None:
        if loop.closed.is_set():
            return await write(files, run_id, completed=completed)
        await until(loop.closed.is_set)
        ends.set()
        raise NotNow("away")

    class NotNow(InterfaceError):
        def __init__(self, message: str) -> None:
            super().__init__(message, None, Exception(message))

    monkeypatch.setattr(ResultsFiles, "write", fails)
    monkeypatch.setattr(drive, "retry_while_database_is_down", lambda work, *_: work())
    loop, driven = ScriptedLoop(gates={1: threading.Event()}, fail_at=1), []

    def learn(*arguments: Any, **more: Any) -> AsyncGenerator[IterationResult, None]:
        driven.append(more["resume"])
        return loop(*arguments, **more)

    async with served(settings_for(data_dir, database_url), learn) as client:  # type: ignore[arg-type]
        run_id = (await client.post("/learn-loop", json={"iterations": 2})).json()["run_id"]
        await until(loop.has_entered(1).is_set)
        if ending == "failed":
            loop.gates[1].set()
        else:
            await client.post(f"/runs/{run_id}/cancel")
        run = await run_with(client, run_id, ending)
        assert (ends.is_set(), driven) == (True, [None])  # it was not taken for one that the database left
        assert (run["error"] or "").endswith("scripted failure" if ending == "failed" else "")


@dataclasses.dataclass
class Writes:
    """Whether each write was of a completed run, and the most that were under way together."""

    begun: list[bool] = dataclasses.field(default_factory=list)
    most: int = 0
    _now: int = dataclasses.field(default=0, compare=False)

    @contextmanager
    def under_way(self, completed: bool) -> Iterator[None]:
        self.begun.append(completed)
        self._now += 1
        self.most = max(self.most, self._now)
        yield
        self._now -= 1


async def test_what_judges_cost_is_told(data_dir: Path, database_url: str) -> None:
    calls = tuple(JudgeCall("ruler", "m", 100, 10, cost, 1, 0.5) for cost in (0.25, None, 0.5))

    async def judged(*args: Any, **options: Any) -> AsyncGenerator[IterationResult, None]:
        async for result in ScriptedLoop()(*args, **options):
            groups = tuple(dataclasses.replace(group, judge_calls=calls) for group in result.groups)
            yield dataclasses.replace(result, groups=groups)

    async with served(settings_for(data_dir, database_url), judged) as client:  # type: ignore[arg-type]
        run = await completed(client, iterations=2)
        assert (
            run["cost"].items() >= {"judge_usd": 1.5, "judge_prompt_tokens": 600, "judge_completion_tokens": 60}.items()
        )
        path = run["links"]["judge-calls"]
        first = (await client.get(path, params={"limit": 4})).json()
        rest = (await client.get(path, params={"cursor": first["next_cursor"]})).json()
        items = first["items"] + rest["items"]
        assert [(call["iteration"], call["cost_usd"]) for call in items] == [
            (n, cost) for n in (1, 2) for cost in (0.25, None, 0.5)
        ]
        assert rest["next_cursor"] is None
        of_two = (await client.get(path, params={"iteration": 2})).json()["items"]
        assert of_two == items[3:]


async def test_trajectories_are_told_apart_by_kind(ended_runs: "EndedRuns", data_dir: Path) -> None:
    async with ended_runs.copy(data_dir, **SALES) as ended:
        client, run = ended.client, ended.run
        path = run["links"]["trajectories"]
        showcases = (await client.get(path, params={"kind": "showcase"})).json()["items"]
        assert [(showcase["iteration"], showcase["kind"], showcase["mode"]) for showcase in showcases] == [
            (n, "showcase", "greedy") for n in (0, 1, 2)
        ]
        counts = {
            kind: len((await client.get(path, params={"kind": kind, "limit": 200})).json()["items"])
            for kind in ("train", "evaluation", "ask")
        }
        assert counts == {"train": 16, "evaluation": 30, "ask": 0}
        assert (await client.get(path, params={"kind": "other"})).status_code == 422
