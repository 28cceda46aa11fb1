/* What the parts of the simulated driver know of each other: the objects behind its
 * handles, which belong to one process. */
#ifndef GPUSTEWARD_STUB_H
#define GPUSTEWARD_STUB_H

#include "gpu.h"
#include "types.h"

#define GS_API __attribute__((visibility("default"))) CUresult

/* The plain stream of a call compiled for per-thread default streams. */
#define GS_PTSZ(s) ((s) ? (s) : CU_STREAM_PER_THREAD)

/* Returns from the caller if r is an error. */
#define GS_TRY(call) do { CUresult gs_r = (call); if (gs_r) return gs_r; } while (0)

struct CUctx_st {
	CUdevice device;
	int proc;
	uint32_t number;
	struct gs_gpu *g;
	CUstream legacy;
	bool primary, gone;
};

struct gs_capture {
	struct gs_capture *next;
	CUgraph graph;
	CUstream origin, joined; /* the one it began on, and a list of others */
	const void *thread; /* see gs_self */
	CUstreamCaptureMode mode;
	CUstreamCaptureStatus status;
	cuuint64_t id;
};

struct CUstream_st {
	CUcontext ctx;
	uint32_t slot, generation, kind;
	int priority;
	_Atomic(struct gs_capture *) capture;
	CUstream joined; /* next in its capture */
};

struct CUevent_st {
	CUcontext ctx;
	uint32_t slot;
	bool timed;
	_Atomic cuuint64_t captured; /* id of the capture that recorded it last, 0 none */
};

struct CUgraphNode_st {
	CUgraphNode next;
	uint64_t ns;        /* kernel's duration */
	uint64_t bytes;     /* memory node's, 0 for a kernel's */
	CUfunction f;       /* NULL for what is no kernel */
	CUdeviceptr at;
	CUdevice device;
};

struct CUgraph_st {
	CUgraphNode first, last;
	size_t count;
};

struct CUfunc_st {
	struct CUfunc_st *next;
	char name[64];
};

/* device.c */
extern pthread_mutex_t gs_process; /* guards what can change of these objects, and the lists of them */
CUresult gs_initialised(void);     /* and not a forked child */
CUresult gs_enter(void);           /* the same; waits as long as this process is locked for a checkpoint */
CUresult gs_current(CUcontext *ctx); /* gs_enter, and there is a context */
CUresult gs_device(CUdevice d);    /* gs_enter, and there is such a device */
extern _Atomic bool gs_faulted;     /* a kernel of this process ended by a fault */
const void *gs_self(void);         /* unlike in any other thread */

/* control.c; under gs_process */
void gs_group_make(CUcontext c); /* a channel group, with a time slice */
void gs_group_unmake(CUcontext c);

/* stream.c */
CUresult gs_stream_of(CUstream s, CUstream *out); /* the stream that a caller's handle means here */
CUstream gs_stream_make(CUcontext ctx, uint32_t kind, int priority);
void gs_stream_close(CUstream s);
CUresult gs_put(CUstream s, enum gs_work work, uint64_t ns, CUevent event, struct gs_point point);
/* the place that it got goes to where, unless that is NULL */
CUresult gs_put_wait(CUstream s, enum gs_work work, uint64_t ns, struct gs_wait wait, struct gs_point *where);
CUresult gs_put_copy(CUstream s, enum gs_engine way, uint64_t bytes);
void gs_wait(struct gs_gpu *g, struct gs_point p);
CUresult gs_finish(CUcontext ctx); /* waits for all work of the context */

/* wait.c: kernels, and streams, that wait for words of memory or write them */
CUresult gs_put_word(CUstream s, enum gs_work work, uint64_t ns, CUdeviceptr at, uint32_t how, uint64_t value);

/* capture.c */
CUresult gs_unsafe(void); /* 900 if a capture forbids this thread an unsafe call; the capture is lost */
/* NULL graph if the stream does not capture; an error if it cannot take work. */
CUresult gs_capture_of(CUstream s, CUgraph *graph);
void gs_capture_lose(CUstream s);
CUresult gs_capture_none(CUstream s); /* this cannot be captured here: the capture is lost */
void gs_capture_leave(CUstream s); /* s is destroyed */
bool gs_capture_joins(CUstream s, CUevent e); /* s waits for e: it captures too if e was captured */
CUresult gs_capture_event(CUevent e);        /* 907 if e was captured */

/* checkpoint.c */
enum gs_checkpoint gs_checkpoint(void); /* by GS_STUB_CHECKPOINT */

/* graph.c */
void gs_graphs_forget(CUdevice d); /* its last context is gone, and the memory with it */
CUgraphNode gs_graph_add(CUgraph g, CUfunction f, uint64_t ns, uint64_t bytes);

/* memory.c, pool.c */
enum gs_held { GS_HELD_LINEAR, GS_HELD_ARRAY, GS_HELD_POOL, GS_HELD_RESERVED, GS_HELD_MAPPED };
struct gs_holding {
	struct gs_holding *next;
	CUdeviceptr at;
	uint64_t bytes;
	enum gs_held held;
	CUcontext ctx;
	void *of; /* the pool, or the VMM handle */
};
CUdeviceptr gs_address(uint64_t bytes);
int gs_memory_device(CUdeviceptr at); /* where this process has memory at that address; -1 nowhere */
void gs_hold(struct gs_holding h);
bool gs_release(CUdeviceptr at, enum gs_held held, struct gs_holding *out); /* false: no such */
void gs_memory_forget(CUcontext ctx); /* gives back what the context holds */
void gs_pools_trim(CUcontext ctx);    /* at a synchronisation: down to the release threshold */
void gs_pools_forget(CUdevice d);     /* see gs_graphs_forget */
CUresult gs_pool_take(CUmemoryPool p, uint64_t bytes, CUcontext ctx, CUdeviceptr *out);

#endif
