package action

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"gpusteward/enforcer/escalation"
	"gpusteward/internal/procs"
)

func (a *Actor) freezer() freezer { return freezer{a.ProcFS, a.CgroupFS} }

// cgroupsOf opens the cgroups of the targets that exist; the caller closes them.
// The error says why they cannot be frozen.
func (a *Actor) cgroupsOf(c ProcessGroup, targets []Target, v1 bool) (cgroups []*cgroup, err error) {
	defer func() {
		if err != nil {
			closeAll(cgroups)
			cgroups = nil
		}
	}()
	spared := a.spared()
	paths := map[string][]int{} // with the targets
	for _, t := range targets {
		fd, _, out := a.open(t, spared, c.Check)
		if out.Result == escalation.Missed {
			continue
		} else if fd < 0 {
			return nil, fmt.Errorf("process %d: %s", t.PID, out.Detail)
		}
		path, err := a.freezer().groupOf(t.PID, v1)
		over := procs.Ended(fd)
		_ = unix.Close(fd)
		if over {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("find the cgroup of process %d: %w", t.PID, err)
		}
		paths[path] = append(paths[path], t.PID)
	}
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		g, err := a.freezer().freezable(path, v1)
		if err != nil && gone(err) {
			continue
		} else if err != nil {
			return cgroups, err
		}
		cgroups = append(cgroups, g)
		members, err := g.alone(spared, c.Check)
		if err != nil && gone(err) {
			cgroups = cgroups[:len(cgroups)-1]
			g.close()
			continue
		} else if err != nil {
			return cgroups, err
		}
		for _, pid := range paths[path] {
			if !members[pid] {
				return cgroups, fmt.Errorf("process %d left cgroup %s", pid, path)
			}
		}
	}
	return cgroups, nil
}

func closeAll(cgroups []*cgroup) {
	for _, g := range cgroups {
		g.close()
	}
}

// freeze pauses targets with the cgroup freezer: version 2 if possible,
// otherwise version 1.
func (a *Actor) freeze(c ProcessGroup, targets []Target) (result, detail string) {
	var why []string
	for _, v1 := range []bool{false, true} {
		cgroups, err := a.cgroupsOf(c, targets, v1)
		switch {
		case err != nil:
			why = append(why, err.Error())
			continue
		case len(cgroups) == 0:
			return escalation.Missed, "freezer: the processes or their cgroups are gone"
		}
		result, detail = a.freezeAll(c, cgroups)
		closeAll(cgroups)
		return result, "freezer: " + detail
	}
	if p := a.paused[c.Subject]; p != nil { // another process entered a cgroup that we froze
		a.unfreeze(p)
	}
	return escalation.Failed, "freezer: " + strings.Join(why, ", v1: ")
}

// freezeAll freezes open cgroups, all or none. It records each cgroup first,
// because an unrecorded one could stay frozen for ever.
func (a *Actor) freezeAll(c ProcessGroup, cgroups []*cgroup) (result, detail string) {
	p := a.record(c.Subject)
	if p == nil || len(p.Frozen)+len(cgroups) > maxFrozenGroups {
		return escalation.Failed, "too many processes are paused"
	}
	p.Undo = false
	var names []string
	missed := 0
	for _, g := range cgroups {
		ours := slices.Contains(p.Frozen, g.Frozen)
		asked, err := g.asked()
		if err == nil && asked {
			names = append(names, g.Path+" is frozen already")
		} else if err == nil {
			if !ours {
				p.Frozen = append(p.Frozen, g.Frozen)
				if err := a.keep(); err != nil {
					a.unfreeze(p)
					return escalation.Failed, fmt.Sprintf("would be forgotten in a restart: %v", err)
				}
			}
			err = g.set(true)
			names = append(names, g.Path)
		}
		if err == nil { // a process that entered after the look is frozen too
			_, err = g.alone(a.spared(), c.Check)
		}
		switch {
		case err != nil && gone(err):
			missed++
		case err != nil:
			a.unfreeze(p)
			return escalation.Failed, fmt.Sprintf("freeze %s: %v", g.Path, err)
		}
	}
	p.Frozen = slices.DeleteFunc(p.Frozen, func(f Frozen) bool {
		g, err := a.freezer().reopen(f)
		if err == nil {
			g.close()
		}
		return err != nil && gone(err)
	})
	a.release(p)
	if missed == len(cgroups) {
		return escalation.Missed, "the cgroups are gone"
	}
	return escalation.Done, strings.Join(names, ", ")
}

// unfreeze thaws everything that we froze of a subject; Continue retries what
// failed.
func (a *Actor) unfreeze(p *Paused) {
	p.Frozen = slices.DeleteFunc(p.Frozen, func(f Frozen) bool {
		err := a.freezer().thaw(f)
		p.Undo = p.Undo || err != nil
		return err == nil
	})
	a.release(p)
}

// frozenWith returns the processes of a group, and the others in the cgroups
// that we froze for it, if those belong to the workload alone.
func (a *Actor) frozenWith(c ProcessGroup, spared map[int]string) []Target {
	all := slices.Concat(c.Hooked, c.Unhooked)
	p := a.paused[c.Subject]
	if p == nil {
		return all
	}
	for _, f := range p.Frozen {
		g, err := a.freezer().reopen(f)
		if err != nil {
			continue // gone, with everything in it
		}
		members, err := g.alone(spared, c.Check)
		g.close()
		if err != nil {
			continue
		}
		for _, pid := range slices.Sorted(maps.Keys(members)) {
			if s, err := a.known(pid); err == nil && !slices.Contains(all, Target{pid, s.Start}) {
				all = append(all, Target{pid, s.Start})
			}
		}
	}
	return all
}
