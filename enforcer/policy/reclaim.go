package policy

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"gpusteward/internal/input"
)

// A Reclaim says when a workload gives its GPU memory back by itself: it is
// suspended, and comes back when it uses the GPU again.
type Reclaim struct {
	Idle time.Duration // without use of the GPU; 0: it never gives way by itself
	Keep uint64        // bytes of GPU memory up to which a workload is left alone
}

// All stands for all GPUs in Overcommit.
const All = "all"

func (r Reclaim) check() error {
	switch {
	case r.Idle != 0 && (r.Idle < time.Second || r.Idle > 30*24*time.Hour):
		return fmt.Errorf("reclaim.idle: %v is not between 1s and 720h; 0s turns it off", r.Idle)
	case r.Idle == 0 && r.Keep > 0:
		return errors.New("reclaim.keep: it has no effect without idle: add idle, such as 30m")
	}
	return nil
}

func (t Table) checkOvercommit() error {
	var wrong input.Errors
	for i, name := range t.Overcommit {
		wrong.If(name != All && !gpuName.MatchString(name), "gpus: %q is neither %s nor an index, such as 0, nor a GPU "+
			"instance of MIG, such as 0:1, nor a UUID as nvidia-smi -L gives it", name, All)
		wrong.If(slices.Contains(t.Overcommit[:i], name), "gpus: %q is listed twice: remove one", name)
	}
	wrong.If((len(t.Overcommit) > 0 || t.Turn != 0) && (t.Turn < time.Second || t.Turn > 24*time.Hour),
		"turn: %v is not between 1s and 24h", t.Turn)
	return wrong.Err()
}

// Reclaim returns when a tenant's workloads give way by themselves.
func (p *Policy) Reclaim(tenant string) Reclaim { return p.rule(tenant).Reclaim }

// Overcommitted reports whether the memory of a GPU is given to more workloads
// than fit, and for how long each of them stays there at least.
func (p *Policy) Overcommitted(gpu string) (turn time.Duration, is bool) {
	if slices.Contains(p.table.Overcommit, All) {
		return p.table.Turn, true
	}
	for _, name := range p.names(gpu) {
		if slices.Contains(p.table.Overcommit, name) {
			return p.table.Turn, true
		}
	}
	return 0, false
}
