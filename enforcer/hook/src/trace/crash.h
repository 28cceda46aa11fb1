/* What explains a crash of the program: where its memory is and was, and how it failed. The
 * broker reads it once the process is in trouble, or gone. */
#ifndef GPUSTEWARD_CRASH_H
#define GPUSTEWARD_CRASH_H

#include "base/hook.h"

/* Notes an allocation, from any thread. Returns its place; 0: it has none. */
unsigned gs_crash_allocated(uint64_t address, uint64_t bytes);
void gs_crash_freed(unsigned place); /* after the driver's call: until then nobody else gets the address */
void gs_crash_unlisted(void);        /* the program has memory whose address is not known */

/* The error is of a fault that ends the context: each later call returns it. Of the errors from
 * 700 to 799, a call that asks about earlier work returns only those of kernels that ended by a
 * fault. */
static inline bool gs_crash_lost(CUresult r)
{
	return r == CUDA_ERROR_ECC_UNCORRECTABLE || r == CUDA_ERROR_NVLINK_UNCORRECTABLE || r == CUDA_ERROR_CONTAINED ||
	       (r >= CUDA_ERROR_ILLEGAL_ADDRESS && r < CUDA_ERROR_NOT_PERMITTED);
}

/* A call's result of which gs_crash_lost is true. Some of those are no faults. */
void gs_crash_fault(CUresult r);

static inline void gs_note_result(CUresult r)
{
	if (unlikely(r) && gs_crash_lost(r))
		gs_crash_fault(r);
}

/* The program got a handle of a kernel. Never asks the driver: not every handle that it launches is one of which
 * it tells the name. */
void gs_crash_named(uint32_t id, const char *name);
void gs_crash_same(uint32_t id, uint32_t as); /* another handle of that kernel */
bool gs_crash_knows(uint32_t id);             /* the kernel has a name */

/* The program made an executable graph, whose launches have this id. The text is what a graph's name is, see
 * struct gs_kernel. */
void gs_crash_graph(uint32_t id, const char *text);

/* What the session's trace lies in. */
struct gs_traced {
	struct gs_trace trace;
	struct gs_crash crash;
};

/* A session begins, with this trace and what lies behind it; NULL: it has none. */
void gs_traced_begin(struct gs_trace *t);

#endif
