/* The simulated GPUs: state that all processes share through one mapped file.
 * Nobody drives it: whoever looks first moves it on to the present. */
#ifndef GPUSTEWARD_STUB_GPU_H
#define GPUSTEWARD_STUB_GPU_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define GS_STUB_GPUS_MAX 16
#define GS_STUB_PROCS 256
#define GS_STUB_STREAMS 1024
#define GS_STUB_EVENTS 32768
#define GS_STUB_RING 1024 /* entries of a stream, as on a real driver */

enum gs_work { GS_WORK_KERNEL, GS_WORK_EVENT, GS_WORK_WAIT, GS_WORK_COPY };

/* The two ways that copies go, each with an engine that serves one at a time. */
enum gs_engine { GS_ENGINE_LINK, GS_ENGINE_MEMORY, GS_ENGINES };

/* Where a stream will be when something has happened: true once the slot's
 * head has passed at, or the slot belongs to another stream. */
struct gs_point {
	uint32_t stream;
	uint32_t generation; /* 0: never recorded, hence passed */
	uint64_t at;
};

struct gs_entry {
	uint32_t work;         /* enum gs_work */
	uint32_t event;        /* EVENT: whose time it is */
	uint64_t record;       /* EVENT: the event's record at the time */
	struct gs_point point; /* WAIT */
	uint64_t until;        /* the stream's work up to here and with this, ns */
	uint64_t order;        /* among all entries of the process */
	uint64_t copied;       /* when the stream's copies up to here and with this are done, CLOCK_MONOTONIC ns; 0 none */
};

enum gs_stream_kind { GS_BLOCKING, GS_NON_BLOCKING, GS_LEGACY };

struct gs_slot_stream {
	uint32_t owner; /* process slot + 1; 0 free */
	uint32_t generation;
	uint32_t kind; /* enum gs_stream_kind */
	uint32_t context;
	uint32_t next;   /* of the process, + 1 */
	uint32_t closed; /* freed when its work is done */
	uint64_t head, tail;
	uint64_t queued, worked; /* ns of kernels ever put in, ever done */
	uint64_t copied;         /* when the last copy is done */
};

struct gs_slot_event {
	uint32_t owner;
	uint32_t timed;
	uint64_t record; /* unique; 0 never recorded */
	uint64_t time;   /* CLOCK_MONOTONIC ns; 0 not reached */
	struct gs_point point;
};

struct gs_slot_proc {
	int32_t pid; /* 0 free */
	uint32_t streams; /* first, + 1 */
	uint32_t begun;   /* stream whose kernel is half done, + 1 */
	uint32_t last;    /* stream that ran last, + 1 */
	uint64_t order;
	uint64_t busy; /* ns of kernels done */
	uint64_t used, peak; /* bytes */
};

struct gs_gpu {
	pthread_mutex_t mutex; /* robust, shared by processes */
	uint64_t memory, used; /* bytes */
	uint64_t now;          /* simulated up to here, CLOCK_MONOTONIC ns */
	uint64_t buried;       /* when the dead were last looked for */
	uint64_t slice_end, switched;
	uint64_t switching; /* ns ever lost to switches */
	uint64_t records;
	uint64_t engine[GS_ENGINES]; /* until when it has copies to make, CLOCK_MONOTONIC ns */
	uint32_t copies;  /* under way */
	uint32_t current; /* process slot + 1 */
	uint32_t procs, streams, events; /* slots ever used */
	uint32_t generation;
	struct gs_slot_proc proc[GS_STUB_PROCS];
	struct gs_slot_stream stream[GS_STUB_STREAMS];
	struct gs_slot_event event[GS_STUB_EVENTS];
	struct gs_entry ring[GS_STUB_STREAMS][GS_STUB_RING];
};

struct gs_host {
	uint64_t magic; /* written last by who made the file */
	uint32_t gpus, reserved;
	uint64_t slice, change; /* ns */
	uint64_t rate[GS_ENGINES]; /* bytes a second */
	struct gs_gpu gpu[GS_STUB_GPUS_MAX];
};

/* host.c */
extern struct gs_host *gs_host;
uint64_t gs_stub_now(void); /* CLOCK_MONOTONIC, ns */
bool gs_host_open(void);    /* by GS_STUB_FILE; once */
struct gs_gpu *gs_gpu_lock(unsigned gpu); /* moved on to the present */
void gs_gpu_unlock(struct gs_gpu *g);
int gs_proc_join(struct gs_gpu *g); /* this process's slot, -1 none left; locked */
void gs_proc_leave(struct gs_gpu *g, int proc);
bool gs_memory_take(struct gs_gpu *g, int proc, uint64_t bytes); /* takes the lock; false: out of memory */
void gs_memory_give(struct gs_gpu *g, int proc, uint64_t bytes); /* takes the lock */

/* simulate.c: the GPU is locked */
void gs_simulate(struct gs_gpu *g, uint64_t now);
uint64_t gs_copy_ns(enum gs_engine way, uint64_t bytes); /* how long a copy takes */
uint64_t gs_predict(struct gs_gpu *g, struct gs_point p); /* no later than the point will be reached */
bool gs_passed(const struct gs_gpu *g, struct gs_point p);
void gs_stream_free(struct gs_gpu *g, uint32_t stream);

#endif
