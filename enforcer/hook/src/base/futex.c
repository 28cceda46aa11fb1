#define _GNU_SOURCE
#include "base/futex.h"

#include <linux/futex.h>
#include <time.h>

#include "base/clock.h"
#include "base/sys.h"

static void wait_for(const void *word, int operation, uint32_t seen, uint64_t ns)
{
	struct timespec t = {.tv_sec = (time_t)(ns / GS_SECOND), .tv_nsec = (long)(ns % GS_SECOND)};

	GS_SYS(SYS_futex, word, operation, seen, &t, NULL, 0);
}

void gs_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t ns) { wait_for(word, FUTEX_WAIT_PRIVATE, seen, ns); }

void gs_futex_wake(_Atomic uint32_t *word, int most)
{
	GS_SYS(SYS_futex, word, FUTEX_WAKE_PRIVATE, most, NULL, NULL, 0);
}

/* The bell is a shared futex: the broker rings it from another process. */
void gs_bell_wait(struct gs_page *page, uint32_t seen, uint64_t ns) { wait_for(&page->bell, FUTEX_WAIT, seen, ns); }

void gs_bell_ring(struct gs_page *page)
{
	GS_SYS(SYS_futex, &page->bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}
