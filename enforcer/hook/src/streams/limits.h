/* The numbers by which the gate decides. */
#ifndef GPUSTEWARD_LIMITS_H
#define GPUSTEWARD_LIMITS_H

#define LOOK_NS 1000000000  /* a waiting launch looks around at this interval */
#define STALE_NS 4000000000 /* the helper should long have seen that the broker's heart stopped */
#define NAP_NS 20000        /* the shortest wait for work in flight, */
#define DOZE_NS 500000      /* and the longest without a look */
#define STALL_NS 5000000    /* if work in flight makes no progress for so long, it may wait for what is held back */
#define STALLED_NS 100000   /* the same for each launch after that, while so much is queued */
#define STALLED_DOUBLES 8   /* or twice as long after each of them, so often */
#define HOSTED_NS 1000000   /* the same while the GPU waits for a host function, which may wait for the launch */
#define PASSING_NS 2000000  /* then no launch waits for a turn for so long: the work may wait for several */
#define STALL_MOST_NS 2000000000 /* that doubles with each launch that passes in vain, up to this */
#define SLOW 4              /* work beside others may be so many times slower than alone, and still makes progress */

#define ROUSE_NS 20000000   /* while there is work, the helper does not sleep for so long */
#define GRAPH_NS 1000000    /* a graph's cost while it is not known */
#define BOUND_NS 750000     /* of work that a stream may have queued if more gains nothing */
#define DRY_NS 100000       /* hardly any */
#define BOUND_AGAIN 1000000000 /* so long after, a lower bound is tried again */
#define CREDIT_NS 300000    /* of work may go by without a look, */
#define CREDIT_MOST 64      /* or so many launches, */
#define DEAR_NS 100000      /* none of which costs so much */
#define SPRINT_NS 300000    /* at a pace, launches make up for so much that they did not take, */
#define EARLY_MOST_NS 1000000000 /* and none makes the next one wait for longer */

#endif
