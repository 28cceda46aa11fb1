package steps

import (
	"slices"

	"gpusteward/internal/wire"
)

// end ends a step, now or soon: if its end is not at a pause, a long wait that
// follows closely is the better end, such as that for what a script logs. A launch
// that waits for room is none.
func (f *Finder) end(what flags) {
	f.close()
	r := f.followed
	f.ending, f.ends, f.what, f.longest = true, f.all, what, f.all.at-f.worked
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

// skip begins a step after what was none.
func (f *Finder) skip() {
	f.close()
	f.outside += max(0, f.all.at-f.open.at)
	f.open = f.all
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
