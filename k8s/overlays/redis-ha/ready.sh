# Ready: it answers, and it is the master or in step with it. An update goes on to the next pod only then.
[ "$(redis-cli ping)" = PONG ] &&
    redis-cli INFO replication | tr -d '\r' | grep -qxE 'role:master|master_link_status:up'
