#ifndef GPUSTEWARD_ARRAYS_H
#define GPUSTEWARD_ARRAYS_H

#include "base/hook.h"

uint64_t gs_texel(int format, unsigned channels); /* bytes of an element of an array */

#endif
