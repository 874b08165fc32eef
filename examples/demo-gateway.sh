#!/usr/bin/env bash
# See OpenAI's API at work on real parts: a Redis, a worker with a small real model, the gateway. It asks with curl and
# OpenAI's Python SDK, runs a batch with a webhook, and shows the page. `make demo-gateway` installs what it needs.
#
#   examples/demo-gateway.sh                      on a terminal it stays until Ctrl-C; --no-wait ends it with an audit
#   examples/demo-gateway.sh --engine simulated   without vLLM; answers are made up
set -euo pipefail

engine=vllm port=0 stay=
[ -t 1 ] && stay=yes
while [ $# -gt 0 ]; do
    case $1 in
        --engine) engine=$2 && shift ;;
        --port) port=$2 && shift ;;
        --wait) stay=yes ;;
        --no-wait) stay= ;;
        *) echo "usage: $0 [--engine vllm|simulated] [--port PORT] [--wait|--no-wait]" >&2 && exit 2 ;;
    esac
    shift
done

command -v curl >/dev/null || { echo 'it asks with curl, which is not installed: apt-get install curl' >&2; exit 1; }

# Settings of another fleet stay out.
for name in $(compgen -e STREAMFLEET_ || true) REDIS_URL_FILE BATCH_SIZE BATCH_TIMEOUT_MS TARGET_LATENCY_MS; do
    unset "$name"
done
export NO_PROXY=127.0.0.1 no_proxy=127.0.0.1

# --- the parts, which end with this script ---------------------------------------------------------------------------

here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d "${TMPDIR:-/tmp}/streamfleet-demo-XXXXXX")
echo 'max-time = 240' >"$folder/.curlrc" # a worker that hangs does not keep this script waiting
export CURL_HOME=$folder
# Ctrl-C is for the script alone, which ends its parts in order. On Linux they also end when it is killed.
own=
setsid setpriv --pdeathsig KILL true 2>/dev/null && own='setsid setpriv --pdeathsig KILL'

start() { # NAME COMMAND...: what it prints goes into NAME.log, and its process id into NAME_pid
    $own "${@:2}" >"$folder/$1.log" 2>&1 &
    printf -v "$1_pid" %s $!
}

end() { # NAME...: within 40 s each
    for each in "$@"; do
        each=${each}_pid
        [ "${!each:-}" ] || continue
        kill "${!each}" 2>/dev/null || true
        for _ in {1..200}; do kill -0 "${!each}" 2>/dev/null || break && sleep 0.2; done
        kill -KILL "${!each}" 2>/dev/null || true
        wait "${!each}" || true
        unset "$each"
    done
}

leave() {
    status=$?
    trap '' INT TERM HUP
    end hook gateway worker redis
    [ $status -eq 130 ] && echo "interrupted; all that was started has been ended"
    if [ $status -eq 0 ] || [ $status -gt 128 ]; then rm -rf "$folder"; else echo "logs: $folder"; fi
    exit $status
}
trap leave EXIT
trap 'exit 130' INT TERM HUP

wait_for() { # NAME COMMAND...: until the command succeeds, while the part runs, for five minutes at most
    local give_up=$((SECONDS + 300)) pid=$1_pid
    until "${@:2}" >/dev/null 2>&1; do
        [ $SECONDS -lt $give_up ] || { echo "not as it should be: ${*:2}, of the $1, after five minutes" && exit 1; }
        if ! kill -0 "${!pid}" 2>/dev/null; then
            echo "the $1 ended before it was ready:"
            tail -n 5 "$folder/$1.log"
            exit 1
        fi
        sleep 0.2
    done
}

# --- how it asks -----------------------------------------------------------------------------------------------------

show() { # COMMAND: prints it, runs it, prints what it answers, which stays in $answer
    printf '\n$ %s\n' "$1"
    answer=$(cd "$folder" && eval "$1")
    sed -E -e '/^$/d' -e 's/("id": ?"chatcmpl|"response":).*"choices"/… "choices"/' <<<"$answer" | cut -c "1-${COLUMNS:-200}"
}

expect() { # WHAT PATTERN: the answer has to have it
    grep -qE -- "$2" <<<"$answer" || { echo "not as it should be: $1" && exit 1; }
}

field() { # NAME: of the JSON object in the answer
    python -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1" <<<"$answer"
}

export REDIS_URL="unix://$folder/redis.sock"
server=$(python -c 'from streamfleet.cli.demo.server import preferred_server; print(preferred_server().path)')
start redis "$server" --port 0 --unixsocket "$folder/redis.sock" --save '' --dir "$folder"
wait_for redis test -S "$folder/redis.sock"
printf '1/7 Redis: %s\n' "$server"

set -- --engine "$engine"
if [ "$engine" = vllm ]; then
    model=$(streamfleet demo --model-only)
    set -- "$@" --model "$model" -- --max-num-seqs 4 --max-model-len 2048 --served-model-name "${model##*/}"
fi
STREAMFLEET_HEALTH_PORT=0 start worker streamfleet worker "$@"
# The webhook's receiver is on this machine, and has no TLS.
STREAMFLEET_GATEWAY_FILES="file://$folder/files" STREAMFLEET_GATEWAY_HEALTH_PORT=0 STREAMFLEET_LOG_FORMAT=json \
    STREAMFLEET_GATEWAY_WEBHOOKS_ALLOW_PRIVATE=true STREAMFLEET_GATEWAY_WEBHOOKS_ALLOW_HTTP=true \
    STREAMFLEET_GATEWAY_WEBHOOKS_PORTS=0 start gateway streamfleet gateway --port "$port"

echo '2/7 Keys, and the gateway'
show 'streamfleet gateway keys create demo'
OPENAI_API_KEY=$(grep -E '^sf-' <<<"$answer")
show 'streamfleet gateway keys create operator --operator'
OPERATOR_KEY=$(grep -E '^sf-' <<<"$answer")
show 'streamfleet gateway webhooks secret create --tenant demo'
secret=$(grep -E '^whsec_' <<<"$answer")
wait_for gateway grep gateway_ready "$folder/gateway.log"
GATEWAY=http://127.0.0.1:$(grep gateway_ready "$folder/gateway.log" | sed 's/.*"port": *\([0-9]*\).*/\1/')
OPENAI_BASE_URL=$GATEWAY/v1
export OPENAI_API_KEY OPERATOR_KEY GATEWAY OPENAI_BASE_URL
printf '\nWhat follows can be typed in another terminal as well, after\n'
printf 'export %s\n' GATEWAY="$GATEWAY" OPENAI_BASE_URL="$OPENAI_BASE_URL" OPENAI_API_KEY="$OPENAI_API_KEY"

authorised='-H "Authorization: Bearer $OPENAI_API_KEY"'
post="$authorised -H 'Content-Type: application/json' -d"
ready() { curl -sS "$OPENAI_BASE_URL/models" -H "Authorization: Bearer $OPENAI_API_KEY" | grep '"id"'; }
printf '\n3/7 The worker loads its engine\n'
wait_for worker ready
show "curl -sS \$OPENAI_BASE_URL/models $authorised"
name=$(python -c 'import json, sys; print(json.load(sys.stdin)["data"][0]["id"])' <<<"$answer")

printf '\n4/7 curl\n'
capital='What is the capital of France? Answer in one word.'
chat() { # PROMPT TOKENS: a body, whose answer is the same each time
    printf '{"model": "%s", "messages": [{"role": "user", "content": "%s"}], "max_tokens": %s, "temperature": 0' \
        "$name" "$1" "$2"
}
show "curl -sS \$OPENAI_BASE_URL/chat/completions $post '$(chat "$capital" 16)}'"
expect 'curl should have a text' '"content": ?"[^"]'
[ "$engine" = vllm ] && expect 'the capital of France should be Paris' Paris
show "curl -sSN \$OPENAI_BASE_URL/chat/completions $post '$(chat 'Write a sentence about the sea.' 24), \"stream\": true}'"
expect 'the stream should end with [DONE]' '^data: \[DONE\]'

printf "\n5/7 OpenAI's Python SDK\n"
cat >"$folder/sdk.py" <<'PYTHON'
import sys
from openai import OpenAI

chat = OpenAI().chat.completions  # reads OPENAI_BASE_URL and OPENAI_API_KEY
question = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
answer = chat.create(model=sys.argv[1], messages=question, service_tier="priority", max_tokens=16, temperature=0)
print("answer:", answer.choices[0].message.content, f"({answer.usage.total_tokens} tokens)")
chunks = chat.create(model=sys.argv[1], messages=question, stream=True, max_tokens=24, temperature=0)
print("stream:", "|".join(chunk.choices[0].delta.content or "" for chunk in chunks))
PYTHON
cat "$folder/sdk.py"
if python -c 'import openai' 2>/dev/null; then
    show "python sdk.py $name"
    expect 'the SDK should have an answer' '^answer: .'
    expect 'the SDK should have a stream' '^stream: .*\|.*\|'
else
    echo 'it is not installed here; pip install openai'
fi

printf '\n6/7 A batch, and a webhook when it has ended\n'
start hook python "$here/webhook_receiver.py" "$folder/hook" "$secret"
wait_for hook test -s "$folder/hook"
number=0
for question in 'Name a colour.' 'Name a fruit.' 'Name an ocean.' 'Name a planet.' 'Is the sun a star?'; do
    number=$((number + 1))
    printf '{"custom_id": "line-%s", "method": "POST", "url": "/v1/chat/completions", "body": %s}}\n' \
        "$number" "$(chat "$question" 12)"
done >"$folder/requests.jsonl"
show 'head -n 1 requests.jsonl'
show "curl -sS \$OPENAI_BASE_URL/files $authorised -F purpose=batch -F file=@requests.jsonl"
wish='{"input_file_id": "%s", "endpoint": "/v1/chat/completions", "completion_window": "1h", "callback_url": "%s"}'
show "curl -sS \$OPENAI_BASE_URL/batches $post '$(printf "$wish" "$(field id)" "$(cat "$folder/hook")")'"
batch=$(field id)
ended() {
    answer=$(curl -sS "$OPENAI_BASE_URL/batches/$batch" -H "Authorization: Bearer $OPENAI_API_KEY")
    grep -E '"status": ?"(completed|failed|expired|cancelled)"' <<<"$answer"
}
wait_for gateway ended
expect 'the batch should be completed' '"status": ?"completed"'
show "curl -sS \$OPENAI_BASE_URL/files/$(field output_file_id)/content $authorised"
for each in $(seq "$number"); do expect "line-$each should be answered" "\"line-$each\".*\"status_code\": ?200"; done
wait_for hook grep "$batch" "$folder/hook.log"
printf '\nA webhook came: %s\n' "$(grep "$batch" "$folder/hook.log")"

printf '\n7/7 The page\n'
show "curl -sS -o /dev/null -w '%{http_code} %{content_type}' \$GATEWAY/ui"
expect 'the page should be there' '^200 text/html'
show 'curl -sS $GATEWAY/ui/api/overview -H "Authorization: Bearer $OPERATOR_KEY"'
expect 'the page should have the lanes' '"lanes"'
printf '\nThe page:      %s/ui\nOperator key:  %s\n' "$GATEWAY" "$OPERATOR_KEY"

if [ "$stay" ]; then
    echo "Look on: REDIS_URL=$REDIS_URL streamfleet backlog --watch"
    echo 'All of it goes on, with a small request every few seconds, until Ctrl-C.'
    trap 'stay=' INT TERM HUP
    while [ "$stay" ]; do
        # Failures are ignored here: the page shows them, and the audit counts them.
        eval "curl -sS \$OPENAI_BASE_URL/chat/completions $post '$(chat "$capital" 16)}'" >/dev/null 2>&1 &
        wait $! || true
        [ "$stay" ] || break
        sleep 3 &
        wait $! || true
    done
    trap '' INT TERM HUP
fi
end gateway worker # callers before workers
streamfleet audit
