-- What a service of revision 0003 added: runs under a lease with a journal, paused and forked ones, events, keys, a ledger,
-- endpoints and their deliveries.
INSERT INTO run (id, status, request, environment, judge, backend, model_project, model_name, base_model, owner, epoch,
                 lease_until, attempts, wait_reason, pause_requested, parent_run_id, parent_step, event_seq,
                 cancel_requested, iterations_total, next_iteration, phase, phase_iteration, phase_done, phase_total, step,
                 best_step, best_success, rollouts, prompt_tokens, completion_tokens, started_at)
SELECT '01JA00000000000000000000' || mark, status, request_of('model-' || mark) || '{"warmup_iterations": 3, "budget": null}',
       'email_search', 'reference', 'embedded', 'mail', 'model-' || mark, 'learnloop/tiny', owner, epoch, lease, attempts,
       reason, false, parent, step, 2, false, 3, 1, phase, 1, 1, 2, 0, 0, 0.2, 4, 400, 80, '2026-11-20 12:00Z'
FROM (VALUES
    ('3R', 'running', 'gone:3', 4, now() - interval '1 hour', 1, NULL, NULL, NULL, 'rollout'),
    ('3P', 'paused', NULL, 2, NULL, 0, 'asked for by its owner', '01JA000000000000000000001C', 3, NULL)
) AS r (mark, status, owner, epoch, lease, attempts, reason, parent, step, phase);

INSERT INTO iteration (run_id, iteration, step, best_step, reward_count, failed_rollouts, skipped_groups, train_metrics, timing)
SELECT id, 0, 0, 0, 0, 0, '{}', '{}', '{}' FROM run WHERE right(id, 2) IN ('3R', '3P');

INSERT INTO evaluation (run_id, iteration, split, mode, step, scenarios, success, mean_reward, malformed, turns)
SELECT id, 0, 'validation', 'sampled', 0, 1, 0.2, 0.3, 0, 2 FROM run WHERE right(id, 2) IN ('3R', '3P');

INSERT INTO checkpoint (run_id, step, iteration, is_best)
SELECT id, 0, 0, true FROM run WHERE right(id, 2) IN ('3R', '3P');

-- zlib of JSON: a rollout, and the step from which training was to start
INSERT INTO journal (run_id, iteration, name, epoch, value)
VALUES ('01JA000000000000000000003R', 1, 'rollout/train/0', 4,
        '\x78016d51cd4ec3300c7e95296736ada051b10b8fc1619aaaacf5b668695cc5ae00557d773ea78821444e89fdfdd9995ce8dc7ee56e34e83a738c3caa7b58396929f91cb859da9a7d48fbca3a41a917500e93eb49c45f088fc9816b17370a6583b59c94925ae9ed4ae9d5cdf30360ed9543bb30ce2105b93699bc70329c280fc52175f481c21632912f43e6931982fca30973e51b155ab920e7be36f2e953a9c4dbed8e773ee8ebed6687023c9a5fa287e36cb04ce7517c042c8d3122e9bfb3799120ea311500f730ae18ff91988bae32474b63aa45547368976174ccc96e15ea18b11fb4299358eda5e8f743240d9ceef56a49a6bef3ea819bec8d1f6bb95f76ea93bc63ff5866edac4739b33dbffd113e2b758db77fa9eae7a7fa718bb3b14d0b61a2cedcb1a8f90b5f8aa98d'),
       ('01JA000000000000000000003R', 1, 'train.intent', 4, '\x7801ab562a2e492d50b25230a8050016850383');

INSERT INTO event (run_id, seq, type, version, iteration, actor, data)
SELECT id, seq, type, 1, iteration, 'worker:gone:3', '{}'
FROM run, (VALUES (1, 'run.created', NULL), (2, 'iteration.completed', 0)) AS e (seq, type, iteration)
WHERE right(id, 2) IN ('3R', '3P');

INSERT INTO ledger_entry (run_id, iteration, phase, seconds, prompt_tokens, completion_tokens, usd, wasted)
VALUES ('01JA000000000000000000003R', 0, 'rollout', 1.5, 400, 80, NULL, false),
       ('01JA000000000000000000003R', 1, 'judge', 0, 30, 5, 0.01, true);

INSERT INTO api_key (id, project, name, prefix, sha256, scopes, revoked_at)
SELECT '01JD00000000000000000000' || mark, 'mail', mark, 'll_' || repeat(left(mark, 1), 8),
       encode(sha256(convert_to('ll_' || repeat(left(mark, 1), 43), 'UTF8')), 'hex'), '["read", "write"]', revoked
FROM (VALUES ('K1', NULL::timestamptz), ('R1', now())) AS k (mark, revoked);

INSERT INTO idempotency_key (project, key, request_sha256, status, body)
VALUES ('mail', 'once', repeat('b', 64), 202, '{"run_id": "01JA000000000000000000003R"}');

INSERT INTO webhook_endpoint (id, project, run_id, url, events, secret)
VALUES ('01JE0000000000000000000001', 'mail', NULL, 'http://frontend.invalid/hook', '["run.completed"]', NULL),
       ('01JE0000000000000000000002', NULL, '01JA000000000000000000003P', 'http://other.invalid/hook', '[]', '\x01');

INSERT INTO webhook_delivery (id, run_id, endpoint_id, event_seq, event_type, iteration, url, body, state, attempts, last_error)
VALUES ('01JF0000000000000000000001', '01JA000000000000000000003R', '01JE0000000000000000000001', 2, 'iteration.completed', 0,
        'http://frontend.invalid/hook', '{"type": "iteration.completed", "seq": 2}', 'pending', 1, 'HTTP 500');

INSERT INTO webhook_attempt (delivery_id, number, started_at, seconds, status, error)
VALUES ('01JF0000000000000000000001', 1, now(), 0.5, 500, 'HTTP 500');
