"""One model of lag and health, for every view: page, `/status`, metrics, `top`, `lag`, exporter and commands.

How a view uses it. Read positions first and the ends of logs after them, and note when. Make `PartitionFacts` of each
partition: a value, or a `Why`, never a stand-in. `partition_lag(facts, now, wall, history.growth)` gives its
`PartitionLag`; `total(rows)` sums them in three figures: known, at least, unknown by reason. `lag_text` and `age_text`
write both as all views do. A view that looks again and again keeps one `History` for each partition: growth of the log,
rates, and since when it is behind without advancing. Problems become `finding(...)`; `examined(findings, not_asked)`
is healthy, unhealthy, or not examined. Views compute no lag, age, stall or health of their own.

Read `partition` first, then `totals`, `history` and `findings`. All of it is pure. Times (`at`, `since`, `now`) are
seconds of one clock of the caller's choice; record timestamps and `wall` are times since 1970.
"""
