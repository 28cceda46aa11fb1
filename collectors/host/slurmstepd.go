package host

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Limits on the search for jobs and for their processes.
const (
	mostJobs   = 1024
	mostGroups = 256 // cgroups of one job
	mostTries  = 64  // processes of one job
)

// A slurmJob is the cgroup of a Slurm job.
type slurmJob struct {
	dir  string // below the root of the cgroups
	name string // its number or its SLUID
}

// slurmJobs returns the cgroups of the Slurm jobs below root, /sys/fs/cgroup. In
// v1 a job may have several. CgroupSlice= chooses the slice in v2.
func slurmJobs(root string) []slurmJob {
	var all []slurmJob
	for _, pattern := range []string{
		"*.slice/*slurmstepd.scope/*", "*.slice/*.slice/*slurmstepd.scope/*",
		"*.slice/*.slice/*.slice/*slurmstepd.scope/*", "devices/slurm*/uid_*/*",
		"freezer/slurm*/uid_*/*", "cpuset/slurm*/uid_*/*",
	} {
		found, _ := filepath.Glob(filepath.Join(root, pattern)) // the pattern is valid
		for _, dir := range found {
			path, err := filepath.Rel(root, dir)
			if w := ParseCgroup("0::/"+path, 0); err == nil && w.Job != "" && len(all) < 4*mostJobs {
				all = append(all, slurmJob{dir, w.Job})
			}
		}
	}
	return all
}

// processes calls f with the processes of a cgroup, from the outermost one
// inwards, until f returns false.
func processes(dir string, f func(pid int) bool) {
	groups, tries := 0, 0
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return nil // the cgroup has just gone
		}
		if groups++; groups > mostGroups {
			return fs.SkipAll
		}
		content, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		for field := range strings.FieldsSeq(string(content)) {
			pid, err := strconv.Atoi(field)
			if tries++; tries > mostTries || err == nil && !f(pid) {
				return fs.SkipAll
			}
		}
		return nil
	})
}

// stepds are the daemons of Slurm's steps, slurmstepd. Each has the number of
// its job in its title.
type stepds struct {
	root string // of the cgroups
	proc Proc
}

// Source returns "slurmstepd".
func (stepds) Source() string { return "slurmstepd" }

// Containers returns the numbers of the jobs whose cgroups have their SLUID as
// their name.
func (s stepds) Containers(ctx context.Context) (map[string]ContainerName, error) {
	var failed error
	names := map[string]ContainerName{}
	for _, job := range slurmJobs(s.root) {
		if isJob(job.name) || ctx.Err() != nil {
			continue
		}
		steps, _ := filepath.Glob(filepath.Join(job.dir, "step_*/slurm"))
		for _, step := range steps[:min(len(steps), mostGroups)] {
			processes(step, func(pid int) bool {
				number, err := s.number(pid, job.name)
				if number != "" {
					names[job.name] = ContainerName{Job: number}
				} else if err != nil && !errors.Is(err, ErrGone) {
					failed = err
				}
				return number == ""
			})
			if names[job.name].Job != "" {
				break
			}
		}
	}
	if len(names) > 0 {
		failed = nil
	}
	return names, failed
}

// stepTitle is the title of a slurmstepd, such as "slurmstepd: [4711.batch]".
var stepTitle = regexp.MustCompile(`^slurmstepd: \[(\d{1,10})\.`)

// number returns the number of a job according to one of its processes, if that
// is a slurmstepd: root's, in the group that Slurm makes for it. A user can
// neither enter that group nor become root.
func (s stepds) number(pid int, sluid string) (string, error) {
	handle, err := s.proc.Open(pid)
	if err != nil {
		return "", err
	}
	defer handle.Close()
	its := func(line string) bool {
		groups := strings.Split(strings.TrimSuffix(line, "\n"), "/")
		n := len(groups)
		return n > 4 && groups[n-1] == "slurm" && strings.HasPrefix(groups[n-2], "step_") && groups[n-3] == sluid &&
			strings.HasSuffix(groups[n-4], "slurmstepd.scope")
	}
	title := ""
	for range 2 { // again after the title: it is the process's own
		facts, err := handle.Facts()
		if err != nil || facts.UID != 0 || !slices.ContainsFunc(slices.Collect(strings.Lines(facts.Cgroup)), its) {
			return "", err
		}
		if title == "" {
			if title, err = handle.Title(); err != nil {
				return "", err
			}
		}
	}
	m := stepTitle.FindStringSubmatch(title)
	if m == nil {
		return "", nil
	}
	return m[1], nil
}
