/* What a child process does with the state of the hook after a fork.
 *
 * The child has one thread. Another thread may have held any lock and may have
 * been changing what the lock guards. The session and the driver belong to the
 * parent. Each part with such state makes it as new in gs_forked_PART, which runs
 * in the child before fork returns there. It allocates nothing, takes no lock,
 * does not call the driver, and calls only what a signal handler may call. A part
 * defines its handler and does not know who calls it. */
#ifndef GPUSTEWARD_FORKS_H
#define GPUSTEWARD_FORKS_H

/* The parts with such state, in the order in which they run. A program that
 * leaves a part out leaves out its handler. */
#define GS_FORKS(PART)                                                                   \
	/* There is no session, and no GPU is known: nothing of the broker's is open or mapped. */ \
	PART(session) PART(look) PART(devices)                                                          \
	/* No memory is held. */                                                         \
	PART(sums) PART(claims) PART(contexts) PART(graphs) PART(growers) PART(mappings) PART(pools) \
	/* The process's own page counts. It shows the sums. */                \
	PART(local)                                                                      \
	/* The trace is the parent's. */                                                 \
	PART(trace) PART(crash) PART(nccl)                                                         \
	/* No thread, context or stream is known, and there is no helper. */             \
	PART(streams) PART(slices) PART(helper)

#define GS_FORKED(part) void gs_forked_##part(void);
GS_FORKS(GS_FORKED)
#undef GS_FORKED

/* From now on each fork of this process runs the handlers in its child. It is called
 * before there is any such state, and may be called again. */
void gs_forks_watch(void);

#endif
