package steps

import (
	"slices"

	"gpusteward/internal/wire"
)

// stop says where a step ends that is struck now. The script's timer stands after its
// last wait, or else somewhere in the pause between two calls: its middle is never far
// off. Of a long pause only the beginning is the step's: the next one waits for its data.
// A graph that follows itself is a step of one call, and the pause is the step.
func (f *Finder) stop() {
	f.here = f.all
	pause := f.all.at - f.rest.at
	if traits[f.call].before != launching || f.repeats || pause <= 0 {
		return
	}
	f.here.clock = f.rest
	if traits[f.rested].before == launching {
		f.here.toward(&f.all.clock, float64(min(pause/2, quiet))/float64(pause))
	}
}

// end ends a step, now or soon. If its end is not at a pause, a long wait that
// follows closely is the better end, such as the wait for what a script logs. A
// launch that waits for room does not count as such a wait.
func (f *Finder) end(what flags) {
	f.close()
	r := f.followed
	f.ending, f.ends, f.what, f.longest = true, f.here, what, f.all.at-f.worked
	f.until = f.all.size + r.size/8
	if f.call == wire.EventWaited || f.longest > quiet {
		f.close()
	}
}

// linger looks for a better end.
func (f *Finder) linger() {
	if f.all.size >= f.until {
		f.close()
	} else if pause := f.all.at - f.worked; traits[f.call].before != launching && pause > quiet && pause > f.longest {
		f.ends, f.longest = f.all, pause
	}
}

// close records the step that has ended.
func (f *Finder) close() {
	if !f.ending {
		return
	}
	d := f.ends.less(&f.open)
	f.steps[f.finished%uint64(len(f.steps))] = d.step(f.ends.at, f.pattern, f.what)
	f.finished++
	f.open, f.ending = f.ends, false
	r := f.followed
	r.steps++
	r.proven = r.steps >= trusted
	if r.steps == young {
		f.turn()
	}
	if r.steps == settled {
		f.settle()
	}
}

// skip begins a step after time that belongs to none.
func (f *Finder) skip() {
	f.close()
	f.outside += max(0, f.here.at-f.open.at)
	f.open = f.here
}

// withdraw takes back the steps of the current pattern.
func (f *Finder) withdraw() {
	for i := range f.steps {
		if s := &f.steps[i]; s.Pattern == f.pattern {
			s.flags |= withdrawn
		}
	}
}

// median returns the median of the last steps of the pattern, ns.
func (f *Finder) median(n int) int64 {
	var times [32]int64
	all := times[:0]
	for s := range f.last(min(n, len(times))) {
		all = append(all, s.End-s.Begin)
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}
