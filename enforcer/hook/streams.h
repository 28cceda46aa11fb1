/* What the gate and the helper share: GPUs, contexts, streams and what is
 * under way on them. */
#ifndef GPUSTEWARD_STREAMS_H
#define GPUSTEWARD_STREAMS_H

#include <pthread.h>

#include "bucket.h"
#include "hook.h"
#include "predict.h"

#define GS_THREADS 4096
#define GS_CONTEXTS 64
#define GS_STREAMS 1024
#define GS_MARKERS 64   /* under way on one stream */
#define GS_EVENTS 128   /* kept for reuse by one context */
#define GS_GRAPHS 256   /* whose cost is remembered, for one GPU */

struct gs_context {
	_Atomic(CUcontext) handle; /* NULL: free */
	_Atomic(struct gs_gpu *) gpu; /* NULL until the first launch */
	CUevent spare[GS_EVENTS];  /* guarded by the GPU's lock, as the count */
	unsigned spares;
};

/* Some launches on a stream, and the event behind the last of them. */
struct gs_marker {
	CUevent event;
	struct gs_context *context; /* the event's */
	uint64_t first_ns, last_ns; /* launches that it covers */
	uint64_t recorded_ns;
	uint64_t cost;     /* estimated, ns of the GPU */
	uint32_t launches;
	bool uneven;       /* says nothing of the cost of one: several kinds, or a gap between */
	void *graph;       /* all were of this one; NULL kernels */
};

struct gs_stream {
	struct gs_gpu *gpu; /* for good, so that its lock can be taken before anything is looked at */
	struct gs_stream *next;
	struct gs_context *context;
	CUstream stream;          /* 0 the legacy one, 2 a thread's own */
	struct gs_thread *thread; /* whose own; else NULL */
	_Atomic bool opened;      /* may hold launches that went uncounted in OPEN */
	bool broken;              /* the driver refused something: let pass for good */
	bool stray;               /* not one stream: what is left of those that are gone, or had no room */
	struct gs_marker now;     /* what has been launched since the last marker */
	uint64_t cost;            /* of a kernel, running average, ns; 0 unknown */
	struct gs_marker passed;  /* the last that the GPU reached, kept to measure from, */
	uint64_t passed_ns;       /* and when that was, as well as can be told */
	unsigned head, pending;   /* of the ring */
	struct gs_marker ring[GS_MARKERS];
};

struct gs_graph {
	void *exec;
	uint64_t cost; /* running average, ns; 0 unknown */
	unsigned seen; /* launches */
};

enum gs_phase { GS_UNGATED, GS_WATCHED, GS_TURN, GS_DRAINING, GS_GIVEN };

struct gs_gpu {
	pthread_mutex_t lock; /* guards what follows, and the streams; held for the driver's events and the broker's messages */
	struct gs_stream *streams, *spare;
	struct gs_stream strays;
	struct gs_graph graphs[GS_GRAPHS];
	uint64_t queued;      /* estimated cost of all that is not known to be done, ns */
	uint64_t launched_ns; /* last launch */
	struct gs_usage usage; /* since the last message */
	struct gs_predict predict;
	struct gs_bucket bucket[GS_WAYS];
	uint64_t copied;      /* bytes, of threads that are gone or copy on another GPU now */
	bool held;            /* a launch waited for its turn since the last marker passed */

	/* turns.c */
	enum gs_phase phase;
	bool uncounted;    /* launches went by in OPEN since the GPU was last known to be drained */
	bool look;         /* the page changed after that, and it is not settled what was launched meanwhile */
	uint64_t given;    /* launches ever made, when the turn was given away */
	uint64_t watched;  /* the same when the broker was told of them last, beside others */
	uint64_t turn;     /* the page's, when the phase began */
	uint64_t began_ns; /* the phase */
	uint64_t told_ns;  /* the last USAGE */
	uint64_t copies_told, copies_ns; /* bytes ever copied, when the broker was told of them last */
	bool wanted;       /* the broker gave a turn, and was not told since that it is idle here: it knows that we want more */
	bool asked;        /* an ACQUIRE is out, or was not needed, */
	uint64_t asked_epoch, asked_turn; /* of this session and this turn */
};

extern struct gs_gpu gs_gates[GS_GPUS];
extern struct gs_thread gs_threads[GS_THREADS];
extern _Atomic unsigned gs_threads_used; /* no thread's place lies beyond */
extern _Atomic uint64_t gs_errors;
extern bool gs_fences; /* no membarrier: every launch takes the slow path, which has a fence */

static inline unsigned gs_gpu_index(const struct gs_gpu *g) { return (unsigned)(g - gs_gates); }

/* ---- streams.c ---- */
struct gs_thread *gs_thread_of_self(void); /* NULL: no place left */
/* The entry of a stream of the current context, for this thread; NULL where
 * nothing is known of the context or its GPU. */
struct gs_stream *gs_stream_of(struct gs_thread *t, CUstream s);
/* Whether the stream captures, or cannot be asked, so that nothing may be
 * recorded on it. */
bool gs_stream_captures(CUstream s);

/* The current context, with its GPU; NULL where that is not known. */
struct gs_context *gs_context_current(void);
struct gs_stream *gs_strays(struct gs_gpu *g);
bool gs_contexts_one(void); /* no other context than the current one is known */

/* ---- bandwidth.c ---- */
void gs_copies_settle(struct gs_thread *t);      /* by the thread: it ends, or copies on another GPU */
uint64_t gs_copies_sum(const struct gs_gpu *g);  /* bytes ever copied on the GPU, which is locked */

/* ---- markers.c: the GPU is locked ---- */
/* Notes a launch that was made, and what it is thought to cost, ns. */
void gs_marker_add(struct gs_stream *e, struct gs_context *c, void *graph, uint64_t cost, uint64_t now);
void gs_marker_opened(struct gs_gpu *g, uint64_t now); /* notes what may have been launched in OPEN */
bool gs_marker_due(const struct gs_stream *e);
/* Records a marker behind what was launched; false where that cannot be done
 * now. For the thread that launched: the stream's context is current. */
bool gs_marker_record(struct gs_stream *e, CUstream stream, uint64_t now);
/* The same for all streams of the GPU that have launches without a marker,
 * from any thread. false: one of them cannot be marked now. */
bool gs_marker_tails(struct gs_gpu *g, uint64_t now);
void gs_marker_look(struct gs_stream *e); /* takes note of what the GPU has passed */
void gs_marker_reap(struct gs_gpu *g);    /* the same for all streams of the GPU */
bool gs_marker_any(const struct gs_gpu *g);          /* is one not passed yet */
struct gs_marker *gs_marker_oldest(struct gs_stream *e); /* of the stream, else of its GPU; NULL none */
uint64_t gs_marker_left(struct gs_stream *e, uint64_t now); /* estimated work that the GPU has to do, ns */
void gs_marker_to_strays(struct gs_stream *e);       /* the stream goes, its work stays */
void gs_marker_forget(struct gs_stream *e);          /* its context goes */
/* What a launch is thought to cost, ns; unknown is said of a new graph. Once
 * for each launch. */
uint64_t gs_marker_cost(struct gs_stream *e, void *graph, uint64_t unknown);
bool gs_marker_alone(struct gs_gpu *g, void *graph); /* to be measured by itself this time */

/* ---- turns.c: the GPU is locked ---- */
/* Asks the broker for a turn, unless that was done for the page's turn, or the
 * broker knows and there is no burst to foretell; again asks all the same. */
void gs_turns_ask(struct gs_gpu *g, uint64_t turn, bool again, uint64_t now);
void gs_turns_begin(struct gs_gpu *g, enum gs_phase phase, uint64_t turn, uint64_t now);
void gs_turns_forked(void); /* without the lock */

/* Waits until the page's bell is not what it was, or ns have gone by. */
void gs_bell_wait(struct gs_page *page, uint32_t was, uint64_t ns);
void gs_bell_ring(struct gs_page *page);

#endif
