/* What explains a crash of the program: where its memory is and was, and how it failed. The
 * broker reads it once the process is in trouble, or gone. */
#ifndef GPUSTEWARD_CRASH_H
#define GPUSTEWARD_CRASH_H

#include "hook.h"
#include "markers.h"

/* Notes an allocation, from any thread. Returns its place; 0: it has none. */
unsigned gs_crash_allocated(uint64_t address, uint64_t bytes);
void gs_crash_freed(unsigned place); /* after the driver's call: until then nobody else gets the address */
void gs_crash_unlisted(void);        /* the program has memory whose address is not known */

/* A call's result of which gs_marker_lost is true. Some of those are no faults. */
void gs_crash_fault(CUresult r);

static inline void gs_note_result(CUresult r)
{
	if (unlikely(r) && gs_marker_lost(r))
		gs_crash_fault(r);
}

/* The program got a handle of a kernel. Never asks the driver: not every handle that it launches is one of which
 * it tells the name. */
void gs_crash_named(uint32_t id, const char *name);
void gs_crash_same(uint32_t id, uint32_t as); /* another handle of that kernel */

/* What the session's trace lies in. */
struct gs_traced {
	struct gs_trace trace;
	struct gs_crash crash;
};

/* A session begins, with this trace; NULL: it has none. */
void gs_crash_begin(struct gs_trace *t);

#endif
