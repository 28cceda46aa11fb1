package enforcer_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	kernel "gpusteward/collectors/host"
	"gpusteward/enforcer/policy"
	"gpusteward/enforcer/suspend"
	"gpusteward/internal/fixture"
	"gpusteward/internal/procs"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

var kills = flag.Int("suspension.kills", 4, "`number` of cycles in which the enforcer ends twice")

// TestMain is also the child process that makes a call of the driver.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == suspend.Command {
		pid, _ := strconv.Atoi(os.Args[3])
		if err := suspend.Serve(suspend.Op(os.Args[2]), pid, os.Stdout); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// hostMemory has the host tell of so many MiB of memory, all of them available.
func (g *governed) hostMemory(mib int) {
	g.t.Helper()
	fixture.Must(g.t, os.WriteFile(g.meminfo, fmt.Appendf(nil, "MemTotal: %d kB\nMemAvailable: %[1]d kB\n", mib<<10), 0o600))
}

// suspending starts an enforcer on a simulated GPU whose checkpoints cost time
// at these rates in bytes per second. Its host has room for what is suspended.
func suspending(t *testing.T, checkpoint, restore int, tenants []string, edit ...func(*policy.Table)) *governed {
	t.Helper()
	table := policy.Table{Default: policy.Terms{Priority: policy.PriorityNormal, Quota: quota.Free()},
		Steps: quick(policy.Observe), Actions: 10}
	for _, name := range tenants {
		table.Rules = append(table.Rules, byPath(name, quota.Free(), quick(policy.Observe)))
	}
	for _, change := range edit {
		change(&table)
	}
	g := prepared(t)
	g.waits() // or they would take memory without the broker, which then does not know its kind
	g.table, g.cgroups, g.meminfo = table, t.TempDir(), filepath.Join(t.TempDir(), "meminfo")
	g.hostMemory(1 << 20)
	driver := suspend.Helper(filepath.Join(t.TempDir(), "lock"), append(g.driver, fmt.Sprintf("GS_STUB_CHECKPOINT_RATE=%d", checkpoint),
		fmt.Sprintf("GS_STUB_RESTORE_RATE=%d", restore), "GORACE=atexit_sleep_ms=0")...)
	g.call = func(ctx context.Context, op suspend.Op, pid int) (suspend.State, error) {
		return driver(context.WithoutCancel(ctx), op, pid) // which may be late on a busy machine
	}
	g.run(table)
	return g
}

// used returns the simulated GPU's memory in use now, in MiB.
func (g *governed) used() uint64 {
	used, _ := g.truth.memory(g.t)
	return used >> 20
}

// ends returns what the journal was told of suspensions.
func (g *governed) ends() []suspend.End {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.suspended)
}

// order gives an order, which must succeed within a minute.
func (g *governed) order(do func(context.Context, string) (string, error), workload, want string) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within(time.Minute))
	defer cancel()
	said, err := do(ctx, workload)
	fixture.Stop(g.t, err != nil || !strings.Contains(said, want), "%q, %v; want %q", said, err, want)
}

func (g *governed) suspend(ctx context.Context, workload string) (string, error) {
	return g.it.Suspend(ctx, workload, "tested")
}

func (g *governed) giveBack(ctx context.Context, workload string) (string, error) {
	return g.it.ResumeProcess(ctx, workload, "tested")
}

// TestAWorkloadIsSuspended takes the memory of a program with the hook and of one
// without it, while another one works on, and gives it back.
func TestAWorkloadIsSuspended(t *testing.T) {
	bothWays(t, func(t *testing.T, hooked bool) {
		g := suspending(t, 0, 0, []string{"a", "b"})
		a, b := g.works("a", hooked, "2048"), g.works("b", true, "1024")
		g.sees(2, a, b)
		pid := strconv.Itoa(a.Cmd.Process.Pid)
		g.order(g.suspend, pid, "suspended: 2448 MiB")
		fixture.Equal(t, g.used(), 1024, "hooked %v: MiB in use", hooked)
		since := fixture.Monotonic()
		poll(t, 20*time.Second, "the other one works on", func() bool { return g.moved(b, since) })
		fixture.If(t, g.moved(a, since), "hooked %v: a suspended program works", hooked)
		poll(t, time.Minute, "the books do not tell of it", func() bool { // the driver's list may be of before
			s := g.audited()
			return len(s.Suspended) == 1 && s.Suspended[0].Workload == "unit:a.service" &&
				s.Suspended[0].Phase == "suspended" && s.Suspended[0].Bytes >= 2000*mib && s.Suspensions.Suspended == 1
		})
		g.order(g.giveBack, "unit:a.service", "runs again")
		g.work(a)
		poll(t, time.Minute, "it works again", func() bool { return g.used() == 3072 })
		if s := g.audited(); len(s.Suspended) != 0 || s.Suspensions.Resumed != 1 || len(s.Suspensions.Refused) != 0 {
			t.Errorf("hooked %v: %+v %+v", hooked, s.Suspended, s.Suspensions)
		}
	})
}

// TestNoTimeAuditDuringAMove suspends a workload beside another one. Meanwhile the
// driver's count of the other one's time is not compared with its charges.
func TestNoTimeAuditDuringAMove(t *testing.T) {
	t.Parallel()
	g := suspending(t, 1<<30, 0, []string{"a", "b"})
	a, b := g.works("a", true, "1024"), g.works("b", true, "1024")
	g.sees(2, a, b)
	compared := func(s wire.EnforcerStats) bool {
		return slices.ContainsFunc(s.Quotas, func(q wire.QuotaStats) bool { return q.Tenant == "b" && q.Charge != nil })
	}
	poll(t, 60*time.Second, "it is never compared", func() bool { return compared(g.stats()) })
	ordered := make(chan error, 1)
	go func() {
		_, err := g.suspend(t.Context(), strconv.Itoa(a.Cmd.Process.Pid))
		ordered <- err
	}()
	poll(t, 60*time.Second, "it is not being suspended", func() bool { return g.phase() == "suspending" })
	if s := g.stats(); len(s.Suspended) == 1 && s.Suspended[0].Phase == "suspending" && compared(s) {
		t.Errorf("it is compared: %+v", s.Quotas)
	}
	fixture.Must(t, <-ordered)
	poll(t, 60*time.Second, "it is not compared again", func() bool { return compared(g.stats()) })
}

// TestTheEscalationSuspends has two programs that go around the hook. Both are suspended after they were paused. The
// owner of one asks for it, and it runs again; nobody asks for the other one, and it is terminated. Nothing is done to
// the first one while its memory comes back, which takes longer than a new escalation would.
func TestTheEscalationSuspends(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 1<<30, []string{"a", "b", "c"}, func(table *policy.Table) {
		for i, grace := range []time.Duration{time.Hour, ticks(5)} {
			table.Rules[i].Steps = quick(policy.Terminate)
			table.Rules[i].Steps.Grace = grace
		}
	})
	a, b, c := g.works("a", false, "1536"), g.works("b", false, "1024"), g.works("c", true, "512")
	g.work(a, b, c)
	poll(t, 60*time.Second, "it is not terminated", func() bool { return over(b) })
	up := []string{"warn done", "throttle done", "pause done", "suspend done"}
	// One that is slow to end is told so again.
	fixture.EqualSlices(t, slices.Compact(g.told("b")), append(slices.Clone(up), "terminate done"), "b")
	suspended := func() bool { s := g.stats().Suspended; return len(s) == 1 && s[0].Phase == "suspended" }
	poll(t, 60*time.Second, "it is not suspended", suspended)
	since := fixture.Monotonic()
	poll(t, 20*time.Second, "the innocent one does not work", func() bool { return g.moved(c, since) })
	if told := g.told("a"); !slices.Equal(told, up) || g.used() != 512 || g.moved(a, since) {
		t.Errorf("a: %q, %d MiB in use; it works: %v", told, g.used(), g.moved(a, since))
	}
	g.order(g.giveBack, "unit:a.service", "runs again")
	g.work(a)
	if told := g.told("a"); len(told) < 5 || told[4] != "throttle done" || len(g.ends()) < 3 {
		t.Errorf("a: %q", told)
	}
	poll(t, 60*time.Second, "it is not suspended again", suspended)
	if s := g.stats().Suspensions; len(s.Refused) != 0 || s.Broken != 0 {
		t.Errorf("%+v", s)
	}
}

// TestUnifiedMemoryIsNotSuspended leaves a program with unified memory alone,
// which the driver would break. It neither obeys an order nor gives way.
func TestUnifiedMemoryIsNotSuspended(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 0, []string{"a", "b"}, gives(0))
	start := fixture.Monotonic()
	a := g.rests("a", true, "512", "--alloc-kind=managed")
	poll(t, 20*time.Second, "it does not work", func() bool { return g.moved(a, start) })
	poll(t, 20*time.Second, "it is not listed alone", func() bool { return g.listed(1) })
	g.gaveWay(g.rests("b", true, "512"), 1)
	if s := g.stats(); s.Suspended[0].Tenant != "b" || s.Suspensions.Refused["unsupported"] != 0 {
		t.Errorf("%+v %+v", s.Suspended, s.Suspensions)
	}
	_, err := g.it.Suspend(context.Background(), "unit:a.service", "tested")
	if suspend.ReasonOf(err) != suspend.Unsupported || !strings.Contains(err.Error(), "has had unified memory") {
		t.Errorf("the order: %v", err)
	}
}

// works starts a program that holds so many MiB, and launches kernels.
func (g *governed) works(tenant string, hooked bool, mib string) *worker {
	g.t.Helper()
	return g.job(tenant, hooked, "--kernel-us=200", "--seconds=600", "--alloc-mib="+mib, "--alloc-step-mib="+mib)
}

// listed reports whether the enforcer sees so many processes on the GPU.
func (g *governed) listed(n int) bool { return len(g.DeviceProcesses()) == n }

// lists reports whether the driver lists a worker.
func (g *governed) lists(w *worker) bool {
	return slices.ContainsFunc(g.DeviceProcesses(), func(p collectors.DeviceProcess) bool {
		return p.Process.PID == w.Cmd.Process.Pid
	})
}

// TestASuspensionOutlivesTheEnforcer restarts the enforcer: the workload stays suspended, its memory stays charged to
// its tenant, and the successor gives it back.
func TestASuspensionOutlivesTheEnforcer(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 0, []string{"a"})
	a := g.works("a", true, "2048")
	g.work(a)
	poll(t, time.Minute, "it works", func() bool { return g.used() == 2048 })
	g.audited()
	g.order(g.suspend, "unit:a.service", "is suspended")
	g.stop()
	g.run(g.table)
	if s := g.audited(); len(s.Suspended) != 1 || s.Suspended[0].Phase != "suspended" || g.used() != 0 {
		t.Fatalf("%+v, %d MiB in use", s.Suspended, g.used())
	}
	g.order(g.giveBack, "unit:a.service", "runs again")
	g.work(a)
	poll(t, time.Minute, "it works again", func() bool { return g.used() == 2048 })
	poll(t, 20*time.Second, "the books have its memory", func() bool {
		for _, row := range g.it.Stats().Tenants {
			if row.Tenant == "a" && row.MemoryUsed == 2048*mib {
				return true
			}
		}
		return false
	})
}

// TestResumedWorkloadHasItsMemory suspends a program again before the driver was asked what it has.
func TestResumedWorkloadHasItsMemory(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 0, []string{"a"})
	g.sees(1, g.works("a", true, "1024"))
	g.order(g.suspend, "unit:a.service", "suspended: 1424 MiB")
	poll(t, 20*time.Second, "the monitor does not see it",
		func() bool { return g.DeviceProcesses()[0].Memory == 400*mib })
	g.sleeps()
	g.order(g.giveBack, "unit:a.service", "runs again")
	g.audited() // the monitor still sleeps
	g.audited()
	g.order(g.suspend, "unit:a.service", "suspended: 1424 MiB")
}

// TestAnOrderToResumeAwaitsTheResumption answers an order that comes during the
// suspension when the workload runs again.
func TestAnOrderToResumeAwaitsTheResumption(t *testing.T) {
	t.Parallel()
	g := suspending(t, 1<<30, 0, []string{"a"})
	a := g.works("a", true, "1024")
	g.sees(1, a)
	go func() { _, _ = g.suspend(t.Context(), "unit:a.service") }()
	poll(t, 20*time.Second, "its suspension does not begin", func() bool { return g.phase() == "suspending" })
	g.order(g.giveBack, "unit:a.service", "runs again")
}

// TestDriverFailureIsUndone lets a program go on that the driver does not
// suspend, and tells of one that the driver broke.
func TestDriverFailureIsUndone(t *testing.T) {
	t.Parallel()
	for trouble, want := range map[string]string{"refuse": "CUDA_ERROR_NOT_SUPPORTED", "fail": "CUDA_ERROR_UNKNOWN"} {
		g := suspending(t, 0, 0, []string{"a"})
		g.driver = append(g.driver, "GS_STUB_CHECKPOINT="+trouble)
		a := g.works("a", false, "1024")
		g.sees(1, a)
		ctx, cancel := context.WithTimeout(context.Background(), within(time.Minute))
		defer cancel()
		said, err := g.suspend(ctx, "unit:a.service")
		fixture.If(t, err == nil || !strings.Contains(err.Error(), want), "%s: %q, %v", trouble, said, err)
		if told := g.ends(); len(told) == 0 || told[0].Err == nil || told[0].Done != suspend.Suspended {
			t.Errorf("%s: the journal is told of %+v", trouble, told)
		}
		if trouble == "fail" {
			poll(t, 20*time.Second, "a broken process is told of, or has ended of it", func() bool {
				return g.stats().Suspensions.Broken == 1 || over(a)
			})
			continue
		}
		since := fixture.Monotonic()
		poll(t, 20*time.Second, "it goes on", func() bool { return g.moved(a, since) && len(g.stats().Suspended) == 0 })
		fixture.Equal(t, g.stats().Suspensions.Refused["unsupported"], 1, "refusals")
	}
}

// TestOrderErrorsListWorkloads answers orders that fit nobody.
func TestOrderErrorsListWorkloads(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 0, []string{"a"})
	a := g.works("a", true, "64")
	g.sees(1, a)
	ctx := context.Background()
	fixture.Fails(t, fixture.Error(g.suspend(ctx, "unit:b.service")), "unit:a.service", "the order")
	fixture.Fails(t, fixture.Error(g.giveBack(ctx, "unit:a.service")), "those that are: none", "the order")
	g.order(g.suspend, "unit:a.service", "is suspended")
	fixture.Fails(t, fixture.Error(g.suspend(ctx, "unit:a.service")), "suspended already", "the order")
	a.Kill()
	poll(t, 20*time.Second, "who ended is forgotten", func() bool { return len(g.stats().Suspended) == 0 })
}

// TestHeldProcessesDelayNoOrder gives orders while the GPU has fifty processes that have the kernel hold
// who looks at them. The time that this process waited for a processor is left out.
func TestHeldProcessesDelayNoOrder(t *testing.T) {
	g := suspending(t, 0, 0, []string{"a"})
	pids, _ := fixture.Executing(t, 50)
	g.mu.Lock()
	for _, pid := range pids {
		g.listing = append(g.listing, collectors.DeviceProcess{UUID: g.uuid, Kind: "compute", Known: true, At: time.Now(),
			Process: kernel.Process{PID: pid, Workload: &kernel.Workload{Key: "unit:held.service", Kind: kernel.KindUnit}}})
	}
	g.mu.Unlock()
	waits := fixture.WatchWaits(t)
	waits.Add(os.Getpid())
	for audits, was := 0, g.it.Stats().Enforcer; audits < 10; {
		began := time.Now()
		fixture.Fails(t, fixture.Error(g.suspend(t.Context(), "unit:b.service")), "no workload", "the order")
		took := time.Since(began)
		fixture.AtMost(t, took-waits.Most(began, began.Add(took)), time.Second, "an order took")
		if now := g.it.Stats().Enforcer; now != was {
			audits, was = audits+1, now
		}
	}
	fixture.Fails(t, fixture.Error(procs.ReadStat("/proc", pids[0])), procs.ErrHeld.Error(), "a look at one of them")
}

// TestAnEnforcerThatEndsInACycleLosesNobody ends the enforcer, and with it the child process that calls the driver, at
// moments of a suspension and of a resumption. In the end the program works.
func TestAnEnforcerThatEndsInACycleLosesNobody(t *testing.T) {
	t.Parallel()
	g := suspending(t, 8<<30, 8<<30, []string{"a"})
	a := g.works("a", true, "1024")
	g.work(a)
	poll(t, time.Minute, "it works", func() bool { return g.used() == 1024 })
	random := rand.New(rand.NewPCG(1, 2))
	for range *kills {
		g.audited()
		for _, do := range []func(context.Context, string) (string, error){g.suspend, g.giveBack} {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(random.IntN(400))*time.Millisecond)
			_, _ = do(ctx, "unit:a.service") // or there is nothing to do
			cancel()
			g.stop()
			g.run(g.table)
		}
		since := fixture.Monotonic()
		poll(t, 30*time.Second, "it is suspended, or works", func() bool {
			s := g.stats().Suspended
			return len(s) == 0 && g.moved(a, since) || len(s) == 1 && s[0].Phase == "suspended"
		})
		if s := g.stats().Suspended; len(s) == 1 {
			g.order(g.giveBack, "unit:a.service", "runs again")
		}
		g.work(a)
		poll(t, time.Minute, "it works with its memory", func() bool { return g.used() == 1024 })
	}
}

// pid returns the PID of a program as an order names it.
func (w *worker) pid() string { return strconv.Itoa(w.Cmd.Process.Pid) }

// refused gives an order that must fail with this text.
func (g *governed) refused(do func(context.Context, string) (string, error), workload, want string) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within(time.Minute))
	defer cancel()
	said, err := do(ctx, workload)
	fixture.Stop(g.t, err == nil || !strings.Contains(err.Error(), want), "%q, %v; want %q", said, err, want)
}

// sees waits until these work, and the enforcer has seen so many processes on the GPU.
func (g *governed) sees(n int, all ...*worker) {
	g.t.Helper()
	g.work(all...) // so they have their memory
	g.truth.memory(g.t)
	poll(g.t, time.Minute, fmt.Sprintf("%d processes are not listed", n), func() bool { return g.listed(n) })
	g.audited() // it may have begun before
	g.audited()
}

// TestAnOrderCancelsAResumptionUnderWay suspends a workload again whose memory is just
// coming back, and answers both orders.
func TestAnOrderCancelsAResumptionUnderWay(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 1<<30, []string{"a"})
	a := g.works("a", true, "1024")
	g.sees(1, a)
	g.order(g.suspend, "unit:a.service", "is suspended")
	resumed := make(chan error, 1)
	go func() {
		said, err := g.giveBack(t.Context(), "unit:a.service")
		if err == nil {
			err = fmt.Errorf("it says %q", said)
		}
		resumed <- err
	}()
	poll(t, 20*time.Second, "its resumption does not begin", func() bool { return g.phase() == "resuming" })
	g.order(g.suspend, "unit:a.service", "is suspended")
	fixture.Fails(t, <-resumed, "not resumed: meanwhile it was ordered to stay suspended", "the first order")
	if g.audited(); g.phase() != "suspended" || g.used() != 0 {
		t.Errorf("%+v, %d MiB in use", g.stats().Suspended, g.used())
	}
	g.order(g.giveBack, "unit:a.service", "runs again")
	g.work(a)
}

// TestOrderEndsWithItsWorkload answers an order about a workload that ends meanwhile.
func TestOrderEndsWithItsWorkload(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 256<<20, []string{"a"})
	a := g.works("a", true, "1024")
	g.sees(1, a)
	g.order(g.suspend, a.pid(), "is suspended")
	said := make(chan string, 1)
	go func() {
		text, err := g.giveBack(t.Context(), a.pid())
		said <- fmt.Sprint(text, err)
	}()
	poll(t, 20*time.Second, "it is not being resumed", func() bool { return g.phase() == "resuming" })
	a.Kill()
	fixture.Contains(t, <-said, "is no longer suspended", "it says")
	fixture.Equal(t, len(g.ends()), 1, "ends of which the journal is told")
}

// TestAResumptionWaitsForALostGPU keeps a workload whose GPU does not answer.
func TestAResumptionWaitsForALostGPU(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 0, []string{"a"})
	a := g.works("a", true, "1024")
	g.sees(1, a)
	g.order(g.suspend, a.pid(), "is suspended")
	g.lost.Store(true)
	g.refused(g.giveBack, a.pid(), "it is unknown whether")
	g.audited()
	fixture.Equal(t, g.phase(), "resuming", "the phase of %+v", g.stats().Suspended)
	g.lost.Store(false)
	g.work(a)
}
