/* The numbers by which launches and copies wait: each with its unit, its reason, and the test of test_gate.c that
 * fails if it is a tenth of this or ten times as much. A number without a test only trades time for looks. */
#ifndef GPUSTEWARD_LIMITS_H
#define GPUSTEWARD_LIMITS_H

#define LOOK_NS         1000000000 /* ns: a waiting launch or copy looks around at this interval
                                    * test: who_waits_long_looks_around */
#define STALE_NS        4000000000 /* ns: the helper should long have seen that a heartbeat is so old
                                    * test: who_waits_long_looks_around */
#define NAP_NS          20000      /* ns: the shortest wait for work in flight
                                    * test: none */
#define DOZE_NS         500000     /* ns: the longest wait for work in flight without a look at it
                                    * test: none */
#define STALL_NS        5000000    /* ns: work without progress for so long may wait for a launch, which passes
                                    * test: a_stalled_launch_passes_a_pause */
#define STALLED_NS      100000     /* ns: the same for each launch after that, while so much is queued
                                    * test: a_full_queue_without_progress_lets_pass */
#define STALLED_DOUBLES 8          /* times: that is twice as long after each of them, so often
                                    * test: a_full_queue_without_progress_lets_pass */
#define HOSTED_NS       1000000    /* ns: the same if the GPU is at a host function, which may wait for the launch
                                    * test: a_launch_passes_soon_behind_a_host_function */
#define PASSING_NS      2000000    /* ns: then no launch waits for a turn for so long: the work may wait for several
                                    * test: a_stalled_launch_passes_a_pause */
#define STALL_MOST_NS   2000000000 /* ns: STALL_NS doubles with each launch that passes in vain, up to this
                                    * test: patience_ends */
#define SLOW            4          /* times: work beside others may be so much slower than alone, and yet makes progress
                                    * test: few_launches_pass_soon_behind_a_host_function */
#define ROUSE_NS        20000000   /* ns: while there is work, the helper does not sleep for longer
                                    * test: none */
#define GRAPH_NS        1000000    /* ns: a graph's cost while it is not known
                                    * test: graphs_in_open_are_bounded */
#define GRAPHS_NS       20000000   /* ns: graphs of so much work may go by without a look while the gate is open
                                    * test: graphs_in_open_go_by_on_credit */
#define OFTEN           16         /* launches: a kernel of which so many were timed leaves tickets to others
                                    * test: what_was_timed_often_leaves_the_ticket */
#define LEAVES          16         /* launches: so many leave a ticket to others, and the next one takes it
                                    * test: what_was_timed_often_leaves_the_ticket */
#define BOUND_NS        750000     /* ns: work that a stream may have queued if more gains nothing: it drains soon
                                    * test: work_in_flight_is_bounded */
#define DRY_NS          100000     /* ns: so little work in a queue is hardly any: its program was faster than the GPU
                                    * test: hardly_any_work_is_none */
#define BOUND_AGAIN_NS  1000000000 /* ns: so long after the bound grew, a lower one is tried again
                                    * test: who_runs_dry_may_queue_more */
#define CREDIT_NS       300000     /* ns: work that may go by without a look
                                    * test: cheap_launches_go_by_on_credit */
#define CREDIT_MOST     64         /* launches: no more of them go by without a look, however cheap they are
                                    * test: cheap_launches_go_by_on_credit */
#define DEAR_NS         100000     /* ns: a launch that costs so much does not go by without a look
                                    * test: dear_launches_and_graphs_have_no_credit */
#define SPRINT_NS       300000     /* ns: at a pace, launches make up for so much that they did not take
                                    * test: the_line_moves_by_the_cost */
#define EARLY_MOST_NS   1000000000 /* ns: at a pace, no launch makes the next one wait for longer
                                    * test: the_line_moves_by_the_cost */

#endif
