/* What the gate and the helper share: GPUs, contexts, streams and what is
 * under way on them. */
#ifndef GPUSTEWARD_STREAMS_H
#define GPUSTEWARD_STREAMS_H

#include <pthread.h>

#include "bucket.h"
#include "hook.h"

#define GS_THREADS 4096
#define GS_CONTEXTS 256
#define GS_GROUPS 8 /* communicators that the broker is told of: the first ones span the most ranks */
#define GS_AHEAD 50000000 /* ns of work that may be queued on a stream in OPEN */
#define GS_GAP 200000 /* ns: launches further apart say nothing of what one takes */
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
	uint32_t launches; /* 0: there is nothing to mark */
	uint32_t real;     /* of them, those that were made and are in the books: the rest stands for what is in none */
	bool uneven;       /* says nothing of the cost of one: several kinds, or a gap between */
	uint64_t awaited_ns; /* when a launch passed last because this had made no progress; 0 none did */
	void *graph;       /* all were of this one; NULL kernels */
};

struct gs_stream {
	struct gs_gpu *gpu; /* for good, so that its lock can be taken before anything is looked at */
	struct gs_stream *next;
	struct gs_context *context;
	CUstream stream;          /* 0 the legacy one, 2 a thread's own */
	struct gs_thread *thread; /* whose own; else NULL */
	_Atomic bool opened;      /* may hold launches that went uncounted in OPEN */
	bool stalled;             /* a launch passed the bound, because what is queued made no progress since */
	bool bounded;             /* a launch waited for the bound, and the stream has had work since */
	uint64_t bound_ns;        /* of work that may be queued: as little as costs the program nothing; 0 the least */
	uint64_t bound_set;       /* when that changed */
	bool broken;              /* the driver refused something: let pass for good */
	bool stray;               /* not one stream: what is left of those that are gone, or had no room */
	struct gs_marker now;     /* what has been launched since the last marker */
	uint64_t cost;            /* of a kernel, running average, ns; 0 unknown */
	uint64_t queued;          /* estimated cost of all that is not known to be done, ns */
	struct gs_marker passed;  /* the last that the GPU reached, kept to measure from, */
	uint64_t passed_ns;       /* and when that was, as well as can be told */
	uint64_t looked_ns;       /* when the one after it had not passed yet */
	unsigned head, pending;   /* of the ring */
	struct gs_marker ring[GS_MARKERS];
};

struct gs_graph {
	void *exec;
	uint64_t cost; /* running average, ns; 0 unknown */
	unsigned seen; /* launches */
};

enum gs_phase { GS_UNGATED, GS_TURN, GS_DRAINING, GS_GIVEN };

/* What the broker was told last of whether there is work. */
enum gs_told { GS_NOTHING, GS_WORK, GS_NO_WORK };

struct gs_gpu {
	pthread_mutex_t lock; /* guards what follows, and the streams; held for the driver's events and the broker's messages */
	struct gs_stream *streams, *spare;
	struct gs_stream strays;
	struct gs_graph graphs[GS_GRAPHS];
	struct gs_usage usage; /* since the last message */
	struct gs_bucket bucket[GS_WAYS];
	uint64_t copied;      /* bytes, of threads that are gone or copy on another GPU now */
	_Atomic uint64_t gone; /* launches of threads that are gone or launch on another GPU now */
	_Atomic uint64_t crowd, crowded; /* launches of threads without a place: ever, and under way */
	uint64_t progress_ns; /* when it was seen to pass a marker last */
	uint64_t paced_ns;    /* up to when it is known how fast the program gets on alone; 0 nothing is of this turn */
	bool unpaced;         /* what is under way was launched before that is to be known: it begins with the next marker */
	uint64_t longest_ns;  /* launch, of late */
	unsigned waiting;     /* threads that wait at the gate */

	/* turns.c */
	enum gs_phase phase;
	enum gs_told told;    /* in this session: */
	uint64_t epoch;
	_Atomic bool seated;  /* the process made a context, */
	uint64_t seat;        /* and the broker knows that, in this session */
	uint64_t group[GS_GROUPS]; /* communicators that it is a rank of with this GPU */
	unsigned groups;
	bool uncounted;       /* launches went by in OPEN since the GPU was last known to be drained */
	bool undrained;       /* the broker was told so */
	bool look;            /* the page changed after that, and it is not settled what was launched meanwhile */
	bool deep;            /* in OPEN: what was queued a while ago is not done, */
	uint64_t shallow_ns;  /* or was when it was looked last */
	bool busy;            /* in OPEN: work was outstanding when it was looked last */
	uint32_t flags;       /* the page's, as the phase has them */
	uint64_t given;       /* launches ever made, when the phase became GIVEN */
	uint64_t reported;    /* the same, when the broker was told of them last */
	uint64_t seen, seen_ns; /* the same, when it was looked last, and when it was seen to change */
	uint64_t glanced, next_ns; /* the helper's own: launches at the last glance, and until when a glance will do */
	uint64_t turn;        /* the page's, when the phase began */
	uint64_t began_ns;    /* the phase */
	uint64_t told_ns;     /* the last USAGE */
	uint64_t asked_ns;    /* the last ACQUIRE */
	uint64_t grace_ns, rested_ns; /* for how long nothing has to be done, where others wait, before the broker is told; and when it was */
	uint64_t sampled_ns;  /* in OPEN: the last look */
	uint64_t copies_told; /* bytes ever copied, when the broker was told of them last */
};

extern struct gs_gpu gs_gates[GS_GPUS];
extern struct gs_thread gs_threads[GS_THREADS];
extern _Atomic unsigned gs_threads_used; /* no thread's place lies beyond */
extern _Atomic uint64_t gs_errors, gs_passed;
extern bool gs_fences; /* no membarrier: every launch takes the slow path, which has a fence */

static inline unsigned gs_gpu_index(const struct gs_gpu *g) { return (unsigned)(g - gs_gates); }

static inline void gs_relax(void)
{
#if defined __x86_64__
	__builtin_ia32_pause();
#elif defined __aarch64__
	__asm__ volatile("yield");
#endif
}

/* The lock of a GPU is held for a few microseconds, and to sleep for it costs
 * more than that. */
static inline void gs_gpu_lock(struct gs_gpu *g)
{
	for (int i = 0; i < 2000; i++) {
		if (!pthread_mutex_trylock(&g->lock))
			return;
		gs_relax();
	}
	pthread_mutex_lock(&g->lock);
}

/* ---- streams.c ---- */
struct gs_thread *gs_thread_of_self(void); /* NULL: no place left */
/* The entry of a stream of the current context, for this thread; NULL where
 * the context's GPU is not governed. t is NULL for a thread without a place. */
struct gs_stream *gs_stream_of(struct gs_thread *t, CUstream s);
/* Books what the thread launched without a look; its GPU is locked. */
void gs_stream_settle(struct gs_thread *t, uint64_t now);
/* How many launches the process ever made on this GPU; whether none is under way. */
uint64_t gs_launches(struct gs_gpu *g);
bool gs_quiet(struct gs_gpu *g);
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
void gs_marker_add(struct gs_stream *e, struct gs_context *c, void *graph, uint32_t launches, uint64_t cost, uint64_t now);
uint64_t gs_marker_outstanding(const struct gs_gpu *g); /* launches in the books that are not known to be done */
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
struct gs_marker *gs_marker_oldest(struct gs_stream *e); /* NULL none */
void gs_marker_suspect(struct gs_gpu *g); /* what is the oldest of each stream says nothing of costs */
void gs_marker_await(struct gs_gpu *g, uint64_t now); /* a launch passes for what is the oldest of each stream */
uint64_t gs_marker_left(struct gs_stream *e, uint64_t now); /* estimated work that the stream has to do, ns */
uint64_t gs_marker_dearest(struct gs_gpu *g); /* cost of what the GPU may be at now, or has been at lately, at most, ns */
void gs_marker_sound(struct gs_gpu *g, uint64_t now); /* in OPEN: marks where the streams are now */
bool gs_marker_older(const struct gs_gpu *g, uint64_t than); /* is a marker not passed that was recorded before then */
bool gs_marker_idle(struct gs_gpu *g); /* no stream that was launched on has work, as the driver says now */
void gs_marker_to_strays(struct gs_stream *e);       /* the stream goes, its work stays */
void gs_marker_forget(struct gs_stream *e);          /* its context goes */
/* What a launch is thought to cost, ns; unknown is said of a new graph. Once
 * for each launch. */
uint64_t gs_marker_cost(struct gs_stream *e, void *graph, uint64_t unknown);
bool gs_marker_alone(struct gs_gpu *g, void *graph); /* to be measured by itself this time */

extern _Atomic uint64_t gs_turns_wake; /* when the helper wakes by itself */

/* ---- turns.c: the GPU is locked ---- */
/* Tells the broker that there is work, unless it was told; again all the same. */
void gs_turns_ask(struct gs_gpu *g, bool again);
/* Tells the broker that there is a context, unless it was told. */
void gs_turns_seat(struct gs_gpu *g);
/* Tells it of a communicator that this process is a rank of with this GPU. */
void gs_turns_group(struct gs_gpu *g, uint64_t group);
void gs_turns_begin(struct gs_gpu *g, enum gs_phase phase, uint64_t turn, uint32_t flags, uint64_t now);

/* ---- gate.c ---- */
/* The thread's launch that nobody left, if there is one, is over, and counts as
 * made. For that thread: it ends, or launches again. */
void gs_launch_over(struct gs_thread *t); /* NULL: it has no place */
/* The launch that this thread was let go on with by the slow path last, by which
 * that is known, until it is left. */
extern _Thread_local struct gs_launch gs_present;
void gs_gate_drained(void); /* no work of this process is under way on some GPU */
void gs_gate_helped(struct gs_stream *e, uint64_t now); /* its work had made no progress, and went on soon after a launch passed */

/* Waits until the page's bell is not what it was, or ns have gone by. */
void gs_bell_wait(struct gs_page *page, uint32_t was, uint64_t ns);
void gs_bell_ring(struct gs_page *page);

#endif
