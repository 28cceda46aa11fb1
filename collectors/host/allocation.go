package host

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
)

// An Allocation is the GPUs that a scheduler gave to a container or a job, used
// or not.
type Allocation struct {
	Namespace string `json:"namespace"` // this and the next two for Kubernetes
	Pod       string `json:"pod"`
	Container string `json:"container"`
	Job       string `json:"-"` // for Slurm: its number, or its SLUID while that is unknown
	// Devices are names from the device plugin in Kubernetes, mostly UUIDs, and
	// indices in Slurm.
	Devices []string `json:"devices"`
	Claims  []Claim  `json:"claims"`
}

// mostGPUs is the most GPUs that a list may name.
const mostGPUs = 1024

// slurmAllocations returns the GPUs of the Slurm jobs that have a record in
// jobs, or a cgroup below root, /sys/fs/cgroup. For a job without a record, the
// GPUs come from the environment that Slurm gave its processes: such a job has
// none while it has no process, and its user could lie. Reading an environment
// may block, so the caller runs in the background. Unreadable jobs are left
// out; the error gives the reason.
func slurmAllocations(jobs, root string, p Proc) ([]Allocation, error) {
	var all []Allocation
	var failed []error
	seen := map[string]bool{}
	recorded, err := records(jobs)
	if err != nil {
		failed = append(failed, err)
	}
	for job, r := range recorded {
		seen[job], seen[r.sluid] = true, true
		if len(r.gpus) > 0 {
			all = append(all, Allocation{Job: job, Devices: r.gpus})
		}
	}
	var numbers map[string]ContainerName
	for _, group := range slurmJobs(root) {
		if seen[group.name] {
			continue
		}
		job := group.name
		if !isJob(job) {
			if numbers == nil {
				numbers, err = stepds{root, p}.Containers(context.Background())
				failed = append(failed, err)
			}
			job = cmp.Or(numbers[job].Job, job)
		}
		if seen[job] {
			continue
		}
		seen[group.name], seen[job] = true, true
		devices, err := gpusOfJob(group, p)
		if err != nil {
			failed = append(failed, err)
		}
		if len(devices) > 0 {
			all = append(all, Allocation{Job: job, Devices: devices})
		}
	}
	return all, errors.Join(failed...)
}

// gpusOfJob asks the job's processes, from the outermost cgroup inwards, until
// one knows. If none knows, the error is that of the last process that could
// not be asked.
func gpusOfJob(job slurmJob, p Proc) (devices []string, failed error) {
	processes(job.dir, func(pid int) bool {
		var err error
		if devices, err = gpusOfProcess(pid, job.name, p); len(devices) > 0 {
			failed = nil
			return false
		}
		if err != nil && !errors.Is(err, ErrGone) {
			failed = err
		}
		return true
	})
	return devices, failed
}

// gpusOfProcess returns the GPUs of the job according to one of its processes.
func gpusOfProcess(pid int, job string, p Proc) ([]string, error) {
	handle, err := p.Open(pid)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	facts, err := handle.Facts()
	if err != nil {
		return nil, err
	}
	if ParseCgroup(facts.Cgroup, facts.UID).Job != job { // another process has the PID now
		return nil, ErrGone
	}
	environ, err := handle.Environ("SLURM_JOB_GPUS")
	return parseIndices(environ["SLURM_JOB_GPUS"]), err
}

// parseIndices reads a list such as 0,2-3. It ignores anything that is not an
// index.
func parseIndices(list string) []string {
	var all []string
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err1 := strconv.ParseUint(from, 10, 16)
		last, err2 := strconv.ParseUint(to, 10, 16)
		if err1 != nil || err2 != nil {
			continue
		}
		for i := first; i <= last && len(all) < mostGPUs; i++ {
			if index := strconv.FormatUint(i, 10); !slices.Contains(all, index) {
				all = append(all, index)
			}
		}
	}
	return all
}
