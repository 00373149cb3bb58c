/* Memory for columns and for received or decompressed bytes.

   Large blocks are kept for reuse, a limited number of bytes: a fresh page costs more than what is written to it. Any
   thread may call these functions, with or without the GIL. */

#ifndef KZCONSUMER_BLOCKS_H
#define KZCONSUMER_BLOCKS_H

#include <stddef.h>

/* A block of at least `size` bytes, whose content is undefined; NULL without memory. */
void *new_block(size_t size);

/* The block with more or less room and the same content; NULL without memory, and the block is as it was. */
void *resize_block(void *block, size_t size);

/* The block without most of the room beyond `size`. */
void *shrink_block(void *block, size_t size);

/* Bytes of memory that the block takes; 0 for NULL. */
size_t block_size(const void *block);

void free_block(void *block);

/* Bytes of all blocks in use. */
size_t allocated_bytes(void);

#endif
