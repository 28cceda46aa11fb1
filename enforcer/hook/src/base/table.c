#include "base/table.h"

#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t key)
{
	key ^= key >> 32;
	key *= 0x9e3779b97f4a7c15u;
	return key ^ key >> 29;
}

static struct gs_shard *shard_of(struct gs_table *t, uint64_t key)
{
	return &t->shard[mix(key) >> 60 & (GS_SHARDS - 1)];
}

/* The place of key, or the free place for it. One is always free, because a shard
 * is at most three quarters full. */
static struct gs_entry *place_of(const struct gs_shard *s, uint64_t key)
{
	size_t at = mix(key) & (s->size - 1);

	while (s->place[at].key && s->place[at].key != key)
		at = (at + 1) & (s->size - 1);
	return &s->place[at];
}

static bool grow(struct gs_shard *s)
{
	struct gs_shard wide = {.size = s->size ? 2 * s->size : 64};

	if (wide.size > GS_SHARD_MAX || !(wide.place = calloc(wide.size, sizeof *wide.place)))
		return false;
	for (size_t i = 0; i < s->size; i++)
		if (s->place[i].key)
			*place_of(&wide, s->place[i].key) = s->place[i];
	free(s->place);
	s->place = wide.place;
	s->size = wide.size;
	return true;
}

/* Removes what is at e, and moves back those after it that had gone past it. */
static void erase(struct gs_shard *s, struct gs_entry *e)
{
	size_t mask = s->size - 1, hole = (size_t)(e - s->place);

	for (size_t at = (hole + 1) & mask; s->place[at].key; at = (at + 1) & mask) {
		size_t home = mix(s->place[at].key) & mask;
		if (((at - home) & mask) < ((at - hole) & mask))
			continue;
		s->place[hole] = s->place[at];
		hole = at;
	}
	s->place[hole].key = 0;
	s->used--;
}

bool gs_table_put(struct gs_table *t, struct gs_entry e)
{
	struct gs_shard *s = shard_of(t, e.key);
	struct gs_entry *p;
	bool done = true;

	pthread_mutex_lock(&s->lock);
	if (s->size && (p = place_of(s, e.key))->key) {
		*p = e;
	} else if ((s->used + 1) * 4 <= s->size * 3 || grow(s)) {
		*place_of(s, e.key) = e;
		s->used++;
	} else {
		done = false;
	}
	pthread_mutex_unlock(&s->lock);
	return done;
}

static bool look(struct gs_table *t, uint64_t key, struct gs_entry *e, bool take)
{
	struct gs_shard *s = shard_of(t, key);
	struct gs_entry *p = NULL;

	if (!key)
		return false;
	pthread_mutex_lock(&s->lock);
	if (s->size && (p = place_of(s, key))->key) {
		*e = *p;
		if (take)
			erase(s, p);
	} else {
		p = NULL;
	}
	pthread_mutex_unlock(&s->lock);
	return p;
}

bool gs_table_find(struct gs_table *t, uint64_t key, struct gs_entry *e)
{
	return look(t, key, e, false);
}

bool gs_table_take(struct gs_table *t, uint64_t key, struct gs_entry *e)
{
	return look(t, key, e, true);
}

void gs_table_sweep(struct gs_table *t, bool (*take)(const struct gs_entry *e, void *with), void *with)
{
	for (struct gs_shard *s = t->shard; s < t->shard + GS_SHARDS; s++) {
		pthread_mutex_lock(&s->lock);
		/* Erasing moves a later entry to i, or moves one that was already
		 * kept over the end: it is only asked about again. */
		for (size_t i = 0; i < s->size;)
			if (s->place[i].key && take(&s->place[i], with))
				erase(s, &s->place[i]);
			else
				i++;
		pthread_mutex_unlock(&s->lock);
	}
}

void gs_table_forked(struct gs_table *t)
{
	/* The places are left where they are. The child may use malloc, but another
	 * thread of the parent may have been changing them. */
	*t = (struct gs_table)GS_TABLE_INIT;
}
