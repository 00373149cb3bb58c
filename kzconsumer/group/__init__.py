"""Who owns what: one loop claims, moves and releases. Read `rebalancer`, then `claim_and_release`.

- The group as read, and this member in it: `membership`; what it keeps, moves, releases and claims: `assignment`.
- What is owned, and from where its partitions are fetched, at first, after a replay or a seek: `owned_partitions`. What
  the application learns of it: `rebalance_listener`.
- Between rebalances `reconciler` looks for what differs, by `reconcile_rules`, and reports streams without a partition.
  `fitness`: when a member leaves.
- All partitions with their owners, for the status page: `group_overview`.
"""
