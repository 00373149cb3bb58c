/* Which batches belong to aborted transactions. */

#include "transactions.h"

#include "varints.h"
#include "records.h"

/* The first transaction of the producer, or `count`. */
static ptrdiff_t first_of(const struct transaction *transactions, ptrdiff_t count, int64_t producer) {
    ptrdiff_t first = 0, beyond = count;
    while (first < beyond) {
        ptrdiff_t middle = first + (beyond - first) / 2;
        if (transactions[middle].producer < producer)
            first = middle + 1;
        else
            beyond = middle;
    }
    return first < count && transactions[first].producer == producer ? first : count;
}

/* Whether number `due` is a transaction of the producer that began at or below `horizon`. */
static bool has_begun(const struct transaction *transactions, ptrdiff_t count, ptrdiff_t due, int64_t producer,
                      int64_t horizon) {
    return due < count && transactions[due].producer == producer && transactions[due].first <= horizon;
}

void hide_aborted(struct batches *batches, struct transaction *transactions, ptrdiff_t count) {
    int64_t horizon = -1; /* the last offset seen: a transaction that begins above it is still to come */
    for (ptrdiff_t n = 0; n < count; n++)
        transactions[n].due = n;
    for (ptrdiff_t row = 0; row < batches->count; row++) {
        struct batch *batch = &batches->at[row];
        int64_t producer = batch->magic == 2 ? load_i64(batches->data + batch->position + PRODUCER_AT) : -1;
        if (producer < 0)
            continue;
        if (batch->last > horizon)
            horizon = batch->last;
        ptrdiff_t first = first_of(transactions, count, producer);
        if (first == count)
            continue;
        ptrdiff_t due = transactions[first].due;
        if (batch->attributes & CONTROL) {
            bool aborts = false;
            if (batch->count > 0 && read_marker(batch, &aborts) != OK) { /* compaction may have emptied it */
                end_before(batches, row, BAD_MARKER);
                return;
            }
            if (aborts)
                while (has_begun(transactions, count, due, producer, horizon))
                    due++;
            transactions[first].due = due;
        } else if (batch->attributes & TRANSACTIONAL && has_begun(transactions, count, due, producer, horizon))
            batch->attributes |= CONTROL;
    }
}
