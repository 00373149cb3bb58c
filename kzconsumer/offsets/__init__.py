"""How far each partition is, and where that is stored. Read `progress`, then `committer`.

- `progress`: what is processed, in whichever order it was done. `committer`: which of that is due to be stored, what is
  known to be stored, also plans and the first position of a claim. `kzconsumer.member` calls it at intervals.
- How it is stored, fenced: `storage`, in ZooKeeper or with the brokers; requests to those: `coordinator`.
- Where a claim begins, and what becomes of a plan that is found: `claim_start` asks and carries out what `start_rules`
  decide, which also refuse a daemon whose sink needs another storage.
"""
