"""Requests and responses as bytes, without IO. Read `primitives` (types, lengths, frames), then any API.

- `versions`: which version of a request; ApiVersions, SASL. `log_reads`: Fetch, ListOffsets, OffsetForLeaderEpoch.
- `cluster_state`: Metadata, settings, reassignments, the quorum. `groups`: offsets and members of groups.
- `error_codes`: their names, and which are worth another attempt (what a fetch does then: `fetcher.fetch_rules`).
"""
