"""How far each partition is, and where that is stored. Read `progress`, then `committer`.

- Commits, also of plans: `committer` to a `storage`; with the brokers by `coordinator`.
  `kzconsumer.member` commits at intervals.
- Where a claim begins, and what becomes of a plan that is found: `claim_start` by `start_rules`, which also
  refuse a daemon whose sink needs another storage.
"""
