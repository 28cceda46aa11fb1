#ifndef GPUSTEWARD_CONTEXTS_H
#define GPUSTEWARD_CONTEXTS_H

#include "hook.h"

int gs_gpu_current(void); /* the session's GPU of the calling thread's current context, or -1 */
int gs_gpu_making(void);  /* that on which the calling thread is making a context, or -1 */
int gs_gpu_only(void);    /* the only one on which the process made contexts, or -1 */

#endif
