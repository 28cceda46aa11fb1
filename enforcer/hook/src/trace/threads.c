#include "trace/threads.h"

struct gs_thread gs_threads[GS_THREADS];
_Atomic unsigned gs_threads_used;
_Thread_local struct gs_thread *gs_self;
