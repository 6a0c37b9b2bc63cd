// Made from the OpenAPI file by `python -m scripts.dashboard_types`; do not edit.

/** @type {Record<string, any>} */
export const FIELDS = {
  "name": {
    "help": "What to call the run: one line of at most 100 characters, without spaces at its ends; `PATCH /runs/{run_id}` changes it. Default: what differs from the defaults, such as `lr 1e-12 \u00b7 seed 4`, or the name of the model, if `model.name` is given.",
    "type": "string"
  },
  "model.name": {
    "help": "Name of the model within its project. Default: set by the service, else made from the run id.",
    "type": "string"
  },
  "model.base_model": {
    "help": "Where training starts: a base model such as `learnloop/tiny`, or `PROJECT/NAME@STEP` for a checkpoint of the same project. Default: set by the service.",
    "type": "string"
  },
  "model.enable_thinking": {
    "help": "Whether the model thinks before it answers, if its chat template has a switch of that name. The model keeps it, also for `POST /ask`. Default: that of the existing model or of the template. Only backends with `takes_tuning` take it.",
    "type": "boolean",
    "choices": [
      "true",
      "false"
    ]
  },
  "backend": {
    "help": "Where the model is trained. Default: set by the service.",
    "type": "string"
  },
  "warm_start.epochs": {
    "help": "How often each demonstration is trained on. The order is drawn anew in each epoch.",
    "type": "integer",
    "standard": 2
  },
  "warm_start.batch_size": {
    "help": "Demonstrations in one optimizer step.",
    "type": "integer",
    "standard": 8
  },
  "warm_start.learning_rate": {
    "help": "Highest learning rate: it is reached after a tenth of all optimizer steps, and falls to zero from there. Default: follows the base model's size and tuning; 0.0005 for `learnloop/tiny`, 0.0001 for a LoRA on 1.5B parameters.",
    "type": "number"
  },
  "warm_start.held_out": {
    "help": "Share of the demonstrations that are not trained on, to measure the loss on them.",
    "type": "number",
    "standard": 0.1
  },
  "warm_start.demonstrations_per_iteration": {
    "help": "Demonstrations after which an iteration ends, and with it a checkpoint is made. Null: an epoch.",
    "type": "integer"
  },
  "iterations": {
    "help": "Number of training iterations, each of rollouts, judging and one training step. 0 is possible with a `warm_start`: the run learns from demonstrations only. Default: follows the base model; 14 for `learnloop/tiny`, and for others whose size is known 24 (a LoRA) or 30 after demonstrations and 45 without. The reply to the request and the run show all such defaults with their reasons.",
    "type": "integer"
  },
  "groups_per_iteration": {
    "help": "Number of scenarios per iteration. The rollouts of one scenario are a group. Default: follows the base model; 8 for `learnloop/tiny`, 16 for others whose size is known.",
    "type": "integer"
  },
  "rollouts_per_group": {
    "help": "Number of rollouts per scenario. At least 2, because rewards are compared within a group. Default: 8.",
    "type": "integer"
  },
  "end_when_learned": {
    "help": "Whether the run ends as completed after the iteration that shows that little is left to learn, as the diagnosis `too_easy` says it: in most groups every rollout succeeds. The last iteration is evaluated as in any run.",
    "type": "boolean",
    "standard": false,
    "choices": [
      "true",
      "false"
    ]
  },
  "replace_groups": {
    "help": "Whether each group whose rewards are all equal is replaced by a group of another scenario, so that the run learns from more: one for each, in the iteration whose rollouts begin next. An iteration after one that teaches nothing has twice as many rollouts and verdicts. Default: false for `learnloop/tiny`, true for others whose size is known.",
    "type": "boolean",
    "choices": [
      "true",
      "false"
    ]
  },
  "max_turns": {
    "help": "Maximum number of turns per rollout; a turn is one reply of the agent. Default: set by the environment, which is 8 for both included ones.",
    "type": "integer"
  },
  "max_completion_tokens": {
    "help": "Maximum number of tokens per turn of the agent.",
    "type": "integer",
    "standard": 256
  },
  "learning_rate": {
    "help": "Learning rate of the optimizer after the warm-up. Default: follows the base model's size and tuning; 0.0007 for `learnloop/tiny`, 0.0002 for a LoRA on 1.5B parameters, 0.00001 for a whole model of that size.",
    "type": "number"
  },
  "warmup_iterations": {
    "help": "Number of iterations over which the learning rate rises linearly to its full value. Default: 3.",
    "type": "integer"
  },
  "temperature": {
    "help": "Sampling temperature of the training rollouts. The log-probabilities that training uses are those without it, so any other than 1 turns the gradient away: its cosine to the exact one was 0.984 at 0.5 and 0.93 at 0.3.",
    "type": "number",
    "standard": 1.0
  },
  "seed": {
    "help": "Seed of the scenario order and of sampling. On the engine and a CPU, the same seed gives the same run.",
    "type": "integer",
    "standard": 0
  },
  "concurrency": {
    "help": "Maximum number of simultaneous rollouts. Default: all of an iteration, on a CPU at most 64; 64 for `learnloop/tiny`.",
    "type": "integer"
  },
  "rollout_timeout_s": {
    "help": "Seconds after which a rollout counts as failed.",
    "type": "number",
    "standard": 300.0
  },
  "train_options.epsilon": {
    "help": "The ratio of new to old probability is clipped below at 1 - epsilon. Default: 1.0 with `cispo`, 0.2 with `ppo`.",
    "type": "number"
  },
  "train_options.kl_penalty_coef": {
    "help": "Weight of a penalty on tokens that have left the base model more than the average token has. Default: 0.",
    "type": "number"
  },
  "pipeline.max_staleness": {
    "help": "Number of iterations that rollouts may run ahead; they are sampled from a policy at most that many steps older than the one that is trained on them. 0: rollouts, then training, one after the other.",
    "type": "integer",
    "standard": 0
  },
  "evaluation.every": {
    "help": "Number of iterations between evaluations on the validation scenarios. Default: follows the base model; 4 for `learnloop/tiny`.",
    "type": "integer"
  },
  "evaluation.scenarios": {
    "help": "Number of validation scenarios; if there are fewer, each is used once. 0: none; then the newest checkpoint counts as the best. Default: follows the base model; 24 for `learnloop/tiny`.",
    "type": "integer"
  },
  "evaluation.test_scenarios": {
    "help": "Number of test scenarios, evaluated at the start and at the end of the run; if there are fewer, each is used once. 0: none. Default: follows the base model; 64 for `learnloop/tiny`.",
    "type": "integer"
  },
  "evaluation.baseline_width": {
    "help": "The evaluation before training ends after a batch of 64 scenarios of a split when the 95% intervals of its success, sampled and greedy, are narrower than this. 0: it has all scenarios. Default: follows the base model; 0.1 for bases whose size is known, so that 0 of 64 suffice, and 0 for `learnloop/tiny`.",
    "type": "number"
  },
  "evaluation.best": {
    "help": "Which validated checkpoint is the best: the `newest` whose success cannot be told apart from the highest, or the one with the `highest` success. Default: `highest` for bases whose size is known, `newest` for `learnloop/tiny`.",
    "type": "string",
    "choices": [
      "newest",
      "highest"
    ]
  },
  "evaluation.samples": {
    "help": "Number of sampled rollouts per scenario. Default: follows the base model; 2 for `learnloop/tiny`.",
    "type": "integer"
  },
  "evaluation.seed": {
    "help": "Seed of the held-out scenarios and their rollouts. Runs with the same one are evaluated on the same scenarios, whatever the seed of their training is.",
    "type": "integer",
    "standard": 0
  },
  "budget.max_usd": {
    "help": "Limit in US dollars for judge calls, as far as their price is known. Null: no limit.",
    "type": "number"
  },
  "budget.max_minutes": {
    "help": "Limit in minutes that workers spend on the run, not counting time in the queue or paused. Null: no limit.",
    "type": "number"
  },
  "budget.max_tokens": {
    "help": "Limit for the prompt and completion tokens of the agent and the judges together. Null: no limit.",
    "type": "integer"
  },
  "checkpoints.keep_best": {
    "help": "Keep this many checkpoints with the highest success on the validation scenarios.",
    "type": "integer",
    "standard": 1
  },
  "checkpoints.keep_last": {
    "help": "Keep this many of the newest checkpoints.",
    "type": "integer",
    "standard": 2
  },
  "checkpoints.keep_every": {
    "help": "Also keep each checkpoint whose step is a multiple of this number. Null: no others.",
    "type": "integer"
  },
  "checkpoints.keep_evaluated": {
    "help": "Also keep this many of those that were evaluated, spread over the run. The run's page compares them.",
    "type": "integer",
    "standard": 0
  },
  "on_no_signal.action": {
    "help": "What to do then: `continue` only warns, `pause` pauses the run, `fail` ends it as failed.",
    "type": "string",
    "standard": "continue",
    "choices": [
      "continue",
      "pause",
      "fail"
    ]
  },
  "on_no_signal.after": {
    "help": "Number of such iterations in a row after which it is done.",
    "type": "integer",
    "standard": 3
  },
  "on_collapse": {
    "help": "What to do when a step broke the policy: by the next rollouts, success fell by 30 points or malformed replies rose by 30, and chance does not explain it. `step_back`: the policy continues from the weights before that step, at half the learning rate; from the third time on the run pauses as well. `pause`: the run pauses. `continue`: it is only named as the cause `policy_collapsed`. Default: `continue` for `learnloop/tiny` and bases of unknown size, `step_back` for others; a run whose backend cannot go back pauses instead.",
    "type": "string",
    "choices": [
      "step_back",
      "pause",
      "continue"
    ]
  }
};
