package host

import (
	"context"
	"errors"
	"io/fs"
)

// recorded adopts the number and the owner of the workload's Slurm job from its
// record, a small file in memory that can be read at once.
func (t *Table) recorded(r *record) {
	if r.Kind != KindSlurm || t.Jobs == "" {
		return
	}
	job, err := readRecord(t.Jobs, r.Job)
	switch {
	case err == nil:
		r.number(job.job)
		r.User, r.Account, r.Partition, r.Recorded = job.user, job.account, job.partition, true
		r.described = true
	case !errors.Is(err, fs.ErrNotExist):
		t.failures.add("slurm", err)
	}
}

// number gives the workload the number of its job. A key that was shown stays.
func (r *record) number(job string) {
	r.Job = job
	if r.settled == nil {
		r.Key = stepKey(job, r.Step)
	}
}

// unnamed reports whether a Slurm job is only known by its SLUID.
func (r *record) unnamed() bool { return r.Kind == KindSlurm && r.SLUID != "" && r.Job == r.SLUID }

// describe finds the owners of Slurm jobs without a record from the
// environments of their processes, one at a time, because a process that holds
// the lock of its memory blocks its reader.
func (t *Table) describe(ctx context.Context) error {
	for ctx.Err() == nil {
		p, r := t.undescribed()
		if r == nil {
			break
		}
		environ, err := environOf(t.Proc, p, "SLURM_JOB_USER", "SLURM_JOB_ACCOUNT", "SLURM_JOB_PARTITION")
		if errors.Is(err, ErrGone) {
			continue
		}
		if err != nil {
			return err
		}
		t.mu.Lock()
		if len(environ) > 0 && !r.described { // its record may have come first
			r.described = true
			r.User, r.Account, r.Partition = field(environ["SLURM_JOB_USER"]), field(environ["SLURM_JOB_ACCOUNT"]),
				field(environ["SLURM_JOB_PARTITION"])
			if r.settled != nil {
				r.settle()
			}
		}
		t.mu.Unlock()
	}
	return nil
}

// undescribed returns a process, not asked before, of a job without a known
// owner; a nil record if there is none.
func (t *Table) undescribed() (Process, *record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.entries {
		if r := e.record; r.Kind == KindSlurm && !r.described && !e.environ {
			e.environ = true
			return e.Process, r
		}
	}
	return Process{}, nil
}

// environOf reads variables of a process through a handle of its own, because
// it may block.
func environOf(proc Proc, p Process, names ...string) (map[string]string, error) {
	handle, err := proc.Open(p.PID)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	facts, err := handle.Facts()
	if err != nil {
		return nil, err
	}
	if facts.Start != p.Start {
		return nil, ErrGone
	}
	return handle.Environ(names...)
}
