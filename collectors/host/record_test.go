package host

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"gpusteward/internal/fixture"
)

// writeRecord writes the record of a job as the prolog does.
func writeRecord(t *testing.T, dir, job, text string) {
	t.Helper()
	fixture.Must(t, os.WriteFile(filepath.Join(dir, job), []byte(text), 0o644))
}

func TestJobRecord(t *testing.T) {
	dir := t.TempDir()
	good := "JOB=7\nUSER=ada\nUID=1000\nACCOUNT=lab=1\nPARTITION=gpu\nGPUS=0,2-3\nLATER=x\n"
	writeRecord(t, dir, "7", good)
	want := jobRecord{"7", "", "ada", "lab=1", "gpu", []string{"0", "2", "3"}}
	if r, err := readRecord(dir, "7"); err != nil || !reflect.DeepEqual(r, want) {
		t.Errorf("%+v, %v; want %+v", r, err, want)
	}
	writeRecord(t, dir, "8", "JOB=8\n")
	writeRecord(t, dir, "9", "JOB=7\nUSER=eve\n")
	writeRecord(t, dir, "10", "JOB=10\nUSER=eve\n\x00\x01garbage")
	writeRecord(t, dir, "11", "JOB=11\nUSER="+strings.Repeat("x", longestRecord))
	writeRecord(t, dir, "12", "JOB=12\nUSER=e\x1bve\n")
	writeRecord(t, dir, "13", "JOB=13\n")
	fixture.Must(t, os.Chmod(filepath.Join(dir, "13"), 0o666))
	fixture.Must(t, syscall.Mkfifo(filepath.Join(dir, "14"), 0o644))
	writeRecord(t, dir, ".15.new", "JOB=15\n")
	for job, want := range map[string]string{"9": `the record is of job "7"`, "10": "is not a line KEY=VALUE",
		"11": "more than 4096 bytes", "13": "users other than its owner can write it", "14": "not a regular file"} {
		if r, err := readRecord(dir, job); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), filepath.Join(dir, job)) {
			t.Errorf("job %s: %+v, %v; want an error that names the file with %q", job, r, err, want)
		}
	}
	if r, _ := readRecord(dir, "12"); r.user == "e\x1bve" || !strings.HasPrefix(r.user, "e_ve~") {
		t.Errorf("a user is called %q", r.user)
	}
	if os.Getuid() == 0 {
		writeRecord(t, dir, "16", "JOB=16\n")
		fixture.Must(t, os.Chown(filepath.Join(dir, "16"), 1000, 1000))
		fixture.Fails(t, fixture.Error(readRecord(dir, "16")), "belongs to user 1000", "a user's own record")
	}
	all, err := records(dir)
	fixture.Equal(t, err == nil || len(all) != 3 || all["7"].user != "ada", false, "%+v, %v", all, err)
	fixture.Equal(t, len(fixture.Value(records(filepath.Join(dir, "none")))(t)), 0, "without Slurm")
}

func TestRecordsAreBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for job := range mostJobs + 10 {
		writeRecord(t, dir, fmt.Sprint(job+1), fmt.Sprintf("JOB=%d\n", job+1))
	}
	fixture.Equal(t, len(fixture.Value(records(dir))(t)), mostJobs, "… records")
}

// TestSlurmJobIsRecorded checks that the record of a job counts, and that its user's environment is not even read.
func TestSlurmJobIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		writeRecord(t, dir, "1", "JOB=1\nUSER=ada\nACCOUNT=lab\nPARTITION=gpu\nGPUS=0\n")
		writeRecord(t, dir, "2", "garbage")
		proc := &fakeProc{}
		for pid, job := range map[int]string{1: "1", 2: "2"} {
			p := in("/system.slice/slurmstepd.scope/job_" + job + "/step_0/user/task_0")
			p.environ = map[string]string{"SLURM_JOB_USER": "eve", "SLURM_JOB_ACCOUNT": "rich"}
			proc.set(pid, p)
		}
		table := runningWith(t, Options{Proc: proc, Jobs: dir})
		if p, err := table.Lookup(1); err != nil || p.Workload == nil || p.Workload.User != "ada" ||
			p.Workload.Account != "lab" || p.Workload.Partition != "gpu" {
			t.Errorf("at once: %+v, %v", p.Workload, err)
		}
		fixture.Must(t, fixture.Error(table.Lookup(2)))
		synctest.Wait()
		if p, _ := table.Lookup(1); p.Workload.User != "ada" {
			t.Errorf("later: %+v", p.Workload)
		}
		if p, _ := table.Lookup(2); p.Workload.User != "eve" || count(table)["slurm"] != 1 {
			t.Errorf("with a bad record: %+v, failures %v", p.Workload, count(table))
		}
	})
}

// TestRecordedAllocations checks that a job with a record has the GPUs in it, with or without a process.
func TestRecordedAllocations(t *testing.T) {
	jobs, root := t.TempDir(), t.TempDir()
	writeRecord(t, jobs, "1", "JOB=1\nGPUS=0,1\nSLUID=s7QANTV3WPV400\n")
	writeRecord(t, jobs, "2", "JOB=2\nGPUS=\n")
	proc := &fakeProc{}
	for pid, job := range map[int]string{1: "s7QANTV3WPV400", 2: "job_2", 3: "job_3"} {
		group := "/system.slice/slurmstepd.scope/" + job + "/step_0"
		fixture.Rewrite(t, root+group+"/cgroup.procs", fmt.Sprintln(pid))
		p := in(group)
		p.environ = map[string]string{"SLURM_JOB_GPUS": "5"}
		proc.set(pid, p)
	}
	got, err := slurmAllocations(jobs, root, proc)
	slices.SortFunc(got, func(a, b Allocation) int { return strings.Compare(a.Job, b.Job) })
	want := []Allocation{{Job: "1", Devices: []string{"0", "1"}}, {Job: "3", Devices: []string{"5"}}}
	fixture.If(t, err != nil || !reflect.DeepEqual(got, want), "%+v, %v; want %+v", got, err, want)
}

func TestFilesAreReplacedAtomically(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made")
	path := filepath.Join(dir, "x.json")
	for _, c := range []struct {
		text string
		err  error
		want string
	}{
		{"first", nil, "first"},
		{"half of the seco", errors.New("disk full"), "first"},
		{"3", nil, "3"},
	} {
		err := ReplaceFile(path, StateMode, func(w io.Writer) error {
			_, err := io.WriteString(w, c.text)
			return errors.Join(err, c.err)
		})
		fixture.Equal(t, errors.Is(err, c.err), true, "writing %q: that %v is %v", c.text, err, c.err)
		if text, err := os.ReadFile(path); err != nil || string(text) != c.want {
			t.Errorf("after %q: %q, %v; want %q", c.text, text, err, c.want)
		}
		if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
			t.Errorf("after %q: %q, %v; want no draft left", c.text, all, err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o007 != 0 {
		t.Errorf("%v, %v: other users may read it", info.Mode(), err)
	}
	fixture.If(t, ReplaceFile("/proc/no/such/file", StateMode, func(io.Writer) error { return nil }) == nil,
		"an impossible file was written")
}
