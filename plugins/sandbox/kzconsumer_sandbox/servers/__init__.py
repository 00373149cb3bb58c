"""Real ZooKeeper and Kafka servers on loopback, for trials, the demo and the tests.

jars -> jar_fetch                 which servers there are, and where their jars and their Java come from
configuration, ports, readiness   the servers' properties, free ports, whether a server answers
server_process                    one process that ends with its starter (die_with_parent)
  zookeeper_server, broker_server -> cluster -> sandbox        synchronous up to cluster, async from there
topics                            creates topics through ZooKeeper
state_file, supervisor            the background sandbox of the command line
"""
