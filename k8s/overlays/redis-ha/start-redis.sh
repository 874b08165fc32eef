# Start Redis in the role that the Sentinels give it. They keep that over restarts of everything, on volumes of their
# own: a Redis that decided by itself could come back as a second master, or as the first with older data.
set -eu
. /etc/redis/sentinels.sh

# The kernel drops SIGTERM for process 1 until it has a handler.
trap 'exit 143' TERM
until master=$(named_by_two) && [ -n "$master" ]; do
    echo "waiting until two of these Sentinels name the same master: $SENTINELS" >&2
    sleep 1
done
echo "the master is $master" >&2

# Names, not addresses: a pod that comes back has another address.
set -- "$@" --masterauth "$REDIS_PASSWORD" --replica-announce-ip "$SELF"
[ "$master" = "$SELF" ] || set -- "$@" --replicaof "$master" 6379
exec redis-server /etc/redis/replica.conf "$@"
