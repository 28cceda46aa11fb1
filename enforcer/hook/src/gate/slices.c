/* Time slices.
 *
 * The driver gives a context a channel group for each engine. The hardware goes round the
 * groups of all processes, and a group that has work keeps the engine for its time slice. A
 * process may set the slice of its own groups, without a privilege. It is no documented
 * interface of CUDA, but one of NVIDIA's published kernel modules: so it is tried first, once
 * for each group, and what is refused is counted and left alone.
 *
 * The driver's library allocates a group by libc's ioctl, which is this one first. It notes
 * the group and passes everything on. It may run in a signal handler, so it takes no lock
 * and allocates nothing. A group is the GPU's on which its thread makes a context: that holds
 * for MIG devices, too, whereas the group's parent only names a physical GPU, and by a number
 * of the driver's. A group that is allocated elsewhere, such as by the library's own thread
 * when it restores a checkpoint, belongs to the only GPU on which the process has contexts.
 * If there are several, it is left alone.
 *
 * A slice is an attribute of the group and ends with it. A suspension frees the groups of
 * the process, and after it there are new ones with the driver's default: nothing need be
 * set back before. The same holds for the end of the process. Without a broker, the page says
 * 0: the helper sees within GS_STALE that a broker is silent. */
#define _GNU_SOURCE
#include "gate/slices.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/devices.h"
#include "base/driver.h"
#include "base/settings.h"
#include "base/sys.h"

/* Requests, with the size of their parameters. */
#define REQUEST(nr, size) (3u << 30 | (size) << 16 | 'F' << 8 | (nr))
#define FREE REQUEST(0x29u, 16u)
#define CONTROL REQUEST(0x2au, 32u)
#define ALLOC REQUEST(0x2bu, 32u)
#define ALLOC_WITH_RIGHTS REQUEST(0x2bu, 48u)

#define CHANNEL_GROUP 0xa06cu
#define SET_SLICE 0xa06c0103u
#define GET_SLICE 0xa06c0104u
#define COMPUTE 1 /* engine; others copy */

struct freed {
	uint32_t client, parent, object, status;
};

struct control {
	uint32_t client, object, command, flags;
	uint64_t parameters; /* address */
	uint32_t size, status;
};

/* In the longer form the status is further behind. */
struct alloc {
	uint32_t client, parent, object, class;
	uint64_t parameters; /* address of four words, the last of which is the engine */
	uint32_t rest[6];
};
#define STATUS 1
#define STATUS_WITH_RIGHTS 4

/* ---- notes ---- */

#define GROUPS 256
#define NONE 0 /* number of a free place */
#define HALF 1 /* and of one that is being filled */

static struct group {
	_Atomic uint64_t number; /* no two notes have the same */
	_Atomic int fd, gpu;     /* gpu -1: see above */
	_Atomic uint32_t client, parent, object;
	_Atomic uint64_t dev, ino; /* of the descriptor */
	_Atomic uint64_t own;      /* us that the process itself set; 0: it did not */
	_Atomic uint64_t taken;    /* the same, but for what libcuda sets when it makes a context */
} groups[GROUPS];
static _Atomic unsigned used; /* places, ever */
static _Atomic uint64_t number = HALF; /* the last one: it changes with all that the helper should see */

/* What the helper knows of the group of that number in the same place. */
static struct known {
	uint64_t number, own;
	uint64_t usual; /* us, without us; 0: not tried yet */
	uint32_t set;   /* us; 0: the usual */
	bool refused;
} known[GROUPS];
static struct {
	uint64_t number;
	uint32_t wanted[GS_GPUS];
} done;
static _Atomic uint16_t set[GS_GPUS], refused[GS_GPUS];
static _Atomic uint32_t longest[GS_GPUS]; /* us, of its own */
static _Atomic uint64_t by_libcuda;       /* us, the longest that it set */
static uint64_t looked;                   /* ns, when slices were last read back */

void gs_forked_slices(void)
{
	memset(groups, 0, sizeof groups);
	memset(known, 0, sizeof known);
	memset(&done, 0, sizeof done);
	memset(set, 0, sizeof set);
	memset(refused, 0, sizeof refused);
	memset(longest, 0, sizeof longest);
	atomic_store(&used, 0);
}

static void forget(struct group *g, uint64_t was)
{
	if (was > HALF)
		atomic_compare_exchange_strong(&g->number, &was, NONE);
}

/* Whether it is noted under that name, as of that number. */
static bool named(const struct group *g, uint32_t client, uint32_t object, uint64_t was)
{
	return was > HALF && atomic_load(&g->client) == client && atomic_load(&g->object) == object;
}

static void note(int fd, const struct alloc *a)
{
	struct group *g;
	uint64_t none = NONE;
	struct stat st;

	if (GS_SYS(SYS_fstat, fd, &st))
		return;
	for (g = groups; g < groups + atomic_load(&used); g++) { /* its end was not seen */
		uint64_t was = atomic_load(&g->number);
		if (named(g, a->client, a->object, was))
			forget(g, was);
	}
	g = groups;
	while (g < groups + GROUPS && !atomic_compare_exchange_strong(&g->number, &none, HALF))
		none = NONE, g++;
	if (g == groups + GROUPS)
		return; /* it keeps the driver's default */
	atomic_store(&g->fd, fd);
	atomic_store(&g->gpu, gs_gpu_making());
	atomic_store(&g->client, a->client);
	atomic_store(&g->parent, a->parent);
	atomic_store(&g->object, a->object);
	atomic_store(&g->dev, st.st_dev);
	atomic_store(&g->ino, st.st_ino);
	atomic_store(&g->own, 0);
	atomic_store(&g->taken, 0);
	unsigned most = atomic_load(&used), place = (unsigned)(g - groups) + 1;
	while (most < place && !atomic_compare_exchange_strong(&used, &most, place))
		;
	atomic_store(&g->number, atomic_fetch_add(&number, 1) + 1);
}

static void allocated(int fd, const struct alloc *a, uint32_t status)
{
	const uint32_t *parameters = (const uint32_t *)(uintptr_t)a->parameters;

	if (a->class == CHANNEL_GROUP && status == 0 && parameters && parameters[3] == COMPUTE)
		note(fd, a);
}

/* A parent ends with all that is below it. What was noted after the call began is another
 * group under the same name. */
static void freed(const struct freed *f, uint64_t before)
{
	for (struct group *g = groups; f->status == 0 && g < groups + atomic_load(&used); g++) {
		uint64_t was = atomic_load(&g->number);
		if (was <= before && atomic_load(&g->client) == f->client &&
		    (f->object == f->client || f->object == atomic_load(&g->parent) ||
		     f->object == atomic_load(&g->object)))
			forget(g, was);
	}
}

/* libcuda sets a slice when it makes a context. That is the usual one then. Who sets one later is
 * the program. */
static void controlled(const struct control *c)
{
	if (c->command != SET_SLICE || c->status != 0 || c->size != sizeof(uint64_t))
		return;
	for (struct group *g = groups; g < groups + atomic_load(&used); g++) {
		if (!named(g, c->client, c->object, atomic_load(&g->number)))
			continue;
		atomic_store(&g->own, *(const uint64_t *)(uintptr_t)c->parameters);
		if (gs_gpu_making() < 0)
			atomic_store(&g->taken, *(const uint64_t *)(uintptr_t)c->parameters);
		else if (*(const uint64_t *)(uintptr_t)c->parameters > atomic_load(&by_libcuda))
			atomic_store(&by_libcuda, *(const uint64_t *)(uintptr_t)c->parameters);
		atomic_fetch_add(&number, 1);
	}
}

/* ---- ioctl ---- */

static int (*_Atomic real)(int, unsigned long, ...);

/* What the program would call without us, which may be another preloaded library's. */
__attribute__((constructor)) static void find(void)
{
	atomic_store(&real, (int (*)(int, unsigned long, ...))gs_dlsym(RTLD_NEXT, "ioctl"));
}

static int pass(int fd, unsigned long request, void *argument)
{
	int (*to)(int, unsigned long, ...) = atomic_load_explicit(&real, memory_order_acquire);

	if (unlikely(!to)) { /* a constructor that comes before ours */
		find();
		to = atomic_load(&real);
	}
	if (unlikely(!to)) {
		long r = GS_SYS(SYS_ioctl, fd, request, argument);
		if (r >= 0)
			return (int)r;
		errno = (int)-r;
		return -1;
	}
	return to(fd, request, argument);
}

GS_EXPORT int ioctl(int fd, unsigned long request, ...)
{
	va_list rest;

	va_start(rest, request);
	void *argument = va_arg(rest, void *);
	va_end(rest);
	if (likely((request & 0xff00) != 'F' << 8))
		return pass(fd, request, argument);
	uint64_t before = atomic_load(&number);
	int r = pass(fd, request, argument);
	if (r)
		return r;
	switch ((uint32_t)request) {
	case FREE: freed(argument, before); break;
	case CONTROL: controlled(argument); break;
	case ALLOC: allocated(fd, argument, ((struct alloc *)argument)->rest[STATUS]); break;
	case ALLOC_WITH_RIGHTS: allocated(fd, argument, ((struct alloc *)argument)->rest[STATUS_WITH_RIGHTS]); break;
	}
	return r;
}

/* ---- the helper's part ---- */

#define AGAIN_NS (2 * GS_SECOND) /* from one reading to the next */

/* The program may close every descriptor, and open something else under the same number. */
static bool lives(const struct group *g)
{
	struct stat st;

	return !GS_SYS(SYS_fstat, atomic_load(&g->fd), &st) && st.st_dev == atomic_load(&g->dev) &&
	       st.st_ino == atomic_load(&g->ino);
}

static bool call(const struct group *g, uint32_t command, uint64_t *us)
{
	struct control c = {.client = atomic_load(&g->client), .object = atomic_load(&g->object), .command = command,
			    .parameters = (uintptr_t)us, .size = sizeof *us};

	return !pass(atomic_load(&g->fd), CONTROL, &c) && c.status == 0;
}

/* GET says what was set last, and RM's default of 1,024 us if nothing was, though an H100
 * then takes about 2.1 ms. Asked here, after libcuda made the context, it says what libcuda
 * set, if it did. By measurement, 2,100 us are the same as the default. */
#define DEFAULT_SAID 1024
#define DEFAULT_TAKEN 2100
static bool try(const struct group *g, struct known *k)
{
	uint64_t usual = 0, again = 0;

	if (!call(g, GET_SLICE, &usual) || !usual)
		return false;
	if (usual == DEFAULT_SAID)
		usual = DEFAULT_TAKEN;
	if (!call(g, SET_SLICE, &usual) || !call(g, GET_SLICE, &again) || again != usual)
		return false;
	k->usual = usual;
	return true;
}

static void apply(struct group *g, struct known *k, unsigned gpu, uint32_t wanted)
{
	if (wanted == k->set || k->refused)
		return;
	if (!lives(g)) {
		forget(g, k->number);
		return;
	}
	uint64_t us = wanted;
	bool tried = k->usual, good = tried || try(g, k);
	if (good && !tried && gs_settings.log)
		gs_log("the time slice of a context on GPU %u is %llu us without a quota", gpu,
		       (unsigned long long)k->usual);
	if (!us)
		us = k->usual;
	good = good && call(g, SET_SLICE, &us);
	if (atomic_load(&g->number) != k->number)
		return; /* it was freed meanwhile */
	if (good) {
		k->set = wanted;
		return;
	}
	k->refused = true;
	if (gs_settings.log)
		gs_log("the driver refuses to set the time slice of a context on GPU %u", gpu);
	if (atomic_load(&refused[gpu]) < UINT16_MAX)
		atomic_fetch_add(&refused[gpu], 1);
}

/* What we set is still there, unless the program set another slice without libc. */
static void read_back(struct group *g, struct known *k)
{
	uint64_t us = 0;

	if (!k->usual || k->refused || !lives(g) || !call(g, GET_SLICE, &us) || us == (k->set ? k->set : k->usual) ||
	    atomic_load(&g->number) != k->number)
		return;
	atomic_store(&g->own, us);
	atomic_store(&g->taken, us);
}

static void look(struct group *g, struct known *k, const uint32_t *wanted, bool again, uint32_t *in_force,
		 uint32_t *own_most)
{
	if (again && k->number == atomic_load(&g->number))
		read_back(g, k);
	uint64_t now = atomic_load(&g->number), own = atomic_load(&g->own);
	int gpu = atomic_load(&g->gpu);

	if (gpu < 0)
		gpu = gs_gpu_only();
	if (now <= HALF || gpu < 0)
		return;
	if (k->number != now)
		*k = (struct known){.number = now, .own = own};
	if (k->own != own) { /* the process set it after us */
		k->own = k->usual = own;
		k->set = 0;
	}
	uint64_t taken = atomic_load(&g->taken);
	if (taken > DEFAULT_TAKEN && taken > atomic_load(&by_libcuda) && taken > own_most[gpu])
		own_most[gpu] = taken < UINT32_MAX ? (uint32_t)taken : UINT32_MAX;
	apply(g, k, (unsigned)gpu, wanted[gpu]);
	if (k->set && atomic_load(&g->number) == now)
		in_force[gpu] = k->set;
}

void gs_slices_step(const struct gs_page *page)
{
	uint32_t wanted[GS_GPUS], in_force[GS_GPUS] = {0}, own_most[GS_GPUS] = {0};
	uint64_t now = atomic_load(&number), time = gs_now();
	bool again = looked && time - looked >= AGAIN_NS, news = again || now != done.number;

	for (unsigned i = 0; i < GS_GPUS; i++) {
		const struct gs_slot *s = &page->slot[i];
		bool killed = __atomic_load_n(&s->mode, __ATOMIC_ACQUIRE) == GS_KILL;
		wanted[i] = killed ? 0 : __atomic_load_n(&s->slice_us, __ATOMIC_RELAXED);
		news |= wanted[i] != done.wanted[i];
	}
	if (again || !looked)
		looked = time;
	if (!news)
		return;
	done.number = now;
	memcpy(done.wanted, wanted, sizeof wanted);
	for (unsigned i = 0; i < atomic_load(&used); i++)
		look(&groups[i], &known[i], wanted, again, in_force, own_most);
	for (unsigned i = 0; i < GS_GPUS; i++) {
		atomic_store(&set[i], in_force[i] < UINT16_MAX ? (uint16_t)in_force[i] : UINT16_MAX);
		atomic_store(&longest[i], own_most[i]);
	}
}

uint16_t gs_slices_set(unsigned gpu) { return atomic_load(&set[gpu]); }
uint32_t gs_slices_own(unsigned gpu) { return atomic_load(&longest[gpu]); }
uint16_t gs_slices_refused(unsigned gpu) { return atomic_load(&refused[gpu]); }
