-- What a service of revision 0001 left: a run in every state of that time, and what belongs to them.
CREATE FUNCTION request_of(model text) RETURNS jsonb LANGUAGE sql AS $$
    SELECT jsonb_set('{"environment": {"name": "email_search", "config": {}}, "judge": {"name": "reference", "config": {}}, "model": {"project": "mail", "name": "x", "base_model": "learnloop/tiny"}, "backend": "embedded", "iterations": 3, "groups_per_iteration": 1, "rollouts_per_group": 2, "max_turns": null, "max_completion_tokens": 64, "learning_rate": 0.0001, "temperature": 1.0, "seed": 0, "concurrency": 8, "evaluation": {"every": 1, "scenarios": 1, "test_scenarios": 1, "samples": 1}}', '{model,name}', to_jsonb(model))
$$;

INSERT INTO run (id, status, request, environment, judge, backend, model_project, model_name, base_model, owner,
                 cancel_requested, iterations_total, next_iteration, phase, phase_iteration, phase_done, phase_total,
                 step, best_step, best_success, rollouts, prompt_tokens, completion_tokens, error, summary,
                 started_at, finished_at)
SELECT '01JA00000000000000000000' || mark, status, request_of('model-' || mark), 'email_search', 'reference', 'embedded',
       'mail', 'model-' || mark, 'learnloop/tiny', owner, status = 'cancelled', 3, next, phase, next, 1, 2,
       step, step, success, 4 * next, 400 * next, 80 * next, error, summary::jsonb, started::timestamptz, ended::timestamptz
FROM (VALUES
    ('1Q', 'queued', NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    ('1R', 'running', 'gone:1', 2, 'rollout', 1, 0.4, NULL, NULL, '2026-11-20 10:00Z', NULL),
    ('1C', 'completed', NULL, 4, NULL, 3, 0.5, NULL, '{"before": 0.25, "after": 0.5}', '2026-11-20 09:00Z', '2026-11-20 09:30Z'),
    ('1F', 'failed', NULL, 2, NULL, 1, 0.4, 'RuntimeError: as it was', NULL, '2026-11-20 08:00Z', '2026-11-20 08:10Z'),
    ('1X', 'cancelled', NULL, 1, NULL, 0, 0.2, NULL, NULL, '2026-11-20 07:00Z', '2026-11-20 07:10Z')
) AS r (mark, status, owner, next, phase, step, success, error, summary, started, ended);

INSERT INTO iteration (run_id, iteration, step, best_step, reward_mean, reward_median, reward_min, reward_max,
                       reward_count, success, malformed, failed_rollouts, skipped_groups, train_metrics, timing)
SELECT id, k, k, k, 0.1 * k, 0.1, -0.5, 1, 4, 0.25, 0, 0, '{"no_signal": 1}', '{"loss": 0.5}', '{"total_s": 2.0}'
FROM run, generate_series(0, next_iteration - 1) AS k;

INSERT INTO evaluation (run_id, iteration, split, mode, step, scenarios, success, mean_reward, malformed, turns)
SELECT run_id, iteration, split, 'sampled', step, 1, 0.25, 0.3, 0, 2
FROM iteration, (VALUES ('validation'), ('test')) AS s (split);

INSERT INTO checkpoint (run_id, step, iteration, success, is_best, deleted_at)
SELECT i.run_id, i.step, i.iteration, 0.25, i.step = run.best_step, CASE WHEN i.step < run.best_step THEN now() END
FROM iteration AS i JOIN run ON run.id = i.run_id;

INSERT INTO trajectory (id, run_id, kind, iteration, split, mode, model, step, scenario_id, scenario, messages, tools,
                        outcome, score, score_explanation, score_parts, reward, reward_parts, advantage, success, error,
                        turns, prompt_tokens, completion_tokens, seconds, started_at)
SELECT 'trajectory-' || run_id || '-' || iteration, run_id, 'train', iteration, 'train', 'sampled', 'mail/agent', step,
       'train:1', '{"task": {"question": "When?"}, "reference": {"answer": "7"}}',
       '[{"role": "user", "content": "When?"}, {"role": "assistant", "content": "7, naïvely"}]', '[]', '{"answer": "7"}',
       1, 'right', '{"answer": 1}', 1, '{"answer": 1}', 0.5, true, NULL, 2, 100, 20, 0.5, '2026-11-20 10:00Z'
FROM iteration;

INSERT INTO trajectory (id, run_id, kind, iteration, split, mode, model, step, scenario_id, scenario, messages, tools,
                        outcome, score_parts, reward_parts, error, turns, prompt_tokens, completion_tokens, seconds, started_at)
VALUES ('trajectory-asked', NULL, 'ask', NULL, 'test', 'greedy', 'learnloop/tiny', NULL, 'asked', '{}', '[]', '[]', '{}', '{}',
        '{}', 'TimeoutError', 0, 0, 0, 1, '2026-11-20 10:00Z');

INSERT INTO webhook_delivery (id, run_id, iteration, url, body, state, attempts, last_error, delivered_at)
SELECT '01JB0000000000000000000' || k || right(run_id, 2), run_id, k, 'http://frontend.invalid/hook',
       '{"type": "iteration.completed", "run_id": "' || run_id || '"}', state, attempts, last_error, delivered
FROM (VALUES
    ('01JA000000000000000000001C', 1, 'delivered', 1, NULL, '2026-11-20 09:10Z'::timestamptz),
    ('01JA000000000000000000001C', 2, 'failed', 10, 'HTTP 500', NULL),
    ('01JA000000000000000000001C', 3, 'pending', 2, 'HTTP 503', NULL)
) AS d (run_id, k, state, attempts, last_error, delivered);
