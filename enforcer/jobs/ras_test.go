package jobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/enforcer/ras"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// An unhookedJob is a job of two ranks without the hook, whose rank 1 did not
// enter the last collective. Its processes are 2000 and 2001.
type unhookedJob struct {
	*host
	shares  [2]float64 // of a GPU that the processes use
	used    [2]float64
	status  ras.Status
	asked   int
	count   int   // collectives that rank 1 has launched
	listed  []int // ranks that the driver lists
	users   [2]int
	hooked  bool
	sampled bool
	state   byte // of rank 1
	ticks   [2]int
	works   int                  // ticks of rank 1 for each second
	takes   func() time.Duration // until NCCL answers; nil: at once
	version string               // of NCCL
	log     fixture.Transcript
}

func newUnhookedJob(t *testing.T) *unhookedJob {
	j := &unhookedJob{host: newHost(t, 0), shares: [2]float64{1, 0}, listed: []int{0, 1}, users: [2]int{1000, 1000}, sampled: true, state: 'S', version: "2.28.9"}
	j.Observer.RAS, j.Observer.Trusted, j.Observer.Log = "localhost:28028", []string{"2.28"}, slog.New(slog.NewTextHandler(&j.log, nil))
	j.Observer.version = func(int) string { return j.version }
	for i := range 2 {
		j.file(fmt.Sprintf("%d/task/%d/stat", 2000+i, 2000+i), "")
		j.open(i, 3, fmt.Sprintf("socket:[%d]", 2+i))
	}
	j.Observer.ask = func(context.Context, string) (ras.Status, error) {
		j.asked++
		s := j.status
		if j.takes != nil {
			time.Sleep(j.takes())
		}
		if len(s.Communicators) == 0 {
			return ras.Status{}, errors.New("connection refused")
		}
		return s, nil
	}
	j.count = 8
	j.tell(9, 8)
	j.listen(1)
	return j
}

// unhooked runs a test of such a job, on a clock of its own.
func unhooked(t *testing.T, test func(t *testing.T, j *unhookedJob)) {
	synctest.Test(t, func(t *testing.T) { test(t, newUnhookedJob(t)) })
}

// tell sets what NCCL tells: how many collectives the ranks have launched.
func (j *unhookedJob) tell(counts ...int) {
	c := ras.Communicator{ID: "w"}
	for i, n := range counts {
		r := ras.Rank{Rank: i, Host: "127.0.0.1", PID: 20 + i, Missing: n < 0}
		if n >= 0 {
			r.Counts = map[string]uint64{"AllReduce": uint64(n)}
		}
		c.Ranks = append(c.Ranks, r)
	}
	j.status.Communicators = []ras.Communicator{c}
}

// listen lets so many ranks listen at NCCL's port.
func (j *unhookedJob) listen(ranks int) {
	text := "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
		"   0: 0100007F:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1\n"
	for i := range ranks {
		text += fmt.Sprintf("   1: 0100007F:6D7C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 %d\n", 2+i)
	}
	text += "   2: 0100007F:6D7C 0100007F:9999 01 00000000:00000000 00:00000000 00000000  7777        0 9\n"
	j.file("net/tcp", text)
}

// open lets a rank open a file.
func (j *unhookedJob) open(rank, fd int, target string) {
	name := filepath.Join(j.Observer.Procfs, fmt.Sprintf("%d/fd/%d", 2000+rank, fd))
	fixture.Must(j.t, os.MkdirAll(filepath.Dir(name), 0o755))
	_ = os.Remove(name)
	fixture.Must(j.t, os.Symlink(target, name))
}

func (j *unhookedJob) file(name, text string) {
	fixture.Rewrite(j.t, filepath.Join(j.Observer.Procfs, name), text)
}

// run lets some seconds pass, and returns the hangs at their end.
func (j *unhookedJob) run(seconds int) (hangs []wire.HangStats) {
	for range seconds {
		j.at += 1e9
		var all []GPUProcess
		for _, i := range j.listed {
			j.used[i] += j.shares[i]
			j.ticks[i] += i * j.works
			j.file(fmt.Sprintf("%d/status", 2000+i), fmt.Sprintf("Uid:\t%d\t1000\t1000\t1000\nNSpid:\t%d\t%d\n", j.users[i], 2000+i, 20+i))
			j.file(fmt.Sprintf("%d/stat", 2000+i), fmt.Sprintf("%d (python) %c 1 1 1 0 -1 0 0 0 0 0 %d 0 0 0 20 0 1 0 100\n",
				2000+i, j.state, j.ticks[i]))
			p := GPUProcess{PID: 2000 + i, GPU: fmt.Sprint("GPU-", i), Tenant: "default", Workload: "job",
				Hooked: j.hooked, Used: j.used[i]}
			if j.sampled {
				p.Sampled = time.Unix(0, j.at)
			}
			all = append(all, p)
		}
		j.Observer.See(all)
		_, hangs = j.look()
		time.Sleep(time.Second) // of the test's own clock
		synctest.Wait()
	}
	return hangs
}

// kill ends rank 1.
func (j *unhookedJob) kill() {
	j.listed = []int{0}
	fixture.Must(j.t, os.RemoveAll(filepath.Join(j.Observer.Procfs, "2001")))
}

// steps lets rank 0 wait for rank 1 in each step, of so many seconds, and returns the hangs that were ever told.
func (j *unhookedJob) steps(steps, seconds int, does func(second int)) (hangs []wire.HangStats) {
	for range steps {
		j.count++
		j.tell(j.count+1, j.count)
		for s := range seconds {
			does(s)
			hangs = append(hangs, j.run(1)...)
		}
	}
	return hangs
}

// TestUnhookedWithin: the culprit is named within so many seconds, at whatever
// moment between two questions the job hangs.
func TestUnhookedWithin(t *testing.T) {
	t.Parallel()
	stuck := func(j *unhookedJob) { j.shares[1] = 0 }
	for _, c := range []struct {
		fault  string
		hang   func(*unhookedJob)
		within int // s
	}{
		{"its loader is stuck", stuck, 53},
		{"it skips a collective, and its GPU works on", func(j *unhookedJob) {
			j.works = 50
			j.run(2)
			j.works, j.shares[1] = 0, 0
		}, 56},
		{"it is stopped", func(j *unhookedJob) {
			j.state, j.shares[1] = 'T', 0
			j.tell(j.count+1, -1)
			began := j.at
			j.takes = func() (d time.Duration) {
				if j.at-began < 5e9 { // from then on NCCL does not wait for a rank that is silent
					d = 3 * time.Second
				}
				return d + time.Duration(j.asked%2)*time.Second // the kernel chooses the stopped process first
			}
		}, 56},
		{"it is killed", func(j *unhookedJob) { j.kill(); j.tell(j.count+1, -1) }, 345},
	} {
		worst := 0
		for phase := range 7 {
			unhooked(t, func(t *testing.T, j *unhookedJob) {
				j.shares[1] = 1
				if early := j.steps(20+3*phase, 1, func(int) {}); len(early) != 0 {
					t.Fatalf("%s: before it, %+v", c.fault, early)
				}
				j.count++
				j.tell(j.count+1, j.count)
				began := j.at
				c.hang(j)
				for j.at-began < 400e9 {
					if hangs := j.run(1); len(hangs) == 1 && hangs[0].Rank == 1 {
						break
					}
				}
				worst = max(worst, int((j.at-began)/1e9))
			})
		}
		fixture.AtMost(t, worst, c.within, "%s: it is named within … s", c.fault)
	}
}

// TestUnhookedLongSteps: other ranks wait for rank 1 in each step, which gets on.
func TestUnhookedLongSteps(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		min, max int // s of a step
		does     func(j *unhookedJob, second, seconds int)
	}{
		{"its GPU computes", 1, 31, func(j *unhookedJob, _, _ int) { j.shares[1] = 1 }},
		{"its processor computes", 1, 31, func(j *unhookedJob, _, _ int) { j.works = 50 }},
		{"it computes, at times on its GPU, and evaluates", 200, 200, func(j *unhookedJob, second, _ int) {
			j.shares[1], j.works = float64(second/7%2), 10
		}},
		{"it pauses", 1, 9, func(*unhookedJob, int, int) {}},
		{"it pauses, and then its GPU computes", 10, 31, func(j *unhookedJob, second, _ int) {
			j.shares[1] = float64(min(second/9, 1))
		}},
		{"its GPU computes, and then it pauses", 10, 31, func(j *unhookedJob, second, seconds int) {
			j.shares[1] = float64(truth(second < seconds-max(7, seconds/3)))
		}},
		{"its GPU computes now and then", 8, 31, func(j *unhookedJob, second, _ int) {
			j.shares[1] = float64(truth(second%5 == 4))
		}},
		{"all pause", 1, 31, func(j *unhookedJob, _, _ int) { j.tell(j.count, j.count) }},
	} {
		for seconds := c.min; seconds <= c.max; seconds += 1 + seconds/6 {
			unhooked(t, func(t *testing.T, j *unhookedJob) {
				hangs := j.steps(1+60/seconds, seconds, func(second int) { c.does(j, second, seconds) })
				fixture.EqualSlices(t, hangs, nil, "%s, steps of %d s: hangs", c.name, seconds)
			})
		}
	}
}

func TestUnhooked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		is   func(*unhookedJob)
		then func(*unhookedJob) // after 6 s
		want string
	}{
		{"absent", nil, nil, "absent"},
		{"it stopped", nil, func(j *unhookedJob) { j.state = 'T'; j.tell(9, -1) }, "stopped"},
		{"a debugger holds it", nil, func(j *unhookedJob) { j.state = 't' }, ""},
		{"it ended", nil, func(j *unhookedJob) { j.kill(); j.tell(9, -1) }, "ended"},
		{"it does not answer", nil, func(j *unhookedJob) { j.tell(9, -1) }, ""},
		{"it ended, and the other one only saves", nil,
			func(j *unhookedJob) { j.kill(); j.tell(9, -1); j.shares[0] = 0 }, ""},
		{"its context is gone", nil, func(j *unhookedJob) { j.listed = []int{0}; j.tell(9, -1) }, ""},
		{"it computes", func(j *unhookedJob) { j.works = 50 }, nil, ""},
		{"it uses its GPU", func(j *unhookedJob) { j.shares[1] = 1 }, nil, ""},
		{"the use of GPUs is not known", func(j *unhookedJob) { j.sampled = false }, nil, ""},
		{"equal", func(j *unhookedJob) { j.tell(9, 9) }, nil, ""},
		{"hooked", func(j *unhookedJob) { j.hooked = true }, nil, ""},
		{"on another host", func(j *unhookedJob) { j.status.Communicators[0].Ranks[1].Host = "192.0.2.9" }, nil, ""},
		{"another user serves", func(j *unhookedJob) { j.users[0] = 1001 }, nil, ""},
		{"several users serve", func(j *unhookedJob) { j.users[0] = 1001; j.listen(2) }, nil, ""},
		{"nobody is seen to serve", func(j *unhookedJob) { j.listen(0) }, nil, ""},
		{"root in a container serves", func(j *unhookedJob) { j.users[0] = 0 }, nil, ""},
		{"root serves his own", func(j *unhookedJob) { j.users = [2]int{} }, nil, "absent"},
		{"another one serves meanwhile", func(j *unhookedJob) {
			j.takes = func() time.Duration { j.listen(1 + j.asked%2); return 0 }
		}, nil, ""},
		{"one of two is on another host", func(j *unhookedJob) {
			j.tell(9, 8, 8)
			j.status.Communicators[0].Ranks[2].Host = "192.0.2.9"
		}, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			unhooked(t, func(t *testing.T, j *unhookedJob) {
				if c.is != nil {
					c.is(j)
				}
				early := j.run(6)
				if c.then != nil {
					c.then(j)
				}
				fixture.EqualSlices(t, append(early, j.run(42)...), nil, "hangs after 48 s")
				if c.want == "ended" { // its last collectives are not known
					fixture.EqualSlices(t, j.run(240), nil, "hangs while another one may compute alone")
					j.run(60)
				}
				hangs := j.run(24)
				switch {
				case c.want == "" && len(hangs) == 0:
				case len(hangs) != 1 || hangs[0].Reason != c.want:
					t.Errorf("%+v, want %q", hangs, c.want)
				case hangs[0].Rank != 1 || hangs[0].GPU != "GPU-1" || hangs[0].Workload != "job" || hangs[0].Waiting != 1 ||
					hangs[0].Seconds < 20 || hangs[0].PID != 2001 && c.want != "ended":
					t.Errorf("%+v", hangs[0])
				}
				j.tell(10, 10)
				j.shares = [2]float64{0.5, 1}
				fixture.EqualSlices(t, j.run(2), nil, "it goes on")
			})
		})
	}
}

// TestUnhookedEndsLater: NCCL was asked before the rank ended, so that it is known what it had launched.
func TestUnhookedEndsLater(t *testing.T) {
	t.Parallel()
	unhooked(t, func(t *testing.T, j *unhookedJob) {
		j.works = 50
		j.run(45)
		j.kill()
		j.tell(9, -1)
		if hangs := j.run(60); len(hangs) != 1 || hangs[0].Reason != "ended" {
			t.Errorf("%+v", hangs)
		}
	})
}

// TestUnhookedComputes: a rank that computes for more than ten minutes neither saves nor compiles.
func TestUnhookedComputes(t *testing.T) {
	t.Parallel()
	unhooked(t, func(t *testing.T, j *unhookedJob) {
		j.works = 50
		fixture.EqualSlices(t, j.run(630), nil, "hangs before ten minutes have passed")
		fixture.Equal(t, len(j.run(30)), 1, "hangs")
	})
}

// TestUnhookedAsks: NCCL is asked on suspicion, and less and less often; an
// unanswered question does not change what is known.
func TestUnhookedAsks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		is   func(*unhookedJob)
		want int // questions in ten minutes
	}{
		{"a rank waits for another", nil, 6},
		{"all compute", func(j *unhookedJob) { j.shares[1] = 1 }, 0},
		{"nobody waits", func(j *unhookedJob) { j.shares[0] = 0.8 }, 0},
		{"all rest", func(j *unhookedJob) { j.shares[0] = 0 }, 0},
		{"its use of the GPU is not known", func(j *unhookedJob) { j.sampled = false }, 0},
		{"a short pause", func(j *unhookedJob) { j.run(9); j.shares[1] = 1 }, 0},
		{"a pause while something was opened", func(j *unhookedJob) { j.run(39); j.shares[1] = 1 }, 0},
		{"text: all is well", func(j *unhookedJob) { j.status.Communicators = []ras.Communicator{{ID: "w"}} }, 6},
		{"no answer", func(j *unhookedJob) { j.status = ras.Status{} }, 6},
		{"with a session", func(j *unhookedJob) { j.hooked = true }, 0},
		{"it is alone", func(j *unhookedJob) { j.listed = []int{0} }, 0},
		{"no address", func(j *unhookedJob) { j.Observer.RAS = "" }, 0},
		{"nobody listens", func(j *unhookedJob) { j.listen(0) }, 0},
		{"another process listens", func(j *unhookedJob) { j.open(0, 3, "/dev/null") }, 0},
		{"another one listens, too", func(j *unhookedJob) { j.listen(3) }, 0},
		{"several of the job listen", func(j *unhookedJob) { j.listen(2) }, 6},
		{"a version with a fault", func(j *unhookedJob) { j.version = "2.27.3" }, 0},
		{"an unknown version", func(j *unhookedJob) { j.version = "" }, 0},
		{"a version that nobody trusts", func(j *unhookedJob) { j.Observer.Trusted = nil }, 0},
		{"too much is open", func(j *unhookedJob) {
			for i := range maxOpen + 1 {
				j.open(0, 10+i, "/dev/null")
			}
		}, 0},
	} {
		unhooked(t, func(t *testing.T, j *unhookedJob) {
			if c.is != nil {
				c.is(j)
			}
			j.run(600)
			fixture.Equal(t, j.asked, c.want, "%s: asked … times", c.name)
			refused := strings.Count(j.log.String(), "NCCL is not asked")
			fixture.Equal(t, refused, truth(strings.Contains(c.name, "version")), "%s: lines in the log", c.name)
		})
	}
	unhooked(t, func(t *testing.T, j *unhookedJob) {
		if hangs := j.run(60); len(hangs) != 1 {
			t.Fatalf("%+v", hangs)
		}
		j.status = ras.Status{}
		fixture.Equal(t, len(j.run(1200)), 1, "hangs without an answer for 20 min")
		j.shares[1] = 1
		fixture.EqualSlices(t, j.run(2), nil, "hangs when its GPU is busy again")
	})
}

// TestUnhookedStarts: NCCL is not asked while a process of the job opens
// connections or starts threads, however long that takes.
func TestUnhookedStarts(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*unhookedJob, int){
		"connections": func(j *unhookedJob, n int) { j.open(1, 4, fmt.Sprintf("socket:[%d]", 100+n)) },
		"threads":     func(j *unhookedJob, n int) { j.file(fmt.Sprintf("2000/task/%d/stat", 3000+n), "") },
	} {
		unhooked(t, func(t *testing.T, j *unhookedJob) {
			for n := range 12 {
				change(j, n)
				j.run(25)
			}
			fixture.Equal(t, j.asked, 0, "%s: asked … times while they change", name)
			j.run(15)
			fixture.Equal(t, j.asked, 1, "%s: asked … times", name)
		})
	}
	// A pause is over before all is known to be still, and another one comes.
	unhooked(t, func(t *testing.T, j *unhookedJob) {
		for n := range 10 {
			j.shares[1] = 0
			j.run(30)
			j.shares[1] = 1
			change := 5 + n
			j.open(1, 4, fmt.Sprintf("socket:[%d]", 100+change))
			j.open(1, 4, "socket:[100]")
			j.run(30)
		}
		fixture.Equal(t, j.asked, 0, "asked … times")
	})
}

// TestVersionOf reads the version from the library that a process has mapped, unless the kernel holds whoever does.
func TestVersionOf(t *testing.T) {
	t.Parallel()
	o := &Observer{}
	held, letGo := fixture.Executing(t, 1)
	fixture.Equal(t, o.versionOf(held[0]), "", "of a process that holds its readers")
	w := watch{looks: 2, idle: 1}
	late := w.saw(usesOf("/proc", []reader{{pid: held[0]}}, mostFiles)[held[0]])
	fixture.If(t, late && w != watch{looks: 2, idle: 1},
		"until it is known whether it holds them, %+v is known of it", w)
	letGo()
	fixture.Equal(t, o.versionOf(os.Getpid()), "", "without the library")
	name := filepath.Join(t.TempDir(), "libnccl.so.2")
	compiler := exec.Command("cc", "-shared", "-nostdlib", "-o", name, "-x", "c", "-")
	compiler.Stdin = strings.NewReader(`const char text[] = "NCCL version 2.26.2+cuda12.6";`)
	if text, err := compiler.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	f := fixture.Value(os.Open(name))(t)
	defer f.Close()
	memory := fixture.Value(unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE))(t)
	defer func() { fixture.Must(t, unix.Munmap(memory)) }()
	fixture.Eventually(t, "the version is known", func() bool { return o.versionOf(os.Getpid()) == "2.26.2" }) // a look has 3 s
	fixture.Must(t, os.Rename(name, name+".old"))                                                              // nobody but root can open the old file
	fixture.Must(t, os.WriteFile(name, []byte("another file"), 0o600))
	if got := o.versionOf(os.Getpid()); got != "" && got != "2.26.2" {
		t.Errorf("%q is the version of a file that was replaced", got)
	}
}

// TestUnhookedReopened: the driver's counts begin again.
func TestUnhookedReopened(t *testing.T) {
	t.Parallel()
	unhooked(t, func(t *testing.T, j *unhookedJob) {
		j.used[1] = 30
		j.run(18)
		j.used[1], j.shares[1] = 0, 1
		fixture.EqualSlices(t, j.run(60), nil, "hangs")
	})
}

// TestSeveralGPUs: the time of a process on several GPUs is added up, and a
// process that is gone is forgotten. Another process may then have its PID.
func TestSeveralGPUs(t *testing.T) {
	t.Parallel()
	at := int64(1)
	o := Observer{Procfs: t.TempDir(), Now: func() int64 { return at }}
	o.See([]GPUProcess{{PID: 7, GPU: "GPU-0", Used: 1}, {PID: 8, GPU: "GPU-0", Used: 4}, {PID: 7, GPU: "GPU-1", Used: 2}})
	if m := o.nccl.members; len(m) != 2 || m[7].Used != 3 || m[7].GPU != "GPU-0" || m[8].Used != 4 || m[8].gone != 0 {
		t.Fatalf("%+v", m)
	}
	o.See([]GPUProcess{{PID: 7, GPU: "GPU-0", Used: 2}})
	at += int64(keepEnded)
	o.See([]GPUProcess{{PID: 7, GPU: "GPU-0", Used: 2}})
	if m := o.nccl.members; len(m) != 2 || m[7].Used != 2 || m[8].gone != 1 {
		t.Fatalf("%+v", m)
	}
	at++
	before := o.nccl.members[7]
	o.See([]GPUProcess{{PID: 7, GPU: "GPU-0"}})
	if m := o.nccl.members; len(m) != 1 || m[7] != before {
		t.Errorf("%+v", m)
	}
	o.See(nil)
	o.See([]GPUProcess{{PID: 7}})
	if m := o.nccl.members[7]; m == before || m.gone != 0 {
		t.Errorf("another process: %+v", m)
	}
	for status, want := range map[string]int{"Name:\tpython\nNSpid:\t7\t70\t3\n": 3, "NSpid:\t7\n": 7, "NSpid:\nUid:\n": 7, "": 7} {
		procfs := t.TempDir()
		fixture.Rewrite(t, filepath.Join(procfs, "7/status"), status)
		fixture.Equal(t, innerOf(procfs, 7), want, "the PID of %q in its namespace", status)
	}
}
