/* Places in the shared file where work waits for other work: meetings of kernels of
 * any GPU and process, and words of memory. A dead process's partners wait on, as
 * on a real card, but a place is free again when the last of its users is gone. */
#define _GNU_SOURCE
#include <errno.h>

#include "gpu.h"

static void lock(void)
{
	if (pthread_mutex_lock(&gs_host->places) == EOWNERDEAD)
		pthread_mutex_consistent(&gs_host->places);
}

static void unlock(void)
{
	pthread_mutex_unlock(&gs_host->places);
}

/* The meeting's number, or that of a free one, or how many were ever used. */
static uint32_t find_meeting(uint64_t group)
{
	uint32_t free = gs_host->meetings;

	for (uint32_t i = 0; i < gs_host->meetings; i++) {
		if (gs_host->meeting[i].group == group)
			return i;
		if (!gs_host->meeting[i].group && free == gs_host->meetings)
			free = i;
	}
	return free;
}

static uint32_t user(unsigned gpu, int proc)
{
	return gpu * GS_STUB_PROCS + (uint32_t)proc + 1;
}

int gs_meeting(uint64_t group, uint64_t count, uint64_t rank, unsigned gpu, int proc)
{
	struct gs_meeting *m;
	int place = GS_NO_PLACE;
	uint32_t i;

	lock();
	i = find_meeting(group);
	m = &gs_host->meeting[i];
	if (i < GS_STUB_MEETINGS) {
		if (i == gs_host->meetings)
			gs_host->meetings++;
		if (m->group != group)
			*m = (struct gs_meeting){.group = group, .count = (uint32_t)count};
		place = m->count == count ? (int)i : GS_NO_MATCH;
		if (place >= 0)
			m->user[rank] = user(gpu, proc);
	}
	unlock();
	return place;
}

/* When it is over. No rank is two ahead of another: it waits for all in between. */
static uint64_t met(const struct gs_meeting *m, struct gs_wait w)
{
	uint64_t at = 0, i;

	if (w.value == UINT64_MAX || m->aborted >> w.how & 1)
		return 0;
	for (i = 0; i < m->count; i++) {
		if (m->begun[i] < w.value || m->what[i][w.value & 1] != w.what)
			return GS_NEVER;
		if (at < m->at[i][w.value & 1])
			at = m->at[i][w.value & 1];
	}
	return at + w.lasts;
}

uint64_t gs_meeting_begin(struct gs_wait w, uint64_t now)
{
	struct gs_meeting *m = &gs_host->meeting[w.place];
	uint64_t number = w.value;
	bool all;

	lock();
	if (!number)
		number = m->begun[w.how] + 1;
	if (number > m->begun[w.how] + 1)
		m->at[w.how][~number & 1] = now;
	m->at[w.how][number & 1] = now;
	m->what[w.how][number & 1] = w.what;
	if (m->begun[w.how] < number)
		m->begun[w.how] = number;
	w.value = number;
	all = met(m, w) != GS_NEVER;
	unlock();
	if (all)
		gs_bell_ring();
	return number;
}

void gs_meeting_abort(int place, uint64_t rank)
{
	lock();
	gs_host->meeting[place].aborted |= 1ull << rank;
	unlock();
	gs_bell_ring();
}

void gs_meeting_say(int place, uint64_t rank, uint64_t round, uint64_t value)
{
	struct gs_meeting *m = &gs_host->meeting[place];

	lock();
	m->said[rank][round & 1] = value;
	m->rounds[rank] = round;
	unlock();
}

bool gs_meeting_heard(int place, uint64_t round, uint64_t *values)
{
	const struct gs_meeting *m = &gs_host->meeting[place];
	bool all = true;

	lock();
	for (uint32_t i = 0; i < m->count; i++) {
		all &= m->rounds[i] >= round;
		values[i] = m->said[i][round & 1];
	}
	unlock();
	return all;
}

int gs_word(int pid, uint64_t at, unsigned gpu)
{
	uint32_t i, free;
	int place = GS_NO_PLACE;

	lock();
	free = gs_host->words;
	for (i = 0; i < gs_host->words; i++) {
		if (gs_host->word[i].pid == pid && gs_host->word[i].at == at)
			break;
		if (!gs_host->word[i].pid && free == gs_host->words)
			free = i;
	}
	if (i == gs_host->words && free < GS_STUB_WORDS) {
		i = free;
		if (i == gs_host->words)
			gs_host->words++;
		gs_host->word[i] = (struct gs_word){.pid = pid, .at = at};
	}
	if (i < gs_host->words) {
		gs_host->word[i].gpus |= 1ull << gpu;
		place = (int)i;
	}
	unlock();
	return place;
}

void gs_word_write(struct gs_wait w, uint64_t now)
{
	struct gs_word *word = &gs_host->word[w.place];

	lock();
	if (w.how & GS_WIDE)
		word->value = w.value;
	else
		word->value = (word->value >> 32 << 32) | (uint32_t)w.value;
	word->time = now;
	unlock();
	gs_bell_ring();
}

static bool holds(uint64_t value, struct gs_wait w)
{
	uint64_t mask = w.how & GS_WIDE ? UINT64_MAX : UINT32_MAX, top = mask / 2 + 1;

	switch (w.how & GS_COMPARE) {
	case GS_EQUAL: return !((value ^ w.value) & mask);
	case GS_AND: return value & w.value & mask;
	case GS_NOR: return ~(value | w.value) & mask;
	default: return !((value - w.value) & top); /* as the driver has it: the difference is not negative */
	}
}

uint64_t gs_wait_over(const struct gs_entry *e)
{
	const struct gs_word *word = &gs_host->word[e->wait.place];
	uint64_t over;

	lock();
	if (e->work == GS_WORK_MEET)
		over = met(&gs_host->meeting[e->wait.place], e->wait);
	else
		over = holds(word->value, e->wait) ? word->time : GS_NEVER;
	unlock();
	return over;
}

static bool deserted(const struct gs_meeting *m)
{
	for (uint32_t i = 0; i < m->count; i++)
		if (m->user[i])
			return false;
	return true;
}

void gs_places_leave(unsigned gpu, int proc, int pid)
{
	lock();
	for (uint32_t i = 0; i < gs_host->meetings; i++) {
		struct gs_meeting *m = &gs_host->meeting[i];

		for (uint32_t rank = 0; rank < m->count; rank++)
			if (m->user[rank] == user(gpu, proc))
				m->user[rank] = 0;
		if (deserted(m))
			m->group = 0;
	}
	for (uint32_t i = 0; i < gs_host->words; i++) {
		struct gs_word *w = &gs_host->word[i];

		if (w->pid == pid && !(w->gpus &= ~(1ull << gpu)))
			w->pid = 0;
	}
	unlock();
}
