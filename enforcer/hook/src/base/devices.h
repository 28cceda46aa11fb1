/* The GPUs that the process sees, and which of them a thread works on. */
#ifndef GPUSTEWARD_DEVICES_H
#define GPUSTEWARD_DEVICES_H

#include "base/hook.h"

/* The devices in the order of CUDA_VISIBLE_DEVICES, and the driver's version, as they
 * were at the start of the session. */
extern struct gs_gpus {
	unsigned count;
	uint32_t cuda;
	CUdevice device[GS_GPUS];
	CUuuid uuid[GS_GPUS];
} gs_gpus;
void gs_find_gpus(void); /* fills it, under the client's lock */

/* The session's GPU, or -1. */
int gs_gpu_of_device(CUdevice device);
int gs_gpu_of_uuid(const CUuuid *uuid);
unsigned gs_gpu_count(void);

int gs_gpu_current(void); /* the session's GPU of the calling thread's current context, or -1 */
int gs_gpu_making(void);  /* that on which the calling thread is making a context, or -1 */
int gs_gpu_only(void);    /* the only one on which the process made contexts, or -1 */

/* ---- for the wrappers that make contexts ---- */

int gs_gpu_makes(int gpu);         /* it becomes the one of gs_gpu_making; returns the one before */
int gs_gpu_made(CUdevice device);  /* a context is made on the device; returns the session's GPU, or -1 */

#endif
