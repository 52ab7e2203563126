#!/usr/bin/env bash
# MLflow for a team on one machine, without Docker: PostgreSQL, and an MLflow server that asks for passwords and keeps
# artifacts in an S3 bucket. README.md says how to use it.
#
#   infra/mlflow/server.sh init                      writes .env with passwords made by chance
#   infra/mlflow/server.sh bucket                    makes the bucket
#   infra/mlflow/server.sh start [postgres|mlflow]   both, or one of them
#   infra/mlflow/server.sh stop [postgres|mlflow]
#   infra/mlflow/server.sh status                    exit status 1 when a part is missing
#   infra/mlflow/server.sh user NAME                 adds a user; asks for the password
#   infra/mlflow/server.sh password NAME             changes a user's password; asks for it
#   infra/mlflow/server.sh backup DIR                writes both databases to a new folder in DIR
#   infra/mlflow/server.sh restore DIR               puts a backup in the place of the databases
#   infra/mlflow/server.sh upgrade                   brings the databases to the installed MLflow's schema
#
# Settings come from .env (ENV_FILE names another), and what the environment says wins. STATE_DIR holds PostgreSQL's data,
# logs and process numbers.
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
env_file="${ENV_FILE:-$here/.env}"
bin="${BIN:-$here/../../.venv/bin}"
[ "$(id -u)" = 0 ] && default_state=/var/lib/scalestudy-mlflow || default_state="$HOME/scalestudy-mlflow"

die() { echo "server.sh: $*" >&2; exit 2; }
fail() { echo "server.sh: $*" >&2; exit 1; }

# Lines are KEY=VALUE, taken as they stand: nothing in the file is run.
read_settings() {
    [ -f "$env_file" ] || die "$env_file is not there; make it with: $0 init"
    [ -z "$(find "$env_file" -perm /077)" ] || die "$env_file: others may read its passwords; type: chmod 600 $env_file"
    local line
    while IFS= read -r line || [ -n "$line" ]; do
        [[ "$line" =~ ^([A-Z][A-Z0-9_]*)=(.*)$ ]] || continue
        [ -n "${!BASH_REMATCH[1]+set}" ] || printf -v "${BASH_REMATCH[1]}" %s "${BASH_REMATCH[2]}"
    done <"$env_file"
    local name
    for name in MLFLOW_ADMIN_USERNAME MLFLOW_ADMIN_PASSWORD MLFLOW_SECRET_KEY POSTGRES_PASSWORD \
        S3_ENDPOINT_URL S3_BUCKET S3_ACCESS_KEY S3_SECRET_KEY; do
        [ -n "${!name:-}" ] || die "$env_file: $name: is not set; .env.example says what it is"
    done
    [ "${#MLFLOW_ADMIN_PASSWORD}" -ge 12 ] || die "$env_file: MLFLOW_ADMIN_PASSWORD: MLflow wants 12 characters or more"
    host="${MLFLOW_HOST:-127.0.0.1}" port="${MLFLOW_PORT:-5000}" pg_port="${POSTGRES_PORT:-5433}"
    state="${STATE_DIR:-$default_state}"
    MLFLOW_SERVER_ALLOWED_HOSTS="${MLFLOW_SERVER_ALLOWED_HOSTS:-}"
    near="${host/#0.0.0.0/127.0.0.1}" url="http://${host/#0.0.0.0/127.0.0.1}:$port"  # where this machine finds it
    # The URIs carry no password, so that no log can: libpq reads it from PGPASSWORD.
    database="postgresql+psycopg2://mlflow@127.0.0.1:$pg_port/mlflow?connect_timeout=5"
    accounts="postgresql+psycopg2://mlflow@127.0.0.1:$pg_port/mlflow_auth?connect_timeout=5"
    [ -x "$bin/python" ] || die "$bin/python is not there; run make test or make demo first, or set BIN"
}

# For what needs its programs: `user` and `password` work without, for the composed server too.
find_postgres() {
    local found
    pg_bin="${POSTGRES_BIN:-}"
    for found in /usr/lib/postgresql/*/bin; do  # Debian's place; the newest version is the last
        [ -n "${POSTGRES_BIN:-}" ] || [ ! -x "$found/initdb" ] || pg_bin="$found"
    done
    [ -x "$pg_bin/initdb" ] || die "PostgreSQL is not there; type: apt-get install postgresql, or set POSTGRES_BIN"
}

# PostgreSQL refuses to run as root: there its programs run as POSTGRES_USER, who also owns its folder.
as_postgres() {
    if [ "$(id -u)" = 0 ]; then runuser -u "${POSTGRES_USER:-postgres}" -- "$@"; else "$@"; fi
}

listens() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }

# The databases' administrator is the user of the operating system, by the socket, which asks no password.
sql() { as_postgres "$pg_bin/psql" -X -q -A -t -v ON_ERROR_STOP=1 -h "$state/postgres" -p "$pg_port" -d postgres "$@"; }

postgres_runs() { as_postgres "$pg_bin/pg_ctl" status -D "$state/postgres/data" >/dev/null 2>&1; }

make_postgres() {
    mkdir -p "$state" && chmod 755 "$state"
    mkdir -p "$state/postgres"
    [ "$(id -u)" != 0 ] || chown "${POSTGRES_USER:-postgres}" "$state/postgres"
    as_postgres test -w "$state/postgres" || die "STATE_DIR: ${POSTGRES_USER:-postgres} can't enter $state; name another"
    as_postgres chmod 700 "$state/postgres"
    as_postgres test -d "$state/postgres/data" && return 0
    as_postgres "$pg_bin/initdb" -D "$state/postgres/data" --encoding=UTF8 --locale=C.UTF-8 --data-checksums \
        --auth-local=peer --auth-host=scram-sha-256 >"$state/initdb.log" 2>&1 ||
        { tail -n 5 "$state/initdb.log" >&2; die "PostgreSQL's folder could not be made; see above"; }
}

start_postgres() {
    make_postgres
    if postgres_runs; then echo "PostgreSQL runs already"; return 0; fi
    ! listens 127.0.0.1 "$pg_port" || die "POSTGRES_PORT: $pg_port: is in use; name another in $env_file"
    as_postgres "$pg_bin/pg_ctl" start -w -t 60 -s -D "$state/postgres/data" -l "$state/postgres/server.log" \
        -o "-c listen_addresses=127.0.0.1 -p $pg_port -k '$state/postgres'" ||
        { as_postgres tail -n 5 "$state/postgres/server.log" >&2; die "PostgreSQL did not start; see above"; }
    make_databases
    echo "PostgreSQL: 127.0.0.1:$pg_port"
}

make_databases() {
    export POSTGRES_PASSWORD
    [ -n "$(sql -c "SELECT 1 FROM pg_roles WHERE rolname = 'mlflow'")" ] || sql -c "CREATE ROLE mlflow LOGIN"
    # By the environment: an argument could be read in the list of processes.
    printf '%s\n' '\getenv password POSTGRES_PASSWORD' "ALTER ROLE mlflow PASSWORD :'password';" | sql -f - >/dev/null
    local name
    for name in mlflow mlflow_auth; do
        [ -n "$(sql -c "SELECT 1 FROM pg_database WHERE datname = '$name'")" ] || sql -c "CREATE DATABASE $name OWNER mlflow"
    done
}

stop_postgres() {
    if ! postgres_runs; then echo "PostgreSQL does not run"; return 0; fi
    as_postgres "$pg_bin/pg_ctl" stop -s -w -t 60 -m fast -D "$state/postgres/data"
    echo "PostgreSQL: stopped"
}

# What the server and its tools read from their environment, for use in a subshell. Arguments would be seen by all.
export_settings() {
    export PGPASSWORD="$POSTGRES_PASSWORD" MLFLOW_BACKEND_STORE_URI="$database"
    export MLFLOW_ARTIFACTS_DESTINATION="s3://$S3_BUCKET/${S3_PREFIX:-artifacts}" MLFLOW_S3_ENDPOINT_URL="$S3_ENDPOINT_URL"
    export AWS_ENDPOINT_URL_S3="$S3_ENDPOINT_URL" AWS_DEFAULT_REGION="${S3_REGION:-us-east-1}"
    export AWS_ACCESS_KEY_ID="$S3_ACCESS_KEY" AWS_SECRET_ACCESS_KEY="$S3_SECRET_KEY"
    export MLFLOW_FLASK_SERVER_SECRET_KEY="$MLFLOW_SECRET_KEY" MLFLOW_AUTH_CONFIG_PATH="$state/auth.ini"
    export MLFLOW_AUTH_ADMIN_USERNAME="$MLFLOW_ADMIN_USERNAME" MLFLOW_AUTH_ADMIN_PASSWORD="$MLFLOW_ADMIN_PASSWORD"
    export MLFLOW_SERVER_ALLOWED_HOSTS MLFLOW_DISABLE_TELEMETRY=true MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false
}

with_settings() { (export_settings; "$@"); }

# Says what is wrong with the bucket, nothing when it is well; `bucket make` makes it.
bucket() {
    with_settings "$bin/python" - "$S3_BUCKET" "${1:-}" <<'PY'
import sys

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

name, make = sys.argv[1], sys.argv[2] == "make"
client = boto3.client("s3", config=Config(connect_timeout=5, read_timeout=20, retries={"total_max_attempts": 2}))
try:
    client.head_bucket(Bucket=name)
except ClientError as error:
    code = error.response["Error"]["Code"]
    if code != "404":
        sys.exit(f"S3_BUCKET: {name}: the store refuses it ({code}); correct S3_ACCESS_KEY, S3_SECRET_KEY or the name")
    if not make:
        sys.exit(f"S3_BUCKET: {name}: is not there; make it with: server.sh bucket")
    client.create_bucket(Bucket=name)
except (BotoCoreError, ValueError) as error:
    sys.exit(f"S3_ENDPOINT_URL: {error}; start the store, or correct it")
PY
}

start_mlflow() {
    if mlflow_runs; then echo "MLflow runs already"; return 0; fi
    postgres_runs || listens 127.0.0.1 "$pg_port" || die "PostgreSQL does not run; type: $0 start"
    ! listens "$near" "$port" || die "MLFLOW_PORT: $port: is in use; name another in $env_file"
    bucket || die "MLflow was not started"
    mkdir -p "$state"
    # A password is looked up once a minute, not at every request: its hash costs more than the rest of a request.
    printf '[mlflow]\ndefault_permission = %s\ndatabase_uri = %s\nauth_cache_ttl_seconds = 60\n' \
        "${MLFLOW_DEFAULT_PERMISSION:-READ}" "$accounts" >"$state/auth.ini"
    (export_settings; exec nohup setsid "$bin/python" -m mlflow server --app-name basic-auth --serve-artifacts \
        --host "$host" --port "$port" --workers "${MLFLOW_WORKERS:-2}" >>"$state/mlflow.log" 2>&1 </dev/null) &
    echo $! >"$state/mlflow.pid"
    wait_for_mlflow
    echo "MLflow: $url"
}

wait_for_mlflow() {
    for _ in $(seq 180); do
        if listens "$near" "$port" && answers; then return 0; fi
        mlflow_runs || break
        sleep 0.5
    done
    grep -v "^ " "$state/mlflow.log" | tail -n 3 >&2
    stop_mlflow >/dev/null
    die "MLflow did not start; the end of $state/mlflow.log is above"
}

# Whether it asks who we are: a server that lets everybody in is not what was to be started.
answers() {
    [ "$("$bin/python" - "$url" <<'PY'
import sys, urllib.error, urllib.request
try:
    urllib.request.urlopen(sys.argv[1] + "/api/2.0/mlflow/experiments/search?max_results=1", timeout=5)
except urllib.error.HTTPError as error:
    print(error.code)
except OSError:
    pass
PY
    )" = 401 ]
}

mlflow_runs() { [ -f "$state/mlflow.pid" ] && kill -0 "$(cat "$state/mlflow.pid")" 2>/dev/null; }

stop_mlflow() {
    if ! mlflow_runs; then rm -f "$state/mlflow.pid"; echo "MLflow does not run"; return 0; fi
    local group; group="$(cat "$state/mlflow.pid")"
    kill -TERM -- "-$group"
    for _ in $(seq 40); do
        kill -0 -- "-$group" 2>/dev/null || break
        sleep 0.25
    done
    kill -KILL -- "-$group" 2>/dev/null || true
    rm -f "$state/mlflow.pid"
    echo "MLflow: stopped"
}

status() {
    local missing=0
    postgres_runs && echo "PostgreSQL: runs on 127.0.0.1:$pg_port" || { echo "PostgreSQL: does not run"; missing=1; }
    bucket 2>&1 && echo "bucket: $S3_BUCKET at $S3_ENDPOINT_URL" || missing=1
    answers && echo "MLflow: answers at $url" || { echo "MLflow: does not answer at $url"; missing=1; }
    return $missing
}

ask() {
    if [ -t 0 ]; then read -r -s -p "$1: " answer; echo >&2; else IFS= read -r answer; fi
}

# As the administrator. MLFLOW_TRACKING_USERNAME does not count: it names the user whose studies run in this shell.
account() {
    local action="$1" name="$2" answer
    [ -n "$name" ] || die "NAME: name a user"
    ask "password of $name (12 characters or more)"
    ADMIN="$MLFLOW_ADMIN_USERNAME" ADMIN_PASSWORD="$MLFLOW_ADMIN_PASSWORD" \
        NEW_PASSWORD="$answer" "$bin/python" - "$url" "$action" "$name" <<'PY'
import base64, json, os, sys
from urllib.error import HTTPError
from urllib.request import Request, urlopen

url, action, name = sys.argv[1:]
admin = os.environ["ADMIN"]
login = base64.b64encode(f"{admin}:{os.environ['ADMIN_PASSWORD']}".encode()).decode()
endpoint, method = ("create", "POST") if action == "user" else ("update-password", "PATCH")
request = Request(
    f"{url}/api/2.0/mlflow/users/{endpoint}",
    json.dumps({"username": name, "password": os.environ["NEW_PASSWORD"]}).encode(),
    {"Authorization": f"Basic {login}", "Content-Type": "application/json"},
    method=method,
)
try:
    urlopen(request, timeout=60).close()
except HTTPError as error:
    said = error.read().decode(errors="replace")
    if error.code == 401:
        said = f"the server refuses {admin} or the password; correct MLFLOW_ADMIN_USERNAME or MLFLOW_ADMIN_PASSWORD"
    elif said.startswith("{"):
        said = json.loads(said)["message"]
    sys.exit(f"server.sh: {action} {name}: {said.splitlines()[0]}")
except OSError as error:
    sys.exit(f"server.sh: {url} does not answer ({error}); start the server, or correct MLFLOW_PORT")
PY
    [ "$action" = user ] && echo "$name: added" || echo "$name: has the new password"
}

needs_postgres() { postgres_runs || die "PostgreSQL does not run; type: $0 start postgres"; }

# Written aside, so that a folder with a backup's name is a whole backup.
backup() {
    [ -n "${1:-}" ] || die "DIR: name a folder"
    needs_postgres
    local place name
    place="$1/mlflow-$(date -u +%Y%m%dT%H%M%SZ)"
    part="$place.part"  # not local: the trap reads it
    (umask 077 && mkdir -p "$1" && mkdir "$part")
    trap 'rm -rf "$part"' EXIT
    for name in mlflow mlflow_auth; do
        (umask 077
            as_postgres "$pg_bin/pg_dump" -h "$state/postgres" -p "$pg_port" -Fc "$name" >"$part/$name.dump") ||
            fail "backup: $name could not be read; no backup was made"
    done
    mv "$part" "$place"
    echo "$place"
}

# Restored beside the old databases, which go when all of the new ones are there.
restore() {
    local name said
    for name in mlflow mlflow_auth; do
        [ -f "${1:-}/$name.dump" ] || die "DIR: ${1:-}/$name.dump is not there; name a folder that backup has made"
    done
    ! mlflow_runs || die "MLflow runs; type: $0 stop mlflow"
    needs_postgres
    make_databases
    drop_databases old; drop_databases new
    trap 'drop_databases new' EXIT
    for name in mlflow mlflow_auth; do
        sql -c "CREATE DATABASE ${name}_new OWNER mlflow"
        said="$(as_postgres "$pg_bin/pg_restore" -h "$state/postgres" -p "$pg_port" -d "${name}_new" --exit-on-error \
            <"$1/$name.dump" 2>&1)" || fail "restore: $1/$name.dump: ${said%%$'\n'*}; the databases are as they were"
    done
    # DROP knows no transaction, but RENAME does: both databases are exchanged, or none is.
    sql -1 -c "ALTER DATABASE mlflow RENAME TO mlflow_old" -c "ALTER DATABASE mlflow_new RENAME TO mlflow" \
        -c "ALTER DATABASE mlflow_auth RENAME TO mlflow_auth_old" \
        -c "ALTER DATABASE mlflow_auth_new RENAME TO mlflow_auth" ||
        fail "restore: the databases could not be exchanged, see above; they are as they were"
    drop_databases old
    echo "restored from $1"
}

drop_databases() {
    PGOPTIONS="-c client_min_messages=warning" sql -c "DROP DATABASE IF EXISTS mlflow_$1" \
        -c "DROP DATABASE IF EXISTS mlflow_auth_$1"
}

upgrade() {
    ! mlflow_runs || die "MLflow runs; type: $0 stop mlflow"
    local log="$state/upgrade.log"
    { with_settings "$bin/python" -m mlflow db upgrade "$database" &&
        with_settings "$bin/python" -m mlflow.server.auth db upgrade --url "$accounts"; } >"$log" 2>&1 ||
        { tail -n 3 "$log" >&2; die "the databases were not upgraded; see $log"; }
    echo "the databases have the schema of MLflow $("$bin/python" -c 'import importlib.metadata as m; print(m.version("mlflow"))')"
}

# Passwords for the three parts, and a key for the server's forms.
init() {
    [ ! -e "$env_file" ] || die "$env_file is there already"
    local line
    (umask 077; while IFS= read -r line; do
        case "$line" in
            MLFLOW_ADMIN_PASSWORD=|MLFLOW_SECRET_KEY=|POSTGRES_PASSWORD=|S3_SECRET_KEY=)
                echo "$line$(od -An -N 16 -tx1 /dev/urandom | tr -d ' \n')" ;;
            *) echo "$line" ;;
        esac
    done <"$here/.env.example" >"$env_file")
    echo "$env_file: look through it; S3_… must be your store's"
}

parts() {
    case "${1:-}" in
        "") "${2}_postgres"; "${2}_mlflow" ;;
        postgres|mlflow) "${2}_$1" ;;
        *) die "$1: name postgres, mlflow or nothing" ;;
    esac
}

command="${1:-}"
case "$command" in
    init) init ;;
    start) read_settings; find_postgres; parts "${2:-}" start ;;
    stop) read_settings; find_postgres; if [ -z "${2:-}" ]; then stop_mlflow; stop_postgres; else parts "$2" stop; fi ;;
    status) read_settings; find_postgres; status ;;
    bucket) read_settings; bucket make && echo "bucket: $S3_BUCKET at $S3_ENDPOINT_URL" || exit 2 ;;
    user|password) read_settings; account "$command" "${2:-}" ;;
    backup) read_settings; find_postgres; backup "${2:-}" ;;
    restore) read_settings; find_postgres; restore "${2:-}" ;;
    upgrade) read_settings; upgrade ;;
    *) sed -n '2,17p' "$0" | sed 's/^# \{0,1\}//'; exit 2 ;;
esac
