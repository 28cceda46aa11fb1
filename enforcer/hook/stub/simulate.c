/* What the GPU does with its time: one process at a time, in slices, round robin,
 * and one kernel at a time of that process, round robin over its streams. Copies go
 * beside that, as fast as their engine, in any process's turn. Each is done when
 * its engine has made those that were put in before it, and its stream has come to
 * it.
 *
 * A kernel that waits for others (MEET, SPIN) takes its process's time as a kernel
 * that spins does. Other processes have their slices. The process's own other
 * streams go on beside it, because it needs next to nothing of the GPU; if they
 * have nothing to do, it spins its slices away. It sees that its wait is over when
 * its process has the GPU.
 *
 * GPUs that wait for each other are moved on together, the one that is furthest
 * back first. Those that only wait move on last, and no further than to the first
 * thing that can happen on any. */
#include "gpu.h"

/* gs_predict never looks further ahead, so that a waiter notices in time that a
 * process that it waited for has died. */
#define HORIZON 10000000ull

bool gs_passed(const struct gs_gpu *g, struct gs_point p)
{
	const struct gs_slot_stream *s = &g->stream[p.stream];

	return !p.generation || s->generation != p.generation || s->head > p.at;
}

static struct gs_entry *head_of(struct gs_gpu *g, uint32_t stream)
{
	return &g->ring[stream][g->stream[stream].head % GS_STUB_RING];
}

/* The legacy stream waits for earlier work of its context's blocking streams, and
 * they wait for its work. */
static bool ordered(struct gs_gpu *g, uint32_t stream, uint64_t order)
{
	const struct gs_slot_stream *s = &g->stream[stream];

	if (s->kind == GS_NON_BLOCKING)
		return true;
	for (uint32_t i = g->proc[s->owner - 1].streams; i; i = g->stream[i - 1].next) {
		const struct gs_slot_stream *o = &g->stream[i - 1];

		if (o->kind == GS_NON_BLOCKING || o->context != s->context || o->head == o->tail)
			continue;
		if ((o->kind == GS_LEGACY) != (s->kind == GS_LEGACY) && head_of(g, i - 1)->order < order)
			return false;
	}
	return true;
}

static bool ready(struct gs_gpu *g, uint32_t stream)
{
	const struct gs_slot_stream *s = &g->stream[stream];
	const struct gs_entry *e;

	if (s->head == s->tail || head_of(g, stream)->work == GS_WORK_COPY)
		return false;
	e = head_of(g, stream);
	if (s->spins)
		return gs_wait_over(e) <= g->now;
	if (e->work == GS_WORK_HOST || (e->work == GS_WORK_WAIT && !gs_passed(g, e->point)))
		return false;
	if (e->work == GS_WORK_UNTIL && gs_wait_over(e) > g->now)
		return false;
	return ordered(g, stream, e->order);
}

/* 1 + the stream whose kernel has spun long enough. */
static uint32_t relieved(struct gs_gpu *g, uint32_t proc)
{
	uint32_t i = g->proc[proc].spinning ? g->proc[proc].streams : 0;

	while (i && !(g->stream[i - 1].spins && ready(g, i - 1)))
		i = g->stream[i - 1].next;
	return i;
}

/* 1 + a stream that has something to do which takes no time of its own, and need not
 * wait for the kernel that is half done. */
static uint32_t timeless(struct gs_gpu *g, uint32_t proc)
{
	uint32_t i = g->proc[proc].streams;

	while (i && !(ready(g, i - 1) && head_of(g, i - 1)->until == g->stream[i - 1].worked))
		i = g->stream[i - 1].next;
	return i;
}

/* 1 + the stream with which the process goes on, or 0 if it has nothing to do: the
 * next one in its list that is ready, after the one that ran last. */
static uint32_t ready_stream(struct gs_gpu *g, uint32_t proc)
{
	const struct gs_slot_proc *p = &g->proc[proc];
	uint32_t first = relieved(g, proc), i;
	bool after = false;

	if (!first && p->begun)
		first = timeless(g, proc);
	if (first || p->begun)
		return first ? first : p->begun;
	for (i = p->streams; i; i = g->stream[i - 1].next) {
		if (ready(g, i - 1)) {
			if (after)
				return i;
			if (!first)
				first = i;
		}
		after |= i == p->last;
	}
	return first;
}

/* 1 + the next process after the current one that has something to do, even if that
 * is to spin; the current one comes last. */
static uint32_t ready_proc(struct gs_gpu *g)
{
	for (uint32_t n = 0; n < g->procs; n++) {
		uint32_t i = (g->current + n) % g->procs;

		if (g->proc[i].pid && (g->proc[i].spinning || ready_stream(g, i)))
			return i + 1;
	}
	return 0;
}

static uint64_t slice_of(const struct gs_gpu *g, uint32_t proc)
{
	return g->proc[proc].slice ? g->proc[proc].slice : gs_host->slice;
}

void gs_stream_free(struct gs_gpu *g, uint32_t stream)
{
	struct gs_slot_stream *s = &g->stream[stream];
	struct gs_slot_proc *p = &g->proc[s->owner - 1];
	uint32_t *link = &p->streams;

	for (; s->head != s->tail; s->head++) {
		g->copies -= head_of(g, stream)->work == GS_WORK_COPY;
		gs_host->waits -= gs_waits(head_of(g, stream)->work);
	}
	p->spinning -= s->spins;
	while (*link && *link != stream + 1)
		link = &g->stream[*link - 1].next;
	if (*link)
		*link = s->next;
	if (p->begun == stream + 1)
		p->begun = 0;
	if (p->last == stream + 1)
		p->last = 0;
	*s = (struct gs_slot_stream){0};
}

/* Ends the entry at the stream's head, now. */
static void retire(struct gs_gpu *g, uint32_t stream)
{
	struct gs_slot_stream *s = &g->stream[stream];
	const struct gs_entry *e = head_of(g, stream);
	struct gs_slot_event *v = &g->event[e->event];

	if (e->work == GS_WORK_EVENT && v->record == e->record)
		v->time = g->now;
	if (e->work == GS_WORK_WRITE)
		gs_word_write(e->wait, g->now);
	g->copies -= e->work == GS_WORK_COPY;
	gs_host->waits -= gs_waits(e->work);
	g->proc[s->owner - 1].spinning -= s->spins;
	s->spins = s->met = 0;
	s->head++;
	if (s->closed && s->head == s->tail)
		gs_stream_free(g, stream);
}

/* Until when the waits of a process's streams will not be over, as far as is known
 * and no later than limit. */
static uint64_t awaited(struct gs_gpu *g, uint32_t proc, uint64_t limit)
{
	for (uint32_t i = g->proc[proc].streams; i; i = g->stream[i - 1].next) {
		const struct gs_slot_stream *s = &g->stream[i - 1];
		uint64_t over;

		if (!s->spins && (s->head == s->tail || head_of(g, i - 1)->work != GS_WORK_UNTIL))
			continue;
		over = gs_wait_over(head_of(g, i - 1));
		if (over > g->now && over < limit)
			limit = over;
	}
	return limit;
}

/* The kernel at the stream's head has done its own work. */
static void worked(struct gs_gpu *g, uint32_t stream)
{
	const struct gs_entry *e = head_of(g, stream);

	if ((e->work == GS_WORK_MEET || e->work == GS_WORK_SPIN) && gs_wait_over(e) > g->now) {
		g->stream[stream].spins = 1;
		g->proc[g->stream[stream].owner - 1].spinning++;
	} else {
		retire(g, stream);
	}
}

/* Runs the current process's next entry until it ends, or the slice does, or until now. */
static void run(struct gs_gpu *g, uint32_t stream, uint64_t now)
{
	struct gs_slot_stream *s = &g->stream[stream];
	struct gs_slot_proc *p = &g->proc[g->current - 1];
	struct gs_entry *e = head_of(g, stream);
	uint64_t left = e->until - s->worked, most;

	if (s->spins) {
		retire(g, stream);
		return;
	}
	if (e->work == GS_WORK_MEET && !s->met) {
		e->wait.value = gs_meeting_begin(e->wait, g->now);
		s->met = 1;
	}
	most = (p->spinning ? awaited(g, g->current - 1, now) : now) - g->now;
	if (g->slice_end > g->now && most > g->slice_end - g->now)
		most = g->slice_end - g->now;
	if (!left && p->begun) {
		worked(g, stream);
		return;
	}
	p->last = stream + 1;
	p->begun = left > most ? stream + 1 : 0;
	if (left > most)
		left = most;
	s->worked += left;
	p->busy += left;
	g->now += left;
	if (!p->begun)
		worked(g, stream);
}

uint64_t gs_copy_ns(enum gs_engine way, uint64_t bytes)
{
	return (uint64_t)((double)bytes * 1e9 / (double)gs_host->rate[way]);
}

/* Ends the copies of a stream that are done by now, with the events behind them,
 * and returns when its next one will be done, no later than limit. */
static uint64_t copy_stream(struct gs_gpu *g, uint32_t stream, uint64_t limit)
{
	bool behind = false;

	while (g->stream[stream].head != g->stream[stream].tail) {
		const struct gs_entry *e = head_of(g, stream);

		if ((e->work != GS_WORK_COPY && !(e->work == GS_WORK_EVENT && behind)) || !ordered(g, stream, e->order))
			break;
		if (e->copied > g->now)
			return e->copied < limit ? e->copied : limit;
		behind = true;
		retire(g, stream);
	}
	return limit;
}

static uint64_t copy(struct gs_gpu *g, uint64_t limit)
{
	for (uint32_t n = 0; g->copies && n < g->procs; n++)
		for (uint32_t i = g->proc[n].streams, next; i; i = next) {
			next = g->stream[i - 1].next;
			limit = copy_stream(g, i - 1, limit);
		}
	return limit;
}

static bool spins(const struct gs_gpu *g)
{
	return g->current && g->proc[g->current - 1].spinning;
}

/* Does the next thing, no later than now. False: nothing is left but to wait or
 * spin, which takes no time here. */
static bool step(struct gs_gpu *g, uint64_t now)
{
	uint64_t until = copy(g, now);
	uint32_t stream = g->current ? ready_stream(g, g->current - 1) : 0;

	if ((!stream && !spins(g)) || g->now >= g->slice_end) {
		uint32_t next = ready_proc(g);

		if (!next)
			return false;
		g->switched = g->now;
		if (next != g->current && g->current)
			g->switched += gs_host->change;
		g->switching += g->switched - g->now;
		g->slice_end = g->switched + slice_of(g, next - 1);
		g->current = next;
		stream = ready_stream(g, next - 1);
	}
	if (g->now < g->switched)
		g->now = g->switched < until ? g->switched : until;
	else if (stream)
		run(g, stream - 1, until);
	else
		return false;
	return true;
}

/* Until when a GPU that only waits goes on so, given what the others have done; no
 * later than limit. */
static uint64_t still(struct gs_gpu *g, uint64_t limit)
{
	limit = copy(g, limit);
	if (!spins(g) || ready_proc(g) == g->current) {
		for (uint32_t i = 0; gs_host->waits && i < g->procs; i++)
			limit = awaited(g, i, limit);
		return limit;
	}
	if (g->slice_end > g->now && g->slice_end < limit)
		limit = g->slice_end;
	return awaited(g, g->current - 1, limit);
}

static void pass(struct gs_gpu *g, uint64_t until)
{
	if (spins(g))
		g->proc[g->current - 1].busy += until - g->now;
	g->now = until;
}

/* How far each has come. */
static void all_at(uint64_t *at, struct gs_gpu *const *gpus, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		at[i] = gpus[i]->now;
}

static unsigned furthest_back(const uint64_t *at, unsigned n)
{
	unsigned found = 0;

	for (unsigned i = 1; i < n; i++)
		if (at[i] < at[found])
			found = i;
	return found;
}

/* All GPUs only wait: they go on so until something can happen on one of them. */
static void pass_all(struct gs_gpu *const *gpus, unsigned n, uint64_t now)
{
	uint64_t until = now;

	for (unsigned i = 0; i < n; i++)
		if (gpus[i]->now < now)
			until = still(gpus[i], until);
	for (unsigned i = 0; i < n; i++)
		if (gpus[i]->now < until)
			pass(gpus[i], until);
}

void gs_simulate(struct gs_gpu *const *gpus, unsigned n, uint64_t now)
{
	uint64_t at[GS_STUB_GPUS_MAX]; /* GS_NEVER: it only waits, and nobody did what it may wait for */
	unsigned waiting = 0, i;

	all_at(at, gpus, n);
	while (at[i = furthest_back(at, n)] < now || waiting) {
		uint32_t bell = gs_host->bell;
		bool all = at[i] >= now, goes = !all && step(gpus[i], now);

		if (all)
			pass_all(gpus, n, now);
		at[i] = goes ? gpus[i]->now : GS_NEVER;
		waiting += !goes;
		if (all || gs_host->bell != bell) {
			all_at(at, gpus, n);
			waiting = 0;
		}
	}
	for (unsigned i = 0; i < n; i++)
		copy(gpus[i], now);
}

bool gs_at_head(struct gs_gpu *g, struct gs_point p)
{
	const struct gs_slot_stream *s = &g->stream[p.stream];

	return s->generation == p.generation && s->head == p.at && ordered(g, p.stream, head_of(g, p.stream)->order);
}

static uint64_t pending(const struct gs_gpu *g, uint32_t proc)
{
	uint64_t sum = 0;

	for (uint32_t i = g->proc[proc].streams; i; i = g->stream[i - 1].next)
		sum += g->stream[i - 1].queued - g->stream[i - 1].worked;
	return sum;
}

/* The same round robin as above over what is queued now, process by process. Of the
 * waiter's own process only work before the point counts. */
static uint64_t predict_kernels(struct gs_gpu *g, struct gs_point p)
{
	const struct gs_slot_stream *s = &g->stream[p.stream];
	uint64_t left[GS_STUB_PROCS], t = g->now, end = t + HORIZON, slice = 0;
	uint32_t mine, i = g->current ? g->current - 1 : 0;

	mine = s->owner - 1;
	for (uint32_t n = 0; n < g->procs; n++)
		left[n] = g->proc[n].pid && n != mine ? pending(g, n) : 0;
	left[mine] = g->ring[p.stream][p.at % GS_STUB_RING].until - s->worked;
	if (t < g->switched)
		t = g->switched;
	if (g->slice_end > t)
		slice = g->slice_end - t;
	while (t < end) {
		uint64_t most = left[i] < slice ? left[i] : slice;
		uint32_t next = i;

		if (i == mine && left[i] <= slice)
			return t + left[i];
		left[i] -= most;
		t += most;
		do
			next = (next + 1) % g->procs;
		while (next != mine && !left[next]);
		if (next != i)
			t += gs_host->change;
		slice = slice_of(g, next);
		i = next;
	}
	return end;
}

/* No later than the entry at the stream's head can go on, if it waits for what is
 * known to happen. */
static uint64_t held_up(struct gs_gpu *g, uint32_t stream)
{
	const struct gs_entry *e = head_of(g, stream);
	uint64_t over = 0;

	if (g->stream[stream].spins)
		over = gs_wait_over(e);
	else if (e->work == GS_WORK_WAIT)
		over = gs_predict(g, e->point);
	return over != GS_NEVER ? over : 0;
}

uint64_t gs_predict(struct gs_gpu *g, struct gs_point p)
{
	const struct gs_slot_stream *s = &g->stream[p.stream];
	const struct gs_entry *e = &g->ring[p.stream][p.at % GS_STUB_RING];
	uint64_t end = g->now + HORIZON, t, held;

	if (gs_passed(g, p))
		return g->now;
	t = predict_kernels(g, p);
	held = held_up(g, p.stream) + e->until - s->worked;
	t = held > t ? held : t;
	t = e->copied > t ? e->copied : t;
	return t < end ? t : end;
}
