// Made from the OpenAPI file by `python -m scripts.dashboard_types`; do not edit.

export interface AgentSessionAccess {
  "id": string;
  "base_url": string;
  "api_key": string;
  "attempt": number;
  "expires_at": string;
  "prompt": SessionPrompt | null;
}

export interface AgentSessionCallOut {
  "number": number;
  "digest": string;
  "occurrence": number;
  "protocol": string;
  "used": boolean;
  "messages": (Record<string, any>)[];
  "tools": (Record<string, any>)[];
  "parameters": Record<string, any>;
  "seed": number;
  "completion": Record<string, any> | null;
  "begun_at": string;
  "answered_at": string | null;
}

export interface AgentSessionOpinions {
  "events": number;
  "wins": number;
  "losses": number;
  "simulated": boolean;
}

export interface AgentSessionOut {
  "id": string;
  "status": AgentSessionState;
  "project": string;
  "model": string;
  "checkpoint": string;
  "step": number | null;
  "prompt": PromptUsed | null;
  "backend": string;
  "attempt": number;
  "calls": number;
  "prompt_tokens": number;
  "completion_tokens": number;
  "reward": number | null;
  "outcome": AgentSessionOutcome | null;
  "feedback": AgentSessionOpinions | null;
  "max_calls": number | null;
  "max_tokens": number | null;
  "warnings": (string)[];
  "restart": "auto" | "explicit";
  "metadata": Record<string, any>;
  "run_id": string | null;
  "iteration": number | null;
  "opened_at": string;
  "expires_at": string;
  "ended_at": string | null;
}

export interface AgentSessionOutcome {
  "reward": number | null;
  "parts": Record<string, number> | null;
  "output": string | Record<string, any> | null;
  "reason": string | null;
  "facts": Record<string, boolean> | null;
}

export type AgentSessionState = "open" | "ended" | "expired";

export interface AnswerPriceOut {
  "tokens": number | null;
  "seconds": number | null;
  "usd": number | null;
}

export type Arm = "stable" | "candidate";

export interface ArmFigure {
  "units": number;
  "mean": number | null;
}

export interface ArmOut {
  "arm": Arm;
  "checkpoint": string;
  "prompt": PromptUsed | null;
  "backend": string;
  "run_id": string | null;
  "iteration": number | null;
  "success": number | null;
  "units": number;
  "open_windows": number;
  "closed_windows": number;
  "mean_outcome": number | null;
  "late_events": number;
}

export interface AskOut {
  "question": string | null;
  "answer": string | null;
  "source_ids": (string)[];
  "success": boolean;
  "expected": string | null;
  "correct": boolean | null;
  "sources_correct": boolean | null;
  "why_no_success": string | null;
  "note": string | null;
  "email": Email | null;
  "trajectory_id": string;
  "model": string;
  "step": number | null;
  "release_id": string | null;
}

export interface AttemptOut {
  "number": number;
  "started_at": string;
  "seconds": number | null;
  "status": number | null;
  "error": string | null;
}

export interface BackendCatalogue {
  "items": (BackendOut)[];
  "next_cursor": null;
}

export interface BackendOut {
  "name": string;
  "available": boolean;
  "reason": string | null;
  "unusable_base_models": (UnusableBaseModel)[];
  "on_engine": boolean;
  "train_options": (string)[];
  "takes_tuning": boolean;
  "trains_on_demonstrations": boolean;
  "samples_while_training": boolean;
  "settings": (BackendSettingOut)[];
}

export interface BackendSettingOut {
  "name": string;
  "description": string;
  "is_set": boolean;
}

export interface BecameOut {
  "pattern": string | null;
  "tasks": number;
}

export interface BeforeAndNow {
  "before": number | null;
  "now": number | null;
}

export interface BehaviourOut {
  "what": string;
  "before": number;
  "after": number;
  "points": IntervalOut;
}

export interface BestCheckpoint {
  "step": number;
  "success": number | null;
  "interval": (number)[] | null;
}

export interface CandidateOut {
  "number": number;
  "rung": Rung;
  "state": CandidateState;
  "reason": string | null;
  "author": string;
  "why": string;
  "model": string;
  "prompt": PromptUsed | null;
  "only_by_person": boolean;
  "success": IntervalOut | null;
  "test": IntervalOut | null;
  "screening": EvidenceOut | null;
  "evidence": EvidenceOut | null;
  "error_share": number | null;
  "price": PriceOut;
  "answer": AnswerPriceOut | null;
  "run_id": string | null;
  "screening_id": string | null;
  "gate_id": string | null;
  "created_at": string;
  "decided_at": string | null;
}

export type CandidateState = "proposed" | "screening" | "measuring" | "training" | "accepted" | "refused" | "unreachable" | "skipped" | "failed";

export type Cause = "infrastructure_failures" | "agent_errors" | "sampler_is_not_trainer" | "weights_unchanged" | "unusual_learning_rate" | "policy_collapsed" | "nothing_varies" | "stale_policy" | "parser_drift" | "truncated_replies" | "out_of_turns" | "malformed_replies" | "environment_flaky" | "tool_errors" | "judge_silent" | "judge_constant" | "judge_disagrees" | "duplicate_scenarios" | "too_hard" | "too_easy" | "reward_hacked" | "part_dominates" | "stale_rollouts" | "entropy_collapse" | "steps_shortened" | "steps_too_small" | "few_groups_decide" | "length_growth" | "overfits" | "forgets" | "unexplained";

export interface CheckpointOut {
  "step": number;
  "iteration": number;
  "model": string | null;
  "success": number | null;
  "is_best": boolean;
  "created_at": string;
  "deleted_at": string | null;
}

export interface ComparedCheckpoint {
  "iteration": number;
  "step": number;
  "success": number;
}

export interface ComparedEvaluations {
  "split": "train" | "validation" | "test";
  "mode": "sampled" | "greedy";
  "scenarios": number;
  "first": ComparedCheckpoint;
  "latest": ComparedCheckpoint | null;
  "smallest_points": number | null;
}

export interface ComparedKindOut {
  "split": "train" | "validation" | "test";
  "mode": "sampled" | "greedy";
  "run_iteration": number;
  "other_iteration": number;
  "difference": RunDifference | null;
  "run_better": number;
  "other_better": number;
  "run_wins": (DecidedScenarioOut)[];
  "other_wins": (DecidedScenarioOut)[];
}

export interface Continued {
  "turn": number;
  "label": string;
  "count": number;
  "success": IntervalOut | null;
  "reward": number | null;
  "turns": number | null;
  "next": (NextAction)[];
}

export interface DecidedScenarioOut {
  "scenario_id": string;
  "scenario": Record<string, any>;
  "run": SideOut;
  "other": SideOut;
}

export interface DefaultOut {
  "value": boolean | number;
  "reason": string;
}

export interface Degraded {
  "part": "database" | "engine";
  "since": string;
  "reason": string;
}

export interface DeliveryBrief {
  "id": string;
  "endpoint_id": string | null;
  "run_id": string;
  "evaluation_id": string | null;
  "release_id": string | null;
  "event_seq": number | null;
  "event_type": string | null;
  "iteration": number | null;
  "url": string;
  "state": DeliveryState;
  "attempts": number;
  "next_attempt_at": string;
  "last_error": string | null;
  "created_at": string;
  "delivered_at": string | null;
}

export interface DeliveryOut {
  "id": string;
  "endpoint_id": string | null;
  "run_id": string;
  "evaluation_id": string | null;
  "release_id": string | null;
  "event_seq": number | null;
  "event_type": string | null;
  "iteration": number | null;
  "url": string;
  "state": DeliveryState;
  "attempts": number;
  "next_attempt_at": string;
  "last_error": string | null;
  "created_at": string;
  "delivered_at": string | null;
  "body": string;
  "tries": (AttemptOut)[];
}

export type DeliveryState = "pending" | "delivered" | "failed";

export interface DemonstrationLosses {
  "first": number;
  "latest": number;
  "held_out": boolean;
}

export interface DemonstrationsOut {
  "name": string;
  "version": number;
  "sha256": string;
  "count": number;
  "origin": Record<string, any>;
  "created_at": string;
  "links": Record<string, string>;
}

export interface DeviceOut {
  "name": string;
  "memory_used_bytes": number | null;
  "memory_total_bytes": number | null;
}

export interface DiagnosisOut {
  "cause": Cause;
  "state": "active" | "cleared";
  "severity": Severity;
  "first_iteration": number;
  "named_at_iteration": number;
  "summary": string;
  "evidence": Record<string, any>;
  "remedy": RemedyOut;
  "explained_by": Cause | null;
}

export interface DifferenceOut {
  "scenarios": number;
  "changed": number;
  "mean": number;
  "low": number;
  "high": number;
  "smallest": number | null;
}

export interface Differences {
  "success": IntervalOut | null;
  "reward": IntervalOut | null;
  "sources": IntervalOut | null;
  "turns": IntervalOut | null;
}

export interface DocumentOut {
  "setting": string;
  "title": string;
  "description": string;
  "example": (any)[];
}

export type DueReason = "last_run_live" | "release_live" | "too_few_tasks" | "too_few_users" | "refused" | "run_ended" | "not_learned";

export type DueState = "running" | "done" | "skipped";

export interface Email {
  "subject": string;
  "body": string;
  "citations": (string)[];
}

export interface EndCounts {
  "end": string;
  "counts": (number)[];
}

export interface EndpointCreated {
  "id": string;
  "project": string | null;
  "run_id": string | null;
  "url": string;
  "events": (string)[];
  "signed": boolean;
  "previous_secret_until": string | null;
  "enabled": boolean;
  "disabled_at": string | null;
  "disabled_reason": string | null;
  "created_at": string;
  "secret": string;
}

export interface EndpointOut {
  "id": string;
  "project": string | null;
  "run_id": string | null;
  "url": string;
  "events": (string)[];
  "signed": boolean;
  "previous_secret_until": string | null;
  "enabled": boolean;
  "disabled_at": string | null;
  "disabled_reason": string | null;
  "created_at": string;
}

export interface EngineOut {
  "state": EngineState;
  "uptime_s": number | null;
  "devices": (DeviceOut)[];
  "batch_size": number | null;
  "requests_waiting": number | null;
  "cache_tokens": number | null;
  "cache_capacity_tokens": number | null;
  "sampled_tokens": number | null;
  "prefilled_tokens": number | null;
  "reused_tokens": number | null;
  "train_steps": number | null;
  "sampling_s": number | null;
  "training_s": number | null;
}

export type EngineState = "starting" | "ready" | "failed" | "stopped" | "shared" | "unresponsive";

export interface EnvironmentOut {
  "name": string;
  "description": string;
  "task": Record<string, any> | null;
  "documents": (DocumentOut)[];
}

export interface EvaluatedModel {
  "label": string;
  "kind": "trained" | "prompted";
  "model": string;
  "step": number | null;
  "prompt": PromptUsed | null;
  "success": IntervalOut | null;
  "reward": IntervalOut | null;
  "sources": IntervalOut | null;
  "turns": IntervalOut | null;
  "difference": Differences;
  "rollouts": number;
  "unscored": number;
  "prompt_tokens": number | null;
  "completion_tokens": number | null;
  "seconds_p50": number | null;
  "seconds_p95": number | null;
  "errors": Record<string, number>;
  "cost_usd": number | null;
  "error": string | null;
}

export interface EvaluationBrief {
  "evaluation_id": string;
  "status": EvaluationStatus;
  "done": number;
  "total": number;
  "models": (string)[];
  "error": string | null;
  "created_at": string;
  "started_at": string | null;
  "finished_at": string | null;
}

export interface EvaluationChanges {
  "iteration": number;
  "split": string;
  "mode": string;
  "step": number;
  "success": BeforeAndNow;
  "reward": BeforeAndNow;
}

export interface EvaluationOut {
  "evaluation_id": string;
  "status": EvaluationStatus;
  "done": number;
  "total": number;
  "models": (string)[];
  "error": string | null;
  "created_at": string;
  "started_at": string | null;
  "finished_at": string | null;
  "request": Record<string, any>;
  "wait_reason": string | null;
  "pruned": Record<string, string>;
  "judge_cost": Record<string, number | null>;
  "report": ReportOut | null;
  "weave": PublishedOut | null;
}

export type EvaluationStatus = "queued" | "running" | "completed" | "paused" | "failed" | "cancelled";

export interface EventOut {
  "seq": number;
  "type": string;
  "version": number;
  "run_id": string;
  "iteration": number | null;
  "actor": string;
  "occurred_at": string;
  "data": Record<string, any>;
}

export interface EvidenceOut {
  "won": number;
  "lost": number;
  "tasks": number;
}

export interface ExpectedCost {
  "usd": number | null;
  "low": number | null;
  "high": number | null;
  "reason": string;
}

export interface ExpectedRollouts {
  "baseline": number;
  "training": number;
  "evaluations": number;
  "replacements": number;
}

export interface ExpectedWork {
  "rollouts": ExpectedRollouts;
  "seconds": number | null;
  "disk_bytes": number | null;
}

export interface FailedRolloutOut {
  "trajectory_id": string;
  "scenario_id": string;
  "why": string | null;
  "reason": string | null;
}

export interface FailureMap {
  "now": FailureSideOut;
  "before": FailureSideOut | null;
  "patterns": (FailurePatternOut)[];
  "lost_tasks": number;
  "lost": (LostTaskOut)[];
}

export interface FailurePatternOut {
  "id": string;
  "sentence": string;
  "now": TaskShareOut;
  "before": TaskShareOut | null;
  "became": (BecameOut)[];
  "rollouts": (FailedRolloutOut)[];
}

export interface FailureSideOut {
  "name": string;
  "source": string;
  "tasks": number;
  "left_out": number;
  "solved": TaskShareOut;
}

export interface FeedbackOut {
  "event_id": string;
  "confidence": number;
  "comment": string | null;
  "name": string | null;
  "value": number | null;
  "source": "api" | "simulator";
  "occurred_at": string;
  "received_at": string;
  "type": "sent" | "opened" | "replied" | "call_booked" | "opportunity" | "closed_won" | "thumbs_up" | "thumbs_down" | "preferred" | "outcome" | "withdrawn";
  "trajectory_id": string;
  "over": string | null;
  "iteration": number | null;
}

export interface FileImported {
  "kind": "conversations" | "questions";
  "lines": number;
  "conversations": ImportedConversations | null;
  "questions": ImportedQuestions | null;
  "problem": string | null;
  "demonstrations": ImportedDemonstrations | null;
  "tasks": ImportedTasks | null;
  "left_out": (LeftOut)[];
}

export interface FilmCheckpoint {
  "iteration": number;
  "step": number;
  "success": number;
  "is_kept": boolean;
}

export interface FilmOut {
  "run_id": string;
  "split": "train" | "validation" | "test";
  "mode": "sampled" | "greedy";
  "checkpoints_total": number;
  "checkpoints": (FilmCheckpoint)[];
  "scenarios_total": number;
  "scenarios": (FilmScenario)[];
  "behaviours": (BehaviourOut)[];
  "behaviours_compared": number;
}

export interface FilmScenario {
  "scenario_id": string;
  "task": Record<string, any>;
  "expected": string | null;
  "trend": Trend;
  "learned_at": number | null;
  "right": (number)[];
  "rollouts": (number)[];
}

export interface FinishedRollout {
  "id": string;
  "iteration": number;
  "purpose": Purpose;
  "scenario_id": string;
  "messages": (any)[];
  "outcome": Record<string, any>;
  "error": string | null;
  "turns": number;
  "seconds": number;
  "finished_at": string;
}

export interface FinishedRollouts {
  "total": number;
  "items": (FinishedRollout)[];
}

export interface ForecastOut {
  "units_a_day": number;
  "enrolled_a_week": number;
  "days": (number | null)[];
  "note": string;
}

export interface GateOut {
  "decision": "better" | "not_better";
  "error": number;
  "tasks": number;
  "won": number;
  "lost": number;
  "log_wealth": number;
}

export interface GraphListed {
  "sha256": string;
  "bytes": number;
  "created_at": string;
  "links": Record<string, string>;
}

export type Guardrail = "malformed" | "error" | "slow" | "cost" | "thumbs_down_1h";

export interface GuardrailOut {
  "guardrail": Guardrail;
  "means": string;
  "tolerance": number;
  "candidate": ArmFigure;
  "stable": ArmFigure;
  "harm": number;
  "harm_threshold": number;
  "level": number | null;
  "ruled_out": number | null;
  "ruled_out_threshold": number;
}

export interface History {
  "messages": (any)[];
  "tools": (any)[];
}

export interface ImportedConversations {
  "conversations": number;
  "forms": Record<string, number>;
  "users": number;
  "without_user": number;
  "liked": number;
  "disliked": number;
  "unrated": number;
}

export interface ImportedDemonstrations {
  "name": string;
  "version": number | null;
  "sha256": string;
  "count": number;
}

export interface ImportedQuestions {
  "form": string;
  "columns": (string)[];
  "rows": (ShownRow)[];
  "question": string | null;
  "answer": string | null;
  "facts": string | null;
  "near_duplicates": number;
  "different": number;
  "answers": number;
  "base": string;
}

export interface ImportedTasks {
  "name": string;
  "version": number | null;
  "sha256": string;
  "count": number;
  "environment": string;
  "train": number;
  "validation": number;
  "test": number;
  "judge": string;
}

export interface ImprovementBrief {
  "id": string;
  "project": string;
  "status": ImprovementStatus;
  "reason": string | null;
  "environment": string;
  "target": number | null;
  "champion": number;
  "candidates": number;
  "actor": string;
  "created_at": string;
  "finished_at": string | null;
}

export interface ImprovementOut {
  "id": string;
  "project": string;
  "status": ImprovementStatus;
  "reason": string | null;
  "environment": string;
  "target": number | null;
  "champion": number;
  "candidates": number;
  "actor": string;
  "created_at": string;
  "finished_at": string | null;
  "request": Record<string, any>;
  "tried": (CandidateOut)[];
  "pilot": PilotOut | null;
  "can_show": (string)[];
  "smallest_gain": number | null;
  "pattern": PatternOut | null;
  "forecast": (RungForecastOut)[];
  "price": PriceOut;
  "confirmed": boolean | null;
  "test_looks": number;
  "job": string | null;
  "waits_until": string | null;
  "sentence": string | null;
}

export type ImprovementStatus = "running" | "paused" | "reached" | "best_so_far" | "budget" | "nothing_helps" | "cancelled" | "failed";

export interface InboxOut {
  "name": string;
  "version": number;
  "sha256": string;
  "emails": number;
  "origin": Record<string, any>;
  "created_at": string;
}

export interface IntervalOut {
  "mean": number;
  "low": number;
  "high": number;
}

export interface IterationChanges {
  "rollouts": number;
  "flipped": number | null;
  "gained": number;
  "lost": number;
  "correlation": number | null;
  "reward": BeforeAndNow;
  "success": BeforeAndNow;
  "iteration": number;
}

export interface IterationFigures {
  "iteration": number;
  "step": number;
  "rewards": Rewards;
  "success": number | null;
  "malformed": number | null;
  "no_signal": "malformed" | "constant_reward" | "equal_rewards" | "judge_silent" | "rollouts_failed" | null;
  "supervised": SupervisedFigures | null;
  "lost_rollouts": Record<string, number>;
}

export interface IterationOut {
  "iteration": number;
  "step": number;
  "rewards": Rewards;
  "success": number | null;
  "malformed": number | null;
  "no_signal": "malformed" | "constant_reward" | "equal_rewards" | "judge_silent" | "rollouts_failed" | null;
  "supervised": SupervisedFigures | null;
  "lost_rollouts": Record<string, number>;
  "best_step": number;
  "failed_rollouts": number;
  "skipped_groups": Record<string, number>;
  "train_metrics": Record<string, number | null>;
  "timing": Record<string, number>;
  "sampled_step": number | null;
  "staleness": number | null;
  "finished_at": string;
  "email": ShowcaseEmail | null;
}

export interface IterationRewards {
  "iteration": number;
  "counts": (number)[];
}

export interface JudgeCallOut {
  "id": number;
  "iteration": number;
  "judge": string;
  "model": string;
  "prompt_tokens": number;
  "completion_tokens": number;
  "cost_usd": number | null;
  "requests": number;
  "seconds": number;
  "cached": boolean;
  "error": string | null;
}

export interface JudgeCatalogue {
  "items": (JudgeOut)[];
  "next_cursor": null;
}

export interface JudgeNoise {
  "deviation": number;
  "icc": number | null;
  "floor": number | null;
}

export interface JudgeOut {
  "name": string;
  "needs": string | null;
  "unfit": string | null;
}

export interface JudgeQuestionOut {
  "judge": string;
  "model": string;
  "messages": (any)[];
}

export interface JudgeQuestions {
  "trajectory_id": string;
  "questions": (JudgeQuestionOut)[];
}

export interface KeyCreated {
  "id": string;
  "project": string;
  "name": string;
  "prefix": string;
  "scopes": (Scope)[];
  "improvement_id": string | null;
  "created_at": string;
  "expires_at": string | null;
  "revoked_at": string | null;
  "last_used_at": string | null;
  "key": string;
}

export interface KeyOut {
  "id": string;
  "project": string;
  "name": string;
  "prefix": string;
  "scopes": (Scope)[];
  "improvement_id": string | null;
  "created_at": string;
  "expires_at": string | null;
  "revoked_at": string | null;
  "last_used_at": string | null;
}

export interface LargestChange {
  "trajectory_id": string;
  "iteration": number;
  "reward": BeforeAndNow;
  "advantage": BeforeAndNow;
  "explanations": (string)[];
}

export interface LearnLoopAccepted {
  "run_id": string;
  "status": RunStatus;
  "results_path": string;
  "links": Record<string, string>;
  "webhooks": (RunWebhookCreated)[];
  "warnings": (string)[];
  "defaults": Record<string, DefaultOut>;
  "expected": ExpectedWork;
}

export interface LedgerRow {
  "id": number;
  "iteration": number;
  "phase": string;
  "seconds": number;
  "prompt_tokens": number;
  "completion_tokens": number;
  "usd": number | null;
  "machine_usd": number | null;
  "wasted": boolean;
}

export interface LeftOut {
  "reason": string;
  "count": number;
  "lines": (number)[];
}

export interface Likelihood {
  "trajectory_id": string;
  "checkpoints": (number)[];
  "turns": (ScoredTurn)[];
}

export type LogLevel = "error" | "warning" | "info";

export interface LogLine {
  "level": LogLevel;
  "at": string;
  "type": string;
  "count": number;
  "iteration": number | null;
  "text": string;
  "seq": number | null;
  "trajectory_id": string | null;
}

export interface LostTaskOut {
  "scenario_id": string;
  "pattern": string;
  "trajectory_id": string;
  "before_trajectory_id": string;
}

export interface MethodOut {
  "name": string;
  "draws": number;
  "level": number;
}

export interface MetricSeries {
  "name": string;
  "values": (number | null)[];
}

export interface ModelBrief {
  "model": string;
  "backend": string;
  "base_model": string | null;
  "step": number | null;
  "promoted_as": (string)[];
  "unusable": string | null;
}

export interface ModelCheckpoint {
  "step": number;
  "created_at": string | null;
  "metrics": Record<string, number>;
  "run_id": string | null;
  "iteration": number | null;
  "success": number | null;
  "is_best": boolean;
  "promoted_as": (string)[];
}

export interface ModelOut {
  "project": string;
  "name": string;
  "base_model": string;
}

export interface ModelWhole {
  "model": string;
  "backend": string;
  "checkpoints": (ModelCheckpoint)[];
}

export interface NextAction {
  "action": string;
  "count": number;
  "successes": number;
  "is_original": boolean;
}

export interface NodeScores {
  "run_id": string;
  "iteration": number;
  "node_scores": Record<string, number>;
  "ranked": (string)[];
}

export interface NotExaminedOut {
  "cause": Cause;
  "reason": string;
}

export interface OriginalRollout {
  "success": boolean | null;
  "reward": number | null;
  "turns": number;
  "next": string | null;
}

export interface Outcomes {
  "every": number;
  "iterations": (number)[];
  "ends": (EndCounts)[];
  "parts": (PartMeans)[];
}

export interface Parent {
  "run_id": string;
  "step": number;
}

export interface PartMeans {
  "part": string;
  "means": (number | null)[];
}

export interface PatternOut {
  "sentence": string;
  "tasks": number;
  "failures": number;
  "rollouts": (string)[];
}

export interface PilotOut {
  "evaluation_id": string;
  "tasks": number;
  "samples": number;
  "success": number;
  "solved_once": number;
  "groups_differ": number;
  "inconsistent": number;
}

export interface PriceOut {
  "minutes": number;
  "tokens": number;
  "usd": number | null;
}

export interface Progress {
  "iterations_done": number;
  "iterations_total": number;
  "iteration": number | null;
  "phase": string | null;
  "done": number | null;
  "total": number | null;
  "failures": RolloutFailures | null;
}

export interface PromotionOut {
  "name": string;
  "model": string;
  "step": number;
  "prompt": PromptUsed | null;
  "prompt_missed_at": string | null;
  "backend": string;
  "actor": string;
  "evidence": Record<string, any> | null;
  "created_at": string;
  "withdrawn_at": string | null;
  "release": ReleaseBrief | null;
  "warnings": (string)[];
}

export interface PromptOut {
  "name": string;
  "version": number;
  "sha256": string;
  "count": number;
  "origin": Record<string, any>;
  "used_by": Record<string, (string)[]>;
  "created_at": string;
  "links": Record<string, string>;
}

export interface PromptUsed {
  "sha256": string;
  "name": string | null;
  "version": number | null;
}

export interface PublishedOut {
  "state": "due" | "published" | "failed";
  "urls": Record<string, string | null> | null;
  "error": string | null;
}

export type Purpose = "train" | "train.replacement" | "showcase" | "validation.sampled" | "validation.greedy" | "test.sampled" | "test.greedy";

export interface Queue {
  "position": number;
  "reason": string;
}

export interface Readiness {
  "status": "ready" | "degraded" | "not ready";
  "database": "ok" | "unreachable";
  "engine": EngineState;
  "degraded": (Degraded)[];
  "unusable_base_models": Record<string, string>;
}

export interface RejudgeReport {
  "run_id": string;
  "repeats": number;
  "rollouts": number | null;
  "scored": number | null;
  "conclusive": boolean | null;
  "code": string;
  "all": RewardChanges | null;
  "iterations": (IterationChanges)[];
  "evaluations": (EvaluationChanges)[];
  "best_step": BeforeAndNow | null;
  "first_changed": number | null;
  "first_mattering": number | null;
  "noise": JudgeNoise | null;
  "largest": (LargestChange)[];
  "text": string;
}

export interface RejudgingAccepted {
  "evaluation_id": string | null;
  "groups": number;
  "rollouts": number;
  "verdicts": number;
  "cost": ExpectedCost;
  "warnings": (string)[];
}

export interface RejudgingBrief {
  "evaluation_id": string;
  "status": EvaluationStatus;
  "done": number;
  "total": number;
  "models": (string)[];
  "error": string | null;
  "created_at": string;
  "started_at": string | null;
  "finished_at": string | null;
  "judge": string;
  "repeats": number;
  "text": string | null;
}

export interface ReleaseAccepted {
  "release_id": string;
  "name": string;
  "state": ReleaseState;
  "reason": ReleaseReason | null;
  "summary": string;
  "candidate": string;
  "candidate_prompt": PromptUsed | null;
  "stable": string;
  "stable_prompt": PromptUsed | null;
  "share": number;
  "stage": number;
  "stages": number;
  "version": number;
  "evaluation_id": string | null;
  "actor": string;
  "created_at": string;
  "started_at": string | null;
  "ended_at": string | null;
  "forecast": ForecastOut;
  "warnings": (string)[];
}

export interface ReleaseBrief {
  "release_id": string;
  "name": string;
  "state": ReleaseState;
  "reason": ReleaseReason | null;
  "summary": string;
  "candidate": string;
  "candidate_prompt": PromptUsed | null;
  "stable": string;
  "stable_prompt": PromptUsed | null;
  "share": number;
  "stage": number;
  "stages": number;
  "version": number;
  "evaluation_id": string | null;
  "actor": string;
  "created_at": string;
  "started_at": string | null;
  "ended_at": string | null;
}

export interface ReleaseEventOut {
  "seq": number;
  "type": string;
  "version": number;
  "release_id": string;
  "actor": string;
  "occurred_at": string;
  "data": Record<string, any>;
}

export interface ReleaseOut {
  "release_id": string;
  "name": string;
  "state": ReleaseState;
  "reason": ReleaseReason | null;
  "summary": string;
  "candidate": string;
  "candidate_prompt": PromptUsed | null;
  "stable": string;
  "stable_prompt": PromptUsed | null;
  "share": number;
  "stage": number;
  "stages": number;
  "version": number;
  "evaluation_id": string | null;
  "actor": string;
  "created_at": string;
  "started_at": string | null;
  "ended_at": string | null;
  "unit": "user" | "session";
  "rules": RulesOut;
  "arms": (ArmOut)[];
  "guardrails": (GuardrailOut)[];
  "looks": number;
  "looked_at": string | null;
  "stage_since": string | null;
  "next": string | null;
  "quality": string;
  "forecast": ForecastOut;
  "salt": string | null;
}

export type ReleaseReason = "trial" | "guardrail" | "breaker" | "backend_away" | "assignment" | "time" | "person";

export type ReleaseState = "trial" | "running" | "held" | "promoted" | "rolled_back" | "overtaken";

export interface RemedyOut {
  "text": string;
  "how": "fork" | "none";
  "request": Record<string, any> | null;
}

export interface ReportOut {
  "scenarios": number;
  "split": "train" | "validation" | "test" | null;
  "samples": number;
  "compared": Record<string, number>;
  "method": MethodOut;
  "models": (EvaluatedModel)[];
  "trial": TrialOut | null;
  "gate": GateOut | null;
  "what_if": WhatIfReport | null;
  "rejudge": RejudgeReport | null;
}

export interface RewardChanges {
  "rollouts": number;
  "flipped": number | null;
  "gained": number;
  "lost": number;
  "correlation": number | null;
  "reward": BeforeAndNow;
  "success": BeforeAndNow;
}

export interface RewardHistograms {
  "low": number | null;
  "high": number | null;
  "iterations": (IterationRewards)[];
}

export interface Rewards {
  "mean": number | null;
  "median": number | null;
  "min": number | null;
  "max": number | null;
  "count": number;
}

export interface RolloutFailures {
  "iteration": number;
  "failed": number;
  "finished": number;
  "first": string;
}

export interface RulesOut {
  "ramp": (number)[];
  "guardrails": Record<string, number>;
  "outcome": Record<string, any>;
  "window_hours": number;
  "max_days": number;
  "at_end": "return" | "promote";
  "skip_trial": boolean;
}

export interface RunComparison {
  "run_id": string;
  "other_id": string;
  "run_held_out_seed": number;
  "other_held_out_seed": number;
  "held_out": (ComparedKindOut)[];
}

export interface RunCost {
  "seconds": number;
  "prompt_tokens": number;
  "completion_tokens": number;
  "usd": number | null;
  "machine_usd": number | null;
  "wasted_tokens": number;
  "wasted_usd": number | null;
  "machine_price_per_hour": number | null;
  "total_usd": number | null;
  "judge_usd": number;
  "judge_prompt_tokens": number;
  "judge_completion_tokens": number;
}

export interface RunDiagnosis {
  "cause": Cause | null;
  "diagnoses": (DiagnosisOut)[];
  "not_examined": (NotExaminedOut)[];
}

export interface RunDifference {
  "scenarios": number;
  "changed": number;
  "mean": number;
  "low": number;
  "high": number;
  "is_shown": boolean;
}

export interface RunEvaluationOut {
  "iteration": number;
  "split": "train" | "validation" | "test";
  "mode": "sampled" | "greedy";
  "step": number;
  "scenarios": number;
  "success": number;
  "mean_reward": number;
  "malformed": number;
  "turns": number;
  "difference": DifferenceOut | null;
}

export interface RunListed {
  "run_id": string;
  "status": RunStatus;
  "environment": string;
  "judge": string;
  "backend": string;
  "on_engine": boolean;
  "model": ModelOut;
  "progress": Progress;
  "best_checkpoint": BestCheckpoint | null;
  "rollouts": number;
  "tokens": Tokens;
  "error": string | null;
  "ended_early": string | null;
  "diagnosis": string | null;
  "created_at": string;
  "started_at": string | null;
  "finished_at": string | null;
  "name": string | null;
  "tags": (string)[];
  "notes": string;
  "starred": boolean;
  "links": Record<string, string>;
  "settings_hash": string;
  "seed": number | null;
  "learning_rate": number | null;
  "same_settings": SameSettingsOut | null;
  "verdict": VerdictOut;
  "judge_usd": number;
  "cost_usd": number | null;
  "settings": Record<string, string | number | boolean> | null;
  "curve": (number)[] | null;
}

export interface RunLog {
  "counts": Record<string, number>;
  "items": (LogLine)[];
  "next_cursor": string | null;
}

export interface RunMetrics {
  "run_id": string;
  "every": number;
  "iterations": (number)[];
  "names": (string)[];
  "metrics": (MetricSeries)[];
}

export interface RunOut {
  "run_id": string;
  "status": RunStatus;
  "environment": string;
  "judge": string;
  "backend": string;
  "on_engine": boolean;
  "model": ModelOut;
  "progress": Progress;
  "best_checkpoint": BestCheckpoint | null;
  "rollouts": number;
  "tokens": Tokens;
  "error": string | null;
  "ended_early": string | null;
  "diagnosis": string | null;
  "created_at": string;
  "started_at": string | null;
  "finished_at": string | null;
  "name": string | null;
  "tags": (string)[];
  "notes": string;
  "starred": boolean;
  "links": Record<string, string>;
  "verdict": VerdictOut;
  "pruned": Record<string, string>;
  "warnings": (string)[];
  "defaults": Record<string, DefaultOut>;
  "queue": Queue | null;
  "wait_reason": string | null;
  "parent": Parent | null;
  "attempts": number;
  "reproducible": boolean | null;
  "reproducible_reason": string | null;
  "cancel_requested": boolean;
  "request": Record<string, any>;
  "iterations": (IterationFigures)[];
  "evaluations": (RunEvaluationOut)[];
  "summary": Record<string, any> | null;
  "webhooks": Record<string, number>;
  "cost": RunCost;
  "last_event": number;
  "results_path": string;
  "results_error": string | null;
}

export type RunStatus = "queued" | "running" | "paused" | "completed" | "failed" | "cancelled";

export interface RunWebhookCreated {
  "id": string;
  "url": string;
  "secret": string;
}

export type Rung = "as_it_is" | "prompt" | "model" | "imitation" | "grpo";

export interface RungForecastOut {
  "rung": Rung;
  "minutes": [number, number];
  "usd": [number, number] | null;
  "source": string;
  "gain": string | null;
}

export interface SameSettingsOut {
  "runs": number;
  "first": number | null;
  "means": Record<string, number | null>;
  "cost_usd": number | null;
  "gain_sd": number | null;
  "gain_low": number | null;
  "gain_high": number | null;
  "verdicts": Record<string, number>;
  "statuses": Record<string, number>;
  "starred": number;
}

export interface SampledTokens {
  "trajectory_id": string;
  "turns": (SampledTurn)[];
}

export interface SampledTurn {
  "message": number;
  "texts": (string)[];
  "logprobs": (number)[];
}

export interface ScenarioSetOut {
  "name": string;
  "version": number;
  "sha256": string;
  "count": number;
  "environment": string;
  "inbox_sha256": string | null;
  "origin": Record<string, any>;
  "created_at": string;
  "links": Record<string, string>;
}

export interface ScheduleOut {
  "id": string;
  "project": string;
  "name": string;
  "cron": string;
  "run": Record<string, any>;
  "promoted_name": string;
  "then": Then;
  "least_new_tasks": number;
  "window_days": number | null;
  "actor": string;
  "created_at": string;
  "paused": boolean;
  "next_times": (string)[];
  "trials": number;
  "expected_wrong_promotions": number;
  "last": ScheduleRunOut | null;
}

export interface ScheduleRunOut {
  "due_at": string;
  "state": DueState;
  "reason": DueReason | null;
  "detail": string | null;
  "run_id": string | null;
  "run_status": RunStatus | null;
  "started_from": string | null;
  "tasks": number | null;
  "users": number | null;
  "evaluation_id": string | null;
  "evaluation_status": EvaluationStatus | null;
  "decision": string | null;
  "release_id": string | null;
}

export type Scope = "read" | "write" | "operator" | "propose";

export interface ScoredTurn {
  "turn": number;
  "message": number;
  "texts": (string)[];
  "logprobs": ((number | null)[])[];
}

export interface SessionFeedbackOut {
  "event_id": string;
  "confidence": number;
  "comment": string | null;
  "name": string | null;
  "value": number | null;
  "source": "api" | "simulator";
  "occurred_at": string;
  "received_at": string;
  "type": "thumbs_up" | "thumbs_down" | "preferred" | "outcome";
  "session_id": string;
  "over": string | null;
}

export interface SessionOut {
  "key_required": boolean;
  "actor": string;
  "project": string;
  "scopes": (Scope)[];
  "expires_at": string | null;
}

export interface SessionPrompt {
  "sha256": string;
  "name": string | null;
  "version": number | null;
  "parts": Record<string, string>;
}

export interface SettingGroup {
  "title": string;
  "items": (SettingOut)[];
}

export interface SettingOut {
  "variable": string;
  "value": string | null;
}

export interface SettingsOut {
  "version": string;
  "machine_price_per_hour": number | null;
  "machine_price_at_start": number | null;
  "groups": (SettingGroup)[];
}

export type Severity = "note" | "warning" | "fault";

export interface ShowcaseEmail {
  "iteration": number;
  "email_written": boolean;
  "subject": string;
  "body": string;
  "citations": (string)[];
  "trajectory_id": string;
  "scenario": ShowcaseScenario;
  "reward": number | null;
  "success": boolean | null;
}

export interface ShowcaseScenario {
  "id": string;
  "task": Record<string, any>;
}

export interface ShownRow {
  "line": number;
  "cells": (string)[];
}

export interface SideOut {
  "success": number;
  "trajectory_id": string;
}

export interface SupervisedFigures {
  "demonstrations": number;
  "left_out": number | null;
  "tokens": number | null;
  "loss": number | null;
  "held_out_loss_before": number | null;
  "held_out_loss": number | null;
  "seconds": number | null;
}

export interface TaskShareOut {
  "mean": number;
  "low": number;
  "high": number;
  "tasks": number;
}

export interface TestResult {
  "delivered": boolean;
  "status": number | null;
  "error": string | null;
  "seconds": number;
}

export type Then = "trial" | "release" | "nothing";

export interface Tokens {
  "prompt": number;
  "completion": number;
}

export interface TrajectoryBrief {
  "id": string;
  "run_id": string | null;
  "evaluation_id": string | null;
  "copied_from": string | null;
  "kind": "train" | "evaluation" | "showcase" | "ask" | "what_if";
  "iteration": number | null;
  "split": "train" | "validation" | "test";
  "mode": "sampled" | "greedy";
  "model": string;
  "step": number | null;
  "scenario_id": string;
  "scenario": Record<string, any>;
  "outcome": Record<string, any>;
  "score": number | null;
  "reward": number | null;
  "advantage": number | null;
  "success": boolean | null;
  "why_no_success": string | null;
  "inclusion": number | null;
  "replaces": string | null;
  "error": string | null;
  "failure": string | null;
  "prompt_sha256": string | null;
  "turns": number;
  "prompt_tokens": number;
  "completion_tokens": number;
  "seconds": number;
  "started_at": string;
}

export interface TrajectoryOut {
  "id": string;
  "run_id": string | null;
  "evaluation_id": string | null;
  "copied_from": string | null;
  "kind": "train" | "evaluation" | "showcase" | "ask" | "what_if";
  "iteration": number | null;
  "split": "train" | "validation" | "test";
  "mode": "sampled" | "greedy";
  "model": string;
  "step": number | null;
  "scenario_id": string;
  "scenario": Record<string, any>;
  "outcome": Record<string, any>;
  "score": number | null;
  "reward": number | null;
  "advantage": number | null;
  "success": boolean | null;
  "why_no_success": string | null;
  "inclusion": number | null;
  "replaces": string | null;
  "error": string | null;
  "failure": string | null;
  "prompt_sha256": string | null;
  "turns": number;
  "prompt_tokens": number;
  "completion_tokens": number;
  "seconds": number;
  "started_at": string;
  "messages": (any)[];
  "tools": (any)[];
  "additional_histories": (History)[];
  "score_explanation": string | null;
  "score_parts": Record<string, number>;
  "reward_parts": Record<string, number>;
}

export type Trend = "known" | "learned" | "lost" | "changed" | "got_worse" | "never";

export interface TrialOut {
  "decision": "promote" | "refuse" | "undecided" | "overtaken";
  "pairs": number;
  "log_wealth_better": number;
  "log_wealth_not_by_margin": number;
  "alpha": number;
  "margin": number;
  "look_every": number;
}

export interface TurnCredit {
  "turn": number;
  "points": IntervalOut;
}

export interface TurnValue {
  "turn": number;
  "count": number;
  "success": IntervalOut;
  "reward": number | null;
}

export interface TurnValues {
  "trajectory_id": string;
  "turns": number;
  "success": boolean | null;
  "values": (TurnValue)[];
  "credits": (TurnCredit)[];
  "decisive": TurnCredit | null;
  "missing": number | null;
  "missing_before": (number)[];
  "text": string;
}

export interface UnusableBaseModel {
  "name": string;
  "reason": string;
}

export interface UploadOut {
  "path": string;
  "label": string;
  "help": string;
  "accept": string;
  "noun": string;
}

export interface VerdictOut {
  "state": VerdictState;
  "points": number | null;
  "interval": (number)[] | null;
  "on": ComparedEvaluations | null;
  "losses": DemonstrationLosses | null;
  "sentence": string;
  "details": string;
  "text": string;
  "causes": (string)[];
}

export type VerdictState = "learned" | "got_worse" | "no_change_shown" | "too_early" | "demonstrations_learned" | "demonstrations_not_learned";

export interface WhatIfBrief {
  "evaluation_id": string;
  "status": EvaluationStatus;
  "done": number;
  "total": number;
  "models": (string)[];
  "error": string | null;
  "created_at": string;
  "started_at": string | null;
  "finished_at": string | null;
  "turns": (number)[];
  "search": "bisect" | "all" | null;
  "edited": boolean;
}

export interface WhatIfReport {
  "trajectory_id": string;
  "prefix": "exact" | "rendered";
  "edited": boolean;
  "original": OriginalRollout;
  "continuations": (Continued)[];
}
