#!/usr/bin/env bash
# A Ray cluster of several raylets on this one machine, with token authentication: for trying out what a real cluster does.
#
#   infra/local/cluster.sh start [RAYLETS] [CPUS]   a head and RAYLETS - 1 more (2), CPUS logical CPUs each (2)
#   infra/local/cluster.sh status
#   infra/local/cluster.sh stop
#
# Ray listens on PORT (6379) of this machine's address, closed by the token; the dashboard and job server on DASHBOARD_PORT
# (8265) of 127.0.0.1, the raylets' agents on AGENT_PORT and the ports after it (52365 …).
set -euo pipefail

here="$(cd "$(dirname "$0")/../.." && pwd)"
bin="${BIN:-$here/.venv/bin}"
port="${PORT:-6379}"
dashboard_port="${DASHBOARD_PORT:-8265}"
agent_port="${AGENT_PORT:-$((port + 45986))}"  # 52365 for 6379, Ray's own default: each raylet's agent, which runs jobs
state="${STATE_DIR:-/tmp/scalestudy-$(id -u)-$port}"  # short: sockets lie under it, and their paths are bounded

export PATH="$bin:$PATH" RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
export RAY_LOGGER_LEVEL="${RAY_LOGGER_LEVEL:-warning}"  # at info, Ray's agents log the variables of a job, secrets too
export RAY_TRAIN_ENABLE_PREEMPTION_WATCHER="${RAY_TRAIN_ENABLE_PREEMPTION_WATCHER:-0}"

die() { echo "cluster.sh: $*" >&2; exit 2; }

is_count() { [[ "$1" =~ ^[1-9][0-9]*$ ]]; }

# `ray start --block` stays in the foreground: one process a raylet, which `stop` can end without touching others.
raylet() {
    local name="$1"; shift
    nohup setsid "$bin/ray" start --block --disable-usage-stats "$@" >"$state/$name.log" 2>&1 </dev/null &
    echo $! >"$state/$name.pid"
}

# A raylet that ended at once leaves nobody to ask, and Ray's client would wait for ever.
alive_nodes() {
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo 0; return; }
    timeout 60 "$bin/python" - "$port" <<'PY' 2>/dev/null || echo 0
import logging, sys
import ray
ray.init(f"127.0.0.1:{sys.argv[1]}", log_to_driver=False, logging_level=logging.ERROR)
print(sum(node["Alive"] for node in ray.nodes()))
PY
}

wait_for() {
    local wanted="$1"
    for _ in $(seq 60); do
        [ "$(alive_nodes)" -ge "$wanted" ] && return 0
        kill -0 "$(cat "$state/head.pid")" 2>/dev/null || break  # it has ended: its log says why
        sleep 1
    done
    tail -n 20 "$state"/*.log >&2
    stop
    die "only $(alive_nodes) of $wanted raylets came up; what they said is above"
}

# A job is refused while the head's agent is not there yet.
wait_for_agent() {
    for _ in $(seq 60); do
        (exec 3<>"/dev/tcp/127.0.0.1/$agent_port") 2>/dev/null && return 0
        sleep 0.5
    done
    tail -n 20 "$state"/*.log >&2
    stop
    die "the head's agent does not answer on port $agent_port; is the port in use? (AGENT_PORT names another)"
}

start() {
    local raylets="${1:-2}" cpus="${2:-2}" index
    is_count "$raylets" || die "RAYLETS: $raylets: give a whole number, 1 or more"
    is_count "$cpus" || die "CPUS: $cpus: give a whole number, 1 or more"
    [ -x "$bin/ray" ] || die "$bin/ray is not there; run make test or make demo first, or set BIN"
    [ ! -d "$state" ] || die "a cluster on port $port is there already ($state); stop it first"
    if [ -z "${RAY_AUTH_TOKEN:-}" ]; then
        (umask 077; "$bin/ray" get-auth-token --generate >/dev/null)
        chmod 600 "${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}"  # one that Ray has made before, all users may read
    fi
    mkdir -p "$state"
    raylet head --head --node-ip-address=127.0.0.1 --port="$port" --num-cpus="$cpus" --num-gpus=0 \
        --include-dashboard=true --dashboard-host=127.0.0.1 --dashboard-port="$dashboard_port" \
        --dashboard-agent-listen-port="$agent_port" --ray-client-server-port="$((port + 1))"
    wait_for 1
    for index in $(seq 2 "$raylets"); do
        # A temporary folder of its own: raylets that share one delete each other's copies of a job's working folder.
        raylet "worker-$index" --address="127.0.0.1:$port" --node-ip-address=127.0.0.1 --temp-dir="$state/$index" \
            --num-cpus="$cpus" --num-gpus=0 --dashboard-agent-listen-port="$((agent_port + index - 1))"
    done
    wait_for "$raylets"
    wait_for_agent
    echo "Ray: 127.0.0.1:$port, $raylets raylets with $cpus CPUs each"
    echo "jobs: export RAY_AUTH_MODE=token RAY_API_SERVER_ADDRESS=http://127.0.0.1:$dashboard_port"
    echo "      ray job submit --working-dir . -- python -m scalestudy run digits-quick"
}

stop() {
    [ -d "$state" ] || { echo "no cluster on port $port"; return 0; }
    local file
    for file in "$state"/worker-*.pid "$state"/head.pid; do
        [ -f "$file" ] && kill -TERM -- "-$(cat "$file")" 2>/dev/null || true
    done
    for _ in $(seq 4); do  # `ray start --block` may not end by a signal at all
        kill -0 $(cat "$state"/*.pid) 2>/dev/null || break  # true while any of them is there
        sleep 0.5
    done
    for file in "$state"/*.pid; do
        kill -KILL -- "-$(cat "$file")" 2>/dev/null || true
    done
    rm -rf "$state"
    local note="/tmp/ray/ray_current_cluster"  # Ray's note of a running cluster, by which `auto` finds one
    if [ -f "$note" ] && grep -q ":$port\$" "$note"; then rm -f "$note"; fi
    echo "stopped"
}

case "${1:-}" in
    start) shift; start "$@" ;;
    stop) stop ;;
    status) echo "$(alive_nodes) raylets alive on port $port" ;;
    *) sed -n '2,9p' "$0" | sed 's/^# \{0,1\}//'; exit 2 ;;
esac
