#!/usr/bin/env bash
# Moves the offsets of a group from ZooKeeper to a group of Kafka's own consumers. Shows: what to check before, the file
# for the way back, and the comparison after.
#
#     eval "$(kzconsumer sandbox env)"      # or: export KZCONSUMER__ZOOKEEPER__CONNECT=zk1:2181/kafka
#     ./migrate_group.sh orders orders-v2   # the group, and the group.id of Kafka's consumers
#
# Nothing is written before the last member has left. A script that has failed may be started again.
set -euo pipefail
usage="usage: migrate_group.sh GROUP GROUP_OF_KAFKA"
group=${1:?$usage} target=${2:?$usage} patience=${PATIENCE:-600}

step() { printf '\n== %s\n' "$*" >&2; }

members() {
    local found
    found=$(kzconsumer groups describe "$group" -o json) &&
        python3 -c 'import json, sys; print(len(json.load(sys.stdin)["members"]))' <<<"$found"
}

present=$(members) # ends the script if there is no such group
if [[ $present != 0 ]]; then # of a group without members, moving says what stands in the way
    step "problems of the group; exit status 3 if there are any"
    kzconsumer groups doctor "$group"
fi

step "waiting for its members to leave: stop them now (SIGTERM)"
deadline=$((SECONDS + patience))
until [[ $(members) == 0 ]]; do
    ((SECONDS < deadline)) || { echo "$group still has members after $patience s" >&2; exit 1; }
    sleep 2
done

step "what would be moved, and what stands in the way"
kzconsumer groups move "$group" --to-kafka "$target"

step "moving"
undo=$group-before-$(date -u +%Y%m%dT%H%M%SZ).jsonl
kzconsumer groups move "$group" --to-kafka "$target" --execute --undo "$undo"

step "both sides are the same; exit status 3 if they are not"
kzconsumer groups move "$group" --to-kafka "$target" --verify

step "start Kafka's consumers with group.id=$target"
echo "back, with what they will have consumed: kzconsumer groups move $group --from-kafka $target --execute" >&2
echo "back, without: start the members of $group; its offsets in ZooKeeper are as they were" >&2
[[ ! -e $undo ]] || echo "$target as it was before: kzconsumer offsets import $undo --execute" >&2
