"""Remove one guard at a time from the code, and check that the test for it fails.

    python -m benchmarks.durability.mutations [--only WORDS] [--part N/OF] [--trusting] [--list]

Works on a copy of the code. Each test must first pass on the unchanged code. With the mutation it must then fail, by
what it checks and not because a module or fixture is missing. Exits with 1 if a mutation survives or if its text is no
longer in the code.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.frozen_code import freeze

_LEASES = "tests/integration/app/test_leases.py"
_MACHINE = "tests/unit/app/runs/test_lease_machine.py"
_ONCE = "tests/integration/training/test_train_once.py"
_PHASES = "tests/integration/app/test_phases.py"
_EVALUATIONS = "tests/integration/app/test_evaluations.py"
_INTERRUPTIONS = "tests/integration/app/test_interruptions.py"
_RACES = "tests/acceptance/test_races.py"
_PROTOCOL = "tests/integration/app/test_training_protocol.py"
_CALLS = "app/agent_sessions/batched_calls.py"
_USUAL = "tests/integration/app/test_batched_calls.py"
_TEST_S = 600.0


@dataclass(frozen=True, slots=True)
class Mutation:
    """A guard, the text changes that remove it, and the test that must notice."""

    guard: str
    file: str
    changes: tuple[tuple[str, str], ...]
    test: str
    also: tuple[tuple[str, str, str], ...] = ()
    """Changes to other files with the same guard: file, old text, new text."""

    def applied(self, code: Path) -> dict[Path, str]:
        """Return the new texts of its files. Raises LookupError unless each old text occurs exactly once."""
        texts: dict[Path, str] = {}
        for file, old, new in (*((self.file, *change) for change in self.changes), *self.also):
            path = code / file
            text = texts.get(path) or path.read_text()
            if text.count(old) != 1:
                raise LookupError(f"{file} has this {text.count(old)} times: {old!r}")
            texts[path] = text.replace(old, new)
        return texts


def _one(guard: str, file: str, old: str, new: str, test: str) -> Mutation:
    return Mutation(guard, file, ((old, new),), test)


_LEASE_CODE = "app/claims/lease.py"
_CLAIMS = "app/claims/claims.py"
_STORE = "app/evaluations/store.py"
_EPOCH = ("and_(table.id == self.id, table.epoch == self.epoch, ", "and_(table.id == self.id, ")
_NEXT = ("where(lease.held(), Run.next_iteration == result.iteration)", "where(lease.held())")
_ON_THE_LOOP = """
        import asyncio

        async def beat() -> None:
            while not self._stop.is_set():
                await asyncio.sleep(self._ttl_s / 3)
                self._renewed = {lease: time.monotonic() for lease in self._leases()}
                if self._renewed:
                    self._beat(list(self._renewed))

        self._task = asyncio.get_running_loop().create_task(beat())
"""
MUTATIONS = (
    Mutation("the epoch in a commit", _LEASE_CODE, (_EPOCH,), f"{_LEASES}::test_a_lease_that_lapsed_goes_to"),
    Mutation("the epoch in a commit (machine)", _LEASE_CODE, (_EPOCH,), _MACHINE),
    Mutation(
        "iterations in order", "app/worker/save_iteration.py", (_NEXT,), f"{_LEASES}::test_an_iteration_is_saved_once"
    ),
    Mutation("iterations in order (machine)", "app/worker/save_iteration.py", (_NEXT,), _MACHINE),
    _one(
        "no commit to a run that has ended",
        _LEASE_CODE,
        "table.epoch == self.epoch, table.status == RunStatus.RUNNING)",
        "table.epoch == self.epoch)",
        _MACHINE,
    ),
    _one(
        "no commit to work that has ended",
        _LEASE_CODE,
        "table.epoch == self.epoch, table.status == RunStatus.RUNNING)",
        "table.epoch == self.epoch)",
        f"{_LEASES}::test_nothing_is_saved_after_the_end",
    ),
    _one(
        "deliveries in their event's transaction",
        "app/events/log.py",
        "    await enqueue(tx, event)\n    return int(seq)",
        "    if type is EventType.RUN_CREATED:\n"
        "        await enqueue(tx, event)\n"
        "    else:\n"
        "        async with AsyncSession(tx.bind) as other, other.begin():\n"
        "            await enqueue(other, event)\n"
        "    return int(seq)",
        _MACHINE,
    ),
    _one(
        "a claim only after the lease is over",
        _LEASE_CODE,
        "func.coalesce(lease_until < func.clock_timestamp(), True)",
        "func.coalesce(lease_until < func.clock_timestamp(), True) | True",
        f"{_LEASES}::test_a_lease_that_lapsed_goes_to",
    ),
    _one(
        "a claim locks its row",
        _CLAIMS,
        "            .with_for_update(of=table, skip_locked=True)\n",
        "",
        f"{_LEASES}::test_work_that_somebody_else_moves",
    ),
    _one(
        "a claim passes locked rows",
        _CLAIMS,
        ".with_for_update(of=table, skip_locked=True)",
        ".with_for_update(of=table)",
        f"{_LEASES}::test_work_that_somebody_else_moves",
    ),
    _one(
        "poisonous work is given up",
        _CLAIMS,
        "if row.claims < MAX_CLAIMS or self._lost_it(row):",
        "if True:",
        f"{_LEASES}::test_work_that_ends_its_workers",
    ),
    _one(
        "projects take turns",
        "app/claims/turns.py",
        "        turn.c.running,\n",
        "",
        f"{_LEASES}::test_a_project_with_less_in_progress",
    ),
    _one(
        "of projects with equally much in progress, the one that waited longest is next",
        "app/claims/turns.py",
        "        turn.c.served.nulls_first(),\n",
        "",
        f"{_LEASES}::test_with_one_place",
    ),
    _one(
        "a rollout of an evaluation needs the lease",
        _STORE,
        "            await require(tx, lease)\n            await tx.execute(insert(Trajectory)",
        "            await tx.execute(insert(Trajectory)",
        f"{_LEASES}::test_a_lease_that_lapsed_goes_to",
    ),
    _one(
        "verdicts of an evaluation need the lease",
        _STORE,
        "            await require(tx, lease)\n            for verdict",
        "            for verdict",
        f"{_LEASES}::test_a_lease_that_lapsed_goes_to",
    ),
    _one(
        "the end of an evaluation needs the lease",
        _STORE,
        "            except LeaseLost:\n                return\n",
        "            except LeaseLost:\n                pass\n",
        f"{_LEASES}::test_a_lease_that_lapsed_goes_to",
    ),
    _one(
        "a journal entry needs the lease",
        "app/worker/journal_store.py",
        "            await require(tx, self._lease)\n            new = await",
        "            new = await",
        f"{_LEASES}::test_a_zombie_keeps_nothing",
    ),
    _one(
        "a journal entry fits its checksum",
        "app/worker/journal_store.py",
        "if checksum is None or checksum == self._checksum(iteration, name, value):",
        "if True:",
        "tests/integration/app/test_damaged_journal.py::test_an_entry_that_does_not_fit",
    ),
    _one(
        "a damaged intent to train still stands",
        "training/journal.py",
        '            replacements[name] = "{}"\n',
        "            pass\n",
        "tests/unit/training/test_journal.py::test_what_becomes_of_damaged_entries",
    ),
    _one(
        "RETURNING instead of a count",
        "app/worker/journal_store.py",
        "new = (await tx.execute(_WRITE, lease_fields | entries)).all()",
        "new = await tx.execute(_WRITE, lease_fields | entries) and [(row[0], row[1]) for row in rows]",
        f"{_LEASES}::test_an_entry_is_kept_once",
    ),
    _one(
        "verbs lock the run",
        "app/runs/store.py",
        'tx.get(Run, run_id, with_for_update={"key_share": True})',
        "tx.get(Run, run_id)",
        _RACES,
    ),
    _one(
        "the database's errors set apart",
        "app/errors.py",
        "DATABASE_DOWN = (",
        "DATABASE_DOWN = (PoolTimeout,)\n_UNUSED = (",
        f"{_INTERRUPTIONS}::test_a_database_crash",
    ),
    _one(
        "the intent before the training",
        "training/loop/train_step.py",
        "await requests.begin(unsure=requests.open and self._policy.settle_timeout_s > 0)",
        "pass",
        f"{_ONCE}::test_the_step_is_taken_once",
    ),
    _one(
        "nothing of a step is kept before its checkpoint is durable",
        "training/loop/learn_loop.py",
        "                self._journal.hold()\n",
        "",
        "tests/integration/training/test_pipeline.py::test_a_checkpoint_is_written_beside",
    ),
    _one(
        "what was sampled from a step that is trained again is given up",
        "training/loop/learn_loop.py",
        "if early.done() and early.result() != outcome:",
        "if False:",
        "tests/integration/training/test_pipeline.py::test_what_was_sampled_from_a_step_that_is_lost",
    ),
    _one(
        "a step that could not be written leaves the sampler",
        "training/engine/engine.py",
        "                self._drop_weights(after.key)\n",
        "",
        "tests/unit/engine/test_training.py::test_a_step_is_sampled_while_it_is_written",
    ),
    Mutation(
        "the engine's compare-and-set",
        "training/engine/http/training_api.py",
        (("if steps.expected_step != newest.step:", "if False:"),),
        f"{_ONCE}::test_the_engine_refuses_a_zombies_request",
        also=(("training/engine/engine.py", "if expected_step not in (None, parent.step):", "if False:"),),
    ),
    _one(
        "a tenant trains its own models",
        "app/model_registry/trainable.py",
        'if description is None or not self.caller.sees(description["project"]):',
        "if description is None:",
        f"{_PROTOCOL}::test_another_project_finds_nothing",
    ),
    _one(
        "a job is about the model that was looked up",
        "training/engine/http/training_api.py",
        "if request.headers.get(ONLY_MODEL, model_id) != model_id:",
        "if False:",
        f"{_PROTOCOL}::test_a_body_is_about_one_model",
    ),
    _one(
        "only its run trains the model of a live run",
        "app/runs/store.py",
        "                raise ModelBusy(str(model), holder)\n",
        "                pass\n",
        f"{_PROTOCOL}::test_a_model_of_a_live_run",
    ),
    _one(
        "a job without a sampled token fails",
        "training/engine/engine.py",
        "raise NoSampledTokens(count.groups_with_signal)",
        "pass",
        "tests/integration/engine/test_hosted_protocol.py::test_a_job_without_a_sampled_token",
    ),
    _one(
        "a reply is remembered of its model",
        "training/engine/http/sampled_turns.py",
        "[scope, [_tool_identity(tool)",
        '["", [_tool_identity(tool)',
        "tests/unit/engine/test_replies.py::test_nothing_is_joined",
    ),
    Mutation(
        "a heartbeat on a thread",
        "app/claims/heartbeat.py",
        (("        self._thread.start()\n", _ON_THE_LOOP), ("        self._thread.join(self._ttl_s)\n", "")),
        f"{_PHASES}::test_a_blocked_loop_keeps_its_run",
    ),
    Mutation(
        "a heartbeat on a thread (evaluations)",
        "app/claims/heartbeat.py",
        (("        self._thread.start()\n", _ON_THE_LOOP), ("        self._thread.join(self._ttl_s)\n", "")),
        f"{_EVALUATIONS}::test_a_blocked_service_keeps_its_evaluation",
    ),
    _one(
        "a heartbeat that outlives any error",
        "app/claims/heartbeat.py",
        "except Exception as error:",
        "except DATABASE_DOWN as error:",
        f"{_LEASES}::test_an_error_that_nobody_foresaw",
    ),
    _one(
        "a run that hangs is ended",
        "app/worker/runner.py",
        "if active.moved_at < since:",
        "if False:",
        f"{_INTERRUPTIONS}::test_a_run_that_hangs",
    ),
    _one(
        "an evaluation that hangs is ended",
        "app/worker/runner.py",
        "if active.moved_at < since:",
        "if False:",
        f"{_EVALUATIONS}::test_one_that_hangs",
    ),
    _one(
        "only calls that extend each other are one sequence",
        "training/call_sequences.py",
        "if prompt[: len(content)] == content]",
        "if prompt[:1] == content[:1]]",
        "tests/unit/training/rollout/test_call_sequences.py::test_every_sampled_token_is_trained_once",
    ),
    _one(
        "an agent that asked nothing has no outcome",
        "training/rollout/agents/own_loop.py",
        "if not self._calls.answered and not full:",
        "if False:",
        "tests/integration/training/test_own_loop.py::test_an_agent_that_fails_has_no_outcome",
    ),
    _one(
        "the first answer to a session's call counts",
        _CALLS,
        "        AND call.answered_at IS NULL\n",
        "",
        f"{_USUAL}::test_the_answer_of_another_process",
    ),
    _one(
        "a key of an earlier start begins no call in a session",
        _CALLS,
        "key.session_id = asked.id AND key.replaced_at IS NOT NULL",
        "false",
        f"{_USUAL}::test_what_is_refused",
    ),
    _one(
        "a locked session holds up no other",
        _CALLS,
        "::text[]) FOR NO KEY UPDATE SKIP LOCKED",
        "::text[]) FOR NO KEY UPDATE",
        f"{_USUAL}::test_a_session_that_somebody_else_has_locked",
    ),
    _one(
        "a call that the database forgot comes back",
        "app/agent_sessions/calls.py",
        "                await self._reinsert(tx, call, row)\n",
        "",
        f"{_USUAL}::test_a_call_that_a_crashed_database_forgot",
    ),
)


def run_test(code: Path, test: str) -> str:
    """Return `passed`, `failed`, or whatever else pytest says. `test` can be a prefix of a test's name."""
    file, _, name = test.partition("::")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        file,
        *(["-k", name] if name else []),
    ]
    try:
        finished = subprocess.run(
            command,
            cwd=code,
            env=os.environ | {"LEARNLOOP_SHRINK": "0", "LEARNLOOP_SEQUENCES": "80"},
            capture_output=True,
            text=True,
            timeout=_TEST_S,
        )
    except subprocess.TimeoutExpired:
        return "no end"
    last = next(reversed(finished.stdout.splitlines()), "")
    return (
        {0: "passed", 1: "failed"}[finished.returncode]
        if finished.returncode in (0, 1) and " error" not in last
        else last
    )


def misfit(mutation: Mutation, code: Path) -> str:
    """Explain why the mutation does not fit the code; empty if it does."""
    file, _, name = mutation.test.partition("::")
    try:
        mutation.applied(code)
    except LookupError as error:
        return str(error)
    return "" if f"def {name}" in (code / file).read_text() else f"there is no test {mutation.test}"


def survives(mutation: Mutation, code: Path) -> str:
    """Return the test's result under the mutation; `failed` is the right one."""
    try:
        texts = mutation.applied(code)
    except LookupError as error:
        return str(error)
    originals = {path: path.read_text() for path in texts}
    try:
        for path, text in texts.items():
            path.write_text(text)
        return run_test(code, mutation.test)
    finally:
        for path, text in originals.items():
            path.write_text(text)


def _part(text: str) -> tuple[int, int]:
    number, _, of = text.partition("/")
    return int(number), int(of)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutations whose guard or file has these words")
    parser.add_argument("--trusting", action="store_true", help="that the tests pass as the code is")
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="N/OF", help="every OF-th, from the Nth on")
    parser.add_argument("--list", action="store_true", help="run nothing, but see whether the code still has them")
    options = parser.parse_args()
    first, step = options.part
    chosen = [mutation for mutation in MUTATIONS if options.only in f"{mutation.guard} {mutation.file}"][
        first - 1 :: step
    ]
    wrong = []
    with tempfile.TemporaryDirectory(prefix="learnloop-mutations-") as directory:
        code = freeze(Path(directory))
        for test in dict.fromkeys(mutation.test for mutation in chosen if not (options.list or options.trusting)):
            outcome = run_test(code, test)
            print(f"{outcome:<8}  as it is: {test}", flush=True)
            wrong += [test] if outcome != "passed" else []
        for mutation in chosen:
            clock = time.monotonic()
            outcome = misfit(mutation, code) if options.list else survives(mutation, code)
            print(
                f"{outcome:<8}  {mutation.guard} ({mutation.file}; {mutation.test}; {time.monotonic() - clock:.0f} s)",
                flush=True,
            )
            wrong += [mutation.guard] if outcome not in ("failed", "") else []
    print(f"{len(chosen)} mutations; not as it must be: {wrong or 'none'}")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
