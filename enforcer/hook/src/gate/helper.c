/* The helper thread. A program that sits in a synchronize never comes back to the
 * gate. So another thread must notice that a turn has ended, wait until the GPU is
 * drained and tell the broker, or notice that nothing is left to do. */
#define _GNU_SOURCE
#include "gate/helper.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/membarrier.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/devices.h"
#include "base/driver.h"
#include "base/futex.h"
#include "base/sys.h"
#include "gate/nccl.h"
#include "gate/slices.h"
#include "gate/turns.h"
#include "session/client.h"
#include "session/local.h"
#include "trace/trace.h"

#define EXIT_NS 100000000
#define LEAST_NS 200000 /* launches are not timed more often */
#define SAVED 24        /* so many more at most, after a time without launches: they come in bursts */
#define STACK (256 << 10)

static _Atomic bool running, stopping;
static _Atomic long process; /* the helper's */
_Atomic uint64_t gs_helper_wake;

/* A main thread may end before others, and the C library ends the process with the last
 * one. The helper is not to be that one. A process without its main thread has no
 * executable, and its directory of threads has two links besides one for each. */
static bool alone(void)
{
	struct stat threads;
	char c;

	return GS_SYS(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", &c, 1) == -ENOENT &&
	       !GS_SYS(SYS_newfstatat, AT_FDCWD, "/proc/self/task", &threads, 0) && threads.st_nlink == 2 + 2;
}

/* Has a launch timed now and then, as often as the page says. Returns how long to wait for the next time. A random
 * number of launches goes before it, because those of a step come in the same order again and again. */
static uint64_t time_launches(const struct gs_page *page, uint64_t now)
{
	static uint64_t next;
	static uint32_t random = 1;
	static bool was;
	uint64_t each = __atomic_load_n(&page->timed, __ATOMIC_RELAXED) * 1000ull;

	if (was != (each > 0)) { /* a profile begins or ends */
		atomic_store(&gs_tickets, 0);
		atomic_store(&gs_saved, 0);
		for (unsigned i = 0; i < GS_TIMED; i++)
			atomic_store(&gs_timed[i], 0);
		was = each > 0;
	}
	if (!each)
		return GS_NEVER;
	each = each > LEAST_NS ? each : LEAST_NS;
	if (next > now + 2 * each)
		next = now;
	if (now >= next) {
		random = random * 1664525 + 1013904223;
		if (!atomic_load(&gs_tickets))
			atomic_store(&gs_tickets, gs_next_ticket(random >> 16));
		else if (atomic_load(&gs_saved) < SAVED)
			atomic_fetch_add(&gs_saved, 1);
		next = now + each / 2 + (random >> 8) % each;
	}
	return next - now;
}

static void *run(void *unused)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	const struct gs_page *seen = NULL;
	uint32_t seen_bell = 0;
	uint64_t look = 0;

	(void)unused;
	GS_SYS(SYS_prctl, PR_SET_NAME, "gpusteward");
	if (gs_real.cuThreadExchangeStreamCaptureMode)
		gs_real.cuThreadExchangeStreamCaptureMode(&mode);
	while (!atomic_load(&stopping)) {
		struct gs_page *page = atomic_load(&gs_page);
		uint32_t bell = __atomic_load_n(&page->bell, __ATOMIC_ACQUIRE);
		uint64_t poll = gs_client_poll(), now = gs_now();
		if (now >= look) {
			if (alone())
				break;
			look = now + GS_LAZY_NS;
		}
		uint64_t again = gs_trace_clock();
		bool suspended = gs_suspended(); /* the driver is not called then */
		if (!suspended)
			gs_nccl_look();
		uint64_t wait = poll > now ? poll - now : 0;
		if (page != atomic_load(&gs_page))
			continue;
		if (!suspended)
			gs_slices_step(page);
		for (unsigned i = 0; i < GS_GPUS && i < gs_gpu_count() && !suspended; i++) {
			uint64_t next = gs_turns_step(&gs_gates[i], &page->slot[i], page != seen || bell != seen_bell);
			if (next < wait)
				wait = next;
		}
		seen = page;
		seen_bell = bell;
		uint64_t next = suspended ? GS_NEVER : time_launches(page, now);
		wait = wait < next ? wait : next;
		wait = wait < again ? wait : again;
		wait = wait < GS_LAZY_NS ? wait : GS_LAZY_NS;
		atomic_store(&gs_helper_wake, gs_now() + wait);
		if (!atomic_load(&stopping))
			gs_bell_wait(page, bell, wait);
		atomic_store(&gs_helper_wake, 0);
	}
	atomic_store(&running, false);
	return NULL;
}

/* At exit the driver goes away under the helper, so it is stopped first. It may sit
 * in the driver, so the wait has a bound. A child of a bare system call or of _Fork, in
 * which no handler of forks ran, has no helper. */
static void stop(void)
{
	if (atomic_load(&process) != GS_SYS(SYS_getpid))
		return;
	GS_UNCANCELLED;
	uint64_t until = gs_now() + EXIT_NS;
	struct gs_page *page = atomic_load(&gs_page);

	atomic_store(&stopping, true);
	while (atomic_load(&running) && gs_now() < until) {
		gs_bell_ring(page);
		gs_sys_poll(NULL, 50000);
	}
}

static void prepare(void)
{
	gs_fences = GS_SYS(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) != 0;
	atexit(stop);
}

void gs_helper_start(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t all, before;

	pthread_once(&once, prepare);
	if (atomic_load(&stopping) || atomic_exchange(&running, true))
		return;
	atomic_store(&process, GS_SYS(SYS_getpid));
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, STACK);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (pthread_create(&thread, &attributes, run, NULL)) {
		atomic_fetch_add(&gs_errors, 1);
		atomic_store(&running, false);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
}

/* The helper is a thread of the parent. */
void gs_forked_helper(void) { atomic_store(&running, false); }
