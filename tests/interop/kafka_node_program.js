// A program: kafka-node's HighLevelConsumer, printing `<seconds of the wall clock> <partition> <offset>` for each record.
// It ends with status 1 where an application has to start it again: it does not recover from a failed rebalance.
'use strict';

const fs = require('fs');
const kafka = require('kafka-node');

const [connect, group, id, topic, session, commit, bytes] = process.argv.slice(2);
const out = fs.openSync('/dev/stdout', 'w'); // one of its own, which blocks: Node's returns EAGAIN when the pipe is full
const client = new kafka.Client(connect, id, { sessionTimeout: 1000 * session, retries: 100 });
const consumer = new kafka.HighLevelConsumer(client, [{ topic }], {
  groupId: group,
  id,
  autoCommit: true,
  autoCommitIntervalMs: 1000 * commit,
  fetchMaxBytes: Number(bytes)
});

consumer.on('message', (message) => {
  fs.writeSync(out, `${Date.now() / 1000} ${message.partition} ${message.offset}\n`);
});
consumer.on('error', (error) => {
  console.error(new Date().toISOString(), error.name, error.message);
  if (/FailedToRe/.test(error.name)) process.exit(1);
});
consumer.on('rebalanced', () => console.error(new Date().toISOString(), 'rebalanced'));
process.on('SIGTERM', () => {
  setTimeout(() => process.exit(0), 5000);
  consumer.close(true, () => process.exit(0));
});
