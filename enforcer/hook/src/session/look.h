#ifndef GPUSTEWARD_LOOK_H
#define GPUSTEWARD_LOOK_H

#include "base/hook.h"

/* What the tenant may have of a GPU, and has, in a process that need not have a
 * session there. The answer is the broker's, at most a second old, or the limit
 * that holds without a broker. It waits at most 250 ms for a broker that does not
 * answer, once in five seconds. False: there is no cap. */
bool gs_client_look(const CUuuid *uuid, uint64_t *cap, uint64_t *used);

#endif
