# Read by the other scripts.

# The master that two of the three Sentinels agree on; nothing when no two do. One of them alone may have been cut off
# during a failover and name the old one.
named_by_two() {
    for sentinel in $SENTINELS; do
        timeout 2 redis-cli -h "$sentinel" -p 26379 SENTINEL GET-MASTER-ADDR-BY-NAME streamfleet 2>/dev/null |
            tr '\n' ' '
        echo
    done | grep -Ex '[^ ]+ [0-9]+ ' | sort | uniq -d | cut -d ' ' -f 1
}
