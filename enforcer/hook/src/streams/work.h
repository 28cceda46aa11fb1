/* What the gate and the helper share: the work of this process on its GPUs, in the
 * contexts and streams that it is launched on. */
#ifndef GPUSTEWARD_WORK_H
#define GPUSTEWARD_WORK_H

#include "base/bucket.h"
#include "base/hook.h"
#include "trace/threads.h"

#define GS_CONTEXTS 256
#define GS_GROUPS 8       /* communicators that the broker is told of: the first ones span the most ranks */
#define GS_AHEAD 50000000 /* ns of work that may be queued on a stream in OPEN */
#define GS_GAP 200000     /* ns: launches further apart do not tell the cost of one */
#define GS_STREAMS 1024
#define GS_MARKERS 64 /* under way on one stream */
#define GS_EVENTS 128 /* kept for reuse by one context */
#define GS_GRAPHS 256 /* whose cost is remembered, for one GPU */

extern _Atomic uint64_t gs_generation; /* of streams, contexts and graphs: see streams.c */
extern _Atomic unsigned gs_captures;   /* that may be under way, on any stream */
extern _Atomic unsigned gs_deep;       /* GPUs with so much work queued in OPEN that launches have to look */
extern _Atomic unsigned gs_tickets;    /* launches until one is timed; 0: none is to be */
extern _Atomic unsigned gs_saved;      /* further launches to be timed, for a time in which none was made */

/* After how many launches the next one is timed, by a random number. */
static inline unsigned gs_next_ticket(uint64_t random) { return 1 + (unsigned)(random % 16); }

#define GS_TIMED 512
extern _Atomic uint16_t gs_timed[GS_TIMED]; /* launches that were timed since the profile began, by what */
extern _Atomic uint64_t gs_credits;    /* changes when threads have to look again though the page did not */
extern _Atomic uint64_t gs_errors, gs_passed;
extern bool gs_fences; /* no membarrier: every launch takes the slow path, which has a fence */

struct gs_context {
	_Atomic(CUcontext) handle;    /* NULL: free */
	_Atomic(struct gs_gpu *) gpu; /* NULL until the first launch */
	_Atomic bool lost;            /* by a fault: every call in it returns that error, and launches pass */
	CUevent spare[GS_EVENTS];     /* guarded by the GPU's lock, as the count is */
	unsigned spares;
};

/* Some launches on a stream, and the event behind the last of them. */
struct gs_marker {
	CUevent event;
	struct gs_context *context; /* the event's */
	uint64_t first_ns, last_ns; /* launches that it covers */
	uint64_t recorded_ns;
	uint64_t cost;       /* estimated, ns of the GPU */
	uint64_t guessed;    /* the part of it that stands for what may have been launched in OPEN */
	uint32_t launches;   /* 0: there is nothing to mark */
	uint32_t real;       /* launches that were made and are in the books: the rest stands for what is in none */
	bool uneven;         /* it does not tell the cost of one launch: several kinds, or a gap between */
	bool hosts;          /* a host function comes before it: the GPU may have nothing to do until that ends */
	uint64_t awaited_ns; /* when a launch passed last because this had made no progress; 0: none did */
	void *graph;         /* all launches are of this one; NULL: kernels */
	uint32_t timed;      /* the one launch, whose time is noted, as gs_note_id names it; 0: it is not */
	uint32_t idle_ns;    /* of that time, which the GPU waited for the launch */
};

struct gs_stream {
	struct gs_gpu *gpu; /* never changes, so that its lock can be taken first */
	struct gs_stream *next;
	struct gs_context *_Atomic context; /* NULL: the stream is gone; read without the lock */
	CUstream stream;          /* 0 is the legacy one, 2 a thread's own */
	struct gs_thread *thread; /* the owner of a thread's own one; else NULL */
	_Atomic bool opened;      /* may hold launches that were not counted in OPEN */
	_Atomic bool hosted;      /* a host function was queued since the last launch that looked */
	unsigned stalled;         /* so many launches passed the bound, because the queued work made no progress since */
	bool bounded;             /* a launch waited for the bound, and the stream has had work since */
	uint64_t bound_ns;        /* of work that may be queued: as little as costs the program nothing; 0: the least */
	uint64_t bound_set;       /* when that changed */
	unsigned made;            /* markers */
	unsigned refusals;        /* in a row, of events: launches wait for turns, but are not measured; 0: none */
	uint64_t retry_ns;        /* the driver is not asked for an event before */
	bool stray;               /* not one stream, but the rest of those that are gone or had no room */
	struct gs_marker now;     /* what was launched since the last marker */
	uint64_t cost;            /* of a kernel, running average, ns; 0: unknown */
	uint64_t queued;          /* estimated cost of all that is not known to be done, ns */
	struct gs_marker passed;  /* the last one that the GPU reached, kept to measure from */
	uint64_t passed_ns;       /* when it was reached, as well as can be told */
	uint64_t looked_ns;       /* when the one after it was not yet passed */
	unsigned head, pending;   /* of the ring */
	struct gs_marker ring[GS_MARKERS];
};

struct gs_graph {
	void *exec;
	uint64_t cost; /* running average, ns; 0: unknown */
	unsigned seen; /* launches */
};

/* The ways of a copy. Each has a rate. */
enum gs_way {
	GS_LINK,   /* between host and GPU, or between GPUs */
	GS_WITHIN, /* within the GPU's memory */
	GS_WAYS,
};

enum gs_phase { GS_UNGATED, GS_TURN, GS_DRAINING, GS_GIVEN };

/* What the broker was told last about whether there is work. */
enum gs_told { GS_NOTHING, GS_WORK, GS_NO_WORK };

struct gs_gpu {
	/* Guards what follows, and the streams. It is held for the driver's events
	 * and the broker's messages. */
	pthread_mutex_t lock;
	struct gs_stream *streams, *spare;
	struct gs_stream strays;
	struct gs_graph graphs[GS_GRAPHS];
	struct gs_usage usage; /* since the last message */
	struct gs_bucket bucket[GS_WAYS];
	uint64_t copied;       /* bytes, of threads that ended or copy on another GPU now */
	_Atomic uint64_t gone; /* launches of threads that ended or launch on another GPU now */
	_Atomic uint64_t crowd, crowded; /* launches of threads without a place: ever, and under way */
	uint64_t progress_ns;  /* when it was last seen to pass a marker */
	uint64_t paced_ns;     /* up to when the program's lone pace is known; 0: not at all in this turn */
	bool unpaced;          /* what is under way was launched before the pace counts: the next marker begins it */
	uint64_t longest_ns;   /* launch, of late */
	unsigned waiting;      /* threads that wait at the gate */
	uint64_t line_ns;      /* when the launches so far will have taken their time, at the page's pace */

	/* turns.c */
	enum gs_phase phase;
	enum gs_told told;    /* in the session */
	uint64_t epoch;       /* of this number */
	_Atomic bool seated;  /* the process made a context */
	uint64_t seat;        /* the session in which the broker was told so */
	uint64_t group[GS_GROUPS]; /* communicators in which it is a rank with this GPU */
	unsigned groups;
	bool uncounted;       /* launches went by in OPEN since the GPU was last known to be drained */
	bool undrained;       /* the broker was told so */
	bool look;            /* the page changed after that, and it is not settled what was launched meanwhile */
	bool deep;            /* in OPEN: what was queued a while ago is not done, */
	uint64_t shallow_ns;  /* or was done at the last look, at this time */
	bool busy;            /* in OPEN: work was outstanding at the last look */
	uint32_t flags;       /* the page's, at the beginning of the phase */
	uint64_t given;       /* launches ever made when the phase became GIVEN, */
	uint64_t reported;    /* when the broker was last told of them, */
	uint64_t seen, seen_ns; /* at the last look, and when they were seen to change */
	uint64_t glanced, next_ns; /* the helper's own: launches at the last glance, and until when a glance will do */
	uint64_t turn;        /* the page's, at the beginning of the phase */
	uint64_t began_ns;    /* the phase */
	uint64_t told_ns;     /* the last USAGE */
	uint64_t asked_ns;    /* the last ACQUIRE */
	uint64_t grace_ns;    /* if others wait, the broker is told after so long without work */
	uint64_t rested_ns;   /* since when */
	uint64_t sampled_ns;  /* in OPEN: the last look */
	uint64_t doubt;       /* launches when it found nothing to do: a rest, if there is none soon */
	bool doubted;
	uint64_t copies_told; /* bytes ever copied when the broker was last told of them */
	uint16_t slice_told, refused_told; /* the same for time slices */
	uint32_t own_told;
};
extern struct gs_gpu gs_gates[GS_GPUS];

static inline unsigned gs_gpu_index(const struct gs_gpu *g) { return (unsigned)(g - gs_gates); }

static inline void gs_relax(void)
{
#if defined __x86_64__
	__builtin_ia32_pause();
#elif defined __aarch64__
	__asm__ volatile("yield");
#endif
}

/* The lock of a GPU is held for a few microseconds. Sleeping for it would cost
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

uint64_t gs_launches(struct gs_gpu *g); /* that the process ever made on this GPU */
bool gs_quiet(struct gs_gpu *g);        /* no launch is under way */
/* Nothing may be recorded on the stream: it captures, or cannot be asked. In a context
 * that is lost nothing is captured. */
bool gs_stream_captures(CUstream s);
struct gs_stream *gs_strays(struct gs_gpu *g);
uint64_t gs_gate_errors(void); /* what the gate was refused since the start, mostly events */

#endif
