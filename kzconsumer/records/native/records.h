/* Reading the records of batches into columns. */

#ifndef KZCONSUMER_RECORDS_H
#define KZCONSUMER_RECORDS_H

#include "columns.h"
#include "framing.h"

/* Append the records of a magic 2 batch that are not below `columns->low`. Some may be there after a fault. */
enum fault read_batch(const struct batch *batch, struct columns *columns);

/* The same for magic 0 and 1: a run of messages, or a wrapper with its set unpacked. */
enum fault read_messages(const struct batch *batch, struct columns *columns);

/* The number of messages inside a wrapper's body and the last offset as it is written there. A partial message at the
   end is not counted and no fault, as in Java. With `tables` the checksum of each is compared. */
enum fault count_messages(const uint8_t *body, int64_t size, int magic, const struct crc_tables *tables,
                          int64_t *count, int64_t *last);

/* Whether a control batch with records ends an aborted transaction; BAD_MARKER if that cannot be read.

   As `org.apache.kafka.common.record.ControlRecordType` (3.9) reads it, of whatever key version. */
enum fault read_marker(const struct batch *batch, bool *aborts);

#endif
