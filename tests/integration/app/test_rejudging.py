"""Stored rollouts are judged again over HTTP; the run that they belong to stays as it was."""

import html
import json
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from learnloop_service.app.db.database import make_database, make_engine, parse_url
from learnloop_service.app.reports.verify import compared_with
from tests.conditions import answered
from tests.fakes.scripted_judge import Raw, completion, scripted_judge
from tests.integration.app.changed_rows import change
from tests.integration.app.ended_evaluations import ended
from tests.integration.app.rejudged_runs import RUN, rejudging_service
from tests.integration.app.served import run_with

CHANGES = {"judge": {"name": "correctness"}}


async def _run(client: httpx.AsyncClient, **more: Any) -> str:
    accepted = (await client.post("/learn-loop", json=RUN | more)).raise_for_status().json()
    run = await run_with(client, accepted["run_id"], "completed", "failed")
    assert run["status"] == "completed", run["error"]
    return str(run["run_id"])


async def _posted(client: httpx.AsyncClient, run_id: str, **request: Any) -> Any:
    posted = await client.post(f"/runs/{run_id}/rejudge", json=request)
    assert posted.status_code == 202, posted.text
    return posted.json()


async def _rejudged(client: httpx.AsyncClient, run_id: str, **request: Any) -> Any:
    rejudging = await ended(client, (await _posted(client, run_id, **request))["evaluation_id"])
    assert (rejudging["status"], rejudging["error"]) == ("completed", None)
    assert rejudging["done"] == rejudging["total"]
    return rejudging


async def _hash(database_url: str) -> Any:
    """A hash of all that the run says of its rollouts."""
    engine = make_engine(parse_url(database_url))
    columns = "id, score, score_explanation, score_parts, reward, reward_parts, advantage, success"
    query = text(f"SELECT md5(string_agg(ROW({columns})::text, '' ORDER BY seq)) FROM trajectory")
    async with make_database(engine)() as tx:
        digest = (await tx.execute(query)).scalar_one()
    await engine.dispose()
    return digest


async def test_a_judge_without_scores_has_no_finding(data_dir: Path, database_url: str) -> None:
    async with scripted_judge() as judge, rejudging_service(data_dir, database_url, judge) as client:
        run_id = await _run(client)
        judge.reply = lambda request: Raw(body=json.dumps(completion("I cannot say.")))  # type: ignore[method-assign]
        rejudging = await _rejudged(client, run_id, **CHANGES, kinds=["train", "evaluation"])
        report = rejudging["report"]["rejudge"]
        assert (report["rollouts"], report["scored"], report["conclusive"]) == (
            16 + 18,
            17,
            True,
        )  # right ones need no model
        assert report["text"].endswith("17 of 34 rollouts were scored.")
        assert report["all"]["success"] == {"before": 0.5, "now": 1.0}


async def test_another_judge_says_what_would_have_changed(data_dir: Path, database_url: str) -> None:
    async with scripted_judge() as judge, rejudging_service(data_dir, database_url, judge) as client:
        run_id = await _run(client)
        before = await _hash(database_url)
        rejudging = await _rejudged(client, run_id, **CHANGES, kinds=["train", "evaluation"])
        report = rejudging["report"]["rejudge"]
        assert (rejudging["total"], report["all"]["rollouts"]) == (16 + 18, 16)
        assert (report["first_changed"], report["first_mattering"]) == (1, 1)
        assert report["all"]["flipped"] == 1.0
        assert (report["all"]["lost"], report["all"]["gained"], report["all"]["correlation"]) == (4, 0, None)
        assert [iteration_report["iteration"] for iteration_report in report["iterations"]] == [1, 2]
        assert report["all"]["success"] == {"before": 0.5, "now": 1.0}
        assert report["noise"] is None
        assert "100% of advantages change sign. The judge's own noise is unknown" in report["text"]
        assert len(report["largest"]) == 8
        assert report["largest"][0]["explanations"][1] == "on no idea at all"
        assert {(mode_report["iteration"], mode_report["mode"]) for mode_report in report["evaluations"]} == {
            (iteration, mode) for iteration in range(3) for mode in ("sampled", "greedy")
        }
        assert report["best_step"] is not None
        assert rejudging["judge_cost"]["requests"] > 0
        assert await _hash(database_url) == before

        listed = (await client.get(f"/runs/{run_id}/rejudgings")).json()["items"]
        assert [(summary["judge"], summary["repeats"], summary["text"]) for summary in listed] == [
            ("correctness", 1, report["text"])
        ]
        assert (await client.get("/evaluations")).json()["items"] == []
        assert (await client.get(f"/evaluations/{rejudging['evaluation_id']}/report")).status_code == 409

        again = await _rejudged(client, run_id, **CHANGES)
        assert again["judge_cost"]["requests"] == 0  # its verdicts are in the cache
        assert again["report"]["rejudge"]["all"] == report["all"]


async def test_what_the_judge_model_is_asked_can_be_read(data_dir: Path, database_url: str) -> None:
    async with scripted_judge() as judge, rejudging_service(data_dir, database_url, judge) as client:
        run_id = await _run(client, iterations=1, judge={"name": "correctness"})
        conversations = [request["messages"] for request in judge.requests]
        listed = await client.get(f"/runs/{run_id}/trajectories", params={"kind": "train"})
        rollouts = listed.raise_for_status().json()["items"]
        rollout = next(row for row in rollouts if row["outcome"]["answer"] == "no idea at all")
        document = (await client.get(f"/trajectories/{rollout['id']}/judge-questions")).raise_for_status().json()
        [question] = document["questions"]
        assert (question["judge"], question["model"]) == ("correctness", "openai/gpt-4.1-mini")
        assert question["messages"] in conversations
        assert rollout["scenario"]["task"]["question"] in question["messages"][1]["content"]
        assert len(judge.requests) == len(conversations), "nothing is sent"
        plain = await _run(client, iterations=1)
        [rollout, *_] = (await client.get(f"/runs/{plain}/trajectories", params={"kind": "train"})).json()["items"]
        assert (await client.get(f"/trajectories/{rollout['id']}/judge-questions")).json()["questions"] == []


async def test_a_search_whose_continuations_get_no_verdict_ends(data_dir: Path, database_url: str) -> None:
    async with scripted_judge() as judge, rejudging_service(data_dir, database_url, judge) as client:
        run_id = await _run(client)
        listed = (await client.get(f"/runs/{run_id}/trajectories", params={"kind": "train"})).json()["items"]
        judge.reply = lambda request: Raw(status=400)  # type: ignore[method-assign]
        wrong = next(rollout["id"] for rollout in listed if not rollout["success"])
        request = {"search": "bisect", "samples": 4, "judge": {"name": "ruler"}}
        posted = await client.post(f"/trajectories/{wrong}/what-if", json=request)
        search = await ended(client, posted.raise_for_status().json()["evaluation_id"])
        assert (search["status"], search["done"]) == ("completed", 4)


async def test_the_best_by_the_new_rewards_become_demonstrations(data_dir: Path, database_url: str) -> None:
    async with scripted_judge() as judge, rejudging_service(data_dir, database_url, judge) as client:
        run_id = await _run(client)
        evaluation = await _rejudged(client, run_id, **CHANGES)

        async def stored(**more: Any) -> Any:
            selection = {"name": "best", "min_reward": 1.0, "per_scenario": 8} | more
            return await client.post(f"/runs/{run_id}/demonstrations", json=selection)

        by_old_rewards, by_new_rewards = await stored(), await stored(rejudging=evaluation["evaluation_id"])
        assert by_new_rewards.status_code == 201, by_new_rewards.text
        assert (by_old_rewards.status_code, by_old_rewards.json()["kept"]) == (201, 8)
        assert (by_new_rewards.status_code, by_new_rewards.json()["kept"], by_new_rewards.json()["rollouts"]) == (
            201,
            16,
            16,
        )
        assert (await stored(rejudging="nothing")).status_code == 409


async def test_the_same_judge_changes_nothing_and_repeats_measure_its_noise(data_dir: Path, database_url: str) -> None:
    async with scripted_judge() as judge, rejudging_service(data_dir, database_url, judge) as client:
        run_id = await _run(client)
        report = (await _rejudged(client, run_id, repeats=3))["report"]["rejudge"]
        assert (report["first_changed"], report["first_mattering"], report["all"]["flipped"]) == (None, None, 0.0)
        assert report["noise"] == {"deviation": 0.0, "icc": 1.0, "floor": 0.0}
        assert report["text"].startswith("No change")

        planned = await _posted(client, run_id, **CHANGES, repeats=2, dry_run=True)
        assert (planned["evaluation_id"], planned["groups"], planned["verdicts"]) == (None, 4, 8)
        assert "no verdict" in planned["cost"]["reason"].lower()
        repeated = await _rejudged(client, run_id, **CHANGES, repeats=2, iterations={"first": 2})
        assert repeated["total"] == 8 * 2
        assert repeated["judge_cost"]["requests"] > 0
        planned = await _posted(client, run_id, **CHANGES, dry_run=True)
        assert planned["cost"]["low"] <= planned["cost"]["usd"] <= planned["cost"]["high"]


async def test_the_report_on_the_run_mentions_it(data_dir: Path, database_url: str) -> None:
    async with scripted_judge() as judge, rejudging_service(data_dir, database_url, judge) as client:
        run_id = await _run(client)

        async def reported(form: str) -> httpx.Response:
            return (await client.get(f"/runs/{run_id}/report", params={"form": form})).raise_for_status()

        before = (await reported("json")).json()
        rejudging = await _rejudged(client, run_id, **CHANGES)
        after, sentence = (await reported("json")).json(), rejudging["report"]["rejudge"]["text"]
        assert before["rejudgings"] == []
        assert after["rejudgings"] == [
            {"evaluation_id": rejudging["evaluation_id"], "judge": "correctness", "text": sentence}
        ]
        page = html.unescape((await reported("html")).text)
        assert f"Judged again by correctness: {sentence}</p>" in page
        for written in (before, before | {"rejudgings": None}, after):  # None: by a version without them
            report = {name: value for name, value in written.items() if value is not None}
            assert compared_with(report, after, signed=True).differences == []
            assert compared_with(report, before, signed=True).differences == []
        changed = after | {"rejudgings": [after["rejudgings"][0] | {"text": "Nothing would have changed."}]}
        [difference] = compared_with(changed, after, signed=True).differences
        assert difference == (f"rejudging {rejudging['evaluation_id']}.text", "Nothing would have changed.", sentence)


async def test_a_changed_verdict_is_found(data_dir: Path, database_url: str) -> None:
    async with scripted_judge() as judge, rejudging_service(data_dir, database_url, judge) as client:
        run_id = await _run(client)

        async def verified() -> Any:
            return (await client.get(f"/runs/{run_id}/verify")).raise_for_status().json()

        before = await verified()
        model = (await _rejudged(client, run_id, **CHANGES, repeats=2))["evaluation_id"]
        same = (await _rejudged(client, run_id, judge={"name": "reference"}))["evaluation_id"]
        verification = await verified()
        assert (verification["ok"], verification["differences"], verification["rejudgings"]) == (True, [], 2)
        # Four figures of each verdict, the scores of the judge without a model, and the parts of two reports.
        assert verification["figures"] >= before["figures"] + 16 * 2 * 4 + 16 * 5 + 2

        one = "SELECT trajectory_id FROM rejudged_rollout ORDER BY trajectory_id LIMIT 1"
        row = "UPDATE rejudged_rollout SET {} WHERE evaluation_id = '{}' AND repeat = {} AND trajectory_id = ({})"
        await change(database_url, row.format("reward = reward + 0.125", model, 1, one))
        await change(database_url, row.format("score = 1 - score", same, 0, one))
        report = f"jsonb_set(report, '{{rejudge,first_changed}}', '7') WHERE id = '{model}'"
        await change(database_url, f"UPDATE evaluation_job SET report = {report}")
        differing = {difference["what"]: difference for difference in (await verified())["differences"]}
        assert {f"reward in repeat 2 of rejudging {model}", f"first_changed in the report of rejudging {model}"} == {
            what for what in differing if model in what
        }
        changed = differing[f"score in repeat 1 of rejudging {same}"]
        assert (changed["stored"] + changed["recomputed"], changed["iteration"]) == (1.0, 1)
        assert changed["trajectory_id"] == differing[f"reward in repeat 2 of rejudging {model}"]["trajectory_id"]
        assert f"reward in repeat 1 of rejudging {same}" in differing

        await change(database_url, f"DELETE FROM rejudged_rollout WHERE evaluation_id = '{same}' AND repeat = 0", 16)
        lost = next(
            difference for difference in (await verified())["differences"] if difference["what"] == f"rejudging {same}"
        )
        assert "cannot be computed: KeyError" in lost["recomputed"]


async def test_what_cannot_be_judged_again_is_refused(data_dir: Path, database_url: str) -> None:
    async with scripted_judge() as judge, rejudging_service(data_dir, database_url, judge) as client:
        run_id = await _run(client)

        async def refused(**request: Any) -> tuple[int, Any]:
            reply = await client.post(f"/runs/{run_id}/rejudge", json=request)
            return reply.status_code, reply.json()

        status, problem = await refused(iterations={"first": 9})
        assert (status, "no saved train rollouts in iterations 9" in problem["detail"]) == (409, True)
        assert (await refused(iterations={"first": 2, "last": 1}))[0] == 422
        assert (await refused(repeats=9))[0] == (await refused(kinds=[]))[0] == 422
        status, problem = await refused(environment={"inbox": "mine"})
        assert (status, problem["errors"][0]["loc"]) == (422, ["body", "environment", "inbox"])
        assert (await refused(judge={"name": "nobody"}, dry_run=True))[0] == 422
        status, problem = await refused(judge={"name": "nobody"})
        assert (status, problem["errors"][0]["loc"]) == (422, ["body", "judge", "name"])
        assert (await client.post("/runs/nothing/rejudge", json={})).status_code == 404
        assert (await client.get(f"/runs/{run_id}/rejudgings")).json()["items"] == []


@pytest.mark.long
async def test_a_service_that_is_stopped_again_and_again_judges_nothing_twice(
    data_dir: Path, database_url: str
) -> None:
    async with scripted_judge() as judge:
        async with rejudging_service(data_dir, database_url, judge) as client:
            run_id = await _run(client)
        id, verdicts, stops = "", 0, 0
        while True:
            # A few verdicts a second: each service gives some, and is stopped while others are being given.
            async with rejudging_service(data_dir, database_url, judge, judge_requests_per_minute=240) as client:
                id = id or (await _posted(client, run_id, **CHANGES, repeats=4))["evaluation_id"]
                rejudging = await answered(partial(_evaluation, client, id), partial(_has_more, verdicts))
            if rejudging["status"] == "completed":
                break
            verdicts, stops = rejudging["done"], stops + 1
        assert stops > 2
        assert (rejudging["done"], rejudging["total"]) == (64, 64)  # a score that counted twice would make more
        # Groups and repeats: one wrong answer in each is asked about. A verdict that was given and not yet saved at a
        # stop comes from the cache afterwards, and a verdict from the cache counts no request.
        assert 0 < rejudging["judge_cost"]["requests"] <= 4 * 4


async def _evaluation(client: httpx.AsyncClient, id: str) -> Any:
    return (await client.get(f"/evaluations/{id}")).raise_for_status().json()


def _has_more(verdicts: int, rejudging: Any) -> bool:
    return bool(rejudging["done"] > verdicts or rejudging["status"] == "completed")


async def test_judges_that_cannot_score_a_run_are_refused_and_named(data_dir: Path, database_url: str) -> None:
    async with scripted_judge() as judge, rejudging_service(data_dir, database_url, judge) as client:
        run_id = await _run(client)
        offered = (await client.get("/judges", params={"run_id": run_id})).raise_for_status().json()["items"]
        unfit = {judge_info["name"]: judge_info["unfit"] for judge_info in offered}
        assert "sales emails" in unfit["grounding"]
        assert {name for name, reason in unfit.items() if reason} == {"feedback", "grounding", "reported"}
        assert all(judge_info["unfit"] is None for judge_info in (await client.get("/judges")).json()["items"])
        assert (await client.get("/judges", params={"run_id": "none"})).status_code == 404

        refused = await client.post(f"/runs/{run_id}/rejudge", json={"judge": {"name": "grounding"}})
        assert refused.status_code == 422
        assert "The judge grounding fits no rollout of this run: this judge scores sales emails" in refused.text
        part = [{"name": name, "weight": 1} for name in ("grounding", "reference")]
        await _posted(client, run_id, judge=part, dry_run=True)  # the second one scores
        assert (await client.get(f"/runs/{run_id}/rejudgings")).json()["items"] == []
