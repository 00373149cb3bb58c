"""Hive's metastore, which PySpark ships, with a Derby: the server of catalogs of the type `hive`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from kzconsumer_sandbox.servers.configuration import HOST
from kzconsumer_sandbox.servers.jars import classpath, find_java
from tests.support.class_archive import UNVERIFIED
from tests.support.jars import fetched, spark_jars
from tests.support.java_program import JavaProgram
from tests.support.py4j_gateway import SERVER, gateway_of

_OLD = "hive-2.3.9"
_DIE = """
import json, os, signal, sys
from hive_metastore.ttypes import CheckLockRequest, LockState
from pyiceberg.catalog import load_catalog
options, database, table = json.loads(sys.argv[1]), *sys.argv[2].split(".")
catalog = load_catalog("default", **options)
with catalog._client as client:
    lock = client.lock(catalog._create_lock_request(database, table))
    while lock.state != LockState.ACQUIRED:
        lock = client.check_lock(CheckLockRequest(lock.lockid))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@contextmanager
def hive_metastore(folder: Path, *, lock: int = 5, compares: bool = True) -> Iterator[dict[str, str]]:
    """The options with which pyiceberg connects. One that does not compare is of the last version that cannot.

    Locks expire `lock` seconds after their owner's last sign of life.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/db;create=true",
        "datanucleus.schema.autoCreateAll": "true",
        "datanucleus.connectionPoolingType": "HikariCP",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": (folder / "lake").as_uri(),
        "hive.support.concurrency": "true",  # else no lock expires, nor without this manager of them
        "hive.txn.manager": "org.apache.hadoop.hive.ql.lockmgr.DbTxnManager",
        "hive.txn.timeout": f"{lock}s",
        "hive.timedout.txn.reaper.start": "1s",
        "hive.timedout.txn.reaper.interval": "1s",
    }
    each = "<property><name>{}</name><value>{}</value></property>"
    properties = "".join(each.format(name, escape(value)) for name, value in settings.items())
    (folder / "hive-site.xml").write_text(f"<configuration>{properties}</configuration>")
    java = find_java()
    first = [] if compares else [classpath(fetched(_OLD))]
    places = ":".join([str(folder), *first, classpath(spark_jars())])
    options = [
        "-Xmx192m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        *UNVERIFIED,
        f"-Dderby.stream.error.file={folder}/derby.log",
    ]
    program = JavaProgram([str(java), *options, "-cp", places, *SERVER], folder / "metastore")
    try:
        gateway = gateway_of(program)
        jvm = gateway.jvm
        hive, thrift = jvm.org.apache.hadoop.hive, jvm.org.apache.thrift
        conf = hive.conf.HiveConf()
        hive.metastore.txn.TxnDbUtil.prepDb(conf)  # the tables of locks, which are not made by themselves
        hive.ql.txn.AcidHouseKeeperService().start(conf)
        # As `HiveMetaStore.startMetaStore`, which listens on all addresses.
        plain = hive.metastore.HiveMetaStore.HMSHandler("metastore", conf, False)
        handler = hive.metastore.RetryingHMSHandler.getProxy(conf, plain, False)
        place = thrift.transport.TServerSocket(jvm.java.net.InetSocketAddress(HOST, 0))
        pool = thrift.server.TThreadPoolServer
        server = pool(pool.Args(place).processor(hive.metastore.TSetIpAddressProcessor(handler)))
        _start(jvm, server)
        port = place.getServerSocket().getLocalPort()
        gateway.shutdown()  # else py4j reports that it cannot tell a killed Java what it no longer needs
        uri = f"thrift://{HOST}:{port}"
        yield {"type": "hive", "uri": uri, "hive.hive2-compatible": "true"}
    finally:
        program.kill()


def die_with_lock(options: Mapping[str, str], table: str) -> None:
    """Have a writer killed that has the lock of a table."""
    died = subprocess.run([sys.executable, "-c", _DIE, json.dumps(options), table])
    assert died.returncode == -signal.SIGKILL


def _start(jvm: Any, server: Any) -> None:
    """In a thread of Java's."""
    invoke = jvm.java.lang.invoke
    serve = invoke.MethodHandles.publicLookup().bind(
        server, "serve", invoke.MethodType.methodType(jvm.java.lang.Void.TYPE)
    )
    runnable = jvm.java.lang.Class.forName("java.lang.Runnable")
    jvm.java.lang.Thread(invoke.MethodHandleProxies.asInterfaceInstance(runnable, serve)).start()
