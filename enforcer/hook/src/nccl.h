/* Communicators and collectives. */
#ifndef GPUSTEWARD_NCCL_H
#define GPUSTEWARD_NCCL_H

#include <stdbool.h>

/* The answer of dlsym, if the name is ours. */
bool gs_nccl_resolve(void *handle, const char *name, void **answer);
void gs_nccl_look(void); /* the helper calls it: which collectives are done */

#endif
