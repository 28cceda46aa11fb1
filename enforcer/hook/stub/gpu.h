/* The simulated GPUs: state that all processes share through one mapped file. It
 * has no thread of its own: the first process that looks moves it on to the
 * present. */
#ifndef GPUSTEWARD_STUB_GPU_H
#define GPUSTEWARD_STUB_GPU_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define GS_STUB_GPUS_MAX 64
#define GS_STUB_PROCS 256
#define GS_STUB_STREAMS 1024
#define GS_STUB_EVENTS 32768
#define GS_STUB_RING 1024 /* entries of a stream, as on a real driver */
#define GS_STUB_MEETINGS 1024
#define GS_STUB_RANKS 64 /* of a meeting */
#define GS_STUB_WORDS 4096
#define GS_STUB_CLIENTS 1024 /* processes that have called cuInit */

/* MEET and SPIN are kernels. When their own work is done, they spin until their
 * partners have begun or a word has its value. A WRITE writes a word when it ends.
 * UNTIL holds its stream up without spinning. HOST does so until its process has
 * run a function. */
enum gs_work {
	GS_WORK_KERNEL, GS_WORK_EVENT, GS_WORK_WAIT, GS_WORK_COPY,
	GS_WORK_MEET, GS_WORK_SPIN, GS_WORK_WRITE, GS_WORK_UNTIL, GS_WORK_HOST,
};

static inline bool gs_waits(uint32_t work)
{
	return work == GS_WORK_MEET || work == GS_WORK_SPIN || work == GS_WORK_UNTIL || work == GS_WORK_HOST;
}

/* MEET: the meeting, the rank, the sequence number (0: the rank's next), how long it
 * goes on when all have begun, ns, and what each must have come for.
 * SPIN, UNTIL, WRITE: the word, how to compare, the value. */
struct gs_wait { uint32_t place, how; uint64_t value, lasts, what; };

enum gs_how { GS_AT_LEAST, GS_EQUAL, GS_AND, GS_NOR, GS_COMPARE = 3, GS_WIDE = 4 }; /* WIDE: 64 bits, not 32 */
#define GS_NEVER UINT64_MAX

/* The two ways of copies. Each has an engine that serves one copy at a time. */
enum gs_engine { GS_ENGINE_LINK, GS_ENGINE_MEMORY, GS_ENGINES };

/* The place of a stream when something has happened: true once the slot's head has
 * passed at, or the slot belongs to another stream. */
struct gs_point {
	uint32_t stream;
	uint32_t generation; /* 0: never recorded, hence passed */
	uint64_t at;
};

struct gs_entry {
	uint32_t work;         /* enum gs_work */
	uint32_t event;        /* EVENT: it gets the time */
	uint64_t record;       /* EVENT: the event's record at the time */
	struct gs_point point; /* WAIT */
	struct gs_wait wait;
	uint64_t until;        /* the stream's work up to here and with this, ns */
	uint64_t order;        /* among all entries of the process */
	uint64_t copied;       /* when the stream's copies up to this one are done, CLOCK_MONOTONIC ns; 0: none */
};

enum gs_stream_kind { GS_BLOCKING, GS_NON_BLOCKING, GS_LEGACY };

struct gs_slot_stream {
	uint32_t owner; /* process slot + 1; 0 free */
	uint32_t generation;
	uint32_t kind; /* enum gs_stream_kind */
	uint32_t context;
	uint32_t next;   /* of the process, + 1 */
	uint32_t closed; /* freed when its work is done */
	uint32_t met;    /* the MEET at its head has begun */
	uint32_t spins;  /* the kernel at its head has done its own work, and waits */
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
	uint32_t client; /* + 1; 0: it has never called cuInit */
	uint32_t streams; /* first, + 1 */
	uint32_t begun;   /* stream whose kernel is half done, + 1 */
	uint32_t last;    /* stream that ran last, + 1 */
	uint32_t spinning; /* streams that spin */
	uint64_t order;
	uint64_t busy; /* ns of kernels done */
	uint64_t slice; /* ns; 0: the host's */
	uint64_t used, peak; /* bytes that it holds, wherever they are: see gs_proc_used */
};

struct gs_gpu {
	pthread_mutex_t mutex; /* robust, shared by processes */
	uint64_t memory, peak; /* bytes */
	uint64_t now;          /* simulated up to here, CLOCK_MONOTONIC ns */
	uint64_t buried;       /* the last look for dead processes */
	uint64_t slice_end, switched;
	uint64_t switching; /* ns ever lost to switches */
	uint64_t records;
	uint64_t engine[GS_ENGINES]; /* it has copies to make until then, CLOCK_MONOTONIC ns */
	uint32_t copies;  /* under way */
	uint32_t current; /* process slot + 1 */
	uint32_t procs, streams, events; /* slots ever used */
	uint32_t generation;
	struct gs_slot_proc proc[GS_STUB_PROCS];
	struct gs_slot_stream stream[GS_STUB_STREAMS];
	struct gs_slot_event event[GS_STUB_EVENTS];
	struct gs_entry ring[GS_STUB_STREAMS][GS_STUB_RING];
};

/* A place where partners meet, on any GPUs and in any processes. */
struct gs_meeting {
	uint64_t group; /* 0 free */
	uint32_t count; /* of ranks */
	uint32_t user[GS_STUB_RANKS];  /* the last launch of that rank: GPU and process slot, + 1; 0: none, or gone */
	uint64_t begun[GS_STUB_RANKS]; /* the last sequence number that it has begun */
	uint64_t at[GS_STUB_RANKS][2]; /* when it began its last one, and the one before: by their lowest bit */
	uint64_t what[GS_STUB_RANKS][2]; /* that it came for: kernels that differ in this never meet */
	uint64_t aborted; /* ranks whose kernels end at once, a bit each */
	uint64_t rounds[GS_STUB_RANKS];  /* in which the rank has said something to the others: on the host */
	uint64_t said[GS_STUB_RANKS][2]; /* in its last two rounds */
};

/* A word of memory that streams or kernels of a process wait for or write. No other
 * memory has any contents. It is 0 at first. */
struct gs_word {
	int32_t pid; /* 0 free */
	uint64_t gpus; /* on which that process uses it, a bit each */
	uint64_t at, value;
	uint64_t time; /* of its last change */
};

/* What checkpoints have made of a process. The first four are the driver's own. A call
 * that locks or restores it keeps it in one of the last two meanwhile, and if the
 * caller dies, the process goes back to where it was. Where a process's memory is
 * follows from this word alone, so that a caller can be killed at any time. */
enum gs_state { GS_RUNNING, GS_LOCKED, GS_CHECKPOINTED, GS_FAILED, GS_LOCKING, GS_RESTORING };

/* What a checkpoint of it does. */
enum gs_checkpoint { GS_WORKS, GS_REFUSES, GS_FAILS, GS_HANGS };

/* A process that has called cuInit. While it lives, it holds a lock on a byte of the
 * file, and so does the one that is at a checkpoint of it. */
struct gs_client {
	_Atomic int32_t pid;     /* 0 free; it may be dead */
	_Atomic uint32_t state;  /* enum gs_state; a futex */
	_Atomic int32_t worker;  /* who is at a checkpoint of it */
	_Atomic uint32_t shares; /* it has exported or imported memory */
	uint32_t checkpoint;     /* enum gs_checkpoint */
	int32_t state_fd;        /* of its own */
};

struct gs_host {
	uint64_t magic; /* written last when the file is made */
	uint32_t gpus, reserved;
	uint64_t slice, change; /* ns; of processes that set no other */
	uint64_t rate[GS_ENGINES]; /* bytes a second */
	_Atomic uint64_t waits; /* entries in streams that wait, of all GPUs (gs_waits) */
	_Atomic uint32_t bell;  /* a futex: rung when work that others may wait for was done */
	_Atomic uint64_t look;  /* when the next of those who cannot tell how long they wait looks again */
	struct gs_client client[GS_STUB_CLIENTS]; /* each is given out under the lock on the first byte */
	pthread_mutex_t places; /* robust; guards what follows, and is taken after a GPU's */
	uint32_t meetings, words; /* slots ever used */
	struct gs_meeting meeting[GS_STUB_MEETINGS];
	struct gs_word word[GS_STUB_WORDS];
	struct gs_gpu gpu[GS_STUB_GPUS_MAX];
};

/* host.c */
extern struct gs_host *gs_host;
uint64_t gs_stub_now(void); /* CLOCK_MONOTONIC, ns */
bool gs_host_open(void);    /* by GS_STUB_FILE; once */
uint64_t gs_setting(const char *name, uint64_t otherwise); /* of the environment */
/* A lock on a byte of the file, of fcntl's command and type: it ends with the process, however that
 * ends, and a child does not have it. F_GETLK: true if no other process has it. */
bool gs_byte_lock(int command, short type, off_t at);
struct gs_gpu *gs_gpu_lock(unsigned gpu); /* moved on to the present; no other may be locked already */
void gs_gpu_unlock(struct gs_gpu *g);
/* The same, to change what this process has there: waits as long as it is locked for a checkpoint. */
struct gs_gpu *gs_gpu_change(unsigned gpu);
void gs_host_lock(void); /* all GPUs, moved on to the present */
void gs_host_unlock(void);
uint64_t gs_used(const struct gs_gpu *g); /* bytes taken; locked */
int gs_proc_join(struct gs_gpu *g); /* this process's slot; -1: none is left; locked */
void gs_proc_leave(struct gs_gpu *g, int proc);
bool gs_memory_take(struct gs_gpu *g, int proc, uint64_t bytes); /* takes the lock; false: out of memory */
void gs_memory_give(struct gs_gpu *g, int proc, uint64_t bytes); /* takes the lock */
void gs_bell_ring(void);
void gs_bell_await(uint32_t seen, uint64_t until); /* until it is rung, or until then, CLOCK_MONOTONIC ns */

/* client.c */
extern struct gs_client *gs_client; /* this process's; NULL before gs_client_open */
bool gs_client_open(enum gs_checkpoint checkpoint); /* false: there are too many */
bool gs_client_alive(const struct gs_client *c);
bool gs_client_begin(struct gs_client *c); /* this process is at a checkpoint of it; false: another one is */
void gs_client_end(struct gs_client *c);
bool gs_client_change(struct gs_client *c, enum gs_state from, enum gs_state to); /* false: it was not in from */
void gs_client_recover(struct gs_client *c); /* undoes what a dead process left half done */
bool gs_client_locked(const struct gs_client *c); /* its calls wait */
void gs_client_put(const struct gs_client *c, bool there); /* its state, of which who asks reads a byte */
void gs_client_ask(void); /* this process asks what a GPU has done, or waits for that */
void gs_client_await(struct gs_client *c, bool cancel); /* a call of this process: until it may go on */
uint64_t gs_proc_used(const struct gs_slot_proc *p); /* bytes that it holds on the GPU */

/* meet.c: places, by their numbers */
enum { GS_NO_PLACE = -1, GS_NO_MATCH = -2 }; /* all are taken; the group has another count */
int gs_meeting(uint64_t group, uint64_t count, uint64_t rank, unsigned gpu, int proc);
uint64_t gs_meeting_begin(struct gs_wait w, uint64_t now); /* its sequence number */
int gs_word(int pid, uint64_t at, unsigned gpu);
void gs_word_write(struct gs_wait w, uint64_t now);
void gs_meeting_abort(int place, uint64_t rank);
void gs_meeting_say(int place, uint64_t rank, uint64_t round, uint64_t value);
bool gs_meeting_heard(int place, uint64_t round, uint64_t *values); /* of all ranks; false: not yet */
uint64_t gs_wait_over(const struct gs_entry *e); /* since when it need not wait, or GS_NEVER */
void gs_places_leave(unsigned gpu, int proc, int pid); /* frees those that no process uses any more */

/* simulate.c: the GPUs are locked */
void gs_simulate(struct gs_gpu *const *gpus, unsigned n, uint64_t now);
bool gs_at_head(struct gs_gpu *g, struct gs_point p); /* its stream has come to it */
uint64_t gs_copy_ns(enum gs_engine way, uint64_t bytes); /* how long a copy takes */
uint64_t gs_predict(struct gs_gpu *g, struct gs_point p); /* no later than the point will be reached */
bool gs_passed(const struct gs_gpu *g, struct gs_point p);
void gs_stream_free(struct gs_gpu *g, uint32_t stream);

#endif
