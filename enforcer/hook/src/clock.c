#define _GNU_SOURCE
#include "clock.h"

#include <time.h>

uint64_t gs_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * GS_SECOND + (uint64_t)t.tv_nsec;
}
