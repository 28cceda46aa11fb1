/* The native protocol and the page, as the hook sees them. internal/wire is the Go
 * side. A test there compiles this file and compares every offset. All is little
 * endian. Reserved fields are 0 when sent and ignored when read. */
#ifndef GPUSTEWARD_WIRE_H
#define GPUSTEWARD_WIRE_H

#include <stdint.h>

#define GS_MAGIC 0x57535047u /* "GPSW" */
#define GS_MAJOR 3
#define GS_MINOR 13
#define GS_FRAME_MAX 4096 /* bytes, header and payload */
#define GS_GPUS 16        /* most GPUs of one session */
#define GS_CALLER_AT 12   /* see gs_hello */

enum gs_type {
	GS_HELLO = 1,      /* struct gs_hello; first of a session */
	GS_WELCOME,        /* struct gs_welcome, the page's descriptor, and perhaps that of the leases */
	GS_RESUME,         /* struct gs_hello, with what the session had */
	GS_PING,           /* empty */
	GS_PONG,           /* empty; seq is the PING's */
	GS_RESERVE,        /* struct gs_memory; answered by GRANT or DENY with its seq */
	GS_GRANT,          /* struct gs_memory */
	GS_DENY,           /* struct gs_memory; bytes is what could be had */
	GS_COMMIT,         /* struct gs_memory; no answer */
	GS_ABORT,          /* struct gs_memory; no answer; reservation 0: lent bytes, which go back */
	GS_FREE,           /* struct gs_memory; no answer */
	GS_ACQUIRE,        /* struct gs_acquire: there is work; the page says whether it may be launched */
	GS_YIELD,          /* struct gs_usage: nothing is left to do, or paused work has drained */
	GS_USAGE,          /* struct gs_usage: what was done so far; the first one for a GPU takes a seat on it */
	GS_NOTICE,         /* struct gs_notice; for the program's log */
	GS_LIMITS_CHANGED, /* struct gs_memory; bytes is the new cap, as in the page */
	GS_BYE,            /* empty */
	GS_ERR,            /* struct gs_err; seq is that of the refused message */
	GS_STATS,          /* empty; from the agent or root */
	GS_STATS_REPLY,    /* empty, and a descriptor: JSON */
};

struct gs_header {
	uint32_t magic;
	uint8_t major, minor;
	uint16_t type;
	uint32_t length; /* of the payload, bytes */
	/* Of PING, since 3.1: as gs_hello.unknown, at this moment. Of YIELD and USAGE, since 3.8: the longest
	 * time slice that the process gave its contexts on the GPU itself, us, if it is beyond the driver's
	 * default. Else 0. */
	uint32_t flags;
	uint64_t seq;
	uint64_t session; /* 0 until WELCOME */
};

struct gs_hello {
	uint32_t pid; /* as the process sees itself: a hint for logs */
	uint32_t gpus;
	uint32_t cuda; /* cuDriverGetVersion */
	uint16_t leases; /* since 3.1: 1: it knows leases */
	uint16_t unknown; /* entries of the driver that the program got so far and the hook does not know */
	char hook[16];                /* version, NUL-padded */
	char tenant[64];              /* wished for, NUL-padded; empty: as the policy says */
	/* cuDeviceGetUuid; the index is the session's GPU number. Since 3.13, of a session with at most
	 * GS_CALLER_AT GPUs, the bytes from there on are TRACEPARENT of the environment, NUL-padded. */
	uint8_t uuid[GS_GPUS][16];
	uint64_t old_session;         /* RESUME only */
	uint64_t token;               /* RESUME only: the WELCOME's */
	uint64_t committed[GS_GPUS];  /* RESUME only: bytes held on each GPU */
	uint8_t trace; /* since 3.2: 1: it writes a trace, if there is room for one behind the leases */
	uint8_t crash; /* since 3.11: 1: it writes struct gs_crash, if there is room for it behind the trace */
	uint8_t reserved1[14];
};

struct gs_welcome {
	uint64_t token;
	uint32_t gpus;         /* governed ones; the others' slots stay OPEN, or PAUSE with fail_closed */
	uint32_t heartbeat_ms; /* interval of PINGs */
	uint32_t page_bytes;
	uint32_t fail_closed; /* 1: launches wait without a broker, and on GPUs that are not governed */
	char tenant[64];
	uint32_t guarantee;   /* since 3.9: the tenant's quota, for people: 1/1000 */
	uint32_t limit;       /* 1/1000; 0: the broker does not tell */
	uint64_t memory;      /* bytes; 0: no cap, or memory_part is the cap */
	uint32_t memory_part; /* 1/1000 of the GPU's */
	uint32_t elsewhere;   /* 1: some GPUs have other terms */
	uint8_t reserved[16];
};

enum gs_kind { GS_DEVICE, GS_MANAGED, GS_ARRAY, GS_VMM, GS_POOL, GS_GRAPH };

struct gs_memory {
	uint32_t gpu;
	uint32_t kind; /* enum gs_kind */
	uint64_t reservation; /* GRANT, COMMIT, ABORT */
	uint64_t bytes; /* RESERVE: wanted; GRANT: reserved; COMMIT: really taken, at most what was reserved; FREE */
	uint32_t wait; /* since 3.4, DENY: ms until it should be asked for again; 0: it is final. */
	/* Since 3.8, RESERVE: ms since it was first asked for */
	uint8_t reserved[4];
};

struct gs_acquire {
	uint32_t gpu;
	uint8_t reserved[28];
};

enum gs_why {
	GS_IDLE = 1,   /* nothing in flight, nothing launched for a while, and no launch waits */
	GS_DRAINED,    /* paused, and the last kernel has ended */
	GS_UNDRAINED,  /* paused, but the deadline came first */
};

/* What happened since the last YIELD or USAGE for this GPU. Times are CLOCK_MONOTONIC. */
struct gs_usage {
	uint16_t gpu;
	uint16_t slice_us; /* since 3.7: the page's, if it is in force; 0: the driver's default, as far as is known */
	uint16_t why;      /* enum gs_why; 0 in USAGE */
	uint16_t refused;  /* since 3.7: how often the driver refused a time slice there, since the process's start */
	uint64_t turn;        /* the page's, when it began */
	uint64_t last_ns;     /* when the last work ended, or the last launch was made, as far as is known */
	uint64_t launched;    /* kernels, graphs, copies and fills within the GPU that ended; in OPEN: were launched */
	uint64_t busy_ns;     /* in OPEN: how long work was outstanding, by samples */
	uint64_t solo;        /* those of them that tell the program's own pace: they ran while no other program did, */
	uint64_t solo_ns;     /* and took so long, one after the other */
	uint64_t longest_ns;  /* the longest single launch; 0: none was measured by itself */
	uint64_t overhead_ns; /* application threads waited in the gate */
	uint64_t copied;      /* bytes that copies were asked to move */
	uint64_t group;       /* a communicator in which the process is a rank with this GPU; 0: none to tell */
	/* Of the process, since its start: */
	uint64_t passed;      /* launches that the gate let pass because what they waited for did not come */
	uint64_t errors;      /* what the driver refused it, mostly events: it could not measure launches then */
	uint64_t uncounted;   /* allocations that could not be booked */
};

struct gs_notice {
	uint32_t level; /* 0 info, 1 warning */
	uint32_t reserved0;
	char text[248];
};

enum gs_code {
	GS_E_VERSION = 1, /* another major */
	GS_E_FRAME,       /* cannot be read */
	GS_E_STATE,       /* not now, e.g. RESERVE before HELLO */
	GS_E_TENANT,      /* unknown, or not this process's */
	GS_E_LIMIT,       /* too many sessions, reservations, messages */
	GS_E_GPU,         /* no such GPU in this session */
	GS_E_DENIED,      /* not allowed */
};

struct gs_err {
	uint32_t code; /* enum gs_code */
	uint32_t type; /* refused */
	char text[120];
};

/* The page. The broker writes it, and the process maps it read-only. After any
 * change the broker adds 1 to bell and wakes its futex (shared). */
enum gs_mode {
	GS_OPEN,  /* launch at will */
	GS_RUN,   /* launch, with at most inflight_us of work queued on each stream; ACQUIRE with the first launch */
	GS_PAUSE, /* do not launch: drain and YIELD; send ACQUIRE if a launch waits */
	GS_KILL,  /* the session is revoked: as if there were no broker */
};

struct gs_slot {
	uint32_t mode;         /* written last */
	uint32_t flags;        /* GS_BESIDE, GS_HASTE */
	uint64_t turn;         /* changes with each turn of this tenant */
	uint64_t end_ns;       /* CLOCK_MONOTONIC; 0: open end */
	uint64_t used;         /* bytes of the tenant, all processes */
	uint64_t cap;          /* bytes; 0: none */
	uint32_t inflight_us;
	uint32_t share_permille; /* to go on with if the broker dies */
	uint64_t link;         /* bytes a second that this process may copy over the link; 0: without a rate */
	uint64_t copy;         /* bytes a second that it may copy within the GPU; 0: without a rate */
	uint32_t processes;    /* of the tenant; since 3.1 */
	uint32_t slice_us;     /* since 3.7: time slice of the process's contexts; 0: the driver's default */
	uint32_t pace_permille; /* since 3.10: part of the time that launches may take, by their lone cost; 0: all */
	uint8_t reserved[52];
};

#define GS_BESIDE 1u /* RUN while others do: send USAGE every 10 ms, or OPEN while others are: every second */
#define GS_HASTE 2u  /* RUN while others wait: YIELD as soon as there is nothing to do; OPEN: send USAGE every 100 ms */

/* Bytes that the process may take without RESERVE and COMMIT, and into which it
 * puts what it frees, and GS_LEASE_OPEN. Both sides may change a word at any
 * moment. The broker closes it by writing 0 if others need the bytes. */
struct gs_leases {
	uint64_t idle[GS_GPUS];
};

/* What the program does, as its process notes it, and as far as it can be believed.
 * It lies in the leases' file, GS_TRACE_AT bytes from the beginning, and outlives
 * the process. */
#define GS_TRACE_AT 4096
#define GS_EVENTS_KEPT 65536
#define GS_BLOCK 16 /* numbers of events that a thread takes at a time */
#define GS_COMMUNICATORS 16
#define GS_PEERS 3

/* The comment tells the event's id. */
enum gs_event_kind {
	GS_EVENT_LAUNCH = 1, /* a kernel; hash of the function */
	GS_EVENT_GRAPH,      /* hash of the executable graph */
	GS_EVENT_WAIT,       /* the thread begins to wait for the GPU; enum gs_waited_for */
	GS_EVENT_WAITED,     /* and goes on */
	GS_EVENT_COPY,       /* a copy or fill; bytes in units of 64 */
	GS_EVENT_COPYING,    /* the same, and the thread waits for it */
	GS_EVENT_COPIED,     /* and goes on */
	GS_EVENT_ALLOC,      /* units of 4096 bytes */
	GS_EVENT_FREE,       /* 0 */
	GS_EVENT_COLLECTIVE, /* a call of NCCL; hash of operation and bytes; gpu is the communicator's index */
	GS_EVENT_HELD,       /* the gate holds the thread back, because others go first; 0 */
	GS_EVENT_RELEASED,   /* and lets it go */
	GS_EVENT_BUSY,       /* by looks: the GPU had work for so many us since the last such event */
	GS_EVENT_COLLECTED,  /* the GPU is done with a collective; us that it took there; gpu as above */
	GS_EVENT_TIMED,      /* since 3.12; the GPU is done with a launch that was timed; hash as of LAUNCH or GRAPH. Next
	                      * the same thread notes */
	GS_EVENT_TOOK,       /* how long that took there; units of 10 ns */
};

enum gs_waited_for { GS_WAIT_STREAM, GS_WAIT_EVENT, GS_WAIT_CONTEXT, GS_WAIT_QUEUE /* a launch, for room */ };

struct gs_event {
	uint64_t ticks; /* of the processor's clock, see gs_trace */
	uint32_t id;
	uint32_t what; /* from the lowest bit: 8 kind, 8 lap, 4 gpu of the session, 12 place of the thread; written last */
};

/* A rank with which the process exchanges data: sends and receives. Its counts are modulo 65536. */
struct gs_peer {
	uint32_t rank; /* and 1; 0: none */
	uint16_t sent, received; /* calls */
};

/* A communicator that the process is a rank of. */
struct gs_communicator {
	uint64_t id; /* the same for all its ranks; 0: none */
	uint32_t rank, ranks;
	uint64_t entered;       /* collectives that were called, */
	uint64_t entered_ticks; /* the last one at this time */
	uint64_t ended;         /* the last of them that the GPU is known to be done with; 0: none is known */
	uint64_t bytes;         /* of all, as the program's buffers count them */
	uint64_t measured;      /* collectives whose time on the GPU was measured, */
	uint64_t measured_ns;   /* and that time, waiting for other ranks included */
	uint32_t op;            /* of the last one: enum gs_collective */
	uint32_t gpu;           /* of the session */
	uint64_t begun;         /* the last of them that the GPU is known to have begun: it waits there; 0: none is known */
	uint64_t unbegun;       /* since 3.3, as what follows: the first that it is known not to have begun; 0: none is known */
	struct gs_peer peer[GS_PEERS]; /* the first ones */
	uint32_t inside;        /* the GPU is known to be in an exchange with the peers of these bits */
	uint32_t before;        /* it is known not to have come to one that was called */
	/* Where another stream waits for the last collective so far, the low bits of its number. 0: unknown */
	uint32_t reached;       /* the last one to which the GPU is known to have come */
	uint32_t unreached;     /* the first one to which it is known not to have come */
};

enum gs_collective {
	GS_ALL_REDUCE = 1, GS_BROADCAST, GS_REDUCE, GS_ALL_GATHER, GS_REDUCE_SCATTER, GS_ALL_TO_ALL, GS_GATHER,
	GS_SCATTER, GS_SEND, GS_RECV,
};

/* Memory for which the driver cannot checkpoint a process. */
enum gs_shared { GS_SHARED_MANAGED = 1, GS_SHARED_PROCESSES = 2, GS_SHARED_MULTICAST = 4 };

struct gs_trace {
	uint64_t head; /* numbers ever taken; an event's index is its number modulo GS_EVENTS_KEPT, its lap the rest */
	uint8_t reserved0[56];
	uint32_t version;           /* 2, once the clock is written; 1: each event takes a number of its own */
	uint32_t writing;           /* odd while the clock is written */
	uint64_t first_ticks, first_ns; /* CLOCK_MONOTONIC at these ticks, when the trace began */
	uint64_t last_ticks, last_ns;   /* and lately */
	uint64_t lost;              /* collectives of communicators for which there was no room */
	uint32_t shared;            /* since 3.5: enum gs_shared, all that the process ever had */
	uint32_t failed;            /* since 3.11: CUresult of the first fault that ended a context; 0: none did */
	uint64_t failed_ns;         /* CLOCK_MONOTONIC, when a call returned it */
	struct gs_communicator communicator[GS_COMMUNICATORS];
	struct gs_event event[GS_EVENTS_KEPT];
};

/* What explains a crash, beside the launches in the trace. It lies directly behind the trace. */
#define GS_ALLOCATIONS 4096
#define GS_KERNELS 4096
#define GS_NAME_BYTES 524288 /* of all names */
#define GS_GRAPHS_NAMED 512        /* that have names among the kernels, and */
#define GS_GRAPH_KERNELS 8   /* kernels of one in its name */

/* GPU memory of the program. A place is taken again once it was freed, and others later than it. */
struct gs_allocation {
	uint64_t address; /* 0: none */
	uint64_t bytes;
	uint64_t made_ns, freed_ns; /* CLOCK_MONOTONIC; freed_ns 0: it is there */
};

/* A kernel of which the program got a handle. Another one may have its id later. So may an executable graph, whose name
 * is "graph NODES COUNTxID ...": how many of its nodes launch kernels, and how many of these launch which one, by its
 * id in 8 hexadecimal digits, those with the most nodes first. */
struct gs_kernel {
	uint64_t since_ns; /* of launches since then, CLOCK_MONOTONIC: when the program got the handle */
	uint32_t id;      /* of its launches */
	uint32_t name;    /* its place in the names, and 1; it ends with a 0; 0: no name. Written last */
};

struct gs_crash {
	uint64_t unlisted; /* allocations that found no place, or whose memory moves: of graphs */
	uint64_t unnamed;  /* kernels without room for their names */
	struct gs_allocation allocation[GS_ALLOCATIONS];
	struct gs_kernel kernel[GS_KERNELS];
	char names[GS_NAME_BYTES];
};

#define GS_LEASE_OPEN (1ull << 63)
#define GS_LEASE_MAX (1ull << 29) /* bytes: beyond this, freed bytes go back to the broker until half of it is left */

struct gs_page {
	uint32_t magic;
	uint32_t version; /* 1 */
	uint64_t session;
	uint64_t heartbeat_ns; /* CLOCK_MONOTONIC, every 250 ms */
	uint32_t bell;
	uint32_t gated; /* 0: every slot is OPEN */
	uint32_t suspended; /* since 3.6; not 0: the driver takes the process's GPU state, or has it */
	uint32_t timed; /* since 3.12; us, about, from one launch whose GPU time is noted to the next; 0: none is */
	uint8_t reserved[88];
	struct gs_slot slot[GS_GPUS];
};

#endif
