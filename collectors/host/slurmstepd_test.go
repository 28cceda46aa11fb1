package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/internal/fixture"
)

// A slurmNode has jobs in cgroups, and no others.
type slurmNode struct {
	t    *testing.T
	proc *fakeProc
	root string // of the cgroups
	jobs string // of the records
}

func newSlurmNode(t *testing.T) *slurmNode {
	return &slurmNode{t, &fakeProc{}, t.TempDir(), t.TempDir()}
}

// put puts a process with a title into a group.
func (s *slurmNode) put(pid, uid int, group, title string) *fakeProcess {
	s.t.Helper()
	fixture.Rewrite(s.t, s.root+group+"/cgroup.procs", fmt.Sprintln(pid))
	p := in(group)
	p.UID, p.title = uid, title
	p.environ = map[string]string{"SLURM_JOB_ID": "4711", "SLURM_JOB_USER": "eve"}
	s.proc.set(pid, p)
	return p
}

func (s *slurmNode) table() *Table {
	return runningWith(s.t, Options{Proc: s.proc, Jobs: s.jobs, Cgroup: s.root})
}

// TestSLUID has jobs whose cgroups have their SLUID as their name: their number
// comes from their record, or from root's slurmstepd, and from no user.
func TestSLUID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const scope = "/system.slice/slurmstepd.scope/"
		s := newSlurmNode(t)
		writeRecord(t, s.jobs, "4711", "JOB=4711\nUSER=ada\nACCOUNT=lab\nSLUID=s7QANTV3WPV400\nGPUS=3\n")
		fixture.Must(t, os.Symlink("4711", filepath.Join(s.jobs, "s7QANTV3WPV400")))
		writeRecord(t, s.jobs, "4713", "JOB=4713\nUSER=bob\nGPUS=\n") // of a prolog that knows no SLUID
		fixture.Must(t, os.Symlink("4711", filepath.Join(s.jobs, "s7QANTV3ZZZZ00")))
		for pid, c := range map[int]struct{ group, stepd, key, user string }{
			10: {scope + "s7QANTV3WPV400/step_0", "", "slurm:4711.0", "ada"},
			20: {"/hpc.slice/n1_slurmstepd.scope/s7QANTV3Z8H100/step_batch", "slurmstepd: [4712.batch]", "slurm:4712.batch", "eve"},
			30: {scope + "s7QANTV3Z8H200/step_0+1", "slurmstepd: [4713.0+1 stepmgr]", "slurm:4713.0+1", "bob"},
			40: {scope + "s7QANTV3Z8H300/step_0", "slurmstepd: [s7QANTV3Z8H300.0]", "slurm:s7QANTV3Z8H300.0", "eve"},
			50: {scope + "s7QANTV3ZZZZ00/step_0", "python3 [4711.0]", "slurm:s7QANTV3ZZZZ00.0", "eve"}, // another's record
		} {
			// A user can call itself what it likes, where Slurm's daemon does not look.
			s.put(pid, 1000, c.group+"/user/task_0", "slurmstepd: [4711.0]")
			s.put(pid+1, 0, c.group+"/slurm", c.stepd)
			s.put(pid+2, 1000, c.group+"_forged/slurm", "slurmstepd: [4711.0]")
			s.put(pid+3, 0, c.group+"_left/slurm", "slurmstepd: [4711.0]").Cgroup = "0::/\n" // by the owner of the PID before
			table := s.table()
			at := keyOf(t, table, pid)
			fixture.Equal(t, c.stepd == "", at == c.key, "%s is at once %q: that it has a record", c.group, at)
			synctest.Wait()
			time.Sleep(patience)
			p, _ := table.Lookup(pid)
			if w := p.Workload; w.Key != c.key || w.User != c.user || w.Recorded != (c.user != "eve") ||
				stepKey(w.Job, w.Step) != c.key || !(Allocation{Job: w.SLUID}).For(*w) || (w.SLUID == w.Job) != strings.HasPrefix(c.key, "slurm:s") {
				t.Errorf("%s is %+v", c.group, w)
			}
		}
		table := s.table()
		keyOf(t, table, 20)
		synctest.Wait()
		read := s.proc.titles
		for pid := 60; pid < 70; pid++ { // further steps of a known job
			s.put(pid, 1000, fmt.Sprintf("/hpc.slice/n1_slurmstepd.scope/s7QANTV3Z8H100/step_%d/user/task_0", pid), "")
			fixture.Equal(t, keyOf(t, table, pid), fmt.Sprint("slurm:4712.", pid), "a further step is")
		}
		fixture.Equal(t, s.proc.titles, read, "titles read for them")
	})
}

// TestSlurmstepdHangs holds that a slurmstepd that does not answer costs the
// job's number and nothing else, and that a key that was shown stays.
func TestSlurmstepdHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlurmNode(t)
		s.put(1, 1000, "/a.slice/slurmstepd.scope/s7QANTV3WPV400/step_0/user/task_0", "")
		stepd := s.put(2, 0, "/a.slice/slurmstepd.scope/s7QANTV3WPV400/step_0/slurm", "slurmstepd: [4711.0]")
		stepd.block = make(chan struct{})
		table := s.table()
		fixture.Equal(t, keyOf(t, table, 1), "", "at once it is")
		time.Sleep(patience)
		fixture.Equal(t, keyOf(t, table, 1), "slurm:s7QANTV3WPV400.0", "after its time it is")
		close(stepd.block)
		synctest.Wait()
		w := workload(t, table, 1)
		fixture.If(t, w.Key != "slurm:s7QANTV3WPV400.0" || w.Job != "4711", "later it is %+v", w)
	})
}

// workload returns the workload of a process.
func workload(t *testing.T, table *Table, pid int) *Workload {
	t.Helper()
	return fixture.Value(table.Lookup(pid))(t).Workload
}
