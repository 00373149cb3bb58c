"""The operator's commands: a verb in `commands` reads with `groups`, `offsets` or `cluster`, and shows with `tables`.

Read `commands.output_and_options`, then any verb.

- Of a destination: `proof` that it holds what was consumed, `replay` into another.
- Of nodes: `node_changes` (one change, files that undo them), `original_config`: a configuration of the original
  consumer. `consume` prints records.
- `exporter`: metrics of all groups. `contexts`: named clusters. `top_feed`: connects to running daemons, again and
  again.
"""
