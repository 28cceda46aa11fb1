/* A hash table from the driver's pointers and handles to what is known of them. */
#ifndef GPUSTEWARD_TABLE_H
#define GPUSTEWARD_TABLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gs_entry {
	uint64_t key;   /* not 0 */
	uint64_t bytes; /* or another number, see the table's user */
	void *owner;    /* context, block or pool, see the table's user */
	short gpu, kind; /* enum gs_kind */
	unsigned place;  /* see gs_crash_allocated */
};

#define GS_SHARDS 16
#define GS_SHARD_MAX (1u << 18) /* places of a shard, at 32 bytes each */

/* Each shard has its own lock, so that threads that allocate at the same time
 * seldom meet. All functions may be called from any thread. */
struct gs_table {
	struct gs_shard {
		pthread_mutex_t lock;
		struct gs_entry *place; /* linear probing; key 0 is free */
		size_t size, used;      /* size is 0 or a power of two */
	} shard[GS_SHARDS];
};
#define GS_TABLE_INIT { { [0 ... GS_SHARDS - 1] = { .lock = PTHREAD_MUTEX_INITIALIZER } } }

/* Adds e, or puts it in the place of the entry with its key. False: the table
 * cannot grow, and nothing has changed. */
bool gs_table_put(struct gs_table *t, struct gs_entry e);
bool gs_table_find(struct gs_table *t, uint64_t key, struct gs_entry *e);
bool gs_table_take(struct gs_table *t, uint64_t key, struct gs_entry *e); /* and removes it */
/* Takes every entry for which take returns true. take is called under a shard's
 * lock and touches no table. */
void gs_table_sweep(struct gs_table *t, bool (*take)(const struct gs_entry *e, void *with), void *with);
void gs_table_forked(struct gs_table *t); /* in a child: empty, even if another thread held its locks */

#endif
