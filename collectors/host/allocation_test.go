package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/internal/fixture"
)

func TestSlurmAllocations(t *testing.T) {
	root := t.TempDir()
	group := func(path, procs string) { fixture.Rewrite(t, filepath.Join(root, path, "cgroup.procs"), procs) }
	proc := &fakeProc{}
	job := func(pid int, cgroup string, environ map[string]string) {
		p := in(cgroup)
		p.environ = environ
		proc.set(pid, p)
	}
	group("system.slice/slurmstepd.scope/job_1/step_0/slurm", "10\n")
	group("system.slice/slurmstepd.scope/job_1/step_0/user/task_0", "99\n11\n12\n")
	job(10, "/system.slice/slurmstepd.scope/job_1/step_0/slurm", nil) // unreadable
	job(11, "/system.slice/slurmstepd.scope/job_7/step_0", map[string]string{"SLURM_JOB_GPUS": "7"})
	job(12, "/system.slice/slurmstepd.scope/job_1/step_0/user/task_0", map[string]string{"SLURM_JOB_GPUS": "0,2-3"})
	group("system.slice/node_slurmstepd.scope/job_2/step_batch", "20\n")
	job(20, "/system.slice/node_slurmstepd.scope/job_2/step_batch", nil)
	group("devices/slurm/uid_1000/job_3/step_0/task_0", "30\n")
	group("freezer/slurm/uid_1000/job_3/step_0", "30\n")
	job(30, "/slurm/uid_1000/job_3/step_0/task_0", map[string]string{"SLURM_JOB_GPUS": "1"})
	group("cpuset/slurm/uid_1000/job_x", "30\n")
	group("system.slice/slurmstepd.scope/job_4", "")
	for pid, title := range map[int]string{40: "slurmstepd: [5.0]", 50: ""} {
		sluid := fmt.Sprint("/hpc.slice/hpc-a.slice/hpc-a-b.slice/slurmstepd.scope/s7QANTV3WPV4", pid, "/step_0")
		group(sluid+"/slurm", fmt.Sprintln(pid))
		group(sluid+"/user", fmt.Sprintln(pid+1))
		job(pid+1, sluid+"/user", map[string]string{"SLURM_JOB_GPUS": fmt.Sprint(pid)})
		stepd := in(sluid + "/slurm")
		stepd.UID, stepd.title = 0, title
		proc.set(pid, stepd)
	}

	got, err := slurmAllocations("", root, proc)
	want := []Allocation{{Job: "1", Devices: []string{"0", "2", "3"}}, {Job: "3", Devices: []string{"1"}},
		{Job: "5", Devices: []string{"40"}}, {Job: "s7QANTV3WPV450", Devices: []string{"50"}}}
	slices.SortFunc(got, func(a, b Allocation) int { return strings.Compare(a.Job, b.Job) })
	fixture.Equal(t, !reflect.DeepEqual(got, want) || err == nil, false, "%+v, %v", got, err)
	fixture.Equal(t, proc.handles(), 0, "open handles")
}

func TestParseIndices(t *testing.T) {
	for list, want := range map[string]string{"0": "0", "0,1": "0 1", "0-2,5": "0 1 2 5", "": "", "a": "", "3-1": "",
		"0,0": "0", "-1": "", "1-": "", "99999999999999999999": ""} {
		fixture.Equal(t, strings.Join(parseIndices(list), " "), want, "%q is", list)
	}
	fixture.Equal(t, len(parseIndices("0-65535,0-65535")), mostGPUs, "the indices of a long list are")
}

// kubeFile is the file that the test of gpusteward-kube compares its output with.
const kubeFile = "../../deploy/kubernetes/kube/testdata/allocations.json"

// put writes text to path as of a time.
func put(t *testing.T, path, text string, at time.Time) {
	t.Helper()
	fixture.Must(t, errors.Join(os.WriteFile(path, []byte(text), 0o644), os.Chtimes(path, at, at)))
}

func TestPodAllocations(t *testing.T) {
	text := fixture.Value(os.ReadFile(kubeFile))(t)
	path, now := filepath.Join(t.TempDir(), "allocations.json"), time.Now()
	put(t, path, string(text), now.Add(-10*time.Second))
	got, until, err := podAllocations(path, now)
	want := []Allocation{
		{Namespace: "ml", Pod: "train-0", Container: "main", Devices: []string{"GPU-1", "GPU-2"}},
		{Namespace: "ml", Pod: "train-0", Container: "mig", Devices: []string{"MIG-1"}},
		{Namespace: "ml", Pod: "claims", Container: "c", Claims: []Claim{
			{Namespace: "ml", Name: "claims-gpu-x", Driver: "gpu.nvidia.com", Pool: "node-1", Device: "gpu-3"}}},
	}
	if err != nil || !reflect.DeepEqual(got, want) || until.Sub(now).Round(time.Second) != 50*time.Second {
		t.Errorf("%+v, until %v, %v", got, until.Sub(now), err)
	}
	if _, _, err := podAllocations(path+"x", now); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
}

// TestUnknownIsNotFree: a file that may be incomplete has no allocations at all.
func TestUnknownIsNotFree(t *testing.T) {
	const good = `{"containers": [{"namespace": "n", "pod": "p", "container": "c", "devices": ["GPU-1"]}]}`
	path, now := filepath.Join(t.TempDir(), "allocations.json"), time.Now()
	for what, c := range map[string]struct {
		text string
		age  time.Duration
		want string
	}{
		"stale":         {good, 61 * time.Second, "is gpusteward-kube running"},
		"of the future": {good, -time.Hour, "is gpusteward-kube running"},
		"cut":           {good[:len(good)-2], 0, "unexpected end"},
		"garbage":       {"\x00\x01", 0, "invalid character"},
		"empty":         {"", 0, "unexpected end"},
		"of null":       {"null", 0, "no list of containers"},
		"without list":  {"{}", 0, "no list of containers"},
		"without a pod": {strings.Replace(good, `"p"`, `""`, 1), 0, "container 0"},
		"of nothing":    {strings.Replace(good, `"GPU-1"`, "", 1), 0, "container 0"},
		"too long":      {good + strings.Repeat(" ", mostPods), 0, "more than"},
	} {
		put(t, path, c.text, now.Add(-c.age))
		got, _, err := podAllocations(path, now)
		fixture.Fails(t, err, c.want, "a file that is %s", what)
		fixture.If(t, got != nil, "a file that is %s: %v", what, got)
	}
	put(t, path, good, now)
	fixture.Must(t, os.Chmod(path, 0o666))
	_, _, err := podAllocations(path, now)
	fixture.Fails(t, err, "not trusted", "a file that everybody writes")
}

// TestAllocationsExpire follows a file that is no longer rewritten.
func TestAllocationsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "kubelet")
		fixture.Must(t, os.Mkdir(dir, 0o755))
		path := filepath.Join(dir, "allocations.json")
		a := NewAllocations(NewTable(Options{}), path, "")
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		put(t, path, `{"containers": [{"namespace": "n", "pod": "p", "container": "c", "devices": ["GPU-1"]}]}`, time.Now())
		go a.Run(ctx)
		state := func(what string, n int, known bool) {
			t.Helper()
			synctest.Wait()
			if now := a.Now(); len(now.All) != n || now.Known["kubelet"] != known || len(now.Known) != 1 {
				t.Errorf("%s: %+v", what, now)
			}
		}
		state("at first", 1, true)
		time.Sleep(59 * time.Second)
		state("after 59 s", 1, true)
		time.Sleep(2 * time.Second)
		state("after 61 s", 0, false)
		put(t, path, `{"containers": []}`, time.Now().Add(20*time.Second))
		time.Sleep(allocationsEach)
		state("rewritten, with nothing allocated", 0, true)
		fixture.Must(t, os.Remove(path))
		time.Sleep(allocationsEach)
		state("before the first file", 0, false)
		fixture.Must(t, os.Remove(dir))
		time.Sleep(allocationsEach)
		synctest.Wait()
		if now := a.Now(); len(now.Known) != 0 || len(now.All) != 0 {
			t.Errorf("without a file: %+v", now)
		}
	})
}
