"""Real ZooKeeper and Kafka servers on loopback, for trying out, for the demo and for the tests.

versions -> jars, java           what is run, and where it comes from
configuration, ports, readiness  how it is told, where it listens, whether it serves
server_process                   one process that dies with its starter (die_with_parent)
  zookeeper_server, broker_server -> cluster -> sandbox        synchronous up to cluster, async from there
lifecycle, topics                async: restart one server; create topics through ZooKeeper
state_file, supervisor           the detached sandbox of the command line
"""
