package host

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

func TestSlurmAllocations(t *testing.T) {
	root := t.TempDir()
	group := func(path, procs string) {
		dir := filepath.Join(root, path)
		os.MkdirAll(dir, 0o755)
		os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(procs), 0o600)
	}
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
		sluid := fmt.Sprint("/hpc.slice/slurmstepd.scope/s7QANTV3WPV4", pid, "/step_0")
		group(sluid+"/slurm", fmt.Sprintln(pid))
		group(sluid+"/user", fmt.Sprintln(pid+1))
		job(pid+1, sluid+"/user", map[string]string{"SLURM_JOB_GPUS": fmt.Sprint(pid)})
		stepd := in(sluid + "/slurm")
		stepd.UID, stepd.title = 0, title
		proc.set(pid, stepd)
	}

	got, err := SlurmAllocations("", root, proc)
	want := []Allocation{{Job: "1", Devices: []string{"0", "2", "3"}}, {Job: "3", Devices: []string{"1"}},
		{Job: "5", Devices: []string{"40"}}, {Job: "s7QANTV3WPV450", Devices: []string{"50"}}}
	slices.SortFunc(got, func(a, b Allocation) int { return strings.Compare(a.Job, b.Job) })
	if !reflect.DeepEqual(got, want) || err == nil {
		t.Errorf("%+v, %v", got, err)
	}
	fixture.Equal(t, proc.handles(), 0, "open handles")
}

func TestParseIndices(t *testing.T) {
	for list, want := range map[string]string{"0": "0", "0,1": "0 1", "0-2,5": "0 1 2 5", "": "", "a": "", "3-1": "",
		"0,0": "0", "-1": "", "1-": "", "99999999999999999999": ""} {
		fixture.Equal(t, strings.Join(parseIndices(list), " "), want, "%q is", list)
	}
	fixture.Equal(t, len(parseIndices("0-65535,0-65535")), mostGPUs, "the indices of a long list are")
}
