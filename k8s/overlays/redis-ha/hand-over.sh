# Before a master goes in order (an update, a drained node): hand its place to a replica that has everything, as
# docs/operate.md says. Without this, what it had accepted in its last moments could be lost.
set -u
. /etc/redis/sentinels.sh

says() { redis-cli INFO "$1" | tr -d '\r' | grep -qx "$2"; }

if ! says replication role:master; then
    # Redis passes SIGTERM over while it writes the first append-only file after a copy from its master.
    while says persistence aof_rewrite_in_progress:1; do sleep 0.5; done
    exit 0
fi
replicas=$(redis-cli INFO replication | tr -d '\r' | sed -n 's/^connected_slaves://p')

# Writes pause, so that the replicas catch up; when the pause is over, they are refused for lack of replicas.
redis-cli CONFIG SET min-replicas-to-write "$replicas"
redis-cli CLIENT PAUSE 5000 WRITE
for sentinel in $SENTINELS; do
    if [ "$(timeout 2 redis-cli -h "$sentinel" -p 26379 SENTINEL FAILOVER streamfleet)" = OK ]; then
        until master=$(named_by_two) && [ -n "$master" ] && [ "$master" != "$SELF" ]; do sleep 0.5; done
        exit 0
    fi
done
echo "no Sentinel can replace this master" >&2
