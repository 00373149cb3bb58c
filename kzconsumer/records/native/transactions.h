/* Aborted transactions of a response (read_committed, KIP-98). */

#ifndef KZCONSUMER_TRANSACTIONS_H
#define KZCONSUMER_TRANSACTIONS_H

#include "framing.h"

/* One that a response names: sorted by producer, then by first offset. */
struct transaction {
    int64_t producer;
    int64_t first;
    ptrdiff_t due; /* at a producer's first: its first transaction that no marker has ended yet */
};

/* Set the control bit of every batch that belongs to an aborted transaction: it is then passed over like a marker.
   The batches end before a marker that cannot be read. Bodies must not be decompressed yet.

   Matches `org.apache.kafka.clients.consumer.internals.CompletedFetch` (3.9): a transaction is aborted from its first
   offset to its producer's next abort marker. */
void hide_aborted(struct batches *batches, struct transaction *transactions, ptrdiff_t count);

#endif
