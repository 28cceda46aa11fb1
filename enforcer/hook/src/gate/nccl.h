/* Communicators and collectives. */
#ifndef GPUSTEWARD_NCCL_H
#define GPUSTEWARD_NCCL_H

#include "base/hook.h"

/* The answer of dlsym, if the name is ours. */
bool gs_nccl_resolve(void *handle, const char *name, void **answer);
void gs_nccl_look(void); /* the helper calls it: which collectives are done */
void gs_nccl_context_destroyed(CUcontext context); /* before the driver's call: none of its events is touched again */

/* The communicator of the last collective, if no other stream than its own has waited since; NULL: there is none. */
extern _Atomic(void *) gs_nccl_unmarked;
extern _Atomic(CUstream) gs_nccl_stream; /* that of the last collective */
void gs_nccl_mark(CUstream s);

/* The stream is about to wait for an event. */
static inline void gs_nccl_stream_waits(CUstream s)
{
	if (atomic_load_explicit(&gs_nccl_unmarked, memory_order_relaxed) &&
	    s != atomic_load_explicit(&gs_nccl_stream, memory_order_relaxed))
		gs_nccl_mark(s);
}

#endif
