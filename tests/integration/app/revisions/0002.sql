-- What a service of revision 0002 added: a sales run on a stored graph, what it learned, what judging it cost, feedback.
INSERT INTO document (sha256, kind, content)
VALUES ('967ad3f20766f2070d24661c5c3d92d3286190f7691af472342bbf24732da3ba', 'graph', '[{"id": "job-quotes", "content": "Customer Job: Quotes take the team 12 hours a week.", "edge": [{"target_id": "fact-office", "relationship": "linked to", "rationale": ""}, {"target_id": "fact-lists", "relationship": "slowed by", "rationale": "each quote needs <b>data</b>"}]}, {"id": "fact-lists", "content": "The data for each quote comes from 7 lists.", "edge": [{"target_id": "feature-tavo", "relationship": "solved by", "rationale": "it merges lists"}]}, {"id": "fact-office", "content": "Zürich moved the quote office to the north.", "edge": []}, {"id": "feature-tavo", "content": "Product Feature: Tavo checks each quote in 9 seconds.", "edge": []}]'),
       (repeat('0', 64), 'scenarios', '[{"prospect": "Ann", "company": "Zolem", "start": "job-quotes"}]');

INSERT INTO run (id, status, request, environment, judge, backend, model_project, model_name, base_model, owner,
                 cancel_requested, iterations_total, next_iteration, step, best_step, best_success, rollouts,
                 prompt_tokens, completion_tokens, judge_prompt_tokens, judge_completion_tokens, judge_cost_usd,
                 results_error, started_at)
VALUES ('01JA000000000000000000002R', 'running', request_of('model-2R') || '{"environment": {"name": "sales_email", "config": {"graph": {"sha256": "967ad3f20766f2070d24661c5c3d92d3286190f7691af472342bbf24732da3ba", "nodes": 4, "edges": 3}}}, "warmup_iterations": 3}',
        'sales_email', 'reference', 'embedded', 'mail', 'model-2R', 'learnloop/tiny', 'gone:2', false, 3, 1, 0, 0, 0.2, 4,
        400, 80, 1000, 50, 0.0125, 'No space left on device', '2026-11-20 11:00Z');

INSERT INTO iteration (run_id, iteration, step, best_step, reward_count, failed_rollouts, skipped_groups, train_metrics, timing)
VALUES ('01JA000000000000000000002R', 0, 0, 0, 0, 0, '{}', '{}', '{}');

INSERT INTO evaluation (run_id, iteration, split, mode, step, scenarios, success, mean_reward, malformed, turns)
VALUES ('01JA000000000000000000002R', 0, 'validation', 'sampled', 0, 1, 0.2, 0.3, 0, 2);

INSERT INTO checkpoint (run_id, step, iteration, is_best) VALUES ('01JA000000000000000000002R', 0, 0, true);

INSERT INTO trajectory (id, run_id, kind, iteration, split, mode, model, step, scenario_id, scenario, messages, tools,
                        outcome, score_parts, reward_parts, turns, prompt_tokens, completion_tokens, seconds, started_at)
VALUES ('showcase-2R', '01JA000000000000000000002R', 'showcase', 0, 'test', 'greedy', 'mail/model-2R', 0, 'test:1', '{}',
        '[]', '[]', '{"subject": "Tavo", "body": "Hi", "citations": ["job-quotes"]}', '{}', '{}', 2, 100, 20, 0.5, now());

INSERT INTO reflection (run_id, iteration, state, trajectory_id)
VALUES ('01JA000000000000000000002R', 0, '{"graph": null, "node_scores": {"job-quotes": 1.0, "fact-lists": 0.9, "fact-office": 1.0, "feature-tavo": 0.8}}', 'showcase-2R');

INSERT INTO judge_call (run_id, iteration, judge, model, prompt_tokens, completion_tokens, cost_usd, requests, seconds, cached, error)
VALUES ('01JA000000000000000000002R', 0, 'ruler', 'some/judge', 1000, 50, 0.0125, 1, 2, false, NULL),
       ('01JA000000000000000000002R', 0, 'ruler', 'some/judge', 0, 0, NULL, 3, 9, false, 'no verdict');

INSERT INTO verdict (key, value) VALUES (repeat('a', 64), '{"scores": [0.5, 1.0]}');

INSERT INTO feedback (id, project, event_id, trajectory_id, against_id, run_id, type, confidence, source, occurred_at)
VALUES ('01JC00000000000000000000F1', 'mail', 'crm-1', 'showcase-2R', NULL, '01JA000000000000000000002R', 'reply', 1, 'api', now()),
       ('01JC00000000000000000000F2', 'mail', 'crm-2', 'showcase-2R', 'trajectory-asked', NULL, 'preference', 0.5, 'api', now());
