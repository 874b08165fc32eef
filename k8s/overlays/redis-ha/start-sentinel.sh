# Start a Sentinel: settings from the ConfigMap, so that a changed one takes effect, and what it knows from its volume.
# Sentinel writes both into one file, which is therefore made anew here.
set -eu
umask 077
known=/data/sentinel.conf
touch "$known"
{
    cat /etc/sentinel/sentinel.conf
    echo "sentinel announce-ip $SELF"
    # Sentinels also use it towards each other.
    echo "requirepass \"$REDIS_PASSWORD\""
    # Only the very first start of all has no master yet.
    grep '^sentinel monitor streamfleet ' "$known" || echo "sentinel monitor streamfleet $FIRST_MASTER 6379 2"
    echo "sentinel auth-pass streamfleet \"$REDIS_PASSWORD\""
    # Not the known replicas: the master says who they are. When everything starts at once and the master comes last,
    # Sentinels that knew replicas would promote one of them, which may have less.
    grep -E '^sentinel (myid|current-epoch|config-epoch|leader-epoch|known-sentinel) ' "$known" || true
} > "$known.new"
mv "$known.new" "$known"
exec redis-server "$known" --sentinel
