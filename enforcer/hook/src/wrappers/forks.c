#include "wrappers/forks.h"

#include <pthread.h>
#include <stddef.h>

#define WEAK(part) __attribute__((weak)) void gs_forked_##part(void);
GS_FORKS(WEAK)

static void (*const handlers[])(void) = {
#define HANDLER(part) gs_forked_##part,
	GS_FORKS(HANDLER)
};

static void in_child(void)
{
	for (size_t i = 0; i < sizeof handlers / sizeof *handlers; i++)
		if (handlers[i])
			handlers[i]();
}

static void watch(void) { pthread_atfork(NULL, NULL, in_child); }

void gs_forks_watch(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, watch);
}
