/* The wrappers, under the driver's own names. */
#ifndef GPUSTEWARD_WRAPPED_H
#define GPUSTEWARD_WRAPPED_H

#include "base/driver.h"

#define GS_CALL(name, ...)
#define GS_WRAP(name, ...) GS_EXPORT CUresult name(__VA_ARGS__);
#include "base/calls.h"
#undef GS_CALL

#endif
