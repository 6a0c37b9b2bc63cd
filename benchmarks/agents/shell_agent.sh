#!/bin/sh
# The mail job as a shell script: a loop around curl and jq.
set -eu
post() { curl -sS --fail-with-body -H "content-type: application/json" -d @- "$@"; }
tell() { jq -n --arg session "$LEARNLOOP_SESSION" "$@"; }

opened=$(tell --argjson task "$LEARNLOOP_TASK" '{session: $session, task: $task}' | post "$MAIL_DESK_URL/open")
prompt={}
if [ -n "${READS_PROMPT:-}" ]; then prompt=${LEARNLOOP_PROMPT:-$prompt}; fi
messages=$(printf %s "$opened" | jq -c --argjson prompt "$prompt" '.messages | .[0].content = ($prompt.system // .[0].content)')
tools=$(printf %s "$opened" |
  jq -c --argjson prompt "$prompt" '.tools | map(.function |= (.description = ($prompt["tool:" + .name] // .description)))')
turns=$(printf %s "$opened" | jq .max_turns)
while [ "$turns" -gt 0 ]; do
  turns=$((turns - 1))
  # curl comes last in its pipeline because the shell checks only the last status.
  reply=$(jq -n --arg model "$OPENAI_MODEL" --argjson messages "$messages" --argjson tools "$tools" \
      '{model: $model, messages: $messages, tools: $tools}' |
    post "$OPENAI_BASE_URL/chat/completions" -H "authorization: Bearer $OPENAI_API_KEY")
  message=$(printf %s "$reply" | jq -c '.choices[0].message')
  messages=$(printf %s "$messages" | jq -c --argjson message "$message" '. + [$message]')
  count=$(printf %s "$message" | jq '.tool_calls // [] | length')
  if [ "$count" = 0 ]; then
    ended=$(tell '{session: $session, reason: "malformed"}' | post "$MAIL_DESK_URL/end")
    printf %s "$ended" | jq -c .outcome
    exit
  fi
  number=0
  while [ "$number" -lt "$count" ]; do
    call=$(printf %s "$message" | jq -c ".tool_calls[$number]")
    number=$((number + 1))
    result=$(tell --argjson call "$call" \
      '{session: $session, name: $call.function.name, arguments: $call.function.arguments}' | post "$MAIL_DESK_URL/call")
    if [ "$(printf %s "$result" | jq .final)" = true ]; then
      printf %s "$result" | jq -c .outcome
      exit
    fi
    messages=$(printf %s "$messages" | jq -c --argjson call "$call" --argjson result "$result" \
      '. + [{role: "tool", tool_call_id: $call.id, content: $result.content}]')
  done
done
ended=$(tell '{session: $session, reason: "out_of_turns"}' | post "$MAIL_DESK_URL/end")
printf %s "$ended" | jq -c .outcome
