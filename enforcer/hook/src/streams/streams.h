/* The threads that launch, and the contexts and streams that they launch on. */
#ifndef GPUSTEWARD_STREAMS_H
#define GPUSTEWARD_STREAMS_H

#include "streams/work.h"

struct gs_thread *gs_thread_of_self(void); /* NULL: no place is left */
/* The entry of a stream of the current context, for this thread. NULL: the
 * context's GPU is not governed. t is NULL for a thread without a place. */
struct gs_stream *gs_stream_of(struct gs_thread *t, CUstream s);
/* The thread calls it: it ends, or copies on another GPU. */
void gs_copies_settle(struct gs_thread *t);
/* A host function is queued on a stream of the context, whose GPU is known. Launches behind it may wait for it. The stream
 * does not become the thread's present one: it may be for such functions alone, as one of JAX is. */
void gs_stream_hosted(struct gs_thread *t, struct gs_context *c, CUstream s);
/* Books what the thread launched without a look. Its GPU is locked. */
void gs_stream_settle(struct gs_thread *t, uint64_t now);
/* The thread's graphs that went by without a look are booked as one launch, which tells nobody's cost. With the lock. */
void gs_stream_settle_graphs(struct gs_thread *t, uint64_t now);
/* The launches of other threads on the stream. With those under way, it is equal to an earlier one without if none
 * was made or under way in between. */
uint64_t gs_stream_beside(const struct gs_stream *e, bool under_way);
/* Streams that a thread launches on without a look, which it does in OPEN, may hold
 * launches that are not counted. */
void gs_streams_opened(struct gs_gpu *g);

struct gs_context *gs_context_of(CUcontext c); /* the place of a context, which is made if it is not there; NULL: none is left */
/* The current context, with its GPU; NULL if that is not known. */
struct gs_context *gs_context_current(void);
bool gs_contexts_one(void); /* no other context than the current one is known */

/* ---- a launch between gs_gate_enter and gs_gate_leave ---- */

/* A thread may never come to leave: it is cancelled, ends or jumps away in the
 * driver. Then its end or its next launch settles that one, as made. A launch
 * within a launch does so, too: the outer one finds at its leave that seq went on. */
struct gs_launch {
	struct gs_stream *entry; /* to be marked; NULL: nothing is to be done */
	struct gs_gpu *crowd;    /* counts it for a thread without a place; else NULL */
	CUstream stream;
	void *graph;
	uint64_t cost; /* estimated, ns of the GPU */
	uint64_t seq;  /* the thread's, which this made odd; 0: it did not */
	uint64_t beside;   /* gs_stream_beside before it, if it is timed */
	uint64_t timed_ns; /* its time is to be noted, and a marker before it was recorded then; 0: no */
	const void *what;  /* function or graph; NULL: a copy */
};

/* The last launch of this thread that the slow path let go on, until it is left. */
extern _Thread_local struct gs_launch gs_present;
/* The thread's launch that was never left, if there is one, is over, and counts as
 * made. The thread calls it when it ends or launches again. NULL: it has no place. */
void gs_launch_over(struct gs_thread *t);
void gs_gate_left(struct gs_launch *l, CUresult r); /* for gs_gate_leave: books the launch, and marks it */

/* ---- for the wrappers, without a lock ---- */

void gs_gate_stream_destroyed(CUstream s); /* before the driver's call */
/* begins: before the driver's call, and false after it if it failed.
 * Ends: after cuStreamEndCapture, whatever its answer. */
void gs_gate_capture(CUstream s, bool begins);
void gs_gate_context_destroyed(CUcontext c); /* before the driver's call: no marker of it is touched again */

#endif
