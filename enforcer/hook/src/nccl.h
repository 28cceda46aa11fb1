/* Communicators and collectives. */
#ifndef GPUSTEWARD_NCCL_H
#define GPUSTEWARD_NCCL_H

#include "hook.h"

/* The answer of dlsym, if the name is ours. */
bool gs_nccl_resolve(void *handle, const char *name, void **answer);
void gs_nccl_look(void); /* the helper calls it: which collectives are done */
void gs_nccl_context_destroyed(CUcontext context); /* before the driver's call: none of its events is touched again */

#endif
