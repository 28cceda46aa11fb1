/* The time slices of contexts, as the driver's kernel module sees them. A context has a
 * channel group there, by requests to a descriptor. The real library makes them with libc's
 * ioctl, and here they go the same way: to who is preloaded, who passes them on to the next
 * library. That has to be this one: LD_PRELOAD=libgpusteward.so:libcuda.so.1. Otherwise
 * contexts have no channel groups, as with MPS. GS_STUB_SLICES=refused: no slice can be set. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "stub.h"

/* Forms of the requests, and numbers of NVIDIA's published kernel modules. */
struct freed { uint32_t client, parent, object, status; };
struct control { uint32_t client, object, command, flags; uint64_t *us; uint32_t size, status; };
struct alloc { uint32_t client, parent, object, class; const uint32_t *of; void *rights; uint32_t size, flags, status; };
#define FREE _IOWR('F', 0x29, struct freed)
#define CONTROL _IOWR('F', 0x2a, struct control)
#define ALLOC _IOWR('F', 0x2b, struct alloc)

enum { CLIENT = 0xc1d00001, DEVICE = 0x5c000000, GROUP = 0x5d000000 }; /* names of objects */
enum { CHANNEL_GROUP = 0xa06c, COMPUTE = 1, SET_SLICE = 0xa06c0103, GET_SLICE = 0xa06c0104 };
enum { GOOD, NOT_PERMITTED = 0x1b, NO_COMMAND = 0x24, NO_OBJECT = 0x33 };

#define GROUPS 256
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { uint32_t object, device; int proc; } group[GROUPS];
static int descriptor = -1;

static uint32_t slice(uint32_t object, uint32_t command, uint64_t *us)
{
	uint32_t status = NO_OBJECT;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < GROUPS; i++) {
		if (!object || group[i].object != object)
			continue;
		const char *set = getenv("GS_STUB_SLICES");
		struct gs_gpu *g = gs_gpu_change(group[i].device);
		struct gs_slot_proc *p = &g->proc[group[i].proc];
		status = GOOD;
		if (command == GET_SLICE)
			*us = (p->slice ? p->slice : gs_host->slice) / 1000;
		else if (command != SET_SLICE)
			status = NO_COMMAND;
		else if (set && !strcmp(set, "refused"))
			status = NOT_PERMITTED;
		else
			p->slice = *us * 1000; /* the process's contexts take turns together here */
		gs_gpu_unlock(g);
	}
	pthread_mutex_unlock(&lock);
	return status;
}

/* What the module answers. */
static void answer(unsigned long request, void *argument)
{
	struct control *c = argument;

	if (request == CONTROL)
		c->status = slice(c->object, c->command, c->us);
	else if (request == ALLOC)
		((struct alloc *)argument)->status = GOOD;
	else if (request == FREE)
		((struct freed *)argument)->status = GOOD;
}

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
	static int (*next)(int, unsigned long, ...);
	va_list rest;

	va_start(rest, request);
	void *argument = va_arg(rest, void *);
	va_end(rest);
	if (fd >= 0 && fd == descriptor)
		return answer(request, argument), 0;
	if (!next)
		next = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
	return next(fd, request, argument);
}

static void ask(unsigned long request, void *argument)
{
	/* The program's, as RTLD_DEFAULT is this one in a library that is linked with -Bsymbolic. */
	int (*first)(int, unsigned long, ...) =
		(int (*)(int, unsigned long, ...))dlsym(dlopen(NULL, RTLD_LAZY | RTLD_NOLOAD), "ioctl");

	if (descriptor < 0)
		descriptor = memfd_create("nvidiactl", MFD_CLOEXEC);
	first(descriptor, request, argument);
}

void gs_group_make(CUcontext c)
{
	const uint32_t of[] = {0, 0, 0, COMPUTE};
	struct alloc a = {CLIENT, DEVICE + (uint32_t)c->device, GROUP + c->number, CHANNEL_GROUP, of, NULL, sizeof of, 0, ~0u};
	int i = 0;

	pthread_mutex_lock(&lock);
	while (i < GROUPS && group[i].object)
		i++;
	if (i < GROUPS) {
		group[i].object = a.object;
		group[i].device = (uint32_t)c->device;
		group[i].proc = c->proc;
	}
	pthread_mutex_unlock(&lock);
	ask(ALLOC, &a);
}

/* What a program can ask of the module itself: longer slices for all of its contexts. */
__attribute__((visibility("default"))) void gs_stub_slice(uint64_t us)
{
	for (int i = 0; i < GROUPS; i++) {
		struct control c = {CLIENT, group[i].object, SET_SLICE, 0, &us, sizeof us, ~0u};
		if (c.object)
			ask(CONTROL, &c);
	}
}

void gs_group_unmake(CUcontext c)
{
	struct freed f = {CLIENT, DEVICE + (uint32_t)c->device, GROUP + c->number, ~0u};

	ask(FREE, &f);
	pthread_mutex_lock(&lock);
	for (int i = 0; i < GROUPS; i++)
		if (group[i].object == f.object)
			group[i].object = 0;
	pthread_mutex_unlock(&lock);
}
