/* The ring of events: what it keeps, in which order, and whose it is. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>

#include "run.h"

#include "session/link.h"
#include "trace/crash.h"
#include "trace/trace.h"
#include "wrappers/forks.h"

#define THREADS 4
#define EACH (GS_EVENTS_KEPT / 2 / THREADS) /* nobody leaves a block, however long it does not run */

_Thread_local struct gs_thread *gs_self;
struct gs_thread gs_threads[GS_THREADS];
static struct gs_trace *trace;

static void begin(void)
{
	gs_forks_watch();
	trace = mmap(NULL, sizeof(struct gs_traced), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(trace != MAP_FAILED);
	gs_traced_begin(trace);
}

static uint32_t kind_of(const struct gs_event *e) { return e->what & 0xff; }
static uint32_t lap_of(const struct gs_event *e) { return e->what >> 8 & 0xff; }

static void an_event_has_all(void)
{
	const struct gs_event *e = trace->event;

	gs_note(GS_EVENT_WAIT, 7);
	CHECK(kind_of(e) == GS_EVENT_WAIT && e->id == 7 && e->what >> 20 == GS_THREADS - 1 && !(e->what >> 16 & 15));
	gs_self = &gs_threads[5];
	atomic_store(&gs_self->gpu, 3);
	gs_note(GS_EVENT_LAUNCH, 8);
	e++;
	CHECK(kind_of(e) == GS_EVENT_LAUNCH && e->id == 8 && e->what >> 20 == 5 && (e->what >> 16 & 15) == 3);
	CHECK(trace->head == GS_BLOCK && e->ticks >= e[-1].ticks && e[-1].ticks >= trace->first_ticks);
	CHECK(gs_note_units(0, 64) == 0 && gs_note_units(1, 64) == 1 && gs_note_units(65, 64) == 2 &&
	      gs_note_units(UINT64_MAX, 64) == UINT32_MAX);
}

/* A reader knows by the lap whether an event is of its number. */
static void laps_tell_numbers(void)
{
	uint64_t n = 300 * (uint64_t)GS_EVENTS_KEPT;

	trace->head = n - GS_BLOCK; /* as if they had been noted */
	for (uint32_t i = 0; i < GS_BLOCK + 3; i++)
		gs_note(GS_EVENT_LAUNCH, i);
	CHECK(trace->head == n + GS_BLOCK && trace->event[2].id == GS_BLOCK + 2 && lap_of(&trace->event[2]) == 300 % 256);
	CHECK(trace->event[GS_EVENTS_KEPT - 1].id == GS_BLOCK - 1 && lap_of(&trace->event[GS_EVENTS_KEPT - 1]) == 299 % 256);
	CHECK(!trace->event[3].what);
}

static void *note_many(void *place)
{
	gs_self = &gs_threads[(uintptr_t)place];
	for (uint32_t i = 0; i < EACH; i++)
		gs_note(GS_EVENT_LAUNCH, i);
	return NULL;
}

/* No event of any thread is lost or doubled, and each thread's are in order. */
static void threads_share_it(void)
{
	pthread_t t[THREADS];
	uint32_t next[THREADS] = {0};

	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&t[i], NULL, note_many, (void *)i));
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(t[i], NULL));
	CHECK(trace->head == THREADS * EACH);
	for (const struct gs_event *e = trace->event; e < trace->event + THREADS * EACH; e++) {
		unsigned thread = e->what >> 20;

		CHECK(thread < THREADS && !lap_of(e) && e->id == next[thread]++);
	}
}

static void *note_half(void *unused)
{
	(void)unused;
	for (uint32_t i = 0; i < GS_EVENTS_KEPT / 2; i++)
		gs_note(GS_EVENT_COPY, i);
	return NULL;
}

/* A thread that comes back late writes where it is its turn, and over nothing. */
static void an_old_block_is_left(void)
{
	pthread_t t;

	gs_note(GS_EVENT_LAUNCH, 1);
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&t, NULL, note_half, NULL) && !pthread_join(t, NULL));
	CHECK(trace->head == GS_EVENTS_KEPT + GS_BLOCK && kind_of(trace->event) == GS_EVENT_COPY);
	gs_note(GS_EVENT_LAUNCH, 2);
	CHECK(trace->head == GS_EVENTS_KEPT + 2 * GS_BLOCK && kind_of(&trace->event[1]) == GS_EVENT_COPY);
	CHECK(kind_of(&trace->event[GS_BLOCK]) == GS_EVENT_LAUNCH && trace->event[GS_BLOCK].id == 2);
}

static void a_child_writes_nothing(void)
{
	int status;
	pid_t child = fork();

	if (!child) {
		gs_note(GS_EVENT_LAUNCH, 1);
		gs_trace_clock();
		_exit(gs_trace != NULL);
	}
	CHECK(waitpid(child, &status, 0) == child && !status);
	CHECK(!trace->head && !trace->writing);
	gs_note(GS_EVENT_LAUNCH, 1);
	CHECK(trace->head == GS_BLOCK);
}

static void *note_one(void *unused)
{
	(void)unused;
	gs_note(GS_EVENT_COPY, 4);
	return NULL;
}

/* A new session's file is mapped where the last one was. Its numbers are other ones. */
static void a_session_follows_another(void)
{
	uint64_t first;
	pthread_t t;

	gs_note(GS_EVENT_LAUNCH, 1);
	first = trace->first_ns;
	gs_traced_begin(NULL);
	gs_note(GS_EVENT_LAUNCH, 2);
	CHECK(trace->head == GS_BLOCK && trace->version == 2 && !trace->event[1].what);
	CHECK(mmap(trace, sizeof *trace, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == trace);
	gs_traced_begin(trace);
	CHECK(!pthread_create(&t, NULL, note_one, NULL) && !pthread_join(t, NULL));
	gs_note(GS_EVENT_LAUNCH, 3);
	CHECK(trace->event[0].id == 4 && !trace->event[1].what && trace->event[GS_BLOCK].id == 3);
	CHECK(trace->head == 2 * GS_BLOCK && trace->version == 2 && trace->first_ns > first);
}

/* A trace has the kinds of memory that came before it and after it, and a child
 * process has none of its parent's. */
static void shared_memory_is_told(void)
{
	int status;
	pid_t child;

	gs_note_shared(GS_SHARED_MANAGED);
	CHECK(trace->shared == GS_SHARED_MANAGED);
	gs_traced_begin(NULL);
	CHECK(gs_shares(0, GS_SHARED_MULTICAST) == 0 && gs_shares(2, GS_SHARED_PROCESSES) == 2);
	CHECK(trace->shared == GS_SHARED_MANAGED);
	gs_traced_begin(trace);
	CHECK(trace->shared == (GS_SHARED_MANAGED | GS_SHARED_MULTICAST));
	child = fork();
	if (!child) {
		trace->shared = 0;
		gs_traced_begin(trace);
		_exit((int)trace->shared);
	}
	CHECK(waitpid(child, &status, 0) == child && !status);
}

/* The allocation that was made last at an address. */
static const struct gs_allocation *at(uint64_t address)
{
	const struct gs_crash *c = &((struct gs_traced *)trace)->crash;
	const struct gs_allocation *last = NULL;

	for (const struct gs_allocation *a = c->allocation; a < c->allocation + GS_ALLOCATIONS; a++)
		if (a->address == address && (!last || a->made_ns > last->made_ns))
			last = a;
	return last;
}

/* Live memory stays listed, freed memory as long as there is room, and all of it in the next
 * session. A child has none. */
static void allocations_are_listed(void)
{
	const struct gs_crash *c = &((struct gs_traced *)trace)->crash;
	unsigned first = gs_crash_allocated(4096, 1), place[GS_ALLOCATIONS];
	int status;
	pid_t child;

	CHECK(first && at(4096)->bytes == 1 && at(4096)->made_ns && !at(4096)->freed_ns);
	for (unsigned i = 1; i < GS_ALLOCATIONS; i++)
		CHECK((place[i] = gs_crash_allocated(i << 20, i)));
	CHECK(!gs_crash_allocated(1, 1) && c->unlisted == 1);
	gs_crash_freed(0); /* what found no room */
	gs_crash_freed(place[7]);
	gs_crash_freed(place[5]);
	CHECK(at(7 << 20)->freed_ns >= at(7 << 20)->made_ns && !at(6 << 20)->freed_ns);
	CHECK(gs_crash_allocated(8192, 2) == place[7] && !at(7 << 20) && at(5 << 20)->freed_ns && !at(8192)->freed_ns);
	child = fork();
	if (!child) {
		gs_crash_freed(gs_crash_allocated(3, 3));
		_exit(at(3) != NULL);
	}
	CHECK(waitpid(child, &status, 0) == child && !status);
	gs_traced_begin(NULL);
	CHECK(gs_crash_allocated(16384, 3) == place[5] && !gs_crash_allocated(1, 1));
	memset(trace, 0, sizeof(struct gs_traced));
	gs_traced_begin(trace);
	CHECK(at(16384)->bytes == 3 && at(4096)->bytes == 1 && c->unlisted == 2);
}

static int file(size_t bytes)
{
	int fd = memfd_create("trace", MFD_ALLOW_SEALING);

	CHECK(fd >= 0 && !ftruncate(fd, (off_t)bytes) && !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
	return fd;
}

/* The file of a broker before 3.11 has no room for it: the process has its own, as long as it lives. */
static void brokers_may_be_older(void)
{
	const size_t older = GS_TRACE_AT + sizeof(struct gs_trace), newer = GS_TRACE_AT + sizeof(struct gs_traced);
	struct gs_trace *t = gs_link_map_trace(file(older), NULL);
	const struct gs_allocation *a = ((struct gs_traced *)t)->crash.allocation;

	CHECK(t && !gs_link_map_trace(file(GS_TRACE_AT), NULL));
	CHECK(gs_crash_allocated(4096, 1) == 1);
	for (int i = 0; i < 4; i++) {
		gs_traced_begin(t);
		CHECK(a->address == 4096 && t->version == 2 && !t->head);
		gs_note(GS_EVENT_LAUNCH, 1);
		gs_crash_freed(gs_crash_allocated(8192, 1));
		CHECK(a[1].freed_ns && t->head);
		CHECK(gs_link_map_trace(file(i % 2 ? older : newer), t) == t);
	}
}

/* Each kernel has its name once, and again if its handle is another one's. A later session has the names, too. */
static void kernels_are_named(void)
{
	const struct gs_crash *c = &((struct gs_traced *)trace)->crash;
	char name[1000];

	gs_crash_named(7, "one");
	gs_crash_named(7, "one");
	gs_crash_same(8, 7);
	gs_crash_same(9, 3); /* of no name */
	CHECK(!strcmp(c->names + c->kernel[0].name - 1, "one") && c->kernel[0].id == 7 && c->kernel[0].since_ns);
	CHECK(!strcmp(c->names + c->kernel[1].name - 1, "one") && c->kernel[1].id == 8 && !c->kernel[2].name);
	gs_crash_named(7, "two");
	CHECK(!strcmp(c->names + c->kernel[2].name - 1, "two") && c->kernel[2].since_ns >= c->kernel[0].since_ns);
	memset(trace, 0xff, sizeof(struct gs_traced)); /* it scribbles */
	gs_crash_named(7, "two");
	gs_crash_named(10, "three");
	memset(trace, 0, sizeof(struct gs_traced));
	gs_traced_begin(trace);
	CHECK(c->kernel[3].id == 10 && !strcmp(c->names + c->kernel[3].name - 1, "three") && !c->kernel[4].name && !c->unnamed);
	memset(name, 'n', sizeof name);
	name[sizeof name - 1] = 0;
	for (uint32_t i = 100; i < 100 + GS_KERNELS; i++)
		gs_crash_named(i, name);
	unsigned fit = (GS_NAME_BYTES - 18) / sizeof name; /* behind one, one, two and three */
	CHECK(c->kernel[3 + fit].name && !c->kernel[4 + fit].name && c->unnamed == GS_KERNELS - fit);
}

static void so_many_kernels_are_named(void)
{
	const struct gs_crash *c = &((struct gs_traced *)trace)->crash;

	for (uint32_t i = 0; i < GS_KERNELS + 3; i++)
		gs_crash_named(i, "");
	CHECK(c->kernel[GS_KERNELS - 1].name && c->unnamed == 3);
}

/* Graphs have names beside kernels, and leave room for those. */
static void graphs_are_named(void)
{
	const struct gs_crash *c = &((struct gs_traced *)trace)->crash;

	gs_crash_named(1, "one");
	gs_crash_graph(7, "graph 2 2x00000001");
	gs_crash_graph(7, "graph 2 2x00000001");
	CHECK(c->kernel[1].id == 7 && !strcmp(c->names + c->kernel[1].name - 1, "graph 2 2x00000001") && !c->kernel[2].name);
	CHECK(gs_crash_knows(1) && !gs_crash_knows(2));
	for (uint32_t i = 100; i < 100 + GS_KERNELS; i++)
		gs_crash_graph(i, "graph 0");
	CHECK(c->kernel[GS_GRAPHS_NAMED].name && !c->kernel[GS_GRAPHS_NAMED + 1].name);
}

/* The first fault that ends a context is told, and nothing that refuses one call. */
static void a_fault_is_told(void)
{
	static const CUresult refusals[] = {0, 2, 600, 701, 703, 704, 705, 708, 709, 711, 712, 713, 720, 800};

	for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
		gs_note_result(refusals[i]);
	CHECK(!trace->failed && !trace->failed_ns);
	gs_note_result(719);
	gs_note_result(700);
	CHECK(trace->failed == 719 && trace->failed_ns);
}

/* Two readings of the clock tell the time of an event between them. */
static void the_clock_converts(void)
{
	uint64_t before, after;
	double rate, at;

	CHECK(gs_trace_clock() == 20000000 || trace->last_ns >= trace->first_ns + 20000000);
	while (gs_now() < trace->first_ns + 20000000)
		;
	before = gs_now();
	gs_note(GS_EVENT_LAUNCH, 1);
	after = gs_now();
	while (gs_now() < trace->first_ns + 40000000)
		;
	CHECK(gs_trace_clock() == UINT64_MAX);
	CHECK(trace->writing == 4 && trace->last_ns >= trace->first_ns + 40000000);
	rate = (double)(trace->last_ns - trace->first_ns) / (double)(trace->last_ticks - trace->first_ticks);
	at = (double)trace->first_ns + rate * (double)(trace->event[0].ticks - trace->first_ticks);
	CHECK(at > (double)before - 1e5 && at < (double)after + 1e5);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(an_event_has_all),
		TEST(laps_tell_numbers),
		TEST(threads_share_it),
		TEST(an_old_block_is_left),
		TEST(a_child_writes_nothing),
		TEST(a_session_follows_another),
		TEST(allocations_are_listed), TEST(brokers_may_be_older), TEST(kernels_are_named), TEST(graphs_are_named), TEST(so_many_kernels_are_named),
		TEST(a_fault_is_told),
		TEST(shared_memory_is_told),
		TEST(the_clock_converts),
	};

	return RUN_TESTS(tests, argc, argv, begin);
}
