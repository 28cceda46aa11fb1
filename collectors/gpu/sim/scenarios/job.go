package scenarios

import (
	"cmp"
	"fmt"
	"time"

	"gpusteward/internal/wire"
)

// Job is the Slurm job that trains on a GPU. GPUs with equal jobs are its
// ranks.
type Job struct {
	ID   int      `yaml:"id"`   // 4711 by default
	User string   `yaml:"user"` // carol by default
	Step Duration `yaml:"step"` // mean time of its steps, 1.2s by default
}

// expand fills the defaults of j.
func (j *Job) expand() {
	*j = Job{cmp.Or(j.ID, 4711), cmp.Or(j.User, "carol"), cmp.Or(j.Step, Duration(1200*time.Millisecond))}
}

// SharesJob reports whether g and other train for the same job.
func (g *GPU) SharesJob(other *GPU) bool {
	return g.Load == "training" && other.Load == g.Load && other.Job == g.Job
}

// Part is the part of a step that a fault of a job takes.
func (f *Fault) Part() float64 { return float64(f.Count) / 100 }

// checkJob checks the keys of a job's trouble.
func (f *Fault) checkJob(all []GPU) error {
	causes, ok := map[string]map[string]string{"job_slow": wire.SlowCauses, "job_straggler": wire.StragglerCauses,
		"job_hang": wire.HangReasons}[f.Kind]
	ranks := 0
	for i := range all {
		if all[f.GPU].SharesJob(&all[i]) {
			ranks++
		}
	}
	switch {
	case !ok:
	case ranks == 0 || ranks == 1 && f.Kind != "job_slow":
		return fmt.Errorf("gpu: %d: it has %d ranks of a job: want 1 of job_slow, and 2 of the others", f.GPU, ranks)
	case causes[f.Value] == "":
		return fmt.Errorf("value: %q: want one of %s", f.Value, names(causes))
	case f.Kind == "job_straggler" && f.Count > 50 || f.Count > 300:
		return fmt.Errorf("count: %d %%: want at most 50 of job_straggler, and 300 of job_slow", f.Count)
	}
	return nil
}
