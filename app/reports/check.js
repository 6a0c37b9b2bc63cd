// Recomputes the figures of this report from the rollouts in it. The page can be read without it.
"use strict";
{
  const report = JSON.parse(document.getElementById("report").textContent);
  const wrong = [];
  let count = 0;
  const near = (a, b) =>
    a === b ||
    (typeof a === "number" && typeof b === "number" && Math.abs(a - b) <= 1e-9 * Math.max(1, Math.abs(a), Math.abs(b)));
  const same = (name, shown, computed) => {
    count += 1;
    if (!near(shown, computed)) wrong.push(name);
  };
  const mean = (values) => (values.length ? values.reduce((sum, each) => sum + each, 0) / values.length : null);
  const median = (values) => {
    const sorted = [...values].sort((a, b) => a - b);
    const half = sorted.length >> 1;
    return sorted.length === 0 ? null : sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  };
  const rows = (batch) =>
    batch.rows.map((row) => Object.fromEntries(report.rollouts.columns.map((name, at) => [name, row[at]])));
  const rewards = (some) => some.map((row) => row.reward).filter((reward) => reward !== null);
  const success = (some) =>
    mean(some.filter((row) => row.reward !== null || row.end === "failed").map((row) => (row.success ? 1 : 0)));
  const malformed = (some) => mean(some.map((row) => (row.end === "malformed" ? 1 : 0)));

  for (const batch of report.rollouts.batches) {
    const some = rows(batch);
    const paid = rewards(some);
    const row = report.iterations.items.find((each) => each.iteration === batch.iteration);
    if (batch.kind === "train" && row) {
      const where = `iteration ${batch.iteration}`;
      same(`${where}: reward mean`, row.rewards.mean, mean(paid));
      same(`${where}: reward median`, row.rewards.median, median(paid));
      same(`${where}: reward min`, row.rewards.min, paid.length ? Math.min(...paid) : null);
      same(`${where}: reward max`, row.rewards.max, paid.length ? Math.max(...paid) : null);
      same(`${where}: reward count`, row.rewards.count, paid.length);
      same(`${where}: success`, row.success, success(some));
      same(`${where}: malformed`, row.malformed, malformed(some));
    }
    const of = (each) => ["iteration", "split", "mode", "step"].every((name) => each[name] === batch[name]);
    const made = batch.kind === "evaluation" && report.evaluations.items.find(of);
    if (made) {
      const where = `${batch.split}, ${batch.mode}, step ${batch.step}, iteration ${batch.iteration}`;
      same(`${where}: scenarios`, made.scenarios, new Set(some.map((each) => each.scenario)).size);
      same(`${where}: success`, made.success, success(some) ?? 0);
      same(`${where}: mean reward`, made.mean_reward, mean(paid) ?? 0);
      same(`${where}: malformed`, made.malformed, malformed(some) ?? 0);
      same(`${where}: turns`, made.turns, mean(some.map((each) => each.turns)));
    }
  }
  const found = document.getElementById("found");
  const figures = `${count} figures from the rollouts in this file`;
  const browser = wrong.length
    ? `✗ This browser has recomputed ${figures}, and ${wrong.length} differ: ${wrong.slice(0, 10).join("; ")}.`
    : `✓ This browser has just recomputed ${figures}: all agree.`;
  const line = document.createElement("p");
  line.className = wrong.length ? "differ" : "agree";
  line.id = "browser";
  line.textContent = browser;
  found.after(line);
}
