#!/usr/bin/env bash
# Whether docker-compose.yml works here: builds the image, starts everything, trains for one iteration, stops and removes
# the containers, starts them again, and asks the trained agent. With --workers it uses the profile `workers`. It has a
# project, a port, keys and volumes of its own, and removes them at the end.
#   scripts/compose_check.sh [--workers] [flags of `docker compose build`, such as --build-arg NAME=VALUE]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

workers=false
if [ "${1:-}" = --workers ]; then
    workers=true
    shift
fi
port=${LEARNLOOP_PUBLISHED_PORT:-8765}
key=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export POSTGRES_PASSWORD=${key:0:24} LEARNLOOP_PUBLISHED_PORT=$port
override=$(mktemp --suffix=.yml)
compose=(docker compose --project-name learnloop-check --file docker-compose.yml --file "$override")
if $workers; then
    compose+=(--profile workers)
fi

say() { printf '%s %s\n' "$(date +%T)" "$*"; }

clean_up() {
    local status=$?
    if [ "$status" != 0 ]; then
        "${compose[@]}" ps --all || true
        "${compose[@]}" logs --tail 40 || true
    fi
    "${compose[@]}" down --volumes --timeout 30 >/dev/null 2>&1 || true
    rm -f "$override"
    exit "$status"
}
trap clean_up EXIT

call() { # METHOD PATH [BODY]
    curl --silent --show-error --fail-with-body --max-time 120 --request "$1" "http://127.0.0.1:$port$2" \
        --header "Authorization: Bearer $key" --header 'Content-Type: application/json' ${3:+--data "$3"}
}

field() { # NAME: of the JSON object on stdin
    "${compose[@]}" exec -T api python -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"
}

settings="{LEARNLOOP_OPERATOR_KEY: $key}"
if $workers; then
    settings="{LEARNLOOP_OPERATOR_KEY: $key, LEARNLOOP_ENGINE_KEY: $key, LEARNLOOP_ENGINE_URL: 'http://engine:8100',
      LEARNLOOP_MAX_CONCURRENT_RUNS: '0'}"
fi
cat >"$override" <<END
services:
  api: {environment: $settings}
  engine: {environment: {LEARNLOOP_ENGINE_KEY: $key}}
  worker: {environment: {LEARNLOOP_ENGINE_KEY: $key}}
END

say "building"
"${compose[@]}" build --quiet "$@"
say "starting"
"${compose[@]}" up --wait --wait-timeout 300
small='{"iterations": 1, "groups_per_iteration": 2, "rollouts_per_group": 4,
        "evaluation": {"scenarios": 2, "test_scenarios": 2, "samples": 1}}'
run=$(call POST /learn-loop "$small" | field run_id)
say "run $run"
status=queued
for _ in $(seq 300); do
    status=$(call GET "/runs/$run" | field status)
    case $status in completed | failed | cancelled | paused) break ;; esac
    sleep 1
done
[ "$status" = completed ] || { say "the run is $status"; exit 1; }
say "completed; removing the containers"
"${compose[@]}" down --timeout 60
say "starting again"
"${compose[@]}" up --wait --wait-timeout 300
[ "$(call GET "/runs/$run" | field status)" = completed ] || { say "the run is gone"; exit 1; }
answered=$(call POST /ask "{\"run_id\": \"$run\", \"question\": \"On which day is the launch of Masibe?\",
    \"inbox_address\": \"test.0.1@inbox.example\"}" | field trajectory_id)
[ -n "$answered" ] || { say "the agent gave no answer"; exit 1; }
say "the run is still there, and its agent answers (trajectory $answered)"
