"""The Spark sink of kzconsumer. `sink` is the daemon's side, `worker` the process that holds Spark."""
