/* Markers: the events behind launches, and what is under way on each stream. All
 * functions but gs_gate_graph_forget are called with the GPU locked. */
#ifndef GPUSTEWARD_MARKERS_H
#define GPUSTEWARD_MARKERS_H

#include "streams/work.h"

/* Notes a launch that was made, and its estimated cost, ns. */
void gs_marker_add(struct gs_stream *e, struct gs_context *c, void *graph, uint32_t launches, uint64_t cost,
		   uint64_t now);
uint64_t gs_marker_outstanding(const struct gs_gpu *g); /* launches in the books that are not known to be done */
void gs_marker_opened(struct gs_gpu *g, uint64_t now);  /* notes what may have been launched in OPEN */
/* Before a host function is queued: what was launched gets its marker, so that the
 * function's time does not count as the time of that work. */
void gs_marker_host(struct gs_stream *e, CUstream stream, uint64_t now);
/* Before a launch: marks where the host functions before it end. */
void gs_marker_hosted(struct gs_stream *e, CUstream stream, uint64_t now);
bool gs_marker_due(const struct gs_stream *e);
/* Records a marker behind what was launched. False: that cannot be done now. The
 * thread that launched calls it: the stream's context is current. */
bool gs_marker_record(struct gs_stream *e, CUstream stream, uint64_t now);
/* The same, from any thread, for all streams of the GPU that have launches without
 * a marker. One that is refused events is asked whether these are done. False: one of
 * them cannot be marked now, or they are not done. */
bool gs_marker_tails(struct gs_gpu *g, uint64_t now);
void gs_marker_look(struct gs_stream *e);   /* notes what the GPU has passed */
void gs_marker_reap(struct gs_gpu *g);      /* the same for all streams of the GPU */
bool gs_marker_any(const struct gs_gpu *g); /* one is not passed yet */
bool gs_marker_at_hosts(const struct gs_gpu *g); /* there is work, and all of it waits for host functions */
struct gs_marker *gs_marker_oldest(struct gs_stream *e);    /* NULL: there is none */
void gs_marker_suspect(struct gs_gpu *g);                   /* the oldest of each stream does not tell costs */
void gs_marker_await(struct gs_gpu *g, uint64_t now);       /* a launch passes for the oldest of each stream */
uint64_t gs_marker_left(struct gs_stream *e, uint64_t now); /* estimated work that the stream has to do, ns */
uint64_t gs_marker_known(const struct gs_stream *e); /* the same without guesses, and as if none of it was done */
/* The highest cost of what the GPU may be at now, or has been at lately, ns. */
uint64_t gs_marker_dearest(struct gs_gpu *g);
void gs_marker_sound(struct gs_gpu *g, uint64_t now);        /* in OPEN: marks where the streams are now */
bool gs_marker_older(const struct gs_gpu *g, uint64_t than); /* a marker of before then is not passed */
bool gs_marker_idle(struct gs_gpu *g); /* the driver says that no stream that was launched on has work */
void gs_marker_to_strays(struct gs_stream *e); /* the stream goes, its work stays */
void gs_marker_forget(struct gs_stream *e);    /* its context goes */
/* The estimated cost of a launch, ns; unknown is that of a new graph. It is
 * called once for each launch. */
uint64_t gs_marker_cost(struct gs_stream *e, void *graph, uint64_t unknown);
bool gs_marker_alone(struct gs_gpu *g, void *graph); /* the graph is to be measured by itself this time */
uint64_t gs_marker_learnt(struct gs_gpu *g, void *graph); /* its cost, ns; 0: it is not known, or is to be measured again */

/* The next launch is to be timed: a marker before it. Returns whether that was recorded. */
bool gs_marker_before(struct gs_stream *e, CUstream stream, uint64_t now);
/* The launch was made, alone behind that marker, which was recorded then: a marker behind it, and at once. id 0: it was
 * not alone. */
void gs_marker_time(struct gs_stream *e, CUstream stream, uint32_t id, uint64_t since, uint64_t now);

void gs_gate_graph_forget(void *exec); /* it is destroyed; without the lock */

#endif
