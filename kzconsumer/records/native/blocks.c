/* Blocks of memory. The only state of the process: blocks that are waiting for their next use.
 *
 * A fresh page of memory costs more than decoding into it: the kernel clears it, at the first touch. So freed blocks are
 * kept, up to MOST_SPARE_BYTES. Arrow's own pool does the same, but a member that iterates messages does not load Arrow.
 */

#include "blocks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* What precedes the bytes of each block. */
union header {
    size_t size; /* of the bytes, without this */
    max_align_t alignment;
};

#if defined(__SANITIZE_ADDRESS__)
static const size_t LARGE = SIZE_MAX; /* none is kept: each ends where it was asked to */
#else
static const size_t LARGE = 32 << 10;
#endif
static const size_t MOST_BYTES = PTRDIFF_MAX - sizeof(union header);
enum { SPARE_BLOCKS = 64, MOST_SPARE_BYTES = 16 << 20 };

static struct {
    pthread_mutex_t lock;
    union header *blocks[SPARE_BLOCKS];
    int count;
    size_t bytes;
} spare = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Bytes of the blocks that are in use. */
static atomic_size_t allocated;

size_t allocated_bytes(void) { return atomic_load_explicit(&allocated, memory_order_relaxed); }

static void *in_use(union header *block, size_t size) {
    block->size = size;
    atomic_fetch_add_explicit(&allocated, size, memory_order_relaxed);
    return block + 1;
}

/* Whether a block of that size may be used for `wanted` bytes. */
static bool fits(size_t size, size_t wanted) { return size >= wanted && size - wanted <= wanted / 4; }

/* The spare block at this place, which is not kept any longer. The others stay in their order. */
static union header *remove_spare(int at) {
    union header *block = spare.blocks[at];
    spare.count--;
    spare.bytes -= block->size;
    for (int n = at; n < spare.count; n++)
        spare.blocks[n] = spare.blocks[n + 1];
    return block;
}

/* A spare block, or NULL. The lock is not waited for: it may be held by a thread that did not survive a fork. */
static union header *take_spare(size_t size) {
    union header *found = NULL;
    if (pthread_mutex_trylock(&spare.lock) != 0)
        return NULL;
    for (int n = spare.count - 1; n >= 0 && found == NULL; n--)
        if (fits(spare.blocks[n]->size, size))
            found = remove_spare(n);
    pthread_mutex_unlock(&spare.lock);
    return found;
}

/* The oldest ones make room: sizes change with what the topics contain. */
static bool keep_spare(union header *block) {
    if (block->size > MOST_SPARE_BYTES || pthread_mutex_trylock(&spare.lock) != 0)
        return false;
    while (spare.count == SPARE_BLOCKS || spare.bytes + block->size > MOST_SPARE_BYTES)
        free(remove_spare(0));
    spare.blocks[spare.count++] = block;
    spare.bytes += block->size;
    pthread_mutex_unlock(&spare.lock);
    return true;
}

void *new_block(size_t size) {
    union header *block = size >= LARGE ? take_spare(size) : NULL;
    if (block != NULL)
        return in_use(block, block->size);
    if (size > MOST_BYTES || (block = malloc(sizeof *block + size)) == NULL)
        return NULL;
    return in_use(block, size);
}

void *resize_block(void *at, size_t size) {
    if (at == NULL)
        return new_block(size);
    size_t before = block_size(at);
    union header *block;
    if (size > MOST_BYTES || (block = realloc((union header *)at - 1, sizeof *block + size)) == NULL)
        return NULL;
    atomic_fetch_sub_explicit(&allocated, before, memory_order_relaxed);
    return in_use(block, size);
}

void *shrink_block(void *block, size_t size) {
    if (size >= LARGE && fits(block_size(block), size))
        return block; /* as it is it can be used again */
    void *smaller = resize_block(block, size);
    return smaller == NULL ? block : smaller;
}

size_t block_size(const void *block) { return block == NULL ? 0 : ((const union header *)block - 1)->size; }

void free_block(void *at) {
    if (at == NULL)
        return;
    union header *block = (union header *)at - 1;
    atomic_fetch_sub_explicit(&allocated, block->size, memory_order_relaxed);
    if (block->size < LARGE || !keep_spare(block))
        free(block);
}
