package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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
	Job       string `json:"-"` // for Slurm
	// Devices are names from the device plugin in Kubernetes, mostly UUIDs, and
	// indices in Slurm.
	Devices []string `json:"devices"`
	Claims  []Claim  `json:"claims"`
}

// Limits on the search for jobs.
const (
	mostJobs   = 1024
	mostGroups = 256 // cgroups of one job
	mostTries  = 64  // processes of one job
	mostGPUs   = 1024
)

// SlurmAllocations returns the GPUs of the Slurm jobs that have a record in
// jobs, or a cgroup below root, /sys/fs/cgroup. For a job without a record, the
// GPUs come from the environment that Slurm gave its processes: such a job has
// none while it has no process, and its user could lie. Reading an environment
// may block, so the caller runs in the background. Unreadable jobs are left
// out; the error gives the reason.
func SlurmAllocations(jobs, root string, p Proc) ([]Allocation, error) {
	var all []Allocation
	var failed []error
	seen := map[string]bool{}
	recorded, err := records(jobs)
	if err != nil {
		failed = append(failed, err)
	}
	for job, r := range recorded {
		seen[job] = true
		if len(r.gpus) > 0 {
			all = append(all, Allocation{Job: job, Devices: r.gpus})
		}
	}
	var dirs []string
	for _, pattern := range []string{
		"system.slice/*slurmstepd.scope/job_*", "devices/slurm*/uid_*/job_*", "freezer/slurm*/uid_*/job_*",
		"cpuset/slurm*/uid_*/job_*",
	} {
		found, _ := filepath.Glob(filepath.Join(root, pattern)) // the pattern is valid
		dirs = append(dirs, found...)
	}
	for _, dir := range dirs[:min(len(dirs), 4*mostJobs)] {
		m := jobGroup.FindStringSubmatch(filepath.Base(dir))
		if m == nil || seen[m[1]] {
			continue
		}
		seen[m[1]] = true
		devices, err := gpusOfJob(dir, m[1], p)
		if err != nil {
			failed = append(failed, err)
		}
		if len(devices) > 0 {
			all = append(all, Allocation{Job: m[1], Devices: devices})
		}
	}
	return all, errors.Join(failed...)
}

// gpusOfJob asks the job's processes, from the outermost cgroup inwards, until
// one knows. If none knows, the error is that of the last process that could
// not be asked.
func gpusOfJob(dir, job string, p Proc) (devices []string, failed error) {
	groups, tries := 0, 0
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return nil // the cgroup has just gone
		}
		if groups++; groups > mostGroups {
			return fs.SkipAll
		}
		content, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		for pid := range strings.FieldsSeq(string(content)) {
			if tries++; tries > mostTries {
				return fs.SkipAll
			}
			if devices, err = gpusOfProcess(pid, job, p); len(devices) > 0 {
				failed = nil
				return fs.SkipAll
			}
			if err != nil && !errors.Is(err, ErrGone) {
				failed = err
			}
		}
		return nil
	})
	return devices, failed
}

// gpusOfProcess returns the GPUs of the job according to one of its processes.
func gpusOfProcess(pid, job string, p Proc) ([]string, error) {
	n, err := strconv.Atoi(pid)
	if err != nil {
		return nil, err
	}
	handle, err := p.Open(n)
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
